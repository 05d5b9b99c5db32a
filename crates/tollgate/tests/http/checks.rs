//! Checks, refunds, batches, forgetting and explanations: what is asked and what is answered.

use serde_json::json;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::rules::{AttributeEdit, DerivedAttribute, EditProblems, RowEdit};
use tollgate_test_kit::http::HttpServer;

#[test]
fn an_allowed_check_is_answered_to_the_byte() {
    let server = HttpServer::start("- { id: merchant-plan, per: merchant, limit: 100/min }\n");
    let answer = server.connect().post(
        "/v1/check",
        r#"{"domain":"default","attributes":{"merchant":"m_1","endpoint":"/v1/charges"},"cost":1}"#,
    );
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.body,
        concat!(
            r#"{"allowed":true,"rule":"merchant-plan","limit":100,"remaining":99,"reset_after_ms":600,"#,
            r#""retry_after_ms":null,"delay_ms":0,"source":"memory","lease":null,"#,
            r#""limits":[{"rule":"merchant-plan","allowed":true,"limit":100,"remaining":99,"reset_after_ms":600,"#,
            r#""retry_after_ms":null,"mode":"enforce","source":"memory"}]}"#
        )
    );
}

#[test]
fn without_a_rule_everything_passes_and_there_are_no_rate_headers() {
    let server = HttpServer::start("- { id: elsewhere, when: { a: b }, limit: 1/s }\n");
    let answer = server.connect().check("");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.body,
        concat!(
            r#"{"allowed":true,"rule":null,"limit":null,"remaining":null,"reset_after_ms":null,"retry_after_ms":null,"#,
            r#""delay_ms":0,"source":"memory","lease":null,"limits":[]}"#
        )
    );
    assert!(answer.headers.iter().all(|(name, _)| !name.contains("ratelimit")));
}

