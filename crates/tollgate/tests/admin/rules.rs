//! Rules: lists, edits of one, their history, checks and plans.

use crate::client::column;
use crate::fixture::{AdminServer, Storage};
use serde_json::json;

pub(crate) const RULE: &str = "id: search\nper: user\nlimit: 10/min\n";

/// Adds the rule `search` and returns its tag.
pub(crate) fn add_rule(server: &AdminServer) -> String {
    let body = json!({ "yaml": RULE, "reason": "new" });
    let answer = server.create("/v1/rule?id=search", &body).expect(201);
    answer.header("etag").unwrap().to_owned()
}

#[test]
fn a_rule_is_added_changed_and_deleted_and_has_a_history() {
    for server in AdminServer::over_both() {
        let tag = add_rule(&server);
        let read = server.get("/v1/rule?id=search").expect(200);
        let rule = read.json();
        assert_eq!(read.header("etag"), Some(tag.as_str()));
        assert_eq!(
            (&rule["layer"], &rule["path"], &rule["limit"]),
            (
                &json!("managed"),
                &json!("managed/default/search.yaml"),
                &json!("10/min")
            )
        );
        assert!(rule["yaml"].as_str().unwrap().contains("limit: 10/min"));

        let other = json!({ "yaml": "# a comment\nid: search\nper: [ user ]\nlimit: 10/min\n" });
        let same = server
            .by_admin("PUT", "/v1/rule?id=search")
            .if_match(&tag)
            .json(&other)
            .expect(200);
        assert_eq!(
            (same.header("etag"), same.json()["changed"].clone()),
            (Some(tag.as_str()), json!(false)),
            "an equal meaning"
        );

        let body = json!({ "yaml": RULE.replace("10/min", "20/min"), "reason": "raise" });
        let dry = server
            .by_admin("PUT", "/v1/rule?id=search&dry_run=true")
            .if_match(&tag)
            .json(&body)
            .expect(200)
            .json();
        assert_eq!((&dry["changed"], &dry["dry_run"]), (&json!(true), &json!(true)));
        assert_eq!(
            server.get("/v1/rule?id=search").expect(200).header("etag"),
            Some(tag.as_str())
        );
        let changed = server
            .by_admin("PUT", "/v1/rule?id=search")
            .if_match(&tag)
            .json(&body)
            .expect(200);
        assert_eq!(changed.json()["rule"]["limit"], "20/min");
        assert_eq!(
            (changed.json()["applied"].clone(), changed.json()["silent"].clone()),
            (json!(1), json!(0))
        );
        let tag = changed.header("etag").unwrap();
        server
            .by_admin("DELETE", "/v1/rule?id=search&dry_run=true")
            .if_match(tag)
            .expect(200);
        server
            .by_admin("DELETE", "/v1/rule?id=search&reason=old")
            .if_match(tag)
            .expect(200);
        server.get("/v1/rule?id=search").refused(404, "not-found");
        server
            .by_admin("DELETE", "/v1/rule?id=search")
            .if_match(tag)
            .refused(404, "not-found");
        let history = server.get("/v1/rule/history?id=search").expect(200).json();
        let kinds = column(&history["items"], "kind");
        assert_eq!(kinds, ["removed", "changed", "added"]);
        assert_eq!(
            (&history["items"][1]["reason"], &history["items"][1]["actor"]),
            (&json!("raise"), &json!("admin"))
        );
        assert_eq!(server.count("/v1/rule/history?id=search&limit=1"), 1);
    }
}

#[test]
fn rules_of_all_layers_are_listed_in_pages_and_filtered() {
    let server = AdminServer::start();
    add_rule(&server);
    let ids = |query: &str| {
        let items = server.get(&format!("/v1/rules?{query}")).expect(200).json()["items"].clone();
        let each = items
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["id"].as_str().unwrap().to_owned());
        each.collect::<Vec<String>>().join(" ")
    };
    assert_eq!(ids(""), "plan search shop-plan");
    assert_eq!(ids("domain=shop"), "shop-plan");
    assert_eq!(ids("layer=managed"), "search");
    assert_eq!(ids("layer=file"), "plan shop-plan");
    assert_eq!(ids("q=PLAN"), "plan shop-plan");
    assert_eq!(ids("mode=shadow"), "");
    let first = server.get("/v1/rules?limit=2").expect(200).json();
    assert_eq!(ids(&format!("after={}", first["next"].as_str().unwrap())), "shop-plan");
    assert_eq!(server.get("/v1/rule?id=plan").expect(200).json()["layer"], "file");
    server.get("/v1/rules?mode=loud").refused(400, "malformed");
    server.get("/v1/rules?layer=sea").refused(400, "malformed");
    server.get("/v1/rule").refused(400, "malformed");
}

