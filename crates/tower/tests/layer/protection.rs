//! Slots in front of the limits: what they deny has consumed nothing.

use super::fixture::{manual_limiter, reply, request, response};
use serde_json::{Value, json};
use tollgate_limiter::core::Cost;
use tollgate_limiter::limits::TokenBucket;
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
    assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (503, Some("1")));
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
