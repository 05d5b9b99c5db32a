//! What a caller must not see: subjects for viewers, other domains for those who are limited to some.

use crate::client::encoded;
use crate::fixture::{ADMIN, AdminServer, SHOP_EDITOR, SHOP_OPERATOR, Storage, VIEWER, tokens};
use crate::rules::add_rule;
use crate::tables::set_row;
use serde_json::{Value, json};
use std::fmt::Write as _;
use tollgate::server::admin::SubjectDisplay;
use tollgate_test_kit::http::Answer;

const SECRET: &str = "m_secret_4711";

/// Everything a token can read of lists and states.
fn readable(server: &AdminServer, token: &str) -> String {
    let mut text = String::new();
    for path in [
        "/v1/overrides",
        "/v1/overrides?limit=1",
        "/v1/attributes",
        "/v1/attributes?limit=1",
        "/v1/status",
        "/v1/rules",
        "/v1/versions",
        "/v1/instances",
        "/v1/audit",
        "/v1/alerts",
    ] {
        let answer = server.request("GET", path).token(token).send();
        let _ = writeln!(text, "{path} {} {:?}", answer.body, answer.headers);
        // A position is hexadecimal digits, of the key if it is not hidden.
        if let Some(next) = answer.json()["next"].as_str() {
            let bytes: Vec<u8> = (0..next.len() / 2)
                .map(|index| u8::from_str_radix(&next[2 * index..2 * index + 2], 16).unwrap())
                .collect();
            let _ = writeln!(text, "{}", String::from_utf8_lossy(&bytes));
        }
    }
    text
}

fn server(display: SubjectDisplay) -> AdminServer {
    let server = AdminServer::with(&Storage::Sqlite, |options| {
        options.settings.tokens = tokens();
        options.settings.subjects = display;
    });
    set_row(&server, SECRET, "5/min");
    set_row(&server, "m_zzz_another", "5/min");
    let body = json!({ "terms": "5/min burst 3", "note": format!("note about {SECRET}") });
    add_rule(&server);
    let row = format!("/v1/override?rule=search&user={SECRET}");
    server.create(&row, &body).expect(201);
    let attribute = format!("/v1/attribute?source=merchant&subject={SECRET}&name=tier");
    server.create(&attribute, &json!({ "value": "gold" })).expect(201);
    let silence = json!({
        "domain": "default",
        "subject": { "merchant": SECRET },
        "until": tollgate::control::database::now_ms() + 3_600_000,
        "reason": format!("{SECRET} runs a sale"),
    });
    server.by_admin("POST", "/v1/alerts/silence").json(&silence).expect(201);
    server
}

