//! Conditions, dry runs, idempotency keys, and the bounds and types of bodies.

use crate::fixture::{AdminServer, EDITOR};
use crate::rules::{RULE, add_rule};
use crate::tables::set_row;
use serde_json::{Value, json};

const ROW: &str = "/v1/override?rule=plan&merchant=m_1";

#[test]
fn a_write_needs_a_condition_in_one_of_the_forms_that_proxies_leave() {
    for server in AdminServer::over_both() {
        let put = |terms: &str| server.by_admin("PUT", ROW).json(&json!({ "terms": terms }));
        put("5/min").refused(428, "precondition-required");
        for (method, target, body) in [
            ("PUT", "/v1/rule?id=search", json!({ "yaml": RULE })),
            ("DELETE", "/v1/rule?id=search", Value::Null),
            ("DELETE", ROW, Value::Null),
            (
                "PUT",
                "/v1/attribute?source=merchant&subject=m&name=tier",
                json!({ "value": "a" }),
            ),
            (
                "DELETE",
                "/v1/attribute?source=merchant&subject=m&name=tier",
                Value::Null,
            ),
            ("POST", "/v1/publish", json!({ "files": [] })),
            ("POST", "/v1/rollback", json!({ "reason": "x" })),
        ] {
            let request = server.by_admin(method, target);
            let request = match body {
                Value::Null => request,
                body => request.json(&body),
            };
            request.refused(428, "precondition-required");
        }
        let mut tag = put("5/min").if_absent().expect(201).header("etag").unwrap().to_owned();
        let bare = tag.trim_matches('"').to_owned();
        for (form, terms) in [
            (tag.clone(), "6/min"),
            (format!("W/{tag}"), "7/min"),
            (format!("\"{bare}-gzip\""), "8/min"),
            (format!("W/\"{bare}-br\""), "9/min"),
        ] {
            let form = form.replace(&bare, tag.trim_matches('"'));
            tag = put(terms)
                .if_match(&form)
                .expect(200)
                .header("etag")
                .unwrap()
                .to_owned();
        }
        for wrong in [
            "e1-r1",
            "\"\"",
            "\"x\"",
            "\"e1-r99999999999999999999999\"",
            "\"e1-r1\", \"e1-r2\"",
        ] {
            put("5/min").if_match(wrong).refused(400, "malformed");
        }
        put("5/min").if_match(&tag).if_absent().refused(400, "malformed");
        put("5/min").if_match(&tag).if_match(&tag).refused(400, "malformed");
        put("5/min").header("If-None-Match", &tag).refused(400, "malformed");
        put("5/min").if_match("*").refused(400, "reason-required");
        let body = json!({ "terms": "5/min", "reason": "in a hurry" });
        server.by_admin("PUT", ROW).if_match("*").json(&body).expect(200);
    }
}

