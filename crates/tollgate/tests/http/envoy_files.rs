//! Requests for descriptors of envoyproxy/ratelimit's files, and what its users ask besides.

use serde_json::{Value, json};
use tollgate::compat::ratelimit::{CompatModes, HeaderNames};
use tollgate::server::gate::Phase;
use tollgate_limiter::core::rules::ratelimit::RatelimitOptions;
use tollgate_limiter::core::testing::rules::{descriptor_parser, descriptors};
use tollgate_test_kit::http::{HttpServer, settings};

const FILE: &str = include_str!("envoy_files.yaml");

/// A server of these files, in which the minute ends in 55 seconds and the hour in 1,555.
fn start(modes: CompatModes, all_are_quotas: bool) -> HttpServer {
    let mut descriptors = descriptors(FILE);
    if all_are_quotas {
        descriptors.make_quotas();
    }
    let parser = descriptor_parser(descriptors, RatelimitOptions::default());
    let rules = parser.finish().expect("valid descriptors").rules;
    let server = HttpServer::over_memory(rules, settings());
    server.gate.compat().set_modes(modes);
    server
}

/// Asks for descriptors, each `key`, or `key*hits`.
fn should_rate_limit(server: &HttpServer, descriptors: &[&str]) -> (u16, Value) {
    let descriptor = |text: &&str| {
        let (key, hits) = text.split_once('*').unwrap_or((*text, "1"));
        json!({ "entries": [{ "key": key, "value": "x" }], "hitsAddend": hits })
    };
    let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
    let answer = server.connect().post(
        "/json",
        json!({ "domain": "shop", "descriptors": descriptors }).to_string(),
    );
    (answer.status, answer.json())
}

/// The values of the headers, in order.
fn headers(answer: &Value) -> Vec<&str> {
    let headers = answer["responseHeadersToAdd"].as_array().map_or(&[][..], Vec::as_slice);
    headers.iter().filter_map(|header| header["value"].as_str()).collect()
}

#[test]
fn headers_speak_of_the_least_left_or_of_the_last_that_refuses() {
    let with_headers = || CompatModes {
        headers: Some(HeaderNames::default()),
        ..CompatModes::default()
    };
    // What is asked before, what is asked then, and what its headers say.
    for (before, descriptors, status, expected) in [
        (&[][..], &["a"][..], 200, &["10", "9", "55"][..]),
        (&[], &["a", "b"], 200, &["5", "4", "1555"]),
        (&[], &["a*6", "b"], 200, &["10", "4", "55"]),
        (&[], &["b", "a*6"], 200, &["5", "4", "1555"]),
        (&["a*10"], &["a", "b"], 429, &["10", "0", "55"]),
        (&["a*10", "c"], &["a", "b", "c", "b"], 429, &["1", "0", "1555"]),
        (&["a*10", "c"], &["c", "b", "a"], 429, &["10", "0", "55"]),
        // A quota that is spent has the least left, and is not what refuses.
        (&["q"], &["a*10", "q"], 429, &["10", "0", "55"]),
        (&["q", "c"], &["c", "q"], 429, &["1", "0", "1555"]),
        (&["s"], &["a", "s"], 200, &["1", "0", "1555"]),
        (&[], &["unknown"], 200, &[]),
        (&[], &["free"], 200, &[]),
        (&[], &["free", "a"], 200, &["10", "9", "55"]),
    ] {
        let server = start(with_headers(), false);
        for one in before {
            should_rate_limit(&server, &[one]);
        }
        let (answered, answer) = should_rate_limit(&server, descriptors);
        assert_eq!(
            (answered, &*headers(&answer)),
            (status, expected),
            "{before:?} {descriptors:?}: {answer}"
        );
    }
}

#[test]
fn there_are_no_headers_unless_they_are_asked_for_and_then_under_any_name() {
    let plain = start(CompatModes::default(), false);
    assert_eq!(should_rate_limit(&plain, &["a"]).1["responseHeadersToAdd"], Value::Null);
    let named = HeaderNames {
        limit: "X-Limit".into(),
        ..HeaderNames::default()
    };
    let named = start(
        CompatModes {
            headers: Some(named),
            ..CompatModes::default()
        },
        false,
    );
    let wanted = json!([
        { "key": "X-Limit", "value": "10" },
        { "key": "RateLimit-Remaining", "value": "9" },
        { "key": "RateLimit-Reset", "value": "55" },
    ]);
    assert_eq!(should_rate_limit(&named, &["a"]).1["responseHeadersToAdd"], wanted);
}

#[test]
fn a_status_names_its_limit_and_the_whole_window_and_shadows_tell_too() {
    let server = start(CompatModes::default(), false);
    should_rate_limit(&server, &["s"]);
    let (status, answer) = should_rate_limit(&server, &["b", "s", "free", "unknown"]);
    let wanted = json!([
        {
            "code": "OK", "limitRemaining": 4, "durationUntilReset": "1555s",
            "currentLimit": { "requestsPerUnit": 5, "unit": "HOUR", "name": "five" },
        },
        { "code": "OK", "durationUntilReset": "1555s", "currentLimit": { "requestsPerUnit": 1, "unit": "HOUR" } },
        { "code": "OK", "limitRemaining": u32::MAX },
        { "code": "OK" },
    ]);
    assert_eq!((status, &answer["statuses"]), (200, &wanted));
}

