//! Limits that are learned from responses.

use crate::upstream::{Upstream, hyper_client};
use std::sync::Arc;
use tollgate_limiter::Limiter;
use tollgate_tower::client::{PacerLayer, ThrottleStatus};
use tower_layer::Layer;
use tower_service::Service;

#[tokio::test]
async fn once_a_limit_is_learned_hardly_any_request_is_denied() {
    let upstream = Arc::new(Upstream::limited(200, 200).await);
    let client = PacerLayer::new(Limiter::in_memory()).learn().layer(hyper_client());
    let run = async |passes: u64| {
        let mut running = Vec::new();
        for _ in 0..64 {
            let (upstream, mut client) = (Arc::clone(&upstream), client.clone());
            running.push(tokio::spawn(async move {
                while upstream.passed() < passes {
                    client.call(upstream.get()).await.unwrap();
                }
            }));
        }
        for task in running {
            task.await.unwrap();
        }
    };
    run(100).await;
    let (passed, denied) = (upstream.passed(), upstream.denied());
    run(passed + 600).await;
    let denied = upstream.denied() - denied;
    assert!(denied * 100 <= upstream.passed() - passed, "{denied} denied");
}

#[tokio::test]
async fn a_first_denial_is_learned_from_and_the_request_succeeds_later() {
    let upstream = Upstream::limited(1, 1).await;
    let client = PacerLayer::new(Limiter::in_memory()).learn().layer(hyper_client());
    let call = || {
        let mut client = client.clone();
        let request = upstream.get();
        async move { client.call(request).await.unwrap().status() }
    };
    let (one, other) = tokio::join!(call(), call());
    assert!(one.is_success() && other.is_success(), "{one} and {other}");
    assert_eq!(upstream.passed(), 2);
    assert!(upstream.denied() <= 1);
}

#[tokio::test]
async fn a_throttle_status_is_a_limit_too() {
    let upstream = Upstream::limited(1_000, 1_000).await;
    let mut client = PacerLayer::new(Limiter::in_memory()).learn().layer(hyper_client());
    let status = ThrottleStatus {
        maximum_available: 1_000,
        currently_available: 3,
        restore_rate: 1,
        query_cost: 100,
    };
    client.pacing().learn(&upstream.address.to_string(), status);
    // 100 points at one a second.
    assert!(client.call(upstream.get()).await.is_err());
    assert_eq!(upstream.passed(), 0);
}