#[test]
fn a_stale_condition_is_answered_with_the_item_its_author_time_reason_and_the_difference() {
    for server in AdminServer::over_both() {
        let first = set_row(&server, "m_1", "5/min");
        let body = json!({ "terms": "6/min", "reason": "support case" });
        let put = server
            .request("PUT", ROW)
            .token(EDITOR)
            .if_match(&first)
            .json(&body)
            .expect(200);
        for dry_run in ["", "&dry_run=true"] {
            let mine = json!({ "terms": "7/min", "note": "mine" });
            let stale = server
                .by_admin("PUT", &format!("{ROW}{dry_run}"))
                .if_match(&first)
                .json(&mine)
                .refused(412, "stale");
            assert_eq!(stale["current"]["terms"], "6/min");
            assert_eq!(
                (&stale["author"], &stale["reason"], stale["etag"].as_str()),
                (&json!("editor"), &json!("support case"), put.header("etag"))
            );
            assert!(stale["at"].as_u64().unwrap() > 1_600_000_000_000, "{stale}");
            let diff = stale["diff"].as_str().unwrap();
            assert!(
                diff.contains("-terms: 6/min") && diff.contains("+terms: 7/min") && diff.contains("+note: mine"),
                "{diff}"
            );
        }
        let stale = server.create(ROW, &json!({ "terms": "7/min" })).refused(412, "stale");
        assert_eq!(stale["current"]["terms"], "6/min");
        let stale = server.by_admin("DELETE", ROW).if_match(&first).refused(412, "stale");
        assert_eq!(stale["author"], "editor");
        let gone = "/v1/override?rule=plan&merchant=gone";
        let stale = server
            .by_admin("PUT", gone)
            .if_match(&first)
            .json(&json!({ "terms": "7/min" }))
            .refused(412, "stale");
        assert_eq!((&stale["current"], &stale["revision"]), (&Value::Null, &json!(0)));

        let attribute = "/v1/attribute?source=merchant&subject=m&name=tier";
        server.create(attribute, &json!({ "value": "gold" })).expect(201);
        let stale = server
            .create(attribute, &json!({ "value": "tin" }))
            .refused(412, "stale");
        assert_eq!(
            (&stale["current"]["value"], &stale["author"]),
            (&json!("gold"), &json!("admin"))
        );
        assert!(stale["diff"].as_str().unwrap().contains("+value: tin"));

        let tag = add_rule(&server);
        let change = |limit: &str| json!({ "yaml": RULE.replace("10/min", limit), "reason": "raise" });
        server
            .request("PUT", "/v1/rule?id=search")
            .token(EDITOR)
            .if_match(&tag)
            .json(&change("20/min"))
            .expect(200);
        for dry_run in ["", "&dry_run=true"] {
            let target = format!("/v1/rule?id=search{dry_run}");
            let stale = server
                .by_admin("PUT", &target)
                .if_match(&tag)
                .json(&change("30/min"))
                .refused(412, "stale");
            assert_eq!(
                (&stale["current"]["limit"], &stale["author"], &stale["reason"]),
                (&json!("20/min"), &json!("editor"), &json!("raise"))
            );
            let diff = stale["diff"].as_str().unwrap();
            assert!(
                diff.contains("-limit: 20/min") && diff.contains("+limit: 30/min"),
                "{diff}"
            );
            let target = format!("/v1/rule?id=search&reason=x{dry_run}");
            assert_eq!(
                server.by_admin("DELETE", &target).if_match(&tag).refused(412, "stale")["author"],
                "editor"
            );
            // An equal meaning does not go around the condition.
            let target = format!("/v1/rule?id=search{dry_run}");
            server
                .by_admin("PUT", &target)
                .if_match(&tag)
                .json(&change("20/min"))
                .refused(412, "stale");
        }
        for dry_run in ["", "?dry_run=true"] {
            let set = json!({ "files": [{ "path": "b.yaml", "grammar": "own", "text": "rules:\n  - { id: b, limit: 5/min }\n" }] });
            let stale = server
                .by_admin("POST", &format!("/v1/publish{dry_run}"))
                .if_match(&tag)
                .json(&set)
                .refused(412, "stale");
            assert_eq!(
                (&stale["author"], &stale["reason"], &stale["current"]["live"]),
                (&json!("editor"), &json!("raise"), &json!(true))
            );
            assert!(stale["diff"].as_str().unwrap().contains("+# b.yaml"), "{stale}");
            let back = json!({ "reason": "x" });
            server
                .by_admin("POST", &format!("/v1/rollback{dry_run}"))
                .if_match(&tag)
                .json(&back)
                .refused(412, "stale");
        }
    }
}

#[test]
fn a_dry_run_checks_everything_and_changes_nothing() {
    for server in AdminServer::over_both() {
        let row = set_row(&server, "m_1", "5/min");
        let rule = add_rule(&server);
        let user = json!({ "name": "anna", "role": "viewer" });
        server.by_admin("POST", "/v1/users").json(&user).expect(201);
        server
            .by_admin("POST", "/v1/tokens")
            .json(&json!({ "name": "ci", "role": "viewer" }))
            .expect(201);
        let attribute = "/v1/attribute?source=merchant&subject=m&name=tier&dry_run=true";
        let set = json!({ "files": [{ "path": "b.yaml", "grammar": "own", "text": "rules:\n  - { id: b, limit: 5/min }\n" }] });
        let state = server.state();
        let audit = server.get("/v1/audit?limit=1000").expect(200).json();
        let entry = json!({ "rule": "plan", "subject": { "merchant": "m_9" }, "terms": "5/min" }).to_string();
        let requests = [
            (
                server
                    .by_admin("PUT", &format!("{ROW}&dry_run=true"))
                    .if_match(&row)
                    .json(&json!({ "terms": "6/min" })),
                200,
            ),
            (
                server.by_admin("DELETE", &format!("{ROW}&dry_run=true")).if_match(&row),
                204,
            ),
            (server.create(attribute, &json!({ "value": "a" })), 200),
            (
                server
                    .by_admin("PUT", "/v1/rule?id=search&dry_run=true")
                    .if_match(&rule)
                    .json(&json!({ "yaml": RULE.replace("10/", "11/") })),
                200,
            ),
            (
                server
                    .by_admin("DELETE", "/v1/rule?id=search&dry_run=true")
                    .if_match(&rule),
                200,
            ),
            (
                server
                    .by_admin("POST", "/v1/publish?dry_run=true")
                    .if_match(&rule)
                    .json(&set),
                200,
            ),
            (server.by_admin("POST", "/v1/versions?dry_run=true").json(&set), 200),
            (
                server.by_admin("POST", "/v1/overrides/import?dry_run=true").body(entry),
                200,
            ),
            (
                server
                    .by_admin("POST", "/v1/attributes/import?dry_run=true")
                    .body("{\"source\":\"a\",\"subject\":\"b\",\"name\":\"c\",\"value\":\"d\"}"),
                200,
            ),
            (
                server
                    .by_admin("POST", "/v1/users?dry_run=true")
                    .json(&json!({ "name": "b", "role": "viewer" })),
                200,
            ),
            (
                server
                    .by_admin("POST", "/v1/tokens?dry_run=true")
                    .json(&json!({ "name": "b", "role": "viewer" })),
                200,
            ),
            (server.by_admin("DELETE", "/v1/users?name=anna&dry_run=true"), 204),
            (server.by_admin("DELETE", "/v1/tokens?name=ci&dry_run=true"), 204),
            (
                server.by_admin("DELETE", "/v1/sessions?principal=anna&dry_run=true"),
                204,
            ),
            (
                server
                    .by_admin("POST", "/v1/forget?dry_run=true")
                    .json(&json!({ "attributes": { "merchant": "m_1" } })),
                200,
            ),
        ];
        for (request, status) in requests {
            let answer = request.expect(status);
            if status == 200 {
                assert_eq!(answer.json()["dry_run"], true, "{}", answer.body);
            }
        }
        assert_eq!(server.state(), state);
        assert_eq!(server.get("/v1/audit?limit=1000").expect(200).json(), audit);
        server
            .by_admin("PUT", &format!("{ROW}&dry_run=yes"))
            .if_match(&row)
            .json(&json!({ "terms": "6/min" }))
            .refused(400, "malformed");
    }
}

