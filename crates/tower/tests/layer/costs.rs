//! Costs that are known afterwards: the level is as if the actual cost had been charged.

use super::fixture::{manual_limiter, request};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::sync::Arc;
use tollgate_core::testing::random::Random;
use tollgate_core::testing::rules::rule_set;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::rules::{Attempt, Attribute};
use tollgate_limiter::core::{Cost, Micros, Timestamp};
use tollgate_limiter::limits::{FixedWindow, IntoAnyLimit, SlidingCounter, TokenBucket};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{Limiter, RuleLimiter};
use tollgate_tower::extract::header;
use tollgate_tower::{ActualCost, AdmissionControl, LimitSet, RateLimitLayer, RuleLimits};
use tower::{Layer, ServiceExt, service_fn};

const RULES: &str = "rules:\n\
    - { id: requests, per: user, limit: 1000000/day }\n\
    - { id: tokens, per: user, limit: 100000/min burst 50000, cost: { attribute: tokens, default: 1 } }\n\
    - { id: window, algorithm: fixed_window, limit: 200000/min, cost: { attribute: tokens, default: 1 } }\n";

/// Serves a request whose handler sets this cost. Returns the status.
async fn serve<D: AdmissionControl>(layer: &RateLimitLayer<D>, request: Request<()>, actual: Option<u64>) -> u16 {
    let service = service_fn(move |request: Request<()>| async move {
        if let (Some(cost), Some(actual)) = (request.extensions().get::<ActualCost>(), actual) {
            // As a streamed response counts.
            cost.add(actual / 2);
            cost.add(actual - actual / 2);
        }
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
    });
    let Ok(response) = layer.layer(service).oneshot(request).await;
    let status = response.status().as_u16();
    response.into_body().collect().await.expect("a body");
    status
}

/// What remains of each rule for a user.
fn remaining(limiter: &RuleLimiter) -> Vec<u64> {
    let attributes = [Attribute {
        name: "user",
        value: b"u_1",
    }];
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &attributes,
        cost: Cost::ZERO,
    };
    let result = limiter.check_now(&attempt);
    let standing = |decision: tollgate_limiter::core::Decision| decision.standing().remaining;
    result
        .verdict
        .rulings
        .iter()
        .map(|ruling| ruling.decision.map_or(0, standing))
        .collect()
}

/// Charges the actual cost from the start.
fn charge(limiter: &RuleLimiter, tokens: u64) {
    let tokens = tokens.to_string();
    let attribute = |name, value| Attribute { name, value };
    let attributes = [attribute("user", &b"u_1"[..]), attribute("tokens", tokens.as_bytes())];
    limiter.check_now(&Attempt {
        domain: Attempt::DOMAIN,
        attributes: &attributes,
        cost: Cost::ONE,
    });
}

#[tokio::test]
async fn ten_thousand_corrections_leave_the_level_of_the_actual_costs() {
    let clock = Clock::manual(Timestamp::from_micros(1_794_782_040_000_000));
    let limiter = || {
        let store = Memory::options().clock(clock.clone()).build();
        RuleLimiter::new(rule_set(RULES), Arc::new(store))
    };
    let store = Arc::new(Memory::options().clock(clock.clone()).build());
    let ours = RuleLimiter::new(rule_set(RULES), Arc::clone(&store));
    let layer = RateLimitLayer::new(
        RuleLimits::new(RuleLimiter::new(rule_set(RULES), store))
            .attribute("user", header("x-user"))
            .cost("tokens", header("x-tokens")),
    );
    let reference = limiter();
    let mut random = Random::new(7);
    let (mut refunds, mut charges) = (0_u64, 0_u64);
    for step in 0..10_000 {
        // What is used is there: overruns have a test of their own.
        let least = remaining(&ours).into_iter().skip(1).min().unwrap_or(0);
        let (predicted, actual) = (random.below(3_000), random.below(2_500).min(least));
        let request = request(&[("x-user", "u_1"), ("x-tokens", &predicted.to_string())]);
        if serve(&layer, request, Some(actual)).await == 200 {
            charge(&reference, actual);
            // A prediction is at least one.
            let predicted = predicted.max(1);
            refunds += predicted.saturating_sub(actual);
            charges += actual.saturating_sub(predicted);
        } else {
            // Both have room again.
            clock.advance(Micros::from_secs(61));
        }
        assert_eq!(
            remaining(&ours),
            remaining(&reference),
            "step {step}: {predicted} predicted, {actual} used"
        );
        clock.advance(Micros::from_millis(random.below(2_000)));
    }
    assert!(refunds > 0 && charges > 0);
    // Each of two rules was corrected.
    assert_eq!(layer.cost_totals().refunded(), 2 * refunds);
    assert_eq!(
        layer.cost_totals().charged() + layer.cost_totals().overrun(),
        2 * charges
    );
}

#[tokio::test]
async fn a_higher_cost_takes_what_remains_and_the_rest_is_an_overrun() {
    let (limiter, _) = manual_limiter();
    let tokens = limiter.limit("tokens", TokenBucket::per_minute(100)).expect("valid");
    let layer = RateLimitLayer::new(token_limits(limiter.clone()));
    let remaining = || limiter.check_cost(&tokens, "k_1", Cost::ZERO).standing().remaining;
    let call = || request(&[("x-api-key", "k_1")]);
    assert_eq!(serve(&layer, call(), Some(250)).await, 200);
    assert_eq!(remaining(), 0);
    assert_eq!(
        (layer.cost_totals().charged(), layer.cost_totals().overrun()),
        (60, 150)
    );
    assert_eq!(serve(&layer, call(), Some(1)).await, 429);
}

