//! One subject: everything about it, explanations, cleared counters; and the audit log.

use crate::fixture::{AdminServer, OPERATOR};
use crate::rules::add_rule;
use crate::tables::set_row;
use serde_json::{Value, json};
use tollgate::server::telemetry::Protocol;
use tollgate_limiter::core::testing::rules::{attempt, attributes};
use tollgate_test_kit::eventually;

/// Checks `m_1` once. 1 if it is allowed.
fn used(server: &AdminServer) -> u64 {
    let attributes = attributes(&["merchant=m_1"]);
    let snapshot = server.gate.snapshot(Protocol::Http);
    let result = server.runtime.block_on(snapshot.check(&attempt(&attributes)));
    result.verdict.allowed.into()
}

#[test]
fn a_subject_is_shown_with_its_rows_and_an_explanation() {
    let server = AdminServer::start();
    set_row(&server, "m_1", "7/min");
    set_row(&server, "m_11", "8/min");
    let shown = server.get("/v1/subject?merchant=m_1").expect(200).json();
    assert_eq!(shown["attributes"], json!({ "merchant": "m_1" }));
    assert_eq!(
        (shown["rows"].as_array().unwrap().len(), &shown["rows"][0]["terms"]),
        (1, &json!("7/min"))
    );
    let rules = shown["explanation"]["rules"].as_array().unwrap();
    assert!(
        rules
            .iter()
            .any(|rule| rule["rule"] == "plan" && rule["matched"] == true),
        "{shown}"
    );
    let body = json!({ "attributes": { "merchant": "m_1" } });
    let explained = server.by_admin("POST", "/v1/explain").json(&body).expect(200).json();
    assert_eq!(explained["rules"], shown["explanation"]["rules"]);
    let text = server
        .by_admin("POST", "/v1/explain")
        .header("Accept", "text/plain")
        .json(&body)
        .expect(200);
    assert!(text.body.contains("plan"), "{}", text.body);
    server
        .by_admin("POST", "/v1/explain")
        .json(&json!({ "attributes": [] }))
        .refused(400, "malformed");
    server
        .by_admin("POST", "/v1/explain")
        .json(&json!({}))
        .refused(400, "malformed");
}

#[test]
fn counters_of_a_subject_are_cleared_and_that_is_audited() {
    for server in AdminServer::over_both() {
        let target = "/v1/override?rule=plan&merchant=m_1";
        server.create(target, &json!({ "terms": "1/min" })).expect(201);
        eventually("the row is applied", || server.control.status().revision == 1);
        assert_eq!((used(&server), used(&server)), (1, 0));
        let body = json!({ "attributes": { "merchant": "m_1" }, "reason": "support case" });
        let dry = server
            .request("POST", "/v1/forget?dry_run=true")
            .token(OPERATOR)
            .json(&body)
            .expect(200)
            .json();
        assert_eq!(dry, json!({ "forgotten": 0, "dry_run": true }));
        assert_eq!(used(&server), 0);
        let done = server
            .request("POST", "/v1/forget")
            .token(OPERATOR)
            .json(&body)
            .expect(200)
            .json();
        assert!(done["forgotten"].as_u64().unwrap() >= 1, "{done}");
        assert_eq!(used(&server), 1);
        let audit = server.get("/v1/audit?action=forget").expect(200).json();
        let entry = &audit["items"][0];
        assert_eq!(
            (&entry["actor"], &entry["reason"], &entry["revision"]),
            (&json!("operator"), &json!("support case"), &json!(0))
        );
        for body in [
            json!({ "attributes": { "merchant": "m_1" }, "rule": "nowhere" }),
            json!({ "attributes": { "merchant": [] } }),
            json!({ "rule": "plan" }),
        ] {
            server
                .by_admin("POST", "/v1/forget")
                .json(&body)
                .refused(400, "malformed");
            server
                .by_admin("POST", "/v1/forget?dry_run=true")
                .json(&body)
                .refused(400, "malformed");
        }
    }
}

