//! A limit of zero in every form, over every front end and with every header dialect: it denies what costs something, it
//! allows a peek and a refund, it says zero, and nothing panics.

use crate::server::TestServer;
use serde_json::{Value, json};
use std::sync::Arc;
use tollgate::server::headers::{Dialect, Dialects};
use tollgate::server::rls::rate_limit_descriptor::RateLimitOverride;
use tollgate::server::rls::{RateLimitDescriptor, RateLimitRequest, json as as_json};
use tollgate::server::telemetry::Protocol;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::ratelimit::{self, DescriptorFiles, RatelimitOptions};
use tollgate_limiter::core::rules::{ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::yaml;
use tollgate_limiter::store::memory::Memory;
use tollgate_test_kit::http::is_structured;
use tollgate_test_kit::{grpc, http, resp};

const RULES: &str = "rules:
- { id: ban, when: { path: /ban }, per: user, limit: 0/min }
- { id: override, when: { path: /override }, per: user, limit: 5/min, overrides: [{ user: u, limit: 0/h }] }
- { id: by, when: { path: /by }, per: user, limit: 5/min, by: { tier: { none: 0/day } } }
- { id: slots, when: { path: /slots }, per: user, algorithm: concurrency, limit: 0 }
- { id: log, when: { path: /log }, per: user, algorithm: sliding_log, limit: 0/s }
";
const FILE: &str = "domain: files
descriptors:
- { key: user, rate_limit: { unit: minute, requests_per_unit: 0 } }
- { key: tier, rate_limit: { unit: hour } }
- { key: points, rate_limit: { unit: day, requests_per_unit: 5 } }
";

/// A limit of zero: its domain, the attributes that meet it, a limit that the request has itself, and the unit it reports.
type Ban = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Option<(u32, i32)>,
    &'static str,
);

const BANS: &[Ban] = &[
    ("default", &[("path", "/ban"), ("user", "u")], None, "MINUTE"),
    ("default", &[("path", "/override"), ("user", "u")], None, "HOUR"),
    (
        "default",
        &[("path", "/by"), ("tier", "none"), ("user", "u")],
        None,
        "DAY",
    ),
    ("default", &[("path", "/slots"), ("user", "u")], None, "-"),
    ("default", &[("path", "/log"), ("user", "u")], None, "SECOND"),
    ("default", &[("user", "u")], Some((0, 2)), "MINUTE"),
    ("files", &[("user", "u")], None, "MINUTE"),
    ("files", &[("tier", "u")], None, "HOUR"),
    ("files", &[("points", "u")], Some((0, 4)), "DAY"),
];

/// The effect of a request on a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Effect {
    Peek,
    Refund,
    Consume,
}

#[test]
fn a_limit_of_zero_denies_peeks_and_refunds_alike_over_every_front_end() {
    for strict in [false, true] {
        let dialects = Dialect::NAMES.map(|(name, _)| Dialects::from_names([name]).unwrap());
        for headers in dialects.into_iter().chain([Dialects::NONE, Dialects::default()]) {
            let store = || Arc::new(Memory::options().build()).into();
            let server = TestServer::serve(rules(strict), headers, store);
            // What is denied may be counted, so it comes last.
            for effect in [Effect::Peek, Effect::Refund, Effect::Consume] {
                for ban in BANS {
                    for front_end in [check, batch, refund_or_explain, forward, rls_json, rls_grpc, command] {
                        front_end(&server, ban, effect);
                    }
                }
            }
            for protocol in [Protocol::Http, Protocol::Grpc, Protocol::Resp, Protocol::Forward] {
                let panics = server.gate.metrics().faults.panics(protocol);
                assert_eq!(panics, 0, "{headers:?} {protocol:?}");
            }
        }
    }
}

fn rules(strict: bool) -> RuleSet {
    let mut files = DescriptorFiles::new(false);
    files.add_file(&ratelimit::parse(&Origin::new("file.yaml", FILE)).unwrap());
    let options = RatelimitOptions {
        strict,
        ..RatelimitOptions::default()
    };
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&yaml::parse(&Origin::new("rules.yaml", RULES)).unwrap());
    parser.set_descriptors(files.finish().unwrap().0, options);
    parser.finish().unwrap().rules
}

/// The body of a check.
fn body(ban: &Ban, effect: Effect) -> Value {
    let attributes: serde_json::Map<String, Value> = ban
        .1
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()))
        .collect();
    json!({ "domain": ban.0, "attributes": attributes, "cost": u64::from(effect == Effect::Consume) })
}

/// Checks a verdict in our own JSON.
fn assert_verdict(verdict: &Value, effect: Effect, ban: &Ban) {
    assert_eq!(
        verdict["allowed"],
        effect != Effect::Consume,
        "{ban:?} {effect:?} {verdict}"
    );
    assert_eq!(
        (&verdict["limit"], &verdict["remaining"]),
        (&json!(0), &json!(0)),
        "{ban:?} {verdict}"
    );
}

fn assert_headers(answer: &http::Answer, ban: &Ban) {
    for name in ["ratelimit", "ratelimit-policy"] {
        if let Some(value) = answer.header(name).filter(|value| value.contains('"')) {
            assert!(
                is_structured(name, value) && (name == "ratelimit" || !value.contains(";w=0")),
                "{ban:?} {name}: {value}"
            );
        }
    }
}

