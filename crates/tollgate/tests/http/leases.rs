//! Concurrency: slots held, given back and kept.

use serde_json::json;
use tollgate_limiter::core::Micros;
use tollgate_test_kit::http::HttpServer;

const RULES: &str = "- { id: inflight, per: user, algorithm: concurrency, limit: 1, lease_ttl: 30s }\n";
const USER: &str = r#""user":"a""#;

fn lease(answer: &tollgate_test_kit::http::Answer) -> String {
    format!(r#"{{"lease":{}}}"#, answer.json()["lease"])
}

#[test]
fn a_slot_is_held_until_it_is_released() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let held = client.check(USER);
    assert_eq!(held.status, 200);
    assert_eq!(
        held.header("ratelimit-policy"),
        Some(r#""inflight";q=1;qu="concurrent-requests""#)
    );
    assert_eq!(held.header("ratelimit"), Some(r#""inflight";r=0"#));
    let denied = client.check(USER);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("1"));
    assert_eq!(denied.json()["retry_after_ms"], json!(null));
    assert_eq!(denied.json()["lease"], json!(null));
    assert_eq!(
        denied.json()["detail"],
        r#"Policy "inflight" allows 1 request at a time."#
    );
    assert_eq!(client.post("/v1/release", lease(&held)).body, r#"{"released":true}"#);
    assert_eq!(client.post("/v1/release", lease(&held)).body, r#"{"released":false}"#);
    assert_eq!(client.check(USER).status, 200);
}

#[test]
fn a_lease_is_renewed_for_a_whole_term_or_is_gone() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let held = client.check(USER);
    server.clock.advance(Micros::from_secs(29));
    let renewed = client.post("/v1/renew", lease(&held));
    assert_eq!(
        (renewed.status, &*renewed.body),
        (200, r#"{"renewed":true,"expires_in_ms":30000}"#)
    );
    server.clock.advance(Micros::from_secs(29));
    assert_eq!(client.check(USER).status, 429);
    server.clock.advance(Micros::from_secs(2));
    let gone = client.post("/v1/renew", lease(&held));
    assert_eq!(gone.status, 404);
    assert_eq!(gone.header("content-type"), Some("application/problem+json"));
    assert_eq!(client.check(USER).status, 200);
}

#[test]
fn a_lease_that_was_made_up_releases_nothing() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let held = lease(&client.check(USER));
    let twisted = held.replace("{\"lease\":\"", "{\"lease\":\"A");
    for made_up in [
        r#"{"lease":""}"#,
        r#"{"lease":"x"}"#,
        r#"{"lease":"\u0000\ud83d\ude00"}"#,
        &twisted,
    ] {
        assert_eq!(
            client.post("/v1/release", made_up).body,
            r#"{"released":false}"#,
            "{made_up}"
        );
        assert_eq!(client.post("/v1/renew", made_up).status, 404, "{made_up}");
    }
    assert_eq!(client.check(USER).status, 429);
}

#[test]
fn a_refund_of_nothing_but_slots_says_to_release_the_lease() {
    let server = HttpServer::start(&format!(
        "{RULES}- {{ id: rate, when: {{ rated: yes }}, limit: 5/min }}\n"
    ));
    let mut client = server.connect();
    client.check(USER);
    let refused = client.post("/v1/refund", format!(r#"{{"attributes":{{{USER}}}}}"#));
    assert_eq!(refused.status, 400);
    let detail = refused.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("/v1/release"), "{detail}");
    // With another limit the refund counts there, and the slot stays taken.
    let mixed = client.post("/v1/refund", format!(r#"{{"attributes":{{{USER},"rated":"yes"}}}}"#));
    assert_eq!(mixed.status, 200);
    assert_eq!(mixed.json()["limits"][0]["remaining"], json!(0));
}
