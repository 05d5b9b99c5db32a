//! Health, readiness, and what they say of rules.

use serde_json::json;
use tollgate::server::gate::Phase;
use tollgate_test_kit::http::HttpServer;
use tollgate_test_kit::rule_set;

const RULES: &str = "- { id: plan, limit: 100/min }\n";

#[test]
fn a_server_is_alive_and_says_when_it_is_ready() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    assert_eq!(client.get("/healthz").body, r#"{"status":"alive"}"#);
    client.check("");
    let ready = client.get("/readyz");
    assert_eq!(ready.status, 200);
    assert_eq!(
        ready.body,
        concat!(
            r#"{"status":"ready","store":{"kind":"memory","reachable":true,"keys":1},"#,
            r#""rules":{"loaded":1,"error":null,"never_matched":0},"breaker":"closed","instances":1}"#
        )
    );
    server.gate.advance_phase(Phase::Draining);
    let draining = client.get("/readyz");
    assert_eq!((draining.status, &draining.json()["status"]), (503, &json!("draining")));
    assert_eq!(server.connect().get("/healthz").status, 200);
}

#[test]
fn a_fault_in_changed_rules_is_told_and_the_old_ones_stay() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    client.check_cost("", 10);
    server
        .gate
        .record_reload_failure("rules.yaml:3:5: `limt` is unknown; did you mean `limit`?");
    let ready = client.get("/readyz");
    assert_eq!(ready.status, 200);
    assert_eq!(
        ready.json()["rules"]["error"],
        "rules.yaml:3:5: `limt` is unknown; did you mean `limit`?"
    );
    assert_eq!(client.check("").json()["remaining"], 89);
    server.gate.install_rules(rule_set(
        "- { id: plan, limit: 1000/min }\n- { id: other, per: x, limit: 1/s }\n",
    ));
    assert_eq!(
        client.get("/readyz").json()["rules"],
        json!({ "loaded": 2, "error": null, "never_matched": 2 })
    );
    // What was used stays used.
    assert_eq!(client.check("").json()["remaining"], 988);
}