#[test]
fn viewers_do_not_see_subjects_and_cannot_ask_for_them() {
    let server = server(SubjectDisplay::Masked);
    let seen = readable(&server, VIEWER);
    assert!(!seen.contains(SECRET), "{seen}");
    assert!(seen.contains("m_***"), "{seen}");
    let get = |target: &str| server.request("GET", target).token(VIEWER);
    for (known, unknown) in [
        (format!("/v1/overrides?q={SECRET}"), "/v1/overrides?q=nobody".to_owned()),
        (
            format!("/v1/override?rule=plan&merchant={SECRET}"),
            "/v1/override?rule=plan&merchant=nobody".to_owned(),
        ),
        (
            format!("/v1/attributes?q={SECRET}"),
            "/v1/attributes?q=nobody".to_owned(),
        ),
        (
            format!("/v1/attributes?subject={SECRET}"),
            "/v1/attributes?subject=nobody".to_owned(),
        ),
        (
            format!("/v1/attribute?source=merchant&subject={SECRET}&name=tier"),
            "/v1/attribute?source=merchant&subject=nobody&name=tier".to_owned(),
        ),
    ] {
        let one = get(&known).refused(403, "subjects");
        assert_eq!(
            one,
            get(&unknown).refused(403, "subjects"),
            "the answer is the same for a subject that exists"
        );
    }
    // A position of their own making would be a search as well.
    let key = json!({ "domain": "default", "rule": "plan", "subject": { "merchant": SECRET } }).to_string();
    let after: String = format!("k{key}").bytes().map(|byte| format!("{byte:02x}")).collect();
    get(&format!("/v1/overrides?after={after}")).refused(400, "malformed");
    server.get(&format!("/v1/overrides?after={after}")).expect(200);
    // Theirs work.
    let next = get("/v1/overrides?limit=1").expect(200).json()["next"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        get(&format!("/v1/overrides?after={next}")).expect(200).json()["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

/// The plan that a credential gets.
fn plan(server: &AdminServer, token: &str, files: &Value) -> Answer {
    let request = server.request("POST", "/v1/plan").token(token);
    request.json(files).expect(200)
}

#[test]
fn messages_do_not_quote_subjects_to_viewers() {
    let server = server(SubjectDisplay::Masked);
    let text = "rules:\n  - { id: search, per: user, algorithm: fixed_window, limit: 1/min }\n";
    let files = json!({ "files": [{ "path": "managed/default/search.yaml", "grammar": "own", "text": text }] });
    let plan = plan(&server, VIEWER, &files);
    assert!(
        !plan.body.contains(SECRET) && plan.json()["plan"]["rows"][0]["count"] == 1,
        "{}",
        plan.body
    );
    let plan = server.by_admin("POST", "/v1/plan").json(&files).expect(200);
    assert!(plan.body.contains(SECRET), "those who may see it do: {}", plan.body);
    let collision = json!({ "files": [{ "path": "a.yaml", "grammar": "own", "text": "rules:\n  - { id: plan, limit: 1/min }\n" }] });
    let checked = server
        .request("POST", "/v1/rules/check")
        .token(VIEWER)
        .json(&collision)
        .expect(200);
    assert!(!checked.body.contains(SECRET), "{}", checked.body);
}

#[test]
fn subjects_are_hidden_or_plain_if_the_settings_say_so() {
    let hidden = server(SubjectDisplay::Hidden);
    let seen = readable(&hidden, VIEWER);
    assert!(!seen.contains(SECRET) && !seen.contains("m_***"), "{seen}");
    let plain = server(SubjectDisplay::Plain);
    assert!(readable(&plain, VIEWER).contains(SECRET));
    plain
        .request("GET", &format!("/v1/override?rule=plan&merchant={SECRET}"))
        .token(VIEWER)
        .expect(200);
    plain
        .request("GET", &format!("/v1/overrides?q={SECRET}"))
        .token(VIEWER)
        .expect(200);
}

#[test]
fn a_credential_for_some_domains_sees_nothing_of_others() {
    for server in AdminServer::over_both() {
        let reason = "a reason of another domain";
        let tag = add_rule(&server);
        let yaml = crate::rules::RULE.replace("10/", "11/");
        let body = json!({ "yaml": yaml, "reason": reason });
        server
            .by_admin("PUT", "/v1/rule?id=search")
            .if_match(&tag)
            .json(&body)
            .expect(200);
        let row = |target: &str, note: &str| {
            let body = json!({ "terms": "5/min", "note": note, "allow_orphan": true, "reason": note });
            server.create(target, &body).expect(201);
        };
        row("/v1/override?rule=plan&merchant=m_default", reason);
        row("/v1/override?domain=shop&rule=shop-plan&merchant=m_shop", "mine");
        // A domain whose name begins like the one it may see.
        row(
            &format!("/v1/override?domain={}&rule=x&merchant=m_other", encoded("shop/other")),
            reason,
        );
        for token in [SHOP_EDITOR, SHOP_OPERATOR] {
            let seen = readable(&server, token);
            assert!(
                !seen.contains(reason)
                    && !seen.contains("m_default")
                    && !seen.contains("m_other")
                    && !seen.contains("search"),
                "{seen}"
            );
            assert!(seen.contains("m_shop") && seen.contains("shop-plan"), "{seen}");
        }
        let files = json!({ "files": [] });
        let plan = plan(&server, SHOP_EDITOR, &files);
        assert!(
            !plan.body.contains(reason) && plan.json()["plan"]["lines"] == json!([]),
            "{}",
            plan.body
        );
        let publish = |tag: &str| {
            server
                .request("POST", "/v1/publish")
                .token(SHOP_EDITOR)
                .if_match(tag)
                .json(&files)
        };
        publish(&tag).refused(403, "domain");
        let live = server.get("/v1/status").expect(200).json()["etag"]
            .as_str()
            .unwrap()
            .to_owned();
        publish(&live).refused(403, "domain");
        // Its own domain is its to change, and a stale set tells no reason.
        let mine = json!({ "yaml": "id: mine\ndomain: shop\nper: user\nlimit: 5/min\n", "reason": "mine" });
        let put = |query: &str, body: &Value| {
            server
                .request("PUT", &format!("/v1/rule?{query}"))
                .token(SHOP_EDITOR)
                .if_absent()
                .json(body)
        };
        put("domain=default&id=mine", &mine).refused(403, "domain");
        put(
            "domain=shop&id=mine",
            &json!({ "yaml": "id: mine\ndomain: default\nlimit: 5/min\n" }),
        )
        .refused(400, "malformed");
        put("domain=shop&id=mine", &mine).expect(201);
        // A publish has one reason for the rules of all domains: neither the history nor a stale tag tells it.
        let found = server.get("/v1/rule?domain=shop&id=mine").expect(200);
        let changed = json!({ "yaml": "id: mine\ndomain: shop\nper: user\nlimit: 6/min\n", "reason": reason });
        server
            .by_admin("PUT", "/v1/rule?domain=shop&id=mine")
            .if_match(found.header("etag").unwrap())
            .json(&changed)
            .expect(200);
        let history = "/v1/rule/history?domain=shop&id=mine";
        let seen = server.request("GET", history).token(SHOP_EDITOR).expect(200);
        assert!(!seen.body.contains(reason), "{}", seen.body);
        assert!(server.get(history).expect(200).body.contains(reason));
        let stale = put("domain=shop&id=mine", &mine).expect(412);
        assert!(!stale.body.contains(reason), "{}", stale.body);
        let rollback = json!({ "version": 1, "reason": "x" });
        server
            .request("POST", "/v1/rollback")
            .token(SHOP_EDITOR)
            .if_match(&tag)
            .json(&rollback)
            .refused(403, "domain");
        let import = json!({ "domain": "default", "rule": "plan", "subject": { "merchant": "m" }, "terms": "5/min" })
            .to_string();
        server
            .request("POST", "/v1/overrides/import?domain=shop")
            .token(SHOP_OPERATOR)
            .body(import)
            .refused(403, "domain");
    }
}

#[test]
fn an_edit_of_one_rule_shows_no_problems_of_other_domains() {
    let server = AdminServer::start();
    let text = "rules:\n\
                - id: mine\n  domain: shop\n  per: user\n  limit: 5/min\n\
                - id: secret-plan\n  per: user\n  limit: 5/min\n";
    let body = json!({ "files": [{ "path": "mixed.yaml", "grammar": "own", "text": text }], "reason": "first" });
    server
        .by_admin("POST", "/v1/publish")
        .if_absent()
        .json(&body)
        .expect(200);
    let target = "/v1/rule?domain=shop&id=mine";
    let tag = server.get(target).expect(200).header("etag").unwrap().to_owned();
    let put = |token: &str, limit: &str| {
        let yaml = format!("id: mine\ndomain: shop\nper: user\nlimit: {limit}\n");
        let body = json!({ "yaml": yaml, "reason": "x" });
        server
            .request("PUT", target)
            .token(token)
            .if_match(&tag)
            .json(&body)
            .refused(422, "invalid")
    };
    // The open bracket swallows the rules after it, and the reader stops there.
    let (seen, all) = (put(SHOP_EDITOR, "[5/min"), put(ADMIN, "[5/min"));
    assert!(
        seen["problems"][0]["text"].as_str().unwrap().starts_with("hidden"),
        "{seen}"
    );
    assert_eq!(
        (&seen["problems"][0]["line"], &seen["problems"][0]["hint"]),
        (&json!(6), &Value::Null)
    );
    assert!(
        all["problems"][0]["text"].as_str().unwrap().contains("no key can be"),
        "{all}"
    );
    // A mistake in its own text is shown.
    let seen = put(SHOP_EDITOR, "5/fortnight");
    assert!(
        seen["problems"][0]["text"].as_str().unwrap().contains("fortnight"),
        "{seen}"
    );
}
