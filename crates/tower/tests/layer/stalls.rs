//! Bodies that nobody reads: the lease is renewed all the same.

use super::fixture::{manual_limiter, reply, request, response};
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::task::yield_now;
use tollgate_limiter::core::Micros;
use tollgate_limiter::limits::Concurrency;
use tollgate_tower::{LimitSet, RateLimitLayer};

const TTL: Duration = Duration::from_secs(6);

/// Lets this much time pass, for tokio and for the store, in small steps.
async fn pass(clock: &tollgate_limiter::clock::Clock, time: Duration) {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        clock.advance(Micros::from(STEP));
        tokio::time::advance(STEP).await;
        // The renewer's turn.
        for _ in 0..4 {
            yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_stalled_for_three_terms_keeps_its_slot() {
    let (limiter, clock) = manual_limiter();
    let slots = Concurrency::at_most(1).lease_ttl(TTL);
    let limits = LimitSet::new(limiter).shared("slots", slots).expect("valid");
    let layer = RateLimitLayer::new(limits);
    let stalled = response(&layer, request(&[])).await;
    assert_eq!(stalled.status(), 200);
    pass(&clock, 3 * TTL).await;
    assert_eq!(reply(&layer, request(&[])).await.status, 429);
    // Read to the end it is released, and the response dropped afterwards releases nothing more.
    let body = stalled.into_body().collect().await.expect("a body");
    assert_eq!(reply(&layer, request(&[])).await.status, 200);
    drop(body);
}

#[tokio::test(start_paused = true)]
async fn without_renewal_a_lease_ends_with_its_term() {
    let (limiter, clock) = manual_limiter();
    let slots = Concurrency::at_most(1).lease_ttl(TTL);
    let limits = LimitSet::new(limiter).shared("slots", slots).expect("valid");
    let layer = RateLimitLayer::new(limits.without_renewal());
    let stalled = response(&layer, request(&[])).await;
    pass(&clock, TTL + Duration::from_millis(100)).await;
    assert_eq!(reply(&layer, request(&[])).await.status, 200);
    drop(stalled);
}
