//! Versions: drafts, publish, rollback, differences.

use crate::client::column;
use crate::fixture::{AdminServer, Storage};
use crate::rules::add_rule;
use crate::tables::set_row;
use serde_json::{Value, json};

fn files(limit: &str) -> Value {
    let text = format!("rules:\n  - {{ id: a, per: user, limit: {limit} }}\n");
    json!([{ "path": "a.yaml", "grammar": "own", "text": text }])
}

/// The tag of the set.
fn tag(server: &AdminServer) -> String {
    server.get("/v1/status").expect(200).json()["etag"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn publish(server: &AdminServer, body: &Value) -> crate::client::Request {
    server.by_admin("POST", "/v1/publish").if_match(&tag(server)).json(body)
}

#[test]
fn a_draft_is_saved_published_changed_and_rolled_back() {
    for server in AdminServer::over_both() {
        let draft = json!({ "files": files("5/min"), "reason": "draft" });
        let dry = server.by_admin("POST", "/v1/versions?dry_run=true").json(&draft);
        let dry = dry.expect(200).json();
        assert_eq!(dry["dry_run"], true);
        let saved = server.by_admin("POST", "/v1/versions").json(&draft).expect(201).json();
        assert_eq!(
            (&saved["number"], &saved["state"], &saved["live"]),
            (&json!(1), &json!("draft"), &json!(false))
        );
        assert_eq!(
            server.by_admin("POST", "/v1/versions").json(&draft).expect(200).json()["number"],
            1,
            "equal files"
        );
        server.get("/v1/rule?id=a").refused(404, "not-found");

        let dry = server
            .by_admin("POST", "/v1/publish?dry_run=true")
            .if_match(&tag(&server))
            .json(&json!({ "version": 1 }));
        assert_eq!(dry.expect(200).json()["changed"], true);
        assert_eq!(server.get("/v1/status").expect(200).json()["version"], 0);
        let done = publish(&server, &json!({ "version": 1, "reason": "first" })).expect(200);
        let body = done.json();
        assert_eq!(
            (
                &body["version"],
                &body["changed"],
                &body["applied"],
                &body["rejected"],
                &body["silent"]
            ),
            (&json!(1), &json!(true), &json!(1), &json!(0), &json!(0))
        );
        assert_eq!(done.header("etag"), Some(tag(&server).as_str()));
        assert_eq!(server.get("/v1/rule?id=a").expect(200).json()["limit"], "5/min");
        let same = publish(&server, &json!({ "files": files("5/min") })).expect(200).json();
        assert_eq!(
            (&same["changed"], &same["revision"]),
            (&json!(false), &body["revision"])
        );

        publish(&server, &json!({ "files": files("9/min"), "reason": "second" })).expect(200);
        let diff = server.get("/v1/diff?from=1&to=live").expect(200).json();
        assert_eq!(
            (&diff["from"], &diff["to"], &diff["files"][0]["change"]),
            (&json!(1), &json!(2), &json!("changed"))
        );
        assert!(
            diff["files"][0]["diff"]
                .as_str()
                .unwrap()
                .contains("+  - { id: a, per: user, limit: 9/min }"),
            "{diff}"
        );
        let version = server.get("/v1/version?number=1").expect(200).json();
        assert_eq!(version["files"], files("5/min"), "byte for byte");
        assert_eq!(server.get("/v1/version?number=live").expect(200).json()["number"], 2);

        let request = |body: Value| {
            server
                .by_admin("POST", "/v1/rollback")
                .if_match(&tag(&server))
                .json(&body)
        };
        request(json!({})).refused(400, "reason-required");
        request(json!({ "reason": "" })).refused(400, "reason-required");
        let back = request(json!({ "reason": "too loose" })).expect(200).json();
        assert_eq!(
            (&back["version"], &back["changed"]),
            (&json!(3), &json!(true)),
            "a rollback is a new version"
        );
        assert_eq!(server.get("/v1/rule?id=a").expect(200).json()["limit"], "5/min");
        // Again, without a number: that would return to what was left.
        request(json!({ "reason": "too loose" })).refused(409, "drift");
        assert_eq!(server.get("/v1/rule?id=a").expect(200).json()["limit"], "5/min");
        let live = server.get("/v1/version?number=3").expect(200).json();
        assert_eq!(
            (&live["digest"], &live["source"]),
            (&version["digest"], &json!("rollback 1"))
        );
        let listed = server.get("/v1/versions?limit=2").expect(200).json();
        let numbers = column(&listed["items"], "number");
        assert_eq!(numbers, [3, 2]);
        let rest = server
            .get(&format!("/v1/versions?after={}", listed["next"].as_str().unwrap()))
            .expect(200)
            .json();
        assert_eq!(rest["items"][0]["number"], 1);
        let actions: Vec<Value> = server.get("/v1/audit").expect(200).json()["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["action"].clone())
            .collect();
        assert!(
            actions.contains(&json!("rollback")) && actions.contains(&json!("publish")),
            "{actions:?}"
        );
    }
}

#[test]
fn what_keeps_a_set_from_being_live_is_named() {
    for server in AdminServer::over_both() {
        publish(&server, &json!({ "version": 7 })).refused(404, "not-found");
        publish(&server, &json!({})).refused(400, "malformed");
        publish(&server, &json!({ "files": files("5/min"), "version": 1 })).refused(400, "malformed");
        publish(&server, &json!({ "files": files("lots") })).refused(422, "invalid");
        publish(&server, &json!({ "files": files("5/min"), "source": "mail" })).refused(400, "malformed");
        let digest = "0".repeat(64);
        publish(&server, &json!({ "files": files("5/min"), "expect_digest": digest })).refused(409, "drift");
        server
            .by_admin("POST", "/v1/publish?wait=1h")
            .if_match(&tag(&server))
            .json(&json!({ "files": files("5/min") }))
            .refused(400, "malformed");
        server
            .by_admin("POST", "/v1/publish?prepare=later")
            .if_match(&tag(&server))
            .json(&json!({ "files": files("5/min") }))
            .refused(400, "malformed");
        server
            .by_admin("POST", "/v1/publish?prepare=skip")
            .if_match(&tag(&server))
            .json(&json!({ "files": files("5/min") }))
            .refused(400, "reason-required");
        // Another layer has the id.
        let both = json!([{ "path": "a.yaml", "grammar": "own", "text": "rules:\n  - { id: plan, limit: 5/min }\n" }]);
        publish(&server, &json!({ "files": both })).refused(422, "invalid");

        publish(&server, &json!({ "files": files("5/min"), "source": "push 4f1c2e" })).expect(200);
        add_rule(&server);
        let drift = publish(
            &server,
            &json!({ "files": files("6/min"), "source": "push", "reason": "ci" }),
        )
        .refused(409, "drift");
        assert_eq!(
            (&drift["author"], &drift["reason"], &drift["version"]),
            (&json!("admin"), &json!("new"), &json!(2))
        );
        publish(
            &server,
            &json!({ "files": files("6/min"), "source": "push", "force": true }),
        )
        .expect(200);
        let tag = tag(&server);
        let none = json!({ "reason": "x", "version": 99 });
        server
            .by_admin("POST", "/v1/rollback")
            .if_match(&tag)
            .json(&none)
            .refused(404, "not-found");
    }
}

#[test]
fn rows_that_a_set_would_make_invalid_stop_it_unless_they_are_dropped() {
    let server = AdminServer::start();
    publish(&server, &json!({ "files": files("5/min") })).expect(200);
    let body = json!({ "terms": "50/min burst 9" });
    server.create("/v1/override?rule=a&user=u_1", &body).expect(201);
    set_row(&server, "m_1", "5/min");
    let text = "rules:\n  - { id: a, per: user, algorithm: fixed_window, limit: 5/min }\n";
    let window = json!([{ "path": "a.yaml", "grammar": "own", "text": text }]);
    let refused = publish(&server, &json!({ "files": window })).refused(409, "rows-invalid");
    assert_eq!(refused["rows"][0]["subject"], json!({ "user": "u_1" }));
    publish(&server, &json!({ "files": window, "drop_rows": true })).expect(200);
    server.get("/v1/override?rule=a&user=u_1").refused(404, "not-found");
    server.get("/v1/override?rule=plan&merchant=m_1").expect(200);
}

#[test]
fn with_edits_by_git_only_a_push_or_an_admin_with_a_reason_changes_rules() {
    let server = AdminServer::with(&Storage::Sqlite, |options| {
        options.settings.tokens = crate::fixture::tokens();
        options.control.git_only = true;
    });
    let body = json!({ "yaml": crate::rules::RULE });
    server.create("/v1/rule?id=search", &body).refused(409, "edits-git");
    publish(&server, &json!({ "files": files("5/min") })).refused(409, "edits-git");
    publish(&server, &json!({ "files": files("5/min"), "source": "push" })).expect(200);
    set_row(&server, "m_1", "5/min");
    let glass = json!({ "yaml": crate::rules::RULE, "break_glass": true });
    let put = |token: &str, body: &Value| {
        server
            .request("PUT", "/v1/rule?id=search")
            .token(token)
            .if_absent()
            .json(body)
    };
    put(crate::fixture::EDITOR, &glass).refused(403, "forbidden");
    put(crate::fixture::ADMIN, &glass).refused(400, "reason-required");
    let glass = json!({ "yaml": crate::rules::RULE, "break_glass": true, "reason": "outage" });
    put(crate::fixture::ADMIN, &glass).expect(201);
}
