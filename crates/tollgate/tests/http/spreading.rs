//! Return times of denied callers: spread where all of them share one counter, and nowhere else.

use tollgate::server::http::{Forward, Gateway, HttpSettings, RetryAfter, UnknownDomainPolicy};
use tollgate_limiter::core::Micros;
use tollgate_test_kit::http::{Client, HttpServer, settings};

/// The wait for the next unit is ten seconds, and so is the distance of two callers.
const SHARED: &str = "- { id: all, limit: 6/min burst 1 }\n";

/// `Retry-After` of denials for these callers, after another one took what there was. The exact wait stays the same.
fn waits(client: &mut Client, callers: &[&str]) -> Vec<u64> {
    assert_eq!(client.check(r#""user":"first""#).status, 200);
    let wait = |caller: &&str| {
        let denied = client.check(&format!(r#""user":"{caller}""#));
        assert_eq!(denied.status, 429);
        assert_eq!(denied.json()["retry_after_ms"], 10_000);
        assert_eq!(denied.header("ratelimit"), Some(r#""all";r=0;t=10"#));
        denied.header("retry-after").unwrap().parse().unwrap()
    };
    callers.iter().map(wait).collect()
}

fn waits_with(rules: &str, retry_after: RetryAfter, callers: &[&str]) -> Vec<u64> {
    let settings = HttpSettings {
        retry_after,
        ..settings()
    };
    let server = HttpServer::start_with(rules, settings);
    waits(&mut server.connect(), callers)
}

#[test]
fn callers_of_a_shared_limit_return_one_after_the_other() {
    let exact = settings().retry_after;
    assert_eq!(waits_with(SHARED, exact, &["a", "b", "c", "d"]), [10, 20, 30, 40]);
    // Asking again changes nothing, for the last one either.
    assert_eq!(
        waits_with(SHARED, exact, &["a", "b", "a", "b", "b"]),
        [10, 20, 10, 20, 20]
    );
}

#[test]
fn a_lone_caller_waits_no_longer_than_it_must() {
    assert_eq!(waits_with(SHARED, settings().retry_after, &["a"; 4]), [10; 4]);
}

#[test]
fn the_extra_wait_has_a_maximum() {
    let retry_after = RetryAfter {
        spread_max: Micros::from_secs(25),
        ..settings().retry_after
    };
    let waits = waits_with(SHARED, retry_after, &["a", "b", "c", "d", "e"]);
    assert_eq!(waits[..3], [10, 20, 30]);
    // The queue is full: a random time in the second half of the maximum.
    assert!(waits[3..].iter().all(|wait| (22..=35).contains(wait)), "{waits:?}");
}

#[test]
fn a_rule_or_the_settings_turn_it_off_and_a_rule_on() {
    let exact = settings().retry_after;
    let off = RetryAfter { spread: false, ..exact };
    let at_once = [10; 3];
    assert_eq!(waits_with(SHARED, off, &["a", "b", "c"]), at_once);
    let never = "- { id: all, limit: 6/min burst 1, spread: false }\n";
    assert_eq!(waits_with(never, exact, &["a", "b", "c"]), at_once);
    let always = "- { id: all, limit: 6/min burst 1, spread: true }\n";
    assert_eq!(waits_with(always, off, &["a", "b", "c"]), [10, 20, 30]);
}

#[test]
fn a_limit_for_each_subject_spreads_only_if_its_rule_says_so() {
    for (option, expected) in [("", [10, 10]), (", spread: true", [10, 20])] {
        let rules = format!("- {{ id: each, per: page, limit: 6/min burst 1{option} }}\n");
        let server = HttpServer::start_with(&rules, settings());
        let mut client = server.connect();
        for page in ["/", "/about"] {
            let mut check = |user: &str| client.check(&format!(r#""page":"{page}","user":"{user}""#));
            assert_eq!(check("first").status, 200);
            let waits = ["a", "b"].map(|user| check(user).header("retry-after").unwrap().parse::<u64>().unwrap());
            assert_eq!(waits, expected, "{page} {option}");
        }
    }
}

#[test]
fn slots_in_flight_are_spread_by_their_number() {
    let rules = "- { id: uploads, algorithm: concurrency, limit: 1 }\n";
    let server = HttpServer::start_with(rules, settings());
    let mut client = server.connect();
    assert_eq!(client.check("").status, 200);
    let mut wait = |user: &str| {
        let denied = client.check(&format!(r#""user":"{user}""#));
        assert_eq!(denied.json()["retry_after_ms"], serde_json::Value::Null);
        denied.header("retry-after").unwrap().parse::<u64>().unwrap()
    };
    // One slot a second, until it is known how many end.
    assert_eq!(["a", "a", "b", "c", "d"].map(&mut wait), [1, 1, 1, 2, 3]);
}

#[test]
fn behind_a_gateway_the_caller_is_the_client_address() {
    let settings = HttpSettings {
        forward: Some(Forward {
            gateway: Gateway::Traefik,
            attributes: Forward::default_attributes(),
            trusted_proxies: ["127.0.0.1/32".parse().unwrap()].into_iter().collect(),
            unknown_domain: UnknownDomainPolicy::Deny,
        }),
        ..settings()
    };
    let server = HttpServer::start_with(SHARED, settings);
    let mut client = server.connect();
    let mut ask = |address: &str, path: &str| {
        client.send(format!(
            "GET /v1/forward/default HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: {address}\r\nX-Forwarded-Uri: {path}\r\n\r\n"
        ));
        client.answer().header("retry-after").map(str::to_owned)
    };
    assert_eq!(ask("192.0.2.1", "/"), None);
    // Another path is not another caller.
    assert_eq!(ask("192.0.2.2", "/").as_deref(), Some("10"));
    assert_eq!(ask("192.0.2.2", "/other").as_deref(), Some("10"));
    assert_eq!(ask("192.0.2.3", "/").as_deref(), Some("20"));
}

#[test]
fn the_length_of_the_queue_is_a_metric() {
    let server = HttpServer::start_with(SHARED, settings());
    let mut client = server.connect();
    let seconds = || {
        let metrics = server.gate.metrics_text();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("tollgate_retry_queue_seconds{"));
        line.map(str::to_owned)
    };
    // A rule without a queue has no line.
    assert_eq!(seconds(), None);
    waits(&mut client, &["a", "b", "c"]);
    assert_eq!(
        seconds().as_deref(),
        Some(r#"tollgate_retry_queue_seconds{rule="all"} 40"#)
    );
}
