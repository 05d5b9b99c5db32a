//! Every header byte, of the running example: policy `api`, 100 requests per 60 s, 42 left, 17 s to go.

use tollgate::server::http::{Dialects, HttpSettings, RetryAfter, RetryAfterFormat};
use tollgate_limiter::core::Micros;
use tollgate_test_kit::http::{Answer, Client, HttpServer, settings};

const API: &str = "- { id: api, algorithm: sliding_log, limit: 100/min }\n";

/// Answers to a look that finds 42 left and 17 s to go, and to a request that finds none left.
fn example(dialect: &[&str]) -> (Answer, Answer) {
    let settings = HttpSettings {
        headers: Dialects::from_names(dialect.iter().copied()).unwrap(),
        ..settings()
    };
    let server = HttpServer::start_with(API, settings);
    server.clock.advance(Micros::from_secs(60));
    let mut client = server.connect();
    client.check_cost("", 58);
    server.clock.advance(Micros::from_secs(43));
    let allowed = client.check_cost("", 0);
    client.post("/v1/forget", r#"{"attributes":{},"rule":"api"}"#);
    client.check_cost("", 100);
    server.clock.advance(Micros::from_secs(43));
    (allowed, client.check(""))
}

/// The rate headers of an answer as lines.
fn lines(answer: &Answer) -> Vec<String> {
    let named = |name: &str| name.contains("ratelimit") || name == "retry-after" || name == "cache-control";
    let headers = answer.headers.iter().filter(|(name, _)| named(name));
    let mut lines: Vec<String> = headers.map(|(name, value)| format!("{name}: {value}")).collect();
    lines.sort_unstable();
    lines
}

/// What is sent when the example is allowed and when it is denied. `Retry-After` and `Cache-Control` come with a denial.
fn check(dialect: &str, allowed: &[&str], denied: &[&str]) {
    let (on_allow, on_deny) = example(&[dialect]);
    assert_eq!((on_allow.status, on_deny.status), (200, 429));
    let mut expected: Vec<&str> = allowed.to_vec();
    expected.sort_unstable();
    assert_eq!(lines(&on_allow), expected, "{dialect}");
    let mut expected: Vec<&str> = denied.to_vec();
    expected.extend(["retry-after: 17", "cache-control: no-store"]);
    expected.sort_unstable();
    assert_eq!(lines(&on_deny), expected, "{dialect}");
}

#[test]
fn ietf() {
    check(
        "ietf",
        &[r#"ratelimit: "api";r=42;t=17"#, r#"ratelimit-policy: "api";q=100;w=60"#],
        &[r#"ratelimit: "api";r=0;t=17"#, r#"ratelimit-policy: "api";q=100;w=60"#],
    );
}

#[test]
fn ietf_next() {
    check(
        "ietf-next",
        &[
            r#"ratelimit: "api";a=42;w=17;c=0"#,
            r#"ratelimit-policy: "api";q=100;w=60"#,
        ],
        &[
            r#"ratelimit: "api";a=0;w=17;c=1"#,
            r#"ratelimit-policy: "api";q=100;w=60"#,
        ],
    );
}

#[test]
fn draft07() {
    check(
        "draft07",
        &[
            "ratelimit: limit=100, remaining=42, reset=17",
            "ratelimit-policy: 100;w=60",
        ],
        &[
            "ratelimit: limit=100, remaining=0, reset=17",
            "ratelimit-policy: 100;w=60",
        ],
    );
}

#[test]
fn draft06() {
    check(
        "draft06",
        &[
            "ratelimit-limit: 100",
            "ratelimit-policy: 100;w=60",
            "ratelimit-remaining: 42",
            "ratelimit-reset: 17",
        ],
        &[
            "ratelimit-limit: 100",
            "ratelimit-policy: 100;w=60",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 17",
        ],
    );
}

#[test]
fn draft03() {
    check(
        "draft03",
        &[
            "ratelimit-limit: 100, 100;w=60",
            "ratelimit-remaining: 42",
            "ratelimit-reset: 17",
        ],
        &[
            "ratelimit-limit: 100, 100;w=60",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 17",
        ],
    );
}

#[test]
fn x_envoy() {
    check(
        "x-envoy",
        &[
            r#"x-ratelimit-limit: 100, 100;w=60;name="api""#,
            "x-ratelimit-remaining: 42",
            "x-ratelimit-reset: 17",
        ],
        &[
            r#"x-ratelimit-limit: 100, 100;w=60;name="api""#,
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 17",
        ],
    );
}

#[test]
fn x_delta() {
    check(
        "x-delta",
        &[
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 42",
            "x-ratelimit-reset: 17",
        ],
        &[
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 17",
        ],
    );
}

#[test]
fn x_unix_tells_the_stores_time() {
    // 60 + 43 s after the start of the test, and 43 s after that.
    check(
        "x-unix",
        &[
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 42",
            "x-ratelimit-reset: 1794782165",
            "x-ratelimit-used: 58",
        ],
        &[
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 1794782208",
            "x-ratelimit-used: 100",
        ],
    );
}

#[test]
fn none() {
    check("none", &[], &[]);
}

#[test]
fn by_default_a_denial_is_what_the_documentation_shows() {
    let (_, denied) = example(&["ietf", "x-delta"]);
    let headers: Vec<String> = denied
        .headers
        .iter()
        .filter(|(name, _)| name != "content-length")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    assert_eq!(
        headers,
        [
            "cache-control: no-store",
            "content-type: application/problem+json",
            r#"ratelimit: "api";r=0;t=17"#,
            r#"ratelimit-policy: "api";q=100;w=60"#,
            "retry-after: 17",
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 17",
        ]
    );
    assert_eq!(
        denied.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
            r#""status":429,"detail":"Policy \"api\" allows 100 requests per 60 seconds.","violated-policies":["api"],"#,
            r#""allowed":false,"rule":"api","limit":100,"remaining":0,"reset_after_ms":17000,"retry_after_ms":17000,"#,
            r#""delay_ms":0,"source":"memory","lease":null,"limits":[{"rule":"api","allowed":false,"limit":100,"#,
            r#""remaining":0,"reset_after_ms":17000,"retry_after_ms":17000,"mode":"enforce","source":"memory"}]}"#
        )
    );
}

/// A server whose only limit is used up, with 17 s to wait, and `Retry-After` in this form.
fn exhausted(retry_after: RetryAfter) -> (HttpServer, Client) {
    let settings = HttpSettings {
        retry_after,
        ..settings()
    };
    let server = HttpServer::start_with(API, settings);
    let mut client = server.connect();
    client.check_cost("", 100);
    server.clock.advance(Micros::from_secs(43));
    (server, client)
}

/// `Retry-After` of a denial that has 17 s to wait, in a form and with a jitter.
fn retry_after(format: RetryAfterFormat, jitter_ppm: u32) -> Option<String> {
    let (_server, mut client) = exhausted(RetryAfter {
        jitter_ppm,
        format,
        ..RetryAfter::default()
    });
    client.check("").header("retry-after").map(str::to_owned)
}

#[test]
fn retry_after_is_seconds_a_date_or_nothing() {
    assert_eq!(retry_after(RetryAfterFormat::Seconds, 0).as_deref(), Some("17"));
    // 43 s and 17 s after 22:34:05.
    let date = retry_after(RetryAfterFormat::Date, 0);
    assert_eq!(date.as_deref(), Some("Sun, 15 Nov 2026 22:35:05 GMT"));
    assert_eq!(retry_after(RetryAfterFormat::None, 0), None);
}

#[test]
fn only_retry_after_is_jittered() {
    let (_server, mut client) = exhausted(RetryAfter {
        jitter_ppm: 1_000_000,
        ..RetryAfter::default()
    });
    let mut waits: Vec<u64> = Vec::new();
    for _ in 0..200 {
        let answer = client.check("");
        assert_eq!(answer.header("ratelimit"), Some(r#""api";r=0;t=17"#));
        assert_eq!(answer.json()["retry_after_ms"], 17_000);
        waits.push(answer.header("retry-after").unwrap().parse().unwrap());
    }
    assert!(waits.iter().all(|wait| (17..=34).contains(wait)), "{waits:?}");
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 5, "{waits:?}");
}
