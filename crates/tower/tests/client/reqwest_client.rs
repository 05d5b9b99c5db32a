//! The paced reqwest client.

use crate::upstream::Upstream;
use http::StatusCode;
use std::sync::Arc;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::Gcra;
use tollgate_tower::client::{PacerLayer, PacingClient, PacingError};

fn inner() -> reqwest::Client {
    PacingClient::builder().no_proxy().build().unwrap()
}

#[tokio::test]
async fn tasks_keep_to_a_limit_and_none_is_denied() {
    let upstream = Arc::new(Upstream::limited(50, 10).await);
    let pace = PacerLayer::new(Limiter::in_memory()).limit(Gcra::per_second(50).burst(10));
    let client = PacingClient::new(inner(), pace.unwrap().pacing());
    let mut running = Vec::new();
    for _ in 0..32 {
        let (upstream, client) = (Arc::clone(&upstream), client.clone());
        running.push(tokio::spawn(async move {
            for _ in 0..2 {
                let request = client.inner().get(upstream.uri().to_string()).build().unwrap();
                assert_eq!(client.execute(request).await.unwrap().status(), StatusCode::OK);
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
    assert_eq!((upstream.passed(), upstream.denied()), (64, 0));
}

#[tokio::test]
async fn a_failure_is_retried_within_the_budget() {
    let upstream = Upstream::answering(StatusCode::BAD_GATEWAY).await;
    let pace = PacerLayer::new(Limiter::in_memory());
    let client = PacingClient::new(inner(), pace.pacing());
    let send = |method| {
        client
            .inner()
            .request(method, upstream.uri().to_string())
            .build()
            .unwrap()
    };
    client.execute(send(reqwest::Method::GET)).await.unwrap();
    assert_eq!(upstream.denied(), 3);
    client.execute(send(reqwest::Method::POST)).await.unwrap();
    assert_eq!(upstream.denied(), 4);
}

#[tokio::test]
async fn an_answer_is_the_result_if_its_retry_would_wait_for_too_long() {
    let upstream = Upstream::answering(StatusCode::BAD_GATEWAY).await;
    let pace = PacerLayer::new(Limiter::in_memory()).limit(Gcra::per_hour(1).burst(1));
    let client = PacingClient::new(inner(), pace.unwrap().pacing());
    let get = || client.inner().get(upstream.uri().to_string()).build().unwrap();
    let response = client.execute(get()).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert!(response.bytes().await.is_ok());
    let error = client.execute(get()).await.unwrap_err();
    assert!(matches!(error, PacingError::TooLong { .. }), "{error}");
    assert_eq!(upstream.denied(), 1);
}
