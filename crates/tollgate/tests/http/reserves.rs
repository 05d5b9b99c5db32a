//! Rules with a reserve: what a check, a refund, a lease and an explanation say about it.

use serde_json::json;
use tollgate_test_kit::http::HttpServer;

const CEILING: &str = "- { id: ceiling, limit: 10/min, reserve: { share: 20%, for: { priority: critical } } }\n";
const CRITICAL: &str = r#""priority":"critical""#;

#[test]
fn a_denial_by_the_reserve_is_answered_to_the_byte() {
    let server = HttpServer::start(CEILING);
    let mut client = server.connect();
    let allowed = client.check_cost("", 8);
    assert_eq!(allowed.status, 200);
    assert_eq!(
        allowed.json()["limits"],
        json!([{"rule": "ceiling", "allowed": true, "limit": 8, "remaining": 0, "reset_after_ms": 60_000,
                "retry_after_ms": null, "mode": "enforce", "source": "memory"}]),
        "one entry, of the counter with the least remaining"
    );
    let denied = client.check("");
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
            r#""status":429,"detail":"Policy \"ceiling\" allows 8 requests per 60 seconds, and keeps the rest for "#,
            r#"others.","violated-policies":["ceiling"],"allowed":false,"rule":"ceiling","limit":8,"remaining":0,"#,
            r#""reset_after_ms":60000,"retry_after_ms":7500,"delay_ms":0,"source":"memory","lease":null,"#,
            r#""limits":[{"rule":"ceiling","allowed":false,"limit":8,"remaining":0,"reset_after_ms":60000,"#,
            r#""retry_after_ms":7500,"mode":"enforce","source":"memory","reserved":true}]}"#
        )
    );
    assert_eq!(denied.header("retry-after"), Some("8"));
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""ceiling";q=8;w=60"#));
    assert_eq!(denied.header("ratelimit"), Some(r#""ceiling";r=0;t=8"#));
    let critical = client.check(CRITICAL);
    assert_eq!(critical.status, 200);
    assert_eq!(
        (&critical.json()["limit"], &critical.json()["remaining"]),
        (&json!(10), &json!(1))
    );
    assert_eq!(critical.header("ratelimit-policy"), Some(r#""ceiling";q=10;w=60"#));
}

#[test]
fn a_denial_of_the_whole_limit_is_not_reserved() {
    let server = HttpServer::start(CEILING);
    let mut client = server.connect();
    client.check_cost(CRITICAL, 10);
    for attributes in ["", CRITICAL] {
        let denied = client.check(attributes);
        assert_eq!((denied.status, &denied.json()["limit"]), (429, &json!(10)));
        assert_eq!(denied.json()["limits"][0].get("reserved"), None);
    }
}

#[test]
fn a_refund_returns_to_both_counters() {
    let server = HttpServer::start(CEILING);
    let mut client = server.connect();
    client.check_cost("", 8);
    let refund = client.post("/v1/refund", r#"{"attributes":{},"cost":3}"#);
    assert_eq!(refund.status, 200);
    assert_eq!(
        (&refund.json()["limit"], &refund.json()["remaining"]),
        (&json!(8), &json!(3))
    );
    assert_eq!(refund.json()["limits"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        client.check_cost(CRITICAL, 5).json()["remaining"],
        0,
        "5 of the 10 are used"
    );
}

#[test]
fn one_lease_holds_both_slots() {
    let server = HttpServer::start(
        "- { id: slots, algorithm: concurrency, limit: 5, reserve: { share: 20%, for: { priority: critical } } }\n",
    );
    let mut client = server.connect();
    let held = client.check_cost("", 4).json();
    let denied = client.check("");
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("1")));
    assert_eq!(denied.json()["limits"][0]["reserved"], true);
    assert_eq!(client.check(CRITICAL).status, 200);
    let release = json!({ "lease": held["lease"] }).to_string();
    assert_eq!(client.post("/v1/release", release).json()["released"], true);
    assert_eq!(client.check_cost("", 4).status, 200);
}

#[test]
fn an_explanation_has_both_counters() {
    let server = HttpServer::start(CEILING);
    let mut client = server.connect();
    client.check_cost("", 8);
    for (attributes, usable, allowed) in [("{}", false, false), (r#"{"priority":"critical"}"#, true, true)] {
        let answer = client.post("/v1/explain", format!(r#"{{"attributes":{attributes}}}"#));
        let explanation = answer.json();
        assert_eq!(explanation["verdict"]["allowed"], allowed);
        let reserve = &explanation["rules"][0]["reserve"];
        assert_eq!(
            (&reserve["share"], &reserve["lend"], &reserve["usable"]),
            (&json!("20%"), &json!(false), &json!(usable))
        );
        let counters = reserve["counters"].as_array().expect("both");
        let shown: Vec<_> = counters
            .iter()
            .map(|counter| (counter["counts"].as_str(), counter["limit"].as_u64()))
            .collect();
        assert_eq!(shown, [(Some("all"), Some(10)), (Some("others"), Some(8))]);
        assert_eq!(counters[1]["remaining"], 0);
        assert!(counters[0]["key"] != counters[1]["key"]);
    }
}