fn check(server: &TestServer, ban: &Ban, effect: Effect) {
    if ban.2.is_some() || effect == Effect::Refund {
        return;
    }
    let answer = http::Client::connect(server.http).post("/v1/check", body(ban, effect).to_string());
    assert_eq!(
        answer.status,
        if effect == Effect::Consume { 429 } else { 200 },
        "{ban:?}"
    );
    assert_verdict(&answer.json(), effect, ban);
    assert_headers(&answer, ban);
}

fn batch(server: &TestServer, ban: &Ban, effect: Effect) {
    if ban.2.is_some() || effect == Effect::Refund {
        return;
    }
    let bodies = json!([body(ban, effect)]);
    let answer = http::Client::connect(server.http).post("/v1/check/batch", bodies.to_string());
    assert_eq!(answer.status, 200, "{ban:?}");
    assert_verdict(&answer.json()[0], effect, ban);
}

fn refund_or_explain(server: &TestServer, ban: &Ban, effect: Effect) {
    if ban.2.is_some() {
        return;
    }
    let mut client = http::Client::connect(server.http);
    let body = body(ban, Effect::Consume).to_string();
    match effect {
        Effect::Refund => {
            let answer = client.post("/v1/refund", body);
            assert_eq!(answer.status, 200, "{ban:?}");
            assert_verdict(&answer.json(), effect, ban);
        }
        Effect::Peek | Effect::Consume => assert_eq!(client.post("/v1/explain", body).status, 200, "{ban:?}"),
    }
}

/// A request of a gateway costs 1.
fn forward(server: &TestServer, ban: &Ban, effect: Effect) {
    if ban.2.is_some() || effect != Effect::Consume {
        return;
    }
    let headers: String = ban
        .1
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let mut client = http::Client::connect(server.http);
    client.send(format!(
        "GET /v1/forward/{} HTTP/1.1\r\nHost: test\r\n{headers}\r\n",
        ban.0
    ));
    let answer = client.answer();
    assert_eq!(answer.status, 429, "{ban:?}");
    assert_verdict(&answer.json(), effect, ban);
    assert_headers(&answer, ban);
}

fn rls_request(ban: &Ban, effect: Effect) -> RateLimitRequest {
    let mut descriptor = grpc::hits(ban.1, u64::from(effect != Effect::Peek));
    descriptor.is_negative_hits = effect == Effect::Refund;
    descriptor.limit = ban.2.map(|(requests_per_unit, unit)| RateLimitOverride {
        requests_per_unit,
        unit,
    });
    RateLimitRequest {
        domain: ban.0.to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    }
}

/// Checks an rls response as JSON, which leaves zeros out.
fn assert_status(response: &Value, ban: &Ban, effect: Effect) {
    let code = if effect == Effect::Consume { "OVER_LIMIT" } else { "OK" };
    let status = &response["statuses"][0];
    assert_eq!(
        (&response["overallCode"], &status["code"]),
        (&json!(code), &json!(code)),
        "{ban:?} {response}"
    );
    assert_eq!(status.get("limitRemaining"), None, "{ban:?} {response}");
    let limit = status["currentLimit"]
        .as_object()
        .unwrap_or_else(|| panic!("{ban:?} {effect:?} {response}"));
    assert_eq!(limit.get("requestsPerUnit"), None, "{ban:?} {response}");
    assert_eq!(
        limit.get("unit").map_or("-", |unit| unit.as_str().unwrap()),
        ban.3,
        "{ban:?} {response}"
    );
}

fn rls_json(server: &TestServer, ban: &Ban, effect: Effect) {
    let request = rls_request(ban, effect);
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entries = ban.1.iter().map(|(key, value)| json!({ "key": key, "value": value }));
        let limit = descriptor
            .limit
            .map(|limit| json!({ "requestsPerUnit": limit.requests_per_unit, "unit": limit.unit }));
        json!({
            "entries": entries.collect::<Value>(),
            "hitsAddend": descriptor.hits_addend,
            "isNegativeHits": descriptor.is_negative_hits,
            "limit": limit,
        })
    };
    let descriptors: Value = request.descriptors.iter().map(descriptor).collect();
    let body = json!({ "domain": request.domain, "descriptors": descriptors });
    let answer = http::Client::connect(server.http).post("/json", body.to_string());
    assert_eq!(
        answer.status,
        if effect == Effect::Consume { 429 } else { 200 },
        "{ban:?}"
    );
    assert_status(&answer.json(), ban, effect);
}

fn rls_grpc(server: &TestServer, ban: &Ban, effect: Effect) {
    let mut client = grpc::Client::connect(&server.runtime, server.grpc);
    let response = client.should_rate_limit(&rls_request(ban, effect));
    assert_status(&as_json::encode(&response), ban, effect);
}

fn command(server: &TestServer, ban: &Ban, effect: Effect) {
    if ban.2.is_some() || effect == Effect::Refund {
        return;
    }
    let cost = u64::from(effect == Effect::Consume).to_string();
    let pairs = ban.1.iter().flat_map(|(key, value)| [*key, *value]);
    let arguments: Vec<&str> = ["TOLLGATE.CHECK", ban.0, &cost].into_iter().chain(pairs).collect();
    let mut client = resp::Client::connect(server.resp);
    client.send(resp::command(&arguments));
    assert_eq!(client.line(), "*6", "{ban:?}");
    let [limited, limit, remaining] = std::array::from_fn(|_| client.line());
    let denied = if effect == Effect::Consume { ":1" } else { ":0" };
    assert_eq!(
        [&*limited, &*limit, &*remaining],
        [denied, ":0", ":0"],
        "{ban:?} {effect:?}"
    );
}