#[test]
fn capacity_and_the_time_to_fill_it_are_what_headers_tell() {
    let server = HttpServer::start("- { id: plan, limit: 5000/min burst 500 }\n");
    let answer = server.connect().check("");
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""plan";q=500;w=6"#));
    assert_eq!(answer.header("ratelimit"), Some(r#""plan";r=499;t=1"#));
    assert_eq!(answer.json()["limit"], 500);
}

#[test]
fn several_windows_have_names_of_their_own() {
    let server = HttpServer::start("- { id: plan, limit: [5/s, 100/min] }\n");
    let mut client = server.connect();
    let answer = client.check("");
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(r#""plan.1s";q=5;w=1, "plan.1min";q=100;w=60"#)
    );
    assert_eq!(
        answer.header("ratelimit"),
        Some(r#""plan.1s";r=4;t=1, "plan.1min";r=99;t=1"#)
    );
    assert_eq!(answer.json()["rule"], "plan.1s");
    client.check_cost("", 4);
    let denied = client.check("");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["violated-policies"], json!(["plan.1s"]));
    // What would have passed stands as it did, and nothing was taken from it.
    assert_eq!(denied.json()["limits"][1]["remaining"], 95);
    assert_eq!(
        denied.header("ratelimit"),
        Some(r#""plan.1s";r=0;t=1, "plan.1min";r=95;t=3"#)
    );
}

#[test]
fn a_cost_that_can_never_pass_is_denied_without_a_time() {
    let server = HttpServer::start("- { id: plan, limit: 10/min }\n");
    let answer = server.connect().check_cost("", 11);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(answer.header("ratelimit"), Some(r#""plan";r=10"#));
    assert_eq!(answer.json()["retry_after_ms"], json!(null));
    let detail = answer.json()["detail"].to_string();
    assert!(detail.contains("can never allow this"), "{detail}");
}

#[test]
fn a_ban_denies_and_unlimited_has_no_headers_of_its_own() {
    let rules = "
- { id: plan, per: merchant, limit: 10/min, overrides: [
    { merchant: bad, limit: 0/min }, { merchant: good, limit: unlimited } ] }
";
    let server = HttpServer::start(rules);
    let mut client = server.connect();
    let banned = client.check(r#""merchant":"bad""#);
    assert_eq!(banned.status, 429);
    assert_eq!(banned.header("retry-after"), None);
    assert_eq!(banned.header("ratelimit-policy"), Some(r#""plan";q=0"#));
    assert_eq!(banned.json()["limit"], 0);
    assert_eq!(banned.json()["detail"], r#"Policy "plan" allows no requests."#);
    let free = client.check(r#""merchant":"good""#);
    assert_eq!(free.status, 200);
    assert!(free.headers.iter().all(|(name, _)| !name.contains("ratelimit")));
    assert_eq!(free.json()["limits"][0]["rule"], "plan");
    assert_eq!(free.json()["limits"][0]["limit"], json!(null));
    assert_eq!(free.json()["limits"][0]["allowed"], true);
}

#[test]
fn a_shadow_is_listed_and_never_binds() {
    let rules = "
- { id: dry, mode: shadow, limit: 1/min }
- { id: plan, limit: 10/min }
";
    let server = HttpServer::start(rules);
    let mut client = server.connect();
    client.check("");
    let answer = client.check("");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["rule"], "plan");
    assert_eq!(answer.json()["limits"][0]["mode"], "shadow");
    assert_eq!(answer.json()["limits"][0]["allowed"], false);
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""plan";q=10;w=60"#));
}

#[test]
fn a_shaped_limit_tells_how_long_to_hold() {
    let server = HttpServer::start("- { id: shaped, algorithm: leaky_bucket, shape: true, limit: 2/s burst 10 }\n");
    let mut client = server.connect();
    assert_eq!(client.check("").json()["delay_ms"], 0);
    assert_eq!(client.check("").json()["delay_ms"], 500);
    assert_eq!(client.check("").json()["delay_ms"], 1_000);
}

#[test]
fn milliseconds_are_rounded_up() {
    let server = HttpServer::start("- { id: plan, limit: 3/s }\n");
    let mut client = server.connect();
    assert_eq!(client.check("").json()["reset_after_ms"], 334);
    client.check_cost("", 2);
    assert_eq!(client.check("").json()["retry_after_ms"], 334);
}

#[test]
fn domains_are_apart() {
    let server = HttpServer::start("- { id: plan, domain: shop, limit: 1/min }\n");
    let mut client = server.connect();
    let shop = r#"{"domain":"shop","attributes":{}}"#;
    assert_eq!(client.post("/v1/check", shop).status, 200);
    assert_eq!(client.post("/v1/check", shop).status, 429);
    assert_eq!(client.check("").json()["rule"], json!(null));
}

#[test]
fn a_refund_gives_back_and_tells_the_standing_after() {
    let server = HttpServer::start("- { id: plan, limit: 10/min }\n");
    let mut client = server.connect();
    client.check_cost("", 10);
    let answer = client.post("/v1/refund", r#"{"attributes":{},"cost":4}"#);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        (&answer.json()["allowed"], &answer.json()["remaining"]),
        (&json!(true), &json!(4))
    );
    let full = client.post("/v1/refund", r#"{"attributes":{},"cost":100}"#);
    assert_eq!(full.json()["remaining"], 10);
}

#[test]
fn a_batch_is_decided_one_after_the_other() {
    let server = HttpServer::start("- { id: plan, per: user, limit: 2/min }\n");
    let mut client = server.connect();
    let one = r#"{"attributes":{"user":"a"}}"#;
    let answer = client.post(
        "/v1/check/batch",
        format!("[{one},{one},{one},{{\"attributes\":{{}}}}]"),
    );
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.headers.iter().all(|(name, _)| !name.contains("ratelimit")));
    let verdicts = answer.json();
    let allowed: Vec<bool> = (0..4)
        .map(|index| verdicts[index]["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!(allowed, [true, true, false, true]);
    assert_eq!(verdicts[2]["status"], 429);
    assert_eq!(verdicts[2]["title"], "Quota Exceeded");
    assert_eq!(verdicts[3]["rule"], json!(null));
    assert_eq!(client.post("/v1/check/batch", "[]").body, "[]");
}

#[test]
fn one_malformed_element_of_a_batch_charges_nothing() {
    let server = HttpServer::start("- { id: plan, limit: 2/min }\n");
    let mut client = server.connect();
    let answer = client.post(
        "/v1/check/batch",
        r#"[{"attributes":{}},{"attributes":{}},{"attributes":1}]"#,
    );
    assert_eq!(answer.status, 400);
    assert_eq!(
        (&answer.json()["index"], &answer.json()["field"]),
        (&json!(2), &json!("attributes"))
    );
    assert_eq!(client.check_cost("", 0).json()["remaining"], 2);
}

#[test]
fn forgetting_unblocks_one_subject() {
    let rules = "
- { id: minute, per: user, limit: 1/min }
- { id: hour, per: user, limit: 1/h }
";
    let server = HttpServer::start(rules);
    let mut client = server.connect();
    for user in ["a", "b"] {
        client.check(&format!(r#""user":"{user}""#));
    }
    let one = client.post("/v1/forget", r#"{"attributes":{"user":"a"},"rule":"minute"}"#);
    assert_eq!(one.body, r#"{"forgotten":1}"#);
    let all = client.post("/v1/forget", r#"{"attributes":{"user":"a"}}"#);
    assert_eq!(all.body, r#"{"forgotten":1}"#);
    assert_eq!(client.check(r#""user":"a""#).status, 200);
    assert_eq!(client.check(r#""user":"b""#).status, 429);
    let nobody = client.post("/v1/forget", r#"{"attributes":{"user":"c"}}"#);
    assert_eq!(nobody.body, r#"{"forgotten":0}"#);
}

#[test]
fn an_explanation_names_every_rule_and_takes_nothing() {
    let rules = "
- { id: plan, per: user, limit: 5/min, by: { tier: { free: 2/min } } }
- { id: charges, when: { endpoint: /v1/charges }, limit: 1/s }
";
    let server = HttpServer::start(rules);
    let mut client = server.connect();
    let body = r#"{"attributes":{"user":"a","tier":"free","endpoint":"/v1/refunds"}}"#;
    for _ in 0..3 {
        let answer = client.post("/v1/explain", body);
        assert_eq!(answer.status, 200);
        let explanation = answer.json();
        assert_eq!(explanation["verdict"]["allowed"], true);
        let (plan, charges) = (&explanation["rules"][0], &explanation["rules"][1]);
        assert_eq!(plan["matched"], true);
        assert_eq!(plan["per"], json!([{ "attribute": "user", "value": "a" }]));
        assert_eq!(
            plan["from"],
            json!({ "kind": "by", "attribute": "tier", "value": "free" })
        );
        assert_eq!(plan["limit"], "2/min");
        assert_eq!(plan["limits"][0]["limit"], 2);
        assert_eq!(plan["limits"][0]["algorithm"], "token_bucket");
        assert!(plan["limits"][0]["key"].is_string());
        assert_eq!(charges["matched"], false);
        assert_eq!(charges["skipped"][0]["reason"], "condition");
        assert_eq!(charges["skipped"][0]["attribute"], "endpoint");
        assert_eq!(charges["skipped"][0]["actual"], json!(["/v1/refunds"]));
        assert_eq!(charges["advice"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(client.check(r#""user":"a","tier":"free""#).json()["remaining"], 1);
    let length = body.len();
    client.send(format!(
        "POST /v1/explain HTTP/1.1\r\nHost: test\r\nAccept: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let text = client.answer();
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(text.body.contains("charges: skipped"), "{}", text.body);
}

#[test]
fn an_explanation_names_the_row_and_the_origin_of_derived_attributes() {
    let tier = |name: &str, default: Option<&str>, accept_caller| DerivedAttribute {
        name: name.into(),
        from: "user".into(),
        default: default.map(Box::from),
        accept_caller,
    };
    let derived = [
        tier("tier", Some("free"), false),
        tier("plan", None, true),
        tier("kind", None, false),
    ];
    let server = HttpServer::start("- { id: plan, per: user, limit: 5/min, by: { tier: { gold: 9/min } } }\n");
    server
        .gate
        .install_rules(server.gate.active_rules().with_derived(derived.into()));
    let row = RowEdit::new("default", "plan", [("tier", "gold"), ("user", "a")], Some("7/min"));
    let gold = |user: &str| AttributeEdit {
        source: "user".into(),
        subject: user.into(),
        name: "tier".into(),
        value: Some("gold".into()),
    };
    let problems = server.gate.amend_rules(&[row], &[gold("a"), gold("b")]);
    assert_eq!(problems, EditProblems::default());
    let mut client = server.connect();
    for (user, expected_limit, expected_from, expected_tier) in [
        (
            "a",
            7,
            json!({ "kind": "row", "subject": [
                { "attribute": "tier", "value": "gold" }, { "attribute": "user", "value": "a" },
            ] }),
            json!({ "attribute": "tier", "from": "user", "values": ["gold"], "origin": "table" }),
        ),
        (
            "b",
            9,
            json!({ "kind": "by", "attribute": "tier", "value": "gold" }),
            json!({ "attribute": "tier", "from": "user", "values": ["gold"], "origin": "table" }),
        ),
        (
            "c",
            5,
            json!({ "kind": "limit" }),
            json!({ "attribute": "tier", "from": "user", "values": ["free"], "origin": "default" }),
        ),
    ] {
        let body = json!({ "attributes": { "user": user, "tier": "forged", "plan": "own", "kind": "forged" } });
        let explanation = client.post("/v1/explain", body.to_string()).json();
        let plan = &explanation["rules"][0];
        assert_eq!(plan["from"], expected_from, "{user}");
        assert_eq!(plan["limits"][0]["limit"], expected_limit, "{user}");
        assert_eq!(
            explanation["derived"],
            json!([
                expected_tier,
                { "attribute": "plan", "from": "user", "values": ["own"], "origin": "caller" },
                { "attribute": "kind", "from": "user", "values": [], "origin": "missing" },
            ]),
            "{user}"
        );
    }
}

#[test]
fn the_promised_moment_is_kept() {
    let server = HttpServer::start("- { id: plan, limit: 1/min }\n");
    let mut client = server.connect();
    client.check("");
    let wait_ms = client.check("").json()["retry_after_ms"].as_u64().unwrap();
    server.clock.advance(Micros::from_millis(wait_ms - 1));
    assert_eq!(client.check("").status, 429);
    server.clock.advance(Micros::from_millis(1));
    assert_eq!(client.check("").status, 200);
}

#[test]
fn a_denial_by_min_interval_says_so() {
    let server = HttpServer::start("- { id: spaced, algorithm: sliding_log, limit: 100/min, min_interval: 50s }\n");
    let mut client = server.connect();
    assert_eq!(client.check("").status, 200);
    let denied = client.check("");
    assert_eq!(denied.json()["reason"], json!("min_interval"));
    assert_eq!(
        (denied.status, &denied.json()["detail"]),
        (
            429,
            &json!("Policy \"spaced\" allows one request every 50s: this one came too soon after the last.")
        )
    );
}
