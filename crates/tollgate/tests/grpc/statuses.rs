//! What is said of each descriptor.

use tollgate::server::grpc::GrpcSettings;
use tollgate::server::headers::Dialects;
use tollgate::server::rls::rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit};
use tollgate_limiter::core::Micros;
use tollgate_test_kit::grpc::{GrpcServer, descriptor, hits, request_for, settings};

/// `code, (requests_per_unit, unit, name), limit_remaining, duration_until_reset in seconds`.
type StatusSummary = (Code, Option<(u32, Unit, String)>, u32, Option<i64>);

fn summary(status: &DescriptorStatus) -> StatusSummary {
    let limit = status.current_limit.as_ref();
    let limit = limit.map(|limit| (limit.requests_per_unit, limit.unit(), limit.name.clone()));
    let reset = status.duration_until_reset;
    assert!(reset.is_none_or(|reset| reset.nanos == 0));
    (
        status.code(),
        limit,
        status.limit_remaining,
        reset.map(|reset| reset.seconds),
    )
}

fn limit(units: u32, unit: Unit, name: &str) -> Option<(u32, Unit, String)> {
    Some((units, unit, name.to_owned()))
}

#[test]
fn the_limit_is_told_as_it_is_configured_and_the_time_in_whole_seconds_rounded_up() {
    for (rule, told_limit, remaining, seconds) in [
        ("limit: 10/s", limit(10, Unit::Second, "x"), 9, 1),
        ("limit: 100/min", limit(100, Unit::Minute, "x"), 99, 1),
        ("limit: 60/h", limit(60, Unit::Hour, "x"), 59, 60),
        ("limit: 24/day", limit(24, Unit::Day, "x"), 23, 3_600),
        ("limit: 7/week", limit(7, Unit::Week, "x"), 6, 86_400),
        ("limit: 30/30day", limit(30, Unit::Month, "x"), 29, 86_400),
        ("limit: 365/365day", limit(365, Unit::Year, "x"), 364, 86_400),
        // No unit is this long.
        ("limit: 7/10s", limit(7, Unit::Unknown, "x"), 6, 2),
        // The rate, and not what it holds.
        ("limit: 5000/min burst 500", limit(5_000, Unit::Minute, "x"), 499, 1),
    ] {
        let server = GrpcServer::start(&format!("- {{ id: x, {rule} }}\n"));
        let response = server.connect().should_rate_limit(&request_for([descriptor(&[])]));
        assert_eq!(response.overall_code(), Code::Ok);
        let expected = (Code::Ok, told_limit, remaining, Some(seconds));
        assert_eq!(
            response.statuses.iter().map(summary).collect::<Vec<_>>(),
            [expected],
            "{rule}"
        );
    }
}

#[test]
fn a_refusal_tells_when_this_request_would_pass() {
    let server = GrpcServer::start("- { id: x, limit: 10/min }\n");
    let mut client = server.connect();
    client.should_rate_limit(&request_for([hits(&[], 10)]));
    // One comes back in 6 s, three in 18.
    for (cost, seconds) in [(1, 6), (3, 18)] {
        let response = client.should_rate_limit(&request_for([hits(&[], cost)]));
        assert_eq!(response.overall_code(), Code::OverLimit);
        let expected = (Code::OverLimit, limit(10, Unit::Minute, "x"), 0, Some(seconds));
        assert_eq!(summary(&response.statuses[0]), expected);
    }
    server.clock.advance(Micros::from_millis(100));
    // 5.9 s are 6, so that who comes back then passes.
    assert_eq!(
        summary(&client.should_rate_limit(&request_for([descriptor(&[])])).statuses[0]).3,
        Some(6)
    );
    // What can never pass has no time; it is told that nothing is left of it all the same.
    let never = client.should_rate_limit(&request_for([hits(&[], 11)]));
    assert_eq!(
        summary(&never.statuses[0]),
        (Code::OverLimit, limit(10, Unit::Minute, "x"), 0, None)
    );
    let huge = client.should_rate_limit(&request_for([hits(&[], u64::MAX)]));
    assert_eq!(summary(&huge.statuses[0]).0, Code::OverLimit);
    server.clock.advance(Micros::from_secs(60));
    assert_eq!(
        summary(&client.should_rate_limit(&request_for([hits(&[], 0)])).statuses[0]).2,
        10
    );
}

