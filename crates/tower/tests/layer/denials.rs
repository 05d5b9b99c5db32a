//! Denials as responses, headers of all responses, and keys that requests lack.

use super::fixture::{manual_limiter, reply, request};
use serde_json::{Value, json};
use std::sync::Arc;
use tollgate_core::testing::rules::rule_set;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::Micros;
use tollgate_limiter::limits::{Concurrency, TokenBucket};
use tollgate_limiter::store::memory::Memory;
use tollgate_tower::extract::{header, path};
use tollgate_tower::headers::{RetryAfter, RetryAfterFormat};
use tollgate_tower::protect::PriorityClass;
use tollgate_tower::{LimitSet, RateLimitLayer, RuleLimits};

/// Without jitter, so that the header can be known.
fn exact() -> RetryAfter {
    RetryAfter {
        jitter_ppm: 0,
        format: RetryAfterFormat::Seconds,
        ..RetryAfter::default()
    }
}

fn two_limits() -> RateLimitLayer<LimitSet> {
    let (limiter, _) = manual_limiter();
    let limits = LimitSet::new(limiter)
        .per("key", TokenBucket::per_minute(2), header("x-api-key"))
        .expect("valid")
        .shared("all", TokenBucket::per_minute(100))
        .expect("valid");
    RateLimitLayer::new(limits.retry_after(exact()))
}