#[test]
fn a_name_that_cannot_stand_in_a_header_is_not_told() {
    let server = start(CompatModes::default(), false);
    for (key, name) in [("b", json!("five")), ("quoted", Value::Null), ("broken", Value::Null)] {
        let (_, answer) = should_rate_limit(&server, &[key]);
        let limit = &answer["statuses"][0]["currentLimit"];
        assert_eq!(
            (&limit["requestsPerUnit"], &limit["name"]),
            (&5.into(), &name),
            "{answer}"
        );
    }
}

#[test]
fn in_shadow_mode_all_pass_and_statuses_tell_what_their_limits_say() {
    let shadow = CompatModes {
        shadow: true,
        ..CompatModes::default()
    };
    let server = start(shadow, false);
    for (code, shadowed) in [("OK", 0), ("OVER_LIMIT", 1), ("OVER_LIMIT", 2)] {
        let (status, answer) = should_rate_limit(&server, &["c", "a"]);
        assert_eq!((status, &answer["overallCode"]), (200, &"OK".into()), "{answer}");
        assert_eq!(answer["statuses"][0]["code"], code, "{answer}");
        assert_eq!(server.gate.metrics().ratelimit.calls.shadowed.get(), shadowed);
    }
    // And back, while it runs.
    server.gate.compat().set_modes(CompatModes::default());
    assert_eq!(should_rate_limit(&server, &["c"]).0, 429);
}

#[test]
fn as_quotas_limits_refuse_only_all_together() {
    let server = start(CompatModes::default(), true);
    should_rate_limit(&server, &["c", "a"]);
    let (status, answer) = should_rate_limit(&server, &["c", "a"]);
    assert_eq!((status, &answer["statuses"][0]["code"]), (200, &"OVER_LIMIT".into()));
    assert_eq!(should_rate_limit(&server, &["c", "a*10"]).0, 429);
    assert_eq!(should_rate_limit(&server, &["c"]).0, 429);
    assert_eq!(should_rate_limit(&server, &["c", "unknown"]).0, 429);
    assert_eq!(should_rate_limit(&server, &["c", "free"]).0, 429);
}

#[test]
fn what_makes_no_sense_is_told_apart_from_what_is_refused() {
    let server = start(CompatModes::default(), false);
    let mut client = server.connect();
    for (body, wanted) in [
        ("", "not JSON"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain":"shop"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain":"shop","descriptors":[{"entries":[{"kye":"a"}]}]}"#, "kye"),
    ] {
        let answer = client.post("/json", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.body.contains(wanted), "{body}: {}", answer.body);
    }
    assert_eq!(server.gate.metrics().ratelimit.calls.invalid.get(), 2);
}

#[test]
fn a_health_check_is_ok_until_the_server_drains_and_tells_the_last_fault() {
    let server = start(CompatModes::default(), false);
    let health = || {
        let answer = server.connect().get("/healthcheck");
        (answer.status, answer.body)
    };
    assert_eq!(health(), (200, "OK".into()));
    server
        .gate
        .record_reload_failure("shop.yaml: duplicate domain 'shop' in config file");
    let (status, body) = health();
    assert!(
        status == 200 && body.starts_with("OK\n") && body.contains("duplicate domain"),
        "{body}"
    );
    server.gate.advance_phase(Phase::Draining);
    assert_eq!(health().0, 500);
}

#[test]
fn a_server_that_began_without_rules_is_healthy_unless_it_is_said_otherwise() {
    let server = start(CompatModes::default(), false);
    server.gate.mark_rules_missing("no file fits this pattern");
    let status = || server.connect().get("/healthcheck").status;
    assert_eq!(status(), 200);
    server.gate.compat().set_modes(CompatModes {
        healthy_with_rules: true,
        ..CompatModes::default()
    });
    assert_eq!(status(), 500);
    server
        .gate
        .install_rules(tollgate_test_kit::rule_set("- { id: x, limit: 1/min }\n"));
    assert_eq!(status(), 200);
}

#[test]
fn what_nobody_can_judge_is_503_or_400_for_those_who_know_it_so() {
    for (json_errors_as_400, wanted) in [(false, 503), (true, 400)] {
        let modes = CompatModes {
            json_errors_as_400,
            ..CompatModes::default()
        };
        let server = start(modes, false);
        server.gate.mark_rules_missing("no file fits this pattern");
        let body = r#"{"domain":"elsewhere","descriptors":[{"entries":[{"key":"a","value":"x"}]}]}"#;
        let answer = server.connect().post("/json", body);
        assert_eq!(answer.status, wanted);
        assert!(
            answer.body.contains("no rate limit configuration loaded"),
            "{}",
            answer.body
        );
    }
}

#[test]
fn metrics_tell_whether_the_last_rules_that_were_seen_are_in_force() {
    let server = start(CompatModes::default(), false);
    let failed = |number: u32| {
        let metrics = server.connect().get("/metrics").body;
        assert!(
            metrics.contains(&format!("\ntollgate_rules_load_failed {number}\n")),
            "{metrics}"
        );
    };
    failed(0);
    server.gate.record_reload_failure("shop.yaml: descriptor has empty key");
    failed(1);
    server
        .gate
        .install_rules(tollgate_test_kit::rule_set("- { id: x, limit: 1/min }\n"));
    failed(0);
}
