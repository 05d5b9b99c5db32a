//! A configured limit: in one process, and over Redis. `tollgate-bench pacer` measures how much of it is used.

use crate::upstream::{HyperClient, Upstream, hyper_client};
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::Gcra;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_tower::client::{PacedService, PacerLayer, PacingError, RepeatCloned};
use tower_layer::Layer;
use tower_service::Service;

type Paced<S> = PacedService<HyperClient, S, RepeatCloned>;

/// Tasks that send until the server has allowed this many requests.
async fn load<S: Store + 'static>(upstream: &Arc<Upstream>, client: &Paced<S>, tasks: usize, passes: u64) {
    let mut running = Vec::new();
    for _ in 0..tasks {
        let (upstream, mut client) = (Arc::clone(upstream), client.clone());
        running.push(tokio::spawn(async move {
            while upstream.passed() < passes {
                let response = client.call(upstream.get()).await.unwrap();
                assert_eq!(response.status(), StatusCode::OK);
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn sixty_four_tasks_keep_to_a_limit_and_none_is_denied() {
    let upstream = Arc::new(Upstream::limited(50, 10).await);
    let layer = PacerLayer::new(Limiter::in_memory()).limit(Gcra::per_second(50).burst(10));
    let client = layer.unwrap().layer(hyper_client());
    load(&upstream, &client, 64, 120).await;
    assert_eq!(upstream.denied(), 0);
}

#[tokio::test]
async fn four_limiters_on_one_redis_keep_to_one_limit_and_none_is_denied() {
    let redis = Server::start(ServerKind::Redis70);
    let upstream = Arc::new(Upstream::limited(50, 10).await);
    let mut loads = Vec::new();
    for _ in 0..4 {
        // Without a fallback: a client whose store does not answer waits, and sends nothing uncounted.
        let limiter = Limiter::new(Redis::options(&redis.url()).unwrap().open());
        let layer = PacerLayer::new(limiter).limit(Gcra::per_second(50).burst(10)).unwrap();
        let client = layer.layer(hyper_client());
        let upstream = Arc::clone(&upstream);
        loads.push(tokio::spawn(async move { load(&upstream, &client, 16, 120).await }));
    }
    for task in loads {
        task.await.unwrap();
    }
    assert_eq!(upstream.denied(), 0);
}

#[tokio::test]
async fn a_wait_above_max_wait_is_an_error_at_once_and_nothing_is_sent() {
    let upstream = Upstream::limited(1, 1).await;
    let layer = PacerLayer::new(Limiter::in_memory())
        .limit(Gcra::per_hour(1).burst(1))
        .unwrap();
    let mut client = layer.max_wait(Duration::from_secs(5)).layer(hyper_client());
    assert_eq!(client.call(upstream.get()).await.unwrap().status(), StatusCode::OK);
    let error = client.call(upstream.get()).await.unwrap_err();
    assert!(
        matches!(error, PacingError::TooLong { wait } if wait > Duration::from_secs(5)),
        "{error}"
    );
    assert_eq!((upstream.passed(), upstream.denied()), (1, 0));
}

#[tokio::test]
async fn hosts_have_limits_of_their_own() {
    let (one, other) = (Upstream::limited(1, 1).await, Upstream::limited(1, 1).await);
    let layer = PacerLayer::new(Limiter::in_memory())
        .limit(Gcra::per_hour(1).burst(1))
        .unwrap();
    let mut client = layer.layer(hyper_client());
    for upstream in [&one, &other] {
        assert_eq!(client.call(upstream.get()).await.unwrap().status(), StatusCode::OK);
    }
    assert!(client.call(one.get()).await.is_err());
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_waits_frees_its_turn() {
    let upstream = Upstream::limited(10, 1).await;
    let layer = PacerLayer::new(Limiter::in_memory())
        .limit(Gcra::per_second(10).burst(1))
        .unwrap();
    let client = layer.layer(hyper_client());
    let mut first = client.clone();
    assert_eq!(first.call(upstream.get()).await.unwrap().status(), StatusCode::OK);
    for _ in 0..20 {
        let mut waiting = client.clone();
        let call = waiting.call(upstream.get());
        drop(tokio::time::timeout(Duration::from_millis(1), call).await);
    }
    let mut last = client.clone();
    assert_eq!(last.call(upstream.get()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(upstream.denied(), 0);
}
