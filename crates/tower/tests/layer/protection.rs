//! Slots in front of the limits: what they deny has consumed nothing.

use super::fixture::{Reply, manual_limiter, reply, request, response};
use serde_json::{Value, json};
use tollgate_limiter::core::Cost;
use tollgate_limiter::limits::{LeakyBucket, TokenBucket};
use tollgate_tower::headers::{RetryAfter, RetryAfterFormat};
use tollgate_tower::protect::{PriorityClass, Protection, Share};
use tollgate_tower::{LimitSet, RateLimitLayer};

#[tokio::test]
async fn a_request_without_a_slot_is_denied_before_it_is_charged() {
    let (limiter, _) = manual_limiter();
    let all = limiter.limit("all", TokenBucket::per_minute(100)).expect("valid");
    let limits = LimitSet::new(limiter.clone())
        .shared("all", TokenBucket::per_minute(100))
        .expect("valid");
    let protection = Protection::in_flight(2).reserve(Share::percent(50)).queue(0).shed(None);
    let layer = RateLimitLayer::new(limits)
        .priority(|head| match head.headers.contains_key("x-critical") {
            true => PriorityClass::Critical,
            false => PriorityClass::Normal,
        })
        .protect(protection);
    let remaining = || limiter.check_cost(&all, "", Cost::ZERO).standing().remaining;
    let first = response(&layer, request(&[])).await;
    assert_eq!((first.status().as_u16(), remaining()), (200, 99));
    let denied = reply(&layer, request(&[])).await;
    assert_eq!(denied.status, 503);
    // A second, stretched by up to a tenth.
    assert!(matches!(denied.header("retry-after"), Some("1" | "2")), "{denied:?}");
    let body: Value = serde_json::from_slice(&denied.body).expect("JSON");
    assert_eq!(
        body["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(body["violated-policies"], json!(["protect.in_flight"]));
    assert_eq!(remaining(), 99, "it was not charged");
    let call = [("content-type", "application/grpc")];
    assert_eq!(reply(&layer, request(&call)).await.header("grpc-status"), Some("14"));
    // The reserve.
    assert_eq!(reply(&layer, request(&[("x-critical", "1")])).await.status, 200);
    assert_eq!(layer.protection_status().map(|status| status.in_flight), Some(1));
    drop(first);
    assert_eq!(layer.protection_status().map(|status| status.in_flight), Some(0));
    assert_eq!(reply(&layer, request(&[])).await.status, 200);
}

/// The denials of a full gate, at once and after a wait, and of a layer that may hold nothing.
async fn denials(retry_after: RetryAfter) -> [Reply; 3] {
    let (limiter, _) = manual_limiter();
    let shaped = LeakyBucket::per_second(1).depth(10).shaping();
    let limits = LimitSet::new(limiter).shared("shaped", shaped).expect("valid");
    let limits = limits.retry_after(retry_after);
    let full = |waiters| {
        let protection = Protection::in_flight(1).queue(waiters).shed(None);
        RateLimitLayer::new(limits.clone()).protect(protection)
    };
    let (at_once, waiting) = (full(0), full(1));
    let holders = [
        response(&at_once, request(&[])).await,
        response(&waiting, request(&[])).await,
    ];
    let denials = [
        reply(&at_once, request(&[])).await,
        reply(&waiting, request(&[])).await,
        reply(&RateLimitLayer::new(limits.clone()).max_held(0), request(&[])).await,
    ];
    drop(holders);
    denials
}

#[tokio::test(start_paused = true)]
async fn denials_of_the_layer_itself_have_the_form_that_was_chosen() {
    let settings = |format, jitter_ppm| RetryAfter {
        format,
        jitter_ppm,
        ..RetryAfter::default()
    };
    for denied in denials(settings(RetryAfterFormat::Seconds, 0)).await {
        assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (503, Some("1")));
    }
    for denied in denials(settings(RetryAfterFormat::None, 0)).await {
        assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (503, None));
    }
    for denied in denials(settings(RetryAfterFormat::Date, 0)).await {
        let date = denied.header("retry-after").expect("a date");
        assert!(date.ends_with(" GMT"), "{date}");
    }
    // Stretched up to a hundredfold: the least stretched of so many is not one second.
    let mut stretched = Vec::new();
    for _ in 0..10 {
        let denied = denials(settings(RetryAfterFormat::Seconds, 100_000_000)).await;
        stretched.extend(denied.map(|denied| denied.header("retry-after").map(str::to_owned)));
    }
    assert!(
        stretched.iter().any(|after| after.as_deref() != Some("1")),
        "{stretched:?}"
    );
}
