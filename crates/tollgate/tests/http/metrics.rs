//! What is counted, and that callers cannot add to what there is.

use std::collections::BTreeMap;
use std::fmt::Write;
use tollgate_test_kit::http::{Client, HttpServer};
use tollgate_test_kit::rule_set;

const RULES: &str = "
- { id: plan, per: user, limit: 2/min }
- { id: dry, per: user, mode: shadow, limit: 1/min }
- { id: windows, when: { user: w }, limit: [2/s, 100/min] }
- { id: points, when: { points: { present: true } }, cost: { attribute: points }, limit: 1000/min }
";

/// The series and their values.
fn scrape(client: &mut Client) -> BTreeMap<String, String> {
    client.send("GET /metrics HTTP/1.1\r\nHost: test\r\nAccept: application/openmetrics-text\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(answer.body.ends_with("# EOF\n"));
    let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
    let series: BTreeMap<String, String> = lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, value)| (series.to_owned(), value.to_owned()))
        .collect();
    assert!(series.keys().all(|name| name.starts_with("tollgate_")), "{series:?}");
    series
}

fn decisions(rule: &str, result: &str) -> String {
    format!(r#"tollgate_decisions_total{{rule="{rule}",result="{result}",source="memory",protocol="http"}}"#)
}

#[test]
fn every_rule_is_counted_once_for_an_attempt() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    for _ in 0..3 {
        client.check(r#""user":"w""#);
    }
    client.check(r#""points":"many""#);
    let series = scrape(&mut client);
    let value = |name: &str| series.get(name).map(String::as_str);
    for (name, count) in [
        (decisions("plan", "allow").as_str(), "2"),
        (&decisions("plan", "deny"), "1"),
        (&decisions("dry", "shadow_allow"), "1"),
        (&decisions("dry", "shadow_deny"), "2"),
        (&decisions("windows", "allow"), "2"),
        (&decisions("windows", "deny"), "1"),
        (&decisions("points", "allow"), "1"),
        (
            r#"tollgate_checks_total{result="allow",source="memory",protocol="http"}"#,
            "3",
        ),
        (
            r#"tollgate_checks_total{result="deny",source="memory",protocol="http"}"#,
            "1",
        ),
        ("tollgate_decision_seconds_count", "4"),
        (r#"tollgate_decision_seconds_bucket{le="+Inf"}"#, "4"),
        ("tollgate_rules_loaded", "4"),
        ("tollgate_rules_reload_errors_total", "0"),
        ("tollgate_rules_reloads_total", "0"),
        ("tollgate_invalid_costs_total", "1"),
        ("tollgate_breaker_state", "0"),
        ("tollgate_keys", "5"),
        ("tollgate_connections", "1"),
        ("tollgate_connections_accepted_total", "1"),
        (r#"tollgate_store_errors_total{code="unavailable"}"#, "0"),
        (
            concat!(r#"tollgate_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""}"#),
            "1",
        ),
    ] {
        assert_eq!(value(name), Some(count), "{name} in {series:#?}");
    }
}

#[test]
fn rules_that_never_match_and_attempts_without_a_rule_are_counted() {
    let server = HttpServer::start(
        "- { id: plan, per: merchant, limit: 9/min }\n\
         - { id: typo, when: { pth: /login }, limit: 9/min }\n\
         - { id: pair, when: { endpoint: /x }, per: [merchant, user], limit: 9/min }\n\
         - { id: off, limit: 9/min, mode: disabled }\n\
         - { id: other, domain: api, per: user, limit: 9/min }\n",
    );
    let mut client = server.connect();
    let never = |rule: &str| format!(r#"tollgate_rules_never_matched{{rule="{rule}"}}"#);
    let series = scrape(&mut client);
    let value = |name: &str| series.get(name).map(String::as_str);
    for rule in ["plan", "typo", "pair"] {
        assert_eq!(value(&never(rule)), Some("1"), "{rule} in {series:#?}");
    }
    assert_eq!(value(&never("off")), None);
    assert_eq!(client.get("/readyz").json()["rules"]["never_matched"], 4);

    client.check(r#""merchant":"m_1""#);
    client.check(r#""merchant":"m_1","endpoint":"/x""#);
    client.check(r#""user":"u_1","endpoint":"/x""#);
    client.check(r#""colour":"blue""#);
    let unknown = client.post("/v1/check", r#"{"domain":"defualt","attributes":{"merchant":"m_1"}}"#);
    assert_eq!(
        (unknown.status, &unknown.json()["rule"]),
        (200, &serde_json::Value::Null)
    );
    assert_eq!(
        unknown.json()["warning"],
        "domain `defualt` has no rules; did you mean `default`?"
    );
    let batch = client.post(
        "/v1/check/batch",
        r#"[{"domain":"apii","attributes":{}},{"attributes":{"merchant":"m_1"}}]"#,
    );
    assert_eq!(
        batch.json()[0]["warning"],
        "domain `apii` has no rules; did you mean `api`?"
    );
    assert_eq!(batch.json()[1].get("warning"), None);
    // An explanation and a refund decide nothing, and say the same.
    for path in ["/v1/explain", "/v1/refund"] {
        let answer = client.post(path, r#"{"domain":"apii","attributes":{}}"#);
        assert!(answer.body.contains("did you mean `api`?"), "{path}: {}", answer.body);
    }

    let series = scrape(&mut client);
    let value = |name: &str| series.get(name).map(String::as_str);
    for (name, expected) in [
        (never("plan"), "0"),
        (never("typo"), "1"),
        (never("pair"), "1"),
        (
            r#"tollgate_rules_never_matched{rule="other",domain="api"}"#.to_owned(),
            "1",
        ),
        (
            r#"tollgate_unmatched_total{protocol="http",reason="unknown_domain"}"#.to_owned(),
            "2",
        ),
        (
            r#"tollgate_unmatched_total{protocol="http",reason="no_rule"}"#.to_owned(),
            "2",
        ),
        (r#"tollgate_missing_keys_total{rule="plan"}"#.to_owned(), "2"),
        (r#"tollgate_missing_keys_total{rule="pair"}"#.to_owned(), "2"),
    ] {
        assert_eq!(value(&name), Some(expected), "{name} in {series:#?}");
    }
    assert_eq!(client.get("/readyz").json()["rules"]["never_matched"], 3);

    // New rules start without a match; what was missing stays counted.
    server
        .gate
        .install_rules(rule_set("- { id: plan, per: merchant, limit: 5/min }\n"));
    let series = scrape(&mut client);
    assert_eq!(series.get(&never("plan")).map(String::as_str), Some("1"));
    assert_eq!(series.get(&never("typo")), None);
    let missing = series.get(r#"tollgate_missing_keys_total{rule="plan"}"#);
    assert_eq!(missing.map(String::as_str), Some("2"));
}

#[test]
fn a_reload_counts_on_and_forgets_rules_that_are_gone() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    client.check(r#""user":"w""#);
    server
        .gate
        .install_rules(rule_set("- { id: plan, per: user, limit: 5/min }\n"));
    server.gate.record_reload_failure("broken");
    client.check(r#""user":"w""#);
    let series = scrape(&mut client);
    assert_eq!(series.get(&decisions("plan", "allow")).map(String::as_str), Some("2"));
    assert_eq!(series.get(&decisions("windows", "allow")), None);
    assert_eq!(
        series.get("tollgate_rules_reloads_total").map(String::as_str),
        Some("1")
    );
    assert_eq!(
        series.get("tollgate_rules_reload_errors_total").map(String::as_str),
        Some("1")
    );
}

#[test]
fn rules_of_one_id_in_two_domains_are_told_apart() {
    let server = HttpServer::start("- { id: plan, limit: 9/min }\n- { id: plan, domain: \"a\\\"b\", limit: 9/min }\n");
    let mut client = server.connect();
    client.check("");
    for _ in 0..2 {
        client.post("/v1/check", r#"{"domain":"a\"b","attributes":{}}"#);
    }
    let series = scrape(&mut client);
    let other = r#"tollgate_decisions_total{rule="plan",domain="a\"b",result="allow",source="memory",protocol="http"}"#;
    assert_eq!(series.get(&decisions("plan", "allow")).map(String::as_str), Some("1"));
    assert_eq!(series.get(other).map(String::as_str), Some("2"));
}

#[test]
fn both_sides_of_an_experiment_are_told_apart() {
    let server =
        HttpServer::start("- { id: plan, per: user, limit: 9/min, experiment: { share: 50%, algorithm: gcra } }\n");
    let mut client = server.connect();
    for user in 0..64 {
        client.check(&format!(r#""user":{user}"#));
    }
    let series = scrape(&mut client);
    let of = |variant: &str| -> u64 {
        let name = format!(
            r#"tollgate_decisions_total{{rule="plan",variant="{variant}",result="allow",source="memory",protocol="http"}}"#
        );
        series[&name].parse().unwrap()
    };
    assert_eq!(of("control") + of("experiment"), 64);
}

#[test]
fn a_hundred_thousand_callers_add_no_series() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let batch = |from: u32| {
        let mut body = String::from("[");
        for user in from..from + 1_000 {
            let comma = if user == from { "" } else { "," };
            write!(
                body,
                r#"{comma}{{"domain":"default","attributes":{{"user":"{user}","x{user}":"{user}"}}}}"#
            )
            .unwrap();
        }
        body + "]"
    };
    assert_eq!(client.post("/v1/check/batch", batch(0)).status, 200);
    let before: Vec<String> = scrape(&mut client).into_keys().collect();
    for round in 1..100 {
        assert_eq!(client.post("/v1/check/batch", batch(round * 1_000)).status, 200);
    }
    let after = scrape(&mut client);
    assert_eq!(
        after.get(&decisions("plan", "allow")).map(String::as_str),
        Some("100000")
    );
    let buckets = |name: &String| !name.contains("_bucket");
    let after: Vec<String> = after.into_keys().collect();
    assert_eq!(
        after.iter().filter(|name| buckets(name)).collect::<Vec<_>>(),
        before.iter().filter(|name| buckets(name)).collect::<Vec<_>>()
    );
    assert_eq!(after.len(), before.len());
}

#[test]
fn who_does_not_ask_for_openmetrics_gets_the_text_format_of_prometheus() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    client.check(r#""user":"u""#);
    for accept in ["", "Accept: text/plain\r\n", "Accept: */*\r\n"] {
        client.send(format!("GET /metrics HTTP/1.1\r\nHost: test\r\n{accept}\r\n"));
        let answer = client.answer();
        let kind = answer.header("content-type");
        assert_eq!(kind, Some("text/plain; version=0.0.4; charset=utf-8"), "{accept}");
        for line in [
            "# TYPE tollgate_decisions_total counter",
            &format!("{} 1", decisions("plan", "allow")),
        ] {
            assert!(
                answer.body.lines().any(|given| given == line),
                "{line}: {}",
                answer.body
            );
        }
        assert!(!answer.body.contains("# EOF") && !answer.body.contains("# UNIT"));
    }
}
