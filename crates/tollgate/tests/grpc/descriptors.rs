//! Files of envoyproxy/ratelimit over gRPC: what is answered to its users' requests, and to those that make no sense.

use bytes::Bytes;
use prost::Message;
use serde_json::{Value, json};
use tollgate::server::rls::rate_limit_descriptor::{Entry, RateLimitOverride};
use tollgate::server::rls::{RateLimitDescriptor, RateLimitRequest, json as as_json};
use tollgate_limiter::core::rules::ratelimit::RatelimitOptions;
use tollgate_test_kit::grpc::{GrpcServer, SHOULD_RATE_LIMIT, descriptor, hits};

/// At 22:34:05 a minute has 55 s left, and a day 5155.
const FILE: &str = include_str!("descriptors.yaml");

fn strict() -> RatelimitOptions {
    RatelimitOptions {
        strict: true,
        ..RatelimitOptions::default()
    }
}

fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

fn one(key: &str, value: &str) -> RateLimitDescriptor {
    descriptor(&[(key, value)])
}

/// A hit that is given back.
fn back(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..one(key, value)
    }
}

/// A descriptor of one entry of any bytes.
fn bytes(key: &'static [u8], value: &'static [u8]) -> RateLimitDescriptor {
    let entry = Entry {
        key: Bytes::from_static(key),
        value: Bytes::from_static(value),
    };
    RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    }
}

fn with_limit(mut descriptor: RateLimitDescriptor, requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    descriptor.limit = Some(RateLimitOverride {
        requests_per_unit,
        unit,
    });
    descriptor
}