#[test]
fn a_request_with_an_idempotency_key_is_done_once() {
    for server in AdminServer::over_both() {
        let import = |terms: &str| {
            let line = json!({ "rule": "plan", "subject": { "merchant": "m_1" }, "terms": terms }).to_string();
            server
                .by_admin("POST", "/v1/overrides/import")
                .header("Idempotency-Key", "k1")
                .body(line)
        };
        let first = import("5/min").expect(200);
        let tag = server.get(ROW).expect(200).header("etag").unwrap().to_owned();
        server
            .by_admin("PUT", ROW)
            .if_match(&tag)
            .json(&json!({ "terms": "9/min" }))
            .expect(200);
        assert_eq!(import("5/min").expect(200).body, first.body);
        assert_eq!(
            server.get(ROW).expect(200).json()["terms"],
            "9/min",
            "it was not done again"
        );
        import("6/min").refused(422, "idempotency-key-reused");
        let text = "rules:\n  - { id: a, limit: 5/min }\n";
        let body = json!({ "files": [{ "path": "a.yaml", "grammar": "own", "text": text }] });
        let publish = || {
            server
                .by_admin("POST", "/v1/publish")
                .if_match("\"e1-r0\"")
                .header("Idempotency-Key", "k2")
                .json(&body)
        };
        let done = publish().expect(200);
        let again = publish().expect(200);
        assert_eq!((again.header("etag"), &again.body), (done.header("etag"), &done.body));
        // Another principal has keys of its own, and what failed is tried again.
        let line = json!({ "rule": "plan", "subject": { "merchant": "m_2" }, "terms": "5/min" }).to_string();
        server
            .request("POST", "/v1/overrides/import")
            .token(EDITOR)
            .header("Idempotency-Key", "k1")
            .body(line)
            .expect(200);
        let bad = |body: &str| {
            server
                .by_admin("POST", "/v1/overrides/import")
                .header("Idempotency-Key", "k3")
                .body(body.to_owned())
        };
        bad("{").refused(422, "invalid");
        let long = "k".repeat(129);
        server
            .by_admin("POST", "/v1/overrides/import")
            .header("Idempotency-Key", &long)
            .refused(400, "malformed");
    }
}

#[test]
fn bodies_have_bounds_and_a_type() {
    let server = AdminServer::start();
    let text = "x".repeat(65 << 10);
    let large = json!({ "terms": text });
    server.create(ROW, &large).refused(413, "too-large");
    let file = json!({ "files": [{ "path": "a.yaml", "grammar": "own", "text": format!("# {text}\n") }] });
    server.by_admin("POST", "/v1/rules/check").json(&file).expect(200);
    server
        .by_admin("POST", "/v1/rules/check")
        .json(&json!({ "files": [] }))
        .expect(200);
    let huge = vec![b' '; (20 << 20) + 1];
    server
        .by_admin("POST", "/v1/rules/check")
        .header("Content-Type", "application/json")
        .body(huge)
        .refused(413, "too-large");
    let body = json!({ "terms": "5/min" }).to_string();
    let put = || server.by_admin("PUT", ROW).if_absent();
    put().body(body.clone()).refused(415, "media-type");
    let typed = |media_type: &str| put().header("Content-Type", media_type);
    typed("text/plain").body(body.clone()).refused(415, "media-type");
    typed("Application/JSON; charset=utf-8").body(body).expect(201);
    for body in [
        "",
        "[]",
        "{",
        "{\"terms\":\"5/min\",\"terms\":\"5/min\"}",
        "{\"terms\":\"5/min\"} x",
        "\u{0}",
        "null",
    ] {
        typed("application/json").body(body).refused(400, "malformed");
    }
    let long = json!({ "terms": "5/min", "reason": "r".repeat(501) });
    server
        .by_admin("PUT", ROW)
        .if_match("*")
        .json(&long)
        .refused(400, "malformed");
    let deep = "[".repeat(10_000);
    server
        .by_admin("PUT", ROW)
        .if_absent()
        .header("Content-Type", "application/json")
        .body(deep)
        .refused(400, "malformed");
}
