//! Requests that a shaping limit delays.

use super::fixture::{manual_limiter, reply, request};
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::Instant;
use tollgate_limiter::core::Cost;
use tollgate_limiter::limits::{LeakyBucket, TokenBucket};
use tollgate_tower::{LimitSet, RateLimitLayer};

#[tokio::test(start_paused = true)]
async fn requests_are_held_for_their_turn_and_denied_beyond_the_depth() {
    let (limiter, _) = manual_limiter();
    let limits = LimitSet::new(limiter)
        .shared("shaped", LeakyBucket::per_second(50).depth(5).shaping())
        .expect("valid");
    let layer = RateLimitLayer::new(limits);
    let started = Instant::now();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let layer = layer.clone();
            tokio::spawn(async move { (reply(&layer, request(&[])).await.status, Instant::now()) })
        })
        .collect();
    let mut served_at = Vec::new();
    for task in tasks {
        let (status, at) = task.await.expect("no panic");
        if status == 200 {
            served_at.push(at.duration_since(started).as_millis());
        } else {
            assert_eq!(status, 429);
        }
    }
    served_at.sort_unstable();
    // Timers of tokio have milliseconds, and are never early.
    let expected = [0, 20, 40, 60, 80];
    assert_eq!(served_at.len(), expected.len());
    for (found, expected) in served_at.iter().zip(expected) {
        assert!((expected..=expected + 2).contains(found), "{served_at:?}");
    }
    assert_eq!(layer.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_while_it_is_held_keeps_its_position_and_nothing_else() {
    let (limiter, _) = manual_limiter();
    let rate = limiter.limit("rate", TokenBucket::per_minute(10)).expect("valid");
    let shaped = LeakyBucket::per_second(1).depth(10).shaping();
    let queue = limiter.limit("shaped", shaped).expect("valid");
    let limits = LimitSet::new(limiter.clone())
        .shared("rate", TokenBucket::per_minute(10))
        .expect("valid")
        .shared("shaped", shaped)
        .expect("valid");
    let layer = RateLimitLayer::new(limits);
    let remaining = |limit| limiter.check_cost(limit, "", Cost::ZERO).standing().remaining;
    assert_eq!(reply(&layer, request(&[])).await.status, 200);
    let held = tokio::spawn({
        let layer = layer.clone();
        async move { reply(&layer, request(&[])).await.status }
    });
    yield_now().await;
    assert_eq!((layer.held(), remaining(&rate), remaining(&queue)), (1, 8, 8));
    held.abort();
    assert!(held.await.expect_err("it is aborted").is_cancelled());
    assert_eq!((layer.held(), remaining(&rate), remaining(&queue)), (0, 9, 8));
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_holds_enough_denies_before_anything_is_charged() {
    let (limiter, _) = manual_limiter();
    let shaped = LeakyBucket::per_second(1).depth(10).shaping();
    let queue = limiter.limit("shaped", shaped).expect("valid");
    let limits = LimitSet::new(limiter.clone()).shared("shaped", shaped).expect("valid");
    let layer = RateLimitLayer::new(limits).max_held(1);
    assert_eq!(reply(&layer, request(&[])).await.status, 200);
    let held = tokio::spawn({
        let layer = layer.clone();
        async move { reply(&layer, request(&[])).await.status }
    });
    yield_now().await;
    let remaining = || limiter.check_cost(&queue, "", Cost::ZERO).standing().remaining;
    let before = remaining();
    let denied = reply(&layer, request(&[])).await;
    assert_eq!(denied.status, 503);
    assert_eq!(remaining(), before);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(held.await.expect("no panic"), 200);
    assert_eq!(layer.held(), 0);
}
