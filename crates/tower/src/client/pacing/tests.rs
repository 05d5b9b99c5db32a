//! The longest wait of a request, in all.

use super::*;
use crate::client::PacerLayer;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::Gcra;

const HOST: &str = "h:1";

/// A limit of this many requests a minute, one at a time. One was just sent.
async fn used_up(per_minute: u64, wait_max: Micros) -> Pacing<Memory> {
    let limit = Gcra::per_minute(per_minute).burst(1);
    let layer = PacerLayer::new(Limiter::in_memory()).limit(limit).expect("in range");
    let pacing = layer.max_wait(wait_max.into()).pacing();
    let sent = pacing.clear(HOST).await.expect("the first is sent at once");
    sent.end(&Exchange {
        attempt: 1,
        repeatability: Repeatability::Never,
        response: Some((StatusCode::OK, &HeaderMap::new())),
    });
    pacing
}

#[tokio::test]
async fn a_closed_key_does_not_double_the_wait_of_a_request_that_waits() {
    let pacing = used_up(30, Micros::from_secs(3)).await;
    // It waits for two seconds. Meanwhile the key is closed for three more and a spread of almost one.
    let close = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let inner = &*pacing.inner;
        let denial = ResponseSummary {
            sent_at: inner.now(),
            attempt: 1,
            outcome: ExchangeOutcome::Throttled,
            repeatability: Repeatability::Never,
            retry_after: Some(Micros::from_secs(3)),
            policies: Vec::new(),
        };
        inner
            .pacer()
            .after(inner.now(), inner.keys.hash_one(HOST), denial, u32::MAX);
    };
    let (result, ()) = tokio::join!(pacing.clear(HOST), close);
    assert!(matches!(result, Err(wait) if wait > Duration::from_secs(4)));
}

#[tokio::test]
async fn a_request_whose_queue_is_too_long_is_refused_at_once() {
    let pacing = used_up(3, Micros::from_secs(30)).await;
    let mut first = std::pin::pin!(pacing.clear(HOST));
    // Polled, it is in the queue.
    assert!(result_now(&mut first).await.is_none());
    let mut second = std::pin::pin!(pacing.clear(HOST));
    let refused = result_now(&mut second).await;
    assert!(matches!(refused, Some(Err(wait)) if wait > Duration::from_secs(33)));
}

/// The result of a future if it has one at once.
async fn result_now<F: Future>(future: &mut std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