#[test]
fn a_text_that_is_not_the_named_rule_is_refused_with_places() {
    let server = AdminServer::start();
    let put = |yaml: &str| server.create("/v1/rule?id=search", &json!({ "yaml": yaml }));
    let bad = put("id: search\nlimit: lots\n").refused(422, "invalid");
    let problem = &bad["problems"][0];
    assert_eq!(problem["file"], "managed/default/search.yaml");
    assert!(
        problem["line"].as_u64().is_some() && problem["column"].as_u64().is_some() && problem["text"].is_string(),
        "{problem}"
    );
    put("id: other\nlimit: 5/min\n").refused(400, "malformed");
    put("id: search\ndomain: shop\nlimit: 5/min\n").refused(400, "malformed");
    put("id: search\nlimit: 5/min\n- id: more\n  limit: 5/min\n").expect_one_of(&[400, 422]);
    put("").expect_one_of(&[400, 422]);
    let file = json!({ "yaml": "id: plan\nper: merchant\nlimit: 5/min\n" });
    server.create("/v1/rule?id=plan", &file).refused(409, "file-layer");
    server
        .by_admin("DELETE", "/v1/rule?id=plan&reason=x")
        .if_match("*")
        .refused(409, "file-layer");
    assert_eq!(server.get("/v1/status").expect(200).json()["revision"], 0);
}

#[test]
fn the_first_rule_takes_the_place_of_those_built_in_and_no_other() {
    let server = AdminServer::with(&Storage::Sqlite, |options| {
        options.settings.tokens = crate::fixture::tokens();
        options.file_layer = String::new();
    });
    assert_eq!(
        server.get("/v1/rules").expect(200).json()["items"][0]["layer"],
        "quickstart"
    );
    let other = json!({ "yaml": "id: other\ndomain: shop\nlimit: 5/min\n" });
    server.create("/v1/rule?id=search", &other).refused(400, "malformed");
    add_rule(&server);
    let rules = server.get("/v1/rules").expect(200).json();
    assert_eq!(
        (rules["items"].as_array().unwrap().len(), &rules["items"][0]["id"]),
        (1, &json!("search"))
    );
}

#[test]
fn files_are_checked_and_planned_without_a_change() {
    let server = AdminServer::start();
    let state = server.state();
    let file = |text: &str| json!({ "files": [{ "path": "a.yaml", "grammar": "own", "text": text }] });
    let good = file("rules:\n  - { id: a, per: user, limit: 5/min }\n");
    let checked = server
        .by_admin("POST", "/v1/rules/check")
        .json(&good)
        .expect(200)
        .json();
    assert_eq!((&checked["ok"], &checked["rules"]), (&json!(true), &json!(3)));
    let bad = file("rules:\n  - { id: a, per: user, limit: lots }\n  - { id: b, limt: 5/min }\n");
    let checked = server.by_admin("POST", "/v1/rules/check").json(&bad).expect(200).json();
    assert_eq!(checked["ok"], false);
    assert!(checked["problems"].as_array().unwrap().len() >= 2, "{checked}");
    assert_eq!(
        (&checked["problems"][0]["file"], &checked["problems"][0]["line"]),
        (&json!("a.yaml"), &json!(2))
    );
    let planned = server.by_admin("POST", "/v1/plan").json(&good).expect(200).json();
    assert_eq!(
        (&planned["plan"]["added"], &planned["plan"]["unchanged"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(planned["plan"]["lines"][0]["rule"], "a");
    server.by_admin("POST", "/v1/plan").json(&bad).refused(422, "invalid");
    server
        .by_admin("POST", "/v1/plan")
        .json(&json!({}))
        .refused(400, "malformed");
    server
        .by_admin("POST", "/v1/plan")
        .json(&json!({ "version": 9 }))
        .refused(404, "not-found");
    for path in ["../a.yaml", ".git/a.yaml", "a.sh", "Makefile"] {
        let refused = json!({ "files": [{ "path": path, "grammar": "own", "text": "" }] });
        server
            .by_admin("POST", "/v1/rules/check")
            .json(&refused)
            .refused(400, "malformed");
    }
    assert_eq!(server.state(), state);
}