#[test]
fn the_audit_log_has_every_change_with_its_author_and_is_verified() {
    for server in AdminServer::over_both() {
        set_row(&server, "m_1", "5/min");
        add_rule(&server);
        let via = server
            .by_admin("PUT", "/v1/attribute?source=merchant&subject=m&name=tier")
            .if_absent();
        via.header("X-Tollgate-Via", "cli")
            .json(&json!({ "value": "gold", "reason": "plan" }))
            .expect(201);
        let all = server.get("/v1/audit").expect(200).json();
        let entries = all["items"].as_array().unwrap();
        assert_eq!(entries[0]["action"], "attribute.set", "the newest first");
        assert_eq!(
            (&entries[0]["via"], &entries[0]["reason"], &entries[0]["address"]),
            (&json!("cli"), &json!("plan"), &json!("127.0.0.1"))
        );
        let set = entries.iter().find(|entry| entry["action"] == "row.set").unwrap();
        assert_eq!(
            (&set["actor"], &set["via"], &set["before"]),
            (&json!("admin"), &json!("api"), &json!(""))
        );
        assert!(set["after"].as_str().unwrap().contains("5/min"));
        let count = |query: &str| server.count(&format!("/v1/audit?{query}"));
        assert_eq!(
            (
                count("action=row.set"),
                count("action=row."),
                count("actor=admin"),
                count("actor=nobody")
            ),
            (1, 1, entries.len(), 0)
        );
        assert_eq!(
            (
                count("target=default/plan"),
                count("since=9007199254740991"),
                count("until=1")
            ),
            (1, 0, 0)
        );
        let first = server.get("/v1/audit?limit=1").expect(200).json();
        let next = server
            .get(&format!("/v1/audit?limit=1&after={}", first["next"].as_str().unwrap()))
            .expect(200)
            .json();
        assert_eq!(next["items"][0], entries[1]);
        let report = server.get("/v1/audit/verify").expect(200).json();
        assert_eq!((&report["ok"], &report["anchored"]), (&json!(true), &Value::Null));
        assert_eq!(report["hash"], entries[0]["hash"]);
        let anchored = server
            .get(&format!("/v1/audit/verify?anchor={}", report["hash"].as_str().unwrap()))
            .expect(200)
            .json();
        assert_eq!(anchored["anchored"], true);
        let wrong = server
            .get(&format!("/v1/audit/verify?anchor={}", "0".repeat(63) + "1"))
            .expect(200)
            .json();
        assert_eq!((&wrong["ok"], &wrong["anchored"]), (&json!(false), &json!(false)));
        // The metric shows what the last verification found, and no wrong anchor.
        let shows = |value: u8| {
            let text = server.gate.metrics_text();
            assert!(text.contains(&format!("\ntollgate_audit_chain_ok {value}\n")), "{text}");
        };
        shows(1);
        server.execute("UPDATE audit SET actor = 'eve' WHERE seq = 1");
        let broken = server.get("/v1/audit/verify").expect(200).json();
        assert_eq!(broken["ok"], false);
        shows(0);
        server.get("/v1/audit/verify?anchor=x").refused(400, "malformed");
        server.get("/v1/audit?since=x").refused(400, "malformed");
    }
}

#[test]
fn state_is_shown_before_and_after_the_first_change() {
    for server in AdminServer::over_both() {
        let fresh = server.get("/v1/status").expect(200).json();
        assert_eq!(
            (&fresh["revision"], &fresh["version"], &fresh["live"], &fresh["source"]),
            (&json!(0), &json!(0), &Value::Null, &json!("file"))
        );
        add_rule(&server);
        let status = server.get("/v1/status").expect(200).json();
        assert_eq!(
            (&status["version"], &status["live"]["reason"], &status["source"]),
            (&json!(1), &json!("new"), &json!("database"))
        );
        let instances = server.get("/v1/instances").expect(200).json();
        assert!(
            instances["items"]
                .as_array()
                .unwrap()
                .iter()
                .any(|item| item["self"] == true),
            "{instances}"
        );
        assert_eq!(
            server.get("/v1/store").expect(200).json(),
            json!({ "kind": "memory", "available": true, "error": null, "instances": 1, "servers": [] })
        );
        assert_eq!(
            server.request("GET", "/v1/livez").expect(200).json(),
            json!({ "status": "ok" })
        );
        server.request("GET", "/v1/schema/rules.json").expect(200);
    }
}