#[tokio::test]
async fn a_denial_is_a_problem_with_the_headers_of_all_limits() {
    let layer = two_limits();
    let key = [("x-api-key", "k_1")];
    let allowed = reply(&layer, request(&key)).await;
    assert_eq!((allowed.status.as_u16(), &allowed.body[..]), (200, &b"ok"[..]));
    assert_eq!(
        allowed.header("ratelimit-policy"),
        Some(r#""key";q=2;w=60, "all";q=100;w=60"#)
    );
    assert_eq!(allowed.header("ratelimit"), Some(r#""key";r=1;t=30, "all";r=99;t=1"#));
    assert_eq!(allowed.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(reply(&layer, request(&key)).await.status, 200);
    let denied = reply(&layer, request(&key)).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("30"));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("ratelimit"), Some(r#""key";r=0;t=30, "all";r=98;t=2"#));
    let body: Value = serde_json::from_slice(&denied.body).expect("JSON");
    assert_eq!(
        body,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "Policy \"key\" allows 2 requests per 60 seconds.",
            "violated-policies": ["key"],
        })
    );
    let other = reply(&layer, request(&[("x-api-key", "k_2")])).await;
    assert_eq!(
        other.header("ratelimit"),
        Some(r#""key";r=1;t=30, "all";r=97;t=2"#),
        "a denial is not charged"
    );
}

#[tokio::test]
async fn a_grpc_call_is_denied_in_its_trailers() {
    let layer = two_limits();
    let call = [("x-api-key", "k_1"), ("content-type", "application/grpc")];
    for _ in 0..2 {
        assert_eq!(reply(&layer, request(&call)).await.header("grpc-status"), None);
    }
    let denied = reply(&layer, request(&call)).await;
    assert_eq!((denied.status.as_u16(), denied.body.len()), (200, 0));
    assert_eq!(denied.header("content-type"), Some("application/grpc"));
    assert_eq!(denied.header("grpc-status"), Some("8"));
    assert_eq!(denied.header("grpc-retry-pushback-ms"), Some("30000"));
    assert_eq!(
        denied.header("grpc-message"),
        Some("Policy \"key\" allows 2 requests per 60 seconds.")
    );
}

#[tokio::test]
async fn a_limit_whose_key_is_missing_is_skipped_and_counted() {
    let layer = two_limits();
    for _ in 0..5 {
        let allowed = reply(&layer, request(&[])).await;
        assert_eq!(allowed.status, 200);
        assert_eq!(allowed.header("ratelimit-policy"), Some(r#""all";q=100;w=60"#));
    }
    assert_eq!(layer.control().missing_keys("key"), Some(5));
    assert_eq!(layer.control().missing_keys("all"), Some(0));
    assert_eq!(layer.control().missing_keys("none"), None);
}

#[tokio::test]
async fn a_slot_in_use_denies_for_a_second() {
    let (limiter, _) = manual_limiter();
    let limits = LimitSet::new(limiter)
        .per("slots", Concurrency::at_most(1), header("x-api-key"))
        .expect("valid")
        .retry_after(exact());
    let layer = RateLimitLayer::new(limits);
    let key = [("x-api-key", "k_1")];
    let first = super::fixture::response(&layer, request(&key)).await;
    let denied = reply(&layer, request(&key)).await;
    assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (429, Some("1")));
    drop(first);
    assert_eq!(reply(&layer, request(&key)).await.status, 200);
}

#[tokio::test]
async fn callers_of_a_shared_limit_return_one_after_the_other() {
    let (limiter, _) = manual_limiter();
    let limits = LimitSet::new(limiter)
        .shared("all", TokenBucket::per_minute(6).burst(1))
        .expect("valid")
        .retry_after(exact())
        .caller(header("x-api-key"));
    let layer = RateLimitLayer::new(limits);
    assert_eq!(reply(&layer, request(&[])).await.status, 200);
    let mut waits = Vec::new();
    for caller in ["a", "b", "c", "b", "a"] {
        let denied = reply(&layer, request(&[("x-api-key", caller)])).await;
        waits.push(denied.header("retry-after").expect("a wait").to_owned());
    }
    assert_eq!(waits, ["10", "20", "30", "20", "10"]);
}

#[tokio::test]
async fn rules_see_attributes_and_the_priority_and_can_be_replaced() {
    let store = Arc::new(Memory::default());
    let limiter = |text| RuleLimiter::new(rule_set(text), Arc::clone(&store));
    let limits = RuleLimits::new(limiter(
        "rules:\n- { id: low, when: { priority: low }, limit: 1/min }\n- { id: merchant, per: merchant, limit: 2/min }\n",
    ))
    .attribute("merchant", header("x-merchant-id"))
    .attribute("endpoint", path())
    .retry_after(exact());
    let rules = limits.clone();
    let layer = RateLimitLayer::new(limits).priority(|head| match head.headers.contains_key("x-low") {
        true => PriorityClass::Low,
        false => PriorityClass::Normal,
    });
    let merchant = [("x-merchant-id", "m_1")];
    let low = [("x-merchant-id", "m_2"), ("x-low", "1")];
    for (headers, expected) in [
        (&merchant[..], [200, 200, 429]),
        (&low[..], [200, 429, 429]),
        (&[][..], [200, 200, 200]),
    ] {
        for status in expected {
            assert_eq!(reply(&layer, request(headers)).await.status, status, "{headers:?}");
        }
    }
    assert_eq!(rules.missing_keys(), 3);
    let denied = reply(&layer, request(&low)).await;
    let body: Value = serde_json::from_slice(&denied.body).expect("JSON");
    assert_eq!(body["violated-policies"], json!(["low"]));
    rules.replace(limiter("rules:\n- { id: merchant, per: merchant, limit: 3/min }\n"));
    assert_eq!(reply(&layer, request(&low)).await.status, 200);
}

#[tokio::test]
async fn a_lone_caller_that_returns_after_the_time_it_was_given_passes() {
    let (limiter, clock) = manual_limiter();
    let limits = LimitSet::new(limiter)
        .shared("all", TokenBucket::per_minute(7).burst(2))
        .expect("valid")
        .caller(header("x-api-key"));
    let layer = RateLimitLayer::new(limits);
    let key = [("x-api-key", "k_1")];
    for _ in 0..200 {
        let answer = reply(&layer, request(&key)).await;
        if answer.status == 429 {
            let wait = answer.header("retry-after").expect("a wait").parse().expect("seconds");
            clock.advance(Micros::from_secs(wait));
            assert_eq!(reply(&layer, request(&key)).await.status, 200);
        }
    }
}
