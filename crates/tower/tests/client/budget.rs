//! Retries: which requests are sent again, and how many in all.

use crate::upstream::{Upstream, hyper_client};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use std::sync::Arc;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::Gcra;
use tollgate_tower::client::{PacerLayer, PacingError};
use tower_layer::Layer;
use tower_service::Service;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_to_a_failing_service_are_at_most_1_11_times_as_many_attempts() {
    let upstream = Arc::new(Upstream::answering(StatusCode::BAD_GATEWAY).await);
    let client = PacerLayer::new(Limiter::in_memory()).layer(hyper_client());
    let mut running = Vec::new();
    for _ in 0..64 {
        let (upstream, mut client) = (Arc::clone(&upstream), client.clone());
        running.push(tokio::spawn(async move {
            for _ in 0..10_000 / 64 {
                let status = client.call(upstream.get()).await.unwrap().status();
                assert_eq!(status, StatusCode::BAD_GATEWAY);
            }
        }));
    }
    for task in running {
        task.await.unwrap();
    }
    let requests = 10_000 / 64 * 64;
    let attempts = upstream.denied();
    assert!(attempts <= requests + 100 + requests / 10, "{attempts}");
    // And the budget is used.
    assert!(attempts >= requests + requests / 10, "{attempts}");
}

#[tokio::test]
async fn only_requests_that_may_be_executed_twice_are_sent_again_after_a_failure() {
    let cases = [
        (Method::GET, false, StatusCode::BAD_GATEWAY, 3),
        (Method::DELETE, false, StatusCode::SERVICE_UNAVAILABLE, 3),
        (Method::POST, false, StatusCode::GATEWAY_TIMEOUT, 1),
        (Method::POST, true, StatusCode::GATEWAY_TIMEOUT, 3),
        (Method::POST, false, StatusCode::TOO_MANY_REQUESTS, 3),
        (Method::GET, false, StatusCode::INTERNAL_SERVER_ERROR, 1),
    ];
    for (method, has_key, status, attempts) in cases {
        let upstream = Upstream::answering(status).await;
        let mut client = PacerLayer::new(Limiter::in_memory()).layer(hyper_client());
        let mut request = Request::builder().method(&method).uri(upstream.uri());
        if has_key {
            request = request.header("idempotency-key", "k");
        }
        let request = request.body(Full::from(Bytes::from_static(b"body"))).unwrap();
        assert_eq!(client.call(request).await.unwrap().status(), status);
        assert_eq!(upstream.denied(), attempts, "{method} {status} {has_key}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_copied_is_sent_once() {
    let upstream = Upstream::answering(StatusCode::BAD_GATEWAY).await;
    let layer = PacerLayer::new(Limiter::in_memory());
    let mut client = layer.repeat_empty().layer(hyper_client());
    let with_body = Request::put(upstream.uri())
        .body(Full::from(Bytes::from_static(b"body")))
        .unwrap();
    client.call(with_body).await.unwrap();
    assert_eq!(upstream.denied(), 1);
    client.call(upstream.get()).await.unwrap();
    assert_eq!(upstream.denied(), 4);
    let mut client = PacerLayer::new(Limiter::in_memory())
        .never_repeat()
        .layer(hyper_client());
    client.call(upstream.get()).await.unwrap();
    assert_eq!(upstream.denied(), 5);
}

#[tokio::test]
async fn a_connection_that_is_refused_is_tried_three_times_and_its_error_is_the_result() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let mut client = PacerLayer::new(Limiter::in_memory()).layer(hyper_client());
    let request = Request::get(uri).body(Full::<Bytes>::default()).unwrap();
    let error = client.call(request).await.unwrap_err();
    assert!(std::error::Error::source(&error).is_some(), "{error}");
}

#[tokio::test]
async fn an_answer_is_the_result_if_its_retry_would_wait_for_too_long() {
    let upstream = Upstream::answering(StatusCode::BAD_GATEWAY).await;
    let layer = PacerLayer::new(Limiter::in_memory()).limit(Gcra::per_hour(1).burst(1));
    let mut client = layer.unwrap().layer(hyper_client());
    let response = client.call(upstream.get()).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    // The body is the one that came, to its end.
    assert!(response.into_body().collect().await.is_ok());
    assert_eq!(upstream.denied(), 1);
    // One that was never sent has no answer.
    let error = client.call(upstream.get()).await.unwrap_err();
    assert!(matches!(error, PacingError::TooLong { .. }), "{error}");
    assert_eq!(upstream.denied(), 1);
}