#[tokio::test]
async fn a_cost_that_nobody_sets_stays_and_a_response_can_tell_it() {
    let (limiter, _) = manual_limiter();
    let tokens = limiter.limit("tokens", TokenBucket::per_minute(100)).expect("valid");
    let remaining = || limiter.check_cost(&tokens, "k_1", Cost::ZERO).standing().remaining;
    let layer = RateLimitLayer::new(token_limits(limiter.clone()));
    let call = || request(&[("x-api-key", "k_1")]);
    assert_eq!(serve(&layer, call(), None).await, 200);
    assert_eq!(remaining(), 60);
    let layer = layer.actual_cost(|head| Some(u64::from(head.status.as_u16() == 200) * 5));
    assert_eq!(serve(&layer, call(), None).await, 200);
    assert_eq!(remaining(), 55);
}

/// Forty tokens are predicted for each request, of a hundred.
fn token_limits(limiter: Limiter) -> LimitSet {
    LimitSet::new(limiter)
        .per("tokens", TokenBucket::per_minute(100), header("x-api-key"))
        .expect("valid")
        .cost(|_| 40)
        .shared("requests", TokenBucket::per_minute(1_000))
        .expect("valid")
}

/// Charges 40 of 100, lets the time pass, charges 30 by another request, and ends the first with an actual cost of 10.
/// Returns what remains at the end, and the same where the first was charged ten from the start.
async fn remaining_after_a_late_end(limit: impl IntoAnyLimit + Clone, later: Micros) -> (u64, u64) {
    let run = async |predicted: u64, actual: u64| {
        let (limiter, clock) = manual_limiter();
        let limits = LimitSet::new(limiter.clone())
            .per("tokens", limit.clone(), header("x-api-key"))
            .expect("valid")
            .cost(|head| {
                let cost = head.headers.get("x-cost").and_then(|cost| cost.to_str().ok());
                cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
            });
        let layer = RateLimitLayer::new(limits);
        let other = layer.clone();
        let handler_clock = clock.clone();
        let service = service_fn(move |request: Request<()>| {
            let (other, clock) = (other.clone(), handler_clock.clone());
            async move {
                clock.advance(later);
                let second = super::fixture::request(&[("x-api-key", "k_1"), ("x-cost", "30")]);
                assert_eq!(serve(&other, second, None).await, 200);
                if let Some(cost) = request.extensions().get::<ActualCost>() {
                    cost.add(actual);
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            }
        });
        let first = request(&[("x-api-key", "k_1"), ("x-cost", &predicted.to_string())]);
        let Ok(response) = layer.layer(service).oneshot(first).await;
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.expect("a body");
        let probe = request(&[("x-api-key", "k_1"), ("x-cost", "1")]);
        let service = service_fn(|_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
        });
        let Ok(response) = layer.layer(service).oneshot(probe).await;
        let remaining = response.headers().get("x-ratelimit-remaining").expect("a header");
        remaining.to_str().expect("text").parse::<u64>().expect("a number")
    };
    (run(40, 10).await, run(10, 10).await)
}

#[tokio::test]
async fn what_is_left_of_a_past_window_is_not_returned_to_the_next() {
    for seconds in [0, 1, 59, 60, 61, 90, 119, 121, 150, 600] {
        let later = Micros::from_secs(seconds);
        let (corrected, ideal) = remaining_after_a_late_end(FixedWindow::per_minute(100), later).await;
        assert_eq!(corrected, ideal, "fixed window, {seconds} s");
        let (corrected, ideal) = remaining_after_a_late_end(SlidingCounter::per_minute(100), later).await;
        assert_eq!(corrected, ideal, "sliding counter, {seconds} s");
        // What has refilled meanwhile is not returned a second time.
        let (corrected, ideal) = remaining_after_a_late_end(TokenBucket::per_minute(100), later).await;
        assert!(corrected <= ideal, "bucket, {seconds} s: {corrected} of {ideal}");
    }
}

#[tokio::test]
async fn a_predicted_cost_of_zero_passes_no_limit_that_is_used_up() {
    let (limiter, _) = manual_limiter();
    let limits = LimitSet::new(limiter)
        .per("tokens", TokenBucket::per_minute(2), header("x-api-key"))
        .expect("valid")
        .cost(|_| 0);
    let layer = RateLimitLayer::new(limits);
    let call = || request(&[("x-api-key", "k_1")]);
    let statuses = [
        serve(&layer, call(), None).await,
        serve(&layer, call(), None).await,
        serve(&layer, call(), None).await,
    ];
    assert_eq!(statuses, [200, 200, 429]);

    let rules = "rules:\n  - { id: tokens, per: user, limit: 2/min, cost: { attribute: tokens, default: 1 } }\n";
    let layer = RateLimitLayer::new(
        RuleLimits::new(RuleLimiter::new(rule_set(rules), Arc::new(Memory::default())))
            .attribute("user", header("x-user"))
            .cost("tokens", header("x-tokens")),
    );
    for (zero, status) in [("0", 200), ("00", 200), ("0", 429)] {
        let request = request(&[("x-user", "u_1"), ("x-tokens", zero)]);
        assert_eq!(serve(&layer, request, None).await, status, "{zero}");
    }
}

#[tokio::test]
async fn an_actual_cost_may_be_zero() {
    let (limiter, _) = manual_limiter();
    let tokens = limiter.limit("tokens", TokenBucket::per_minute(100)).expect("valid");
    let layer = RateLimitLayer::new(token_limits(limiter.clone()));
    assert_eq!(serve(&layer, request(&[("x-api-key", "k_1")]), Some(0)).await, 200);
    let remaining = limiter.check_cost(&tokens, "k_1", Cost::ZERO).standing().remaining;
    assert_eq!(remaining, 100);
}