/// A part of an answer as a word.
fn word(value: &Value, path: &str) -> String {
    match value.pointer(path) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// The overall code, and of each status its code, limit, unit, what is left, and seconds.
fn summary(server: &GrpcServer, request: &RateLimitRequest) -> Vec<String> {
    let answer = as_json::encode(&server.connect().should_rate_limit(request));
    let status = |status: &Value| {
        let limit = match status.get("currentLimit") {
            None => "no limit".to_owned(),
            Some(limit) => format!("{}/{}", word(limit, "/requestsPerUnit"), word(limit, "/unit")),
        };
        let (code, left) = (word(status, "/code"), word(status, "/limitRemaining"));
        format!("{code} {limit} {left} {}", word(status, "/durationUntilReset"))
    };
    let statuses = answer.pointer("/statuses").and_then(Value::as_array);
    let statuses = statuses.into_iter().flatten().map(status);
    [word(&answer, "/overallCode")].into_iter().chain(statuses).collect()
}

/// What is tried, the requests, and what is answered to the last.
type Case = (&'static str, Vec<Vec<RateLimitDescriptor>>, &'static [&'static str]);

#[test]
fn each_kind_of_descriptor_is_answered_as_its_users_know_it() {
    let user = || one("user", "u");
    let user_hits = |number| hits(&[("user", "u")], number);
    let cases: Vec<Case> = vec![
        ("a hit", vec![vec![user()]], &["OK", "OK 3/MINUTE 2 55s"]),
        ("its own hits", vec![vec![user_hits(3)]], &["OK", "OK 3/MINUTE - 55s"]),
        (
            "no hits at the limit",
            vec![vec![user_hits(3)], vec![user_hits(0)]],
            &["OK", "OK 3/MINUTE - 55s"],
        ),
        (
            "no hits beyond it",
            vec![vec![user_hits(4)], vec![user_hits(0)]],
            &["OVER_LIMIT", "OVER_LIMIT 3/MINUTE - 55s"],
        ),
        (
            "what was refused is counted",
            vec![vec![user_hits(2)], vec![user_hits(2)], vec![user()]],
            &["OVER_LIMIT", "OVER_LIMIT 3/MINUTE - 55s"],
        ),
        (
            "the value of its own",
            vec![vec![one("user", "vip")]],
            &["OK", "OK 100/DAY 99 5155s"],
        ),
        ("no limit", vec![vec![one("user", "white")]], &["OK", "OK no limit - -"]),
        (
            "no descriptor",
            vec![vec![one("other", "x")]],
            &["OK", "OK no limit - -"],
        ),
        (
            "an empty value",
            vec![vec![one("user", "")]],
            &["OK", "OK 3/MINUTE 2 55s"],
        ),
        (
            "an empty key",
            vec![vec![one("", "u"), user()]],
            &["OK", "OK no limit - -", "OK 3/MINUTE 2 55s"],
        ),
        (
            "no hits yet, and none now",
            vec![vec![user_hits(0)]],
            &["OK", "OK 3/MINUTE 3 55s"],
        ),
        (
            "a shadow within its limit",
            vec![vec![one("shadow", "x")]],
            &["OK", "OK 1/MINUTE - 55s"],
        ),
        (
            "banned, without hits",
            vec![vec![hits(&[("banned", "x")], 0)]],
            &["OK", "OK -/MINUTE - 55s"],
        ),
        (
            "banned, with hits given back beside another",
            vec![vec![back("banned", "x"), user()]],
            &["OK", "OK -/MINUTE - 55s", "OK 3/MINUTE 2 55s"],
        ),
        (
            "a limit of the request, without hits",
            vec![vec![with_limit(user_hits(0), 10, 3)]],
            &["OK", "OK 10/HOUR 10 1555s"],
        ),
        (
            "a limit of the request that bans, without hits",
            vec![vec![with_limit(user_hits(0), 0, 3)]],
            &["OK", "OK -/HOUR - 1555s"],
        ),
        ("no entries", vec![vec![descriptor(&[])]], &["OK", "OK no limit - -"]),
        (
            "deeper than the file",
            vec![vec![descriptor(&[("user", "u"), ("more", "x")])]],
            &["OK", "OK no limit - -"],
        ),
        (
            "banned, and the other is counted",
            vec![vec![user(), one("banned", "x")], vec![user()]],
            &["OK", "OK 3/MINUTE 1 55s"],
        ),
        (
            "banned",
            vec![vec![one("banned", "x")]],
            &["OVER_LIMIT", "OVER_LIMIT -/MINUTE - 55s"],
        ),
        (
            "unlimited, which replaces another",
            vec![vec![one("free", "x"), one("user", "vip")]],
            &["OK", "OK no limit 4294967295 -", "OK no limit - -"],
        ),
        (
            "unlimited though another replaces it",
            vec![vec![one("free", "x"), one("open", "x")]],
            &["OK", "OK no limit 4294967295 -", "OK no limit 4294967295 -"],
        ),
        (
            "hits of thousands of millions",
            vec![vec![hits(&[("huge", "x")], 2_000_000_000)]; 2],
            &["OK", "OK 4000000000/HOUR - 1555s"],
        ),
        (
            "one more than that",
            vec![
                vec![hits(&[("huge", "x")], 2_000_000_000)],
                vec![hits(&[("huge", "x")], 2_000_000_001)],
            ],
            &["OVER_LIMIT", "OVER_LIMIT 4000000000/HOUR - 1555s"],
        ),
        (
            "more than one can be asked for",
            vec![vec![hits(&[("huge", "x")], u64::MAX)]],
            &["OVER_LIMIT", "OVER_LIMIT 4000000000/HOUR - 1555s"],
        ),
        (
            "of two quotas one is left",
            vec![vec![one("quota", "x"), one("quota", "large")]; 2],
            &["OK", "OVER_LIMIT 1/MINUTE - 55s", "OK 2/MINUTE - 55s"],
        ),
        (
            "of two quotas none is left",
            vec![vec![one("quota", "x"), one("quota", "large")]; 3],
            &["OVER_LIMIT", "OVER_LIMIT 1/MINUTE - 55s", "OVER_LIMIT 2/MINUTE - 55s"],
        ),
        (
            "a limit of the request",
            vec![vec![with_limit(user(), 10, 3)]],
            &["OK", "OK 10/HOUR 9 1555s"],
        ),
        (
            "a limit of the request is counted where the file's is",
            vec![vec![user_hits(2)], vec![with_limit(user(), 10, 2)]],
            &["OK", "OK 10/MINUTE 7 55s"],
        ),
        (
            "a limit of the request is no shadow",
            vec![vec![with_limit(one("shadow", "x"), 1, 2)]; 2],
            &["OVER_LIMIT", "OVER_LIMIT 1/MINUTE - 55s"],
        ),
        (
            "one for a week",
            vec![vec![with_limit(user(), 10, 7)]],
            &["OK", "OK 10/WEEK 9 264355s"],
        ),
        (
            "one without a unit",
            vec![vec![with_limit(user(), 10, 0)]],
            &["OK", "OK 3/MINUTE 2 55s"],
        ),
        (
            "one of no unit there is",
            vec![vec![with_limit(user(), 10, 99)]],
            &["OK", "OK 3/MINUTE 2 55s"],
        ),
        (
            "one below zero",
            vec![vec![with_limit(user(), 10, -1)]],
            &["OK", "OK 3/MINUTE 2 55s"],
        ),
        (
            "the largest there is",
            vec![vec![with_limit(user(), u32::MAX, 6)]],
            &["OK", "OK 4294967295/YEAR 4294967294 2769955s"],
        ),
    ];
    for (what, requests, expected) in cases {
        let server = GrpcServer::start_ratelimit(FILE, RatelimitOptions::default());
        let answers = requests
            .into_iter()
            .map(|descriptors| summary(&server, &request("shop", descriptors)));
        assert_eq!(answers.last().unwrap(), expected, "{what}");
    }
}

#[test]
fn a_shadow_says_what_it_would_and_refuses_nothing() {
    let server = GrpcServer::start_ratelimit(FILE, RatelimitOptions::default());
    for _ in 0..3 {
        assert_eq!(summary(&server, &request("shop", vec![one("shadow", "x")]))[0], "OK");
    }
}

#[test]
fn strictly_a_refused_request_takes_nothing_from_the_others() {
    for (options, left) in [(RatelimitOptions::default(), "OVER_LIMIT"), (strict(), "OK")] {
        let server = GrpcServer::start_ratelimit(FILE, options);
        let both = request("shop", vec![one("user", "u"), with_limit(one("all", "x"), 1, 2)]);
        assert_eq!(summary(&server, &both)[0], "OK");
        for _ in 0..2 {
            assert_eq!(summary(&server, &both)[0], "OVER_LIMIT");
        }
        assert_eq!(
            summary(&server, &request("shop", vec![one("user", "u")]))[0],
            left,
            "{options:?}"
        );
    }
}

#[test]
fn strictly_hits_of_thousands_of_millions_are_taken_as_they_are() {
    let server = GrpcServer::start_ratelimit(FILE, strict());
    let huge_hits = request("shop", vec![hits(&[("huge", "x")], 1_500_000_000)]);
    for left in ["2500000000", "1000000000"] {
        assert_eq!(
            summary(&server, &huge_hits)[1].split(' ').nth(2),
            Some(left),
            "what is left of 4,000,000,000"
        );
    }
    assert_eq!(summary(&server, &huge_hits)[0], "OVER_LIMIT");
}

#[test]
fn an_unknown_domain_limits_nothing_whatever_is_brought_along() {
    let server = GrpcServer::start_ratelimit(FILE, RatelimitOptions::default());
    for unit in [1, 0, 7, 99, -1] {
        let brought = request("nowhere", vec![with_limit(one("user", "u"), 0, unit)]);
        assert_eq!(summary(&server, &brought), ["OK", "OK no limit - -"], "{unit}");
    }
}

#[test]
fn entries_are_bytes_and_limited_like_text() {
    let server = GrpcServer::start_ratelimit(FILE, RatelimitOptions::default());
    let overall = |key, value| summary(&server, &request("shop", vec![bytes(key, value)])).remove(0);
    // As an HTTP header of ISO 8859-1 has them, and one that is no text at all.
    for value in [&b"caf\xe9"[..], b"caf\xe8", b"\xff\x00\xc3\x28"] {
        let answers: Vec<String> = (0..4).map(|_| overall(b"user", value)).collect();
        assert_eq!(answers, ["OK", "OK", "OK", "OVER_LIMIT"], "{value:?}");
    }
    assert_eq!(overall(b"us\xffer", b"u"), "OK");
    // Our own rules read them in the same way.
    let server = GrpcServer::start("- { id: user, per: user, limit: 1/min }\n");
    for expected in ["OK", "OVER_LIMIT"] {
        let hit = request("default", vec![bytes(b"user", b"\xff")]);
        assert_eq!(summary(&server, &hit)[0], expected);
    }
    assert!(!server.gate.metrics_text().contains("code=\"internal\"} 1\n"));
}

#[test]
fn every_rejected_call_is_counted_by_its_status() {
    let server = GrpcServer::start_ratelimit(FILE, RatelimitOptions::default());
    let mut client = server.connect();
    let count = |code: &str| {
        let metrics = server.gate.metrics_text();
        let series = format!("tollgate_rejected_total{{protocol=\"grpc\",code=\"{code}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("{series} in {metrics}")).to_owned()
    };
    client.call(SHOULD_RATE_LIMIT, &request("", vec![one("user", "u")]).encode_to_vec());
    client.call(SHOULD_RATE_LIMIT, &[0xff; 64]);
    client.call("/no.such.Service/Method", &[]);
    client.should_rate_limit(&request("shop", vec![one("user", "u")]));
    assert_eq!(
        ["invalid_argument", "internal", "unimplemented", "unavailable"].map(count),
        ["1", "1", "1", "0"]
    );
}

#[test]
fn what_makes_no_sense_is_told_and_the_next_request_is_answered() {
    let server = GrpcServer::start_ratelimit(FILE, RatelimitOptions::default());
    let mut client = server.connect();
    let long = "x".repeat(9_000);
    let many = |number: usize| vec![RateLimitDescriptor::default(); number];
    for (invalid, status, begins) in [
        (
            request("", vec![one("user", "u")]),
            3,
            "rate limit domain must not be empty",
        ),
        (
            request("shop", Vec::new()),
            3,
            "rate limit descriptor list must not be empty",
        ),
        (
            request("shop", many(10_000)),
            3,
            "10000 descriptors; a request has at most 64",
        ),
        (
            request("shop", vec![one("user", "u"); 10_000]),
            11,
            "a message has at most",
        ),
        (request("shop", vec![one("user", &long)]), 3, "descriptor 0"),
        (request("shop", vec![descriptor(&[("a", "b"); 65])]), 3, "descriptor 0"),
        (request(&long, vec![one("user", "u")]), 3, "the domain has more than"),
    ] {
        let answer = client.call(SHOULD_RATE_LIMIT, &invalid.encode_to_vec());
        assert_eq!(answer.status, Some(status), "{answer:?}");
        let text = answer.error_text.replace("%20", " ");
        assert!(text.starts_with(begins), "{text}");
    }
    let garbage = client.call(SHOULD_RATE_LIMIT, &[0xff; 64]);
    assert_eq!(garbage.status, Some(13), "{garbage:?}");
    // The most that is taken, all on one counter.
    let largest = request("shop", vec![one("user", "vip"); 64]);
    assert_eq!(summary(&server, &largest).last().unwrap(), "OK 100/DAY 36 5155s");
    let huge = request("shop", vec![hits(&[("user", "u")], u64::MAX)]);
    assert_eq!(summary(&server, &huge), ["OVER_LIMIT", "OVER_LIMIT 3/MINUTE - 55s"]);
}

const METADATA_FILE: &str = include_str!("metadata_file.yaml");

/// The metadata of an answer.
fn metadata(server: &GrpcServer, request: &RateLimitRequest) -> Value {
    let mut answer = as_json::encode(&server.connect().should_rate_limit(request));
    answer.get_mut("dynamicMetadata").map(Value::take).unwrap_or_default()
}

#[test]
fn what_passes_is_told_as_metadata_where_that_is_set() {
    let with_metadata = RatelimitOptions {
        metadata: true,
        ..RatelimitOptions::default()
    };
    let server = GrpcServer::start_ratelimit(METADATA_FILE, with_metadata);
    let both = || request("shop", vec![one("a", "x"), one("b", "y")]);
    let descriptors = json!([{ "entries": ["a=x"] }, { "entries": ["b=y"] }]);
    assert_eq!(
        metadata(&server, &both()),
        json!({
            "domain": "shop",
            "descriptors": descriptors,
            "metadata": { "plan": { "name": "free", "limits": [1, 2.5, null], "more": true }, "tier": 1 },
        })
    );
    // The first is over its limit now.
    assert_eq!(
        metadata(&server, &both()),
        json!({
            "domain": "shop",
            "descriptors": descriptors,
            "metadata": { "plan": { "name": "other", "more": true }, "tier": { "deeper": "x" } },
        })
    );
    let mut brought = request("shop", vec![with_limit(hits(&[("c", "z"), ("d", "")], 2), 7, 2)]);
    brought.hits_addend = 5;
    let descriptor = json!({ "entries": ["c=z", "d="], "limit": "requests_per_unit:7 unit:MINUTE", "hitsAddend": 2 });
    assert_eq!(
        metadata(&server, &brought),
        json!({ "domain": "shop", "descriptors": [descriptor], "hitsAddend": 5 })
    );
    let silent = GrpcServer::start_ratelimit(METADATA_FILE, RatelimitOptions::default());
    assert_eq!(metadata(&silent, &both()), Value::Null);
}