#[test]
fn what_meets_no_limit_has_none_and_what_is_unlimited_says_so() {
    let rules = "- { id: free, when: { plan: gold }, limit: unlimited }\n\
                 - { id: banned, when: { plan: none }, limit: 0/min }\n\
                 - { id: slots, when: { plan: slots }, algorithm: concurrency, limit: 1 }\n\
                 - { id: watched, when: { plan: shadow }, limit: 1/min, mode: shadow }\n";
    let server = GrpcServer::start(rules);
    let mut client = server.connect();
    let mut status = |plan: &str| {
        summary(
            &client
                .should_rate_limit(&request_for([descriptor(&[("plan", plan)])]))
                .statuses[0],
        )
    };
    assert_eq!(status("silver"), (Code::Ok, None, 0, None));
    assert_eq!(status("gold"), (Code::Ok, None, u32::MAX, None));
    assert_eq!(
        status("none"),
        (Code::OverLimit, limit(0, Unit::Minute, "banned"), 0, None)
    );
    let slots = || limit(1, Unit::Unknown, "slots");
    assert_eq!(status("slots"), (Code::Ok, slots(), 0, None));
    assert_eq!(status("slots"), (Code::OverLimit, slots(), 0, Some(1)));
    // A shadow never binds, and is not told.
    for _ in 0..2 {
        assert_eq!(status("shadow"), (Code::Ok, None, 0, None));
    }
    // An unknown domain.
    let mut elsewhere = request_for([descriptor(&[("plan", "none")])]);
    elsewhere.domain = "elsewhere".to_owned();
    assert_eq!(
        summary(&client.should_rate_limit(&elsewhere).statuses[0]),
        (Code::Ok, None, 0, None)
    );
}

#[test]
fn of_several_limits_the_one_is_told_that_binds() {
    let server = GrpcServer::start(
        "- { id: wide, limit: 100/min }\n- { id: narrow, limit: 2/h }\n- { id: many, limit: [3/s, 1000/day] }\n",
    );
    let mut client = server.connect();
    let mut status = |cost| summary(&client.should_rate_limit(&request_for([hits(&[], cost)])).statuses[0]);
    assert_eq!(status(1), (Code::Ok, limit(2, Unit::Hour, "narrow"), 1, Some(1_800)));
    assert_eq!(status(3).1, limit(2, Unit::Hour, "narrow"));
    assert_eq!(status(1).2, 0);
    assert_eq!(
        status(1),
        (Code::OverLimit, limit(2, Unit::Hour, "narrow"), 0, Some(1_800))
    );
}

#[test]
fn headers_to_add_are_those_that_envoy_does_not_write() {
    for (names, expected) in [
        (
            &["ietf", "x-delta"][..],
            &[
                ("ratelimit-policy", "\"a\";q=10;w=60, \"b\";q=5;w=60"),
                ("ratelimit", "\"a\";r=9;t=6, \"b\";r=4;t=12"),
            ][..],
        ),
        (&["x-envoy"], &[]),
        (&["x-unix"], &[]),
        (&["none"], &[]),
        (
            &["draft06", "x-unix"],
            &[
                ("ratelimit-limit", "5"),
                ("ratelimit-remaining", "4"),
                ("ratelimit-reset", "12"),
                ("ratelimit-policy", "10;w=60, 5;w=60"),
            ],
        ),
    ] {
        let settings = GrpcSettings {
            headers: Dialects::from_names(names.iter().copied()).unwrap(),
            ..settings()
        };
        let server = GrpcServer::start_with(
            "- { id: a, per: x, limit: 10/min }\n- { id: b, per: y, limit: 5/min }\n",
            settings,
        );
        let response = server
            .connect()
            .should_rate_limit(&request_for([descriptor(&[("x", "1")]), descriptor(&[("y", "1")])]));
        let headers: Vec<(&str, &str)> = response
            .response_headers_to_add
            .iter()
            .map(|header| (&*header.key, &*header.value))
            .collect();
        assert_eq!(headers, expected, "{names:?}");
    }
}

#[test]
fn a_policy_that_several_descriptors_meet_stands_in_headers_once_as_it_is_nearest_to_its_end() {
    let settings = GrpcSettings {
        headers: Dialects::default(),
        ..settings()
    };
    let server = GrpcServer::start_with("- { id: a, per: x, limit: 10/min }\n", settings);
    let mut client = server.connect();
    let response = client.should_rate_limit(&request_for([descriptor(&[("x", "1")]), hits(&[("x", "2")], 4)]));
    assert_eq!(response.response_headers_to_add[1].value, "\"a\";r=6;t=24");
    let refused = client.should_rate_limit(&request_for([descriptor(&[("x", "1")]), hits(&[("x", "2")], 9)]));
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(refused.response_headers_to_add[1].value, "\"a\";r=6;t=18");
}
