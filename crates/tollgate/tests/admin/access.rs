//! Setup, users, tokens, sessions, and secrets that stay where they belong.

use crate::client::{Request, cookie_of};
use crate::fixture::{ADMIN, AdminServer, Storage, log, tokens};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tollgate::control::ControlSecret;
use tollgate::control::database::now_ms;
use tollgate::control::model::{Author, Digest, Session};
use tollgate::server::admin::AnonymousAccess;

pub(crate) const PASSWORD: &str = "correct horse battery";

fn setup(server: &AdminServer, name: &str) -> Request {
    let code = server.links.setup.clone().unwrap();
    let body = json!({ "code": code, "name": name, "password": PASSWORD });
    server.post_page("/v1/setup", &body)
}

/// Logs in and returns the cookie.
pub(crate) fn login(server: &AdminServer, name: &str) -> String {
    let body = json!({ "name": name, "password": PASSWORD });
    let answer = server.post_page("/v1/session", &body).expect(200);
    cookie_of(&answer)
}

#[test]
fn the_setup_link_creates_one_admin_and_both_codes_are_void_afterwards() {
    for storage in Storage::both() {
        let server = AdminServer::with(&storage, |_| {});
        let view = json!({ "view": server.links.view.clone().unwrap() });
        let viewer = server.post_page("/v1/session", &view).expect(200);
        let viewer = cookie_of(&viewer);
        let me = server.request("GET", "/v1/me").page(&viewer).expect(200).json();
        assert_eq!(
            (&me["role"], &me["kind"], &me["setup_open"]),
            (&json!("viewer"), &json!("view"), &json!(true))
        );
        let wrong = json!({ "code": "AAAA-AAAA-AAAA", "name": "anna", "password": PASSWORD });
        server.post_page("/v1/setup", &wrong).refused(403, "code");
        let short = json!({ "code": server.links.setup, "name": "anna", "password": "short" });
        server.post_page("/v1/setup", &short).refused(400, "malformed");

        let created = setup(&server, "anna").expect(201);
        assert_eq!(
            (created.json()["role"].clone(), created.json()["name"].clone()),
            (json!("admin"), json!("anna"))
        );
        let cookie = cookie_of(&created);
        let me = server.request("GET", "/v1/me").page(&cookie).expect(200).json();
        assert_eq!((&me["role"], &me["setup_open"]), (&json!("admin"), &json!(false)));
        setup(&server, "berta").refused(409, "setup-done");
        server
            .request("GET", "/v1/status")
            .page(&viewer)
            .refused(401, "unauthorized");
        server.post_page("/v1/session", &view).refused(401, "unauthorized");
        server.request("GET", "/v1/status").refused(401, "unauthorized");
    }
}

#[test]
fn setup_may_create_a_token_instead_of_a_user() {
    let server = AdminServer::fresh();
    let body = json!({ "code": server.links.setup, "name": "ci", "kind": "token" });
    let created = server.post_page("/v1/setup", &body).expect(201).json();
    let token = created["token"].as_str().unwrap();
    assert!(token.starts_with("tgt_"), "{token}");
    let me = server.request("GET", "/v1/me").token(token).expect(200).json();
    assert_eq!((&me["kind"], &me["role"]), (&json!("token"), &json!("admin")));
}

#[test]
fn nothing_is_written_before_the_first_change_not_even_by_guesses_and_dry_runs() {
    let server = AdminServer::start();
    let login = json!({ "name": "nobody", "password": PASSWORD });
    server.post_page("/v1/session", &login).refused(401, "unauthorized");
    let wrong = json!({ "code": "AAAA-AAAA-AAAA", "name": "anna", "password": PASSWORD });
    server.post_page("/v1/setup", &wrong).refused(409, "setup-done");
    let row = json!({ "terms": "5/min" });
    let target = "/v1/override?rule=plan&merchant=m_1&dry_run=true";
    server.create(target, &row).expect(200);
    let draft = json!({ "files": [] });
    let draft = server.by_admin("POST", "/v1/versions?dry_run=true").json(&draft);
    draft.header("Idempotency-Key", "a").expect(200);
    server
        .by_admin("DELETE", "/v1/users?name=nobody")
        .refused(404, "not-found");
    for path in [
        "/v1/users",
        "/v1/audit",
        "/v1/versions",
        "/v1/overrides/export",
        "/v1/audit/verify",
    ] {
        server.get(path).expect(200);
    }
    assert!(!server.data().exists(), "{:?} was written", server.data());
    server.create("/v1/override?rule=plan&merchant=m_1", &row).expect(201);
    assert!(server.data().join("control.db").exists());
}

#[test]
fn users_and_tokens_are_added_listed_used_and_disabled() {
    for server in AdminServer::over_both() {
        let user = json!({ "name": "anna", "role": "operator", "password": PASSWORD, "reason": "new" });
        let dry = server.by_admin("POST", "/v1/users?dry_run=true").json(&user);
        let dry = dry.expect(200).json();
        assert_eq!(dry["dry_run"], true);
        assert_eq!(server.get("/v1/users").expect(200).json()["items"], json!([]));
        server.by_admin("POST", "/v1/users").json(&user).expect(201);
        server.by_admin("POST", "/v1/users").json(&user).refused(409, "exists");
        let generated = json!({ "name": "berta", "role": "viewer" });
        let generated = server.by_admin("POST", "/v1/users").json(&generated).expect(201).json();
        assert_eq!(generated["password"].as_str().unwrap().len(), 32);
        let token = json!({ "name": "ci", "role": "editor", "domains": ["shop"] });
        let token = server.by_admin("POST", "/v1/tokens").json(&token).expect(201).json();
        let token = token["token"].as_str().unwrap();
        let me = server.request("GET", "/v1/me").token(token).expect(200).json();
        assert_eq!((&me["name"], &me["domains"]), (&json!("ci"), &json!(["shop"])));

        let first = server.get("/v1/users?limit=1").expect(200).json();
        assert_eq!(first["items"][0]["name"], "anna");
        let next = format!("/v1/users?limit=1&after={}", first["next"].as_str().unwrap());
        let second = server.get(&next).expect(200).json();
        assert_eq!(
            (&second["items"][0]["name"], &second["next"]),
            (&json!("berta"), &Value::Null)
        );

        let cookie = login(&server, "anna");
        assert_eq!(
            server.get("/v1/sessions").expect(200).json()["items"][0]["principal"],
            "anna"
        );
        server
            .by_admin("DELETE", "/v1/users?name=anna&dry_run=true")
            .expect(204);
        server.request("GET", "/v1/me").page(&cookie).expect(200);
        server.by_admin("DELETE", "/v1/users?name=anna&reason=left").expect(204);
        server
            .request("GET", "/v1/me")
            .page(&cookie)
            .refused(401, "unauthorized");
        server
            .by_admin("DELETE", "/v1/users?name=anna")
            .refused(404, "not-found");
        server.by_admin("DELETE", "/v1/tokens?name=ci").expect(204);
        server
            .request("GET", "/v1/me")
            .token(token)
            .refused(401, "unauthorized");
    }
}

#[test]
fn names_roles_domains_and_ends_are_checked() {
    let server = AdminServer::start();
    for (member, value) in [
        ("name", json!("")),
        ("name", json!("a b")),
        ("name", json!("system")),
        ("name", json!("a".repeat(65))),
        ("role", json!("root")),
        ("domains", json!([""])),
        ("domains", json!(vec!["d"; 101])),
        ("expires_at", json!(1)),
        ("expires_at", json!(-1)),
        ("password", json!("short")),
        ("password", json!("p".repeat(2000))),
        ("more", json!(1)),
    ] {
        let mut body = json!({ "name": "anna", "role": "viewer", "password": PASSWORD });
        body[member] = value;
        server
            .by_admin("POST", "/v1/users")
            .json(&body)
            .refused(400, "malformed");
    }
    let token = json!({ "name": "ci", "role": "viewer", "password": PASSWORD });
    server
        .by_admin("POST", "/v1/tokens")
        .json(&token)
        .refused(400, "malformed");
}

#[test]
fn the_last_admin_cannot_be_disabled() {
    // An admin of some domains could not add another one.
    let server = AdminServer::with(&Storage::Sqlite, |options| {
        let mut token = tokens().remove(3);
        token.domains = vec!["shop".to_owned()];
        options.settings.tokens = vec![token];
    });
    let cookie = cookie_of(&setup(&server, "anna").expect(201));
    let by = |method: &str, target: &str| server.request(method, target).page(&cookie);
    by("DELETE", "/v1/users?name=anna").refused(409, "last-admin");
    let other = json!({ "name": "berta", "role": "admin", "password": PASSWORD });
    by("POST", "/v1/users").json(&other).expect(201);
    by("DELETE", "/v1/users?name=anna").expect(204);
    by("GET", "/v1/me").refused(401, "unauthorized");
}

#[test]
fn a_token_that_expired_or_has_another_secret_is_not_valid() {
    let server = AdminServer::start();
    let end = now_ms() + 2_000;
    let body = json!({ "name": "ci", "role": "viewer", "expires_at": end });
    let created = server.by_admin("POST", "/v1/tokens").json(&body).expect(201).json();
    let token = created["token"].as_str().unwrap();
    let (start, secret) = token.rsplit_once('_').unwrap();
    let changed = format!("{start}_{}", "0".repeat(secret.len()));
    let unknown = format!("tgt_0000000000000000_{secret}");
    for wrong in [changed.as_str(), &unknown, "tgt_", "tgt__", "", "tgt_a", start] {
        server
            .request("GET", "/v1/me")
            .token(wrong)
            .refused(401, "unauthorized");
    }
    server
        .request("GET", "/v1/me")
        .header("Authorization", &format!("Basic {token}"))
        .refused(401, "unauthorized");
    let twice = server.request("GET", "/v1/me").token(token).token(token);
    twice.refused(401, "unauthorized");
    server.request("GET", "/v1/me").token(token).expect(200);
    tollgate_test_kit::eventually("the token expires", || {
        server.request("GET", "/v1/me").token(token).send().status == 401
    });
    assert!(now_ms() >= end);
}

#[test]
fn sessions_end_when_idle_at_their_end_at_logout_and_by_an_admin() {
    for server in AdminServer::over_both() {
        let body = json!({ "name": "anna", "role": "viewer", "password": PASSWORD });
        let id = server.by_admin("POST", "/v1/users").json(&body).expect(201).json()["id"].clone();
        let now = now_ms();
        let minute = 60_000;
        let cookie_name = format!("tollgate_{}", server.address.port());
        let add = |value: &str, seen_at: u64, expires_at: u64| {
            let session = Session {
                id_hash: Digest(Sha256::digest(value.as_bytes()).into()),
                principal: id.as_str().unwrap().to_owned(),
                created_at: seen_at,
                seen_at,
                expires_at,
                address: "127.0.0.1".to_owned(),
            };
            let database = server.control.database().unwrap();
            let author = Author::default();
            let added = database.add_session(session, &author);
            server.runtime.block_on(added).unwrap();
            format!("{cookie_name}={value}")
        };
        let me = |cookie: &str| server.request("GET", "/v1/me").page(cookie).send().status;
        assert_eq!(me(&add("fresh", now, now + minute)), 200);
        assert_eq!(me(&add("idle", now - 31 * minute, now + minute)), 401);
        assert_eq!(me(&add("quiet", now - 29 * minute, now + minute)), 200);
        assert_eq!(me(&add("ended", now, now)), 401);
        assert_eq!(
            me(&format!("{cookie_name}=fresh; {cookie_name}=quiet")),
            401,
            "two of one name"
        );
        assert_eq!(me("tollgate=fresh"), 401);

        let first = login(&server, "anna");
        let body = json!({ "name": "anna", "password": PASSWORD });
        let again = server
            .request("POST", "/v1/session")
            .page(&first)
            .json(&body)
            .expect(200);
        let second = cookie_of(&again);
        assert_ne!(first, second);
        assert_eq!(
            (me(&first), me(&second)),
            (401, 200),
            "a login ends the session it came with"
        );
        let out = server.request("DELETE", "/v1/session").page(&second).expect(204);
        assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
        assert_eq!(me(&second), 401);
        let third = login(&server, "anna");
        server
            .by_admin("DELETE", "/v1/sessions?principal=anna&dry_run=true")
            .expect(204);
        assert_eq!(me(&third), 200);
        server.by_admin("DELETE", "/v1/sessions?principal=anna").expect(204);
        assert_eq!(me(&third), 401);
        server
            .by_admin("DELETE", "/v1/sessions?principal=nobody")
            .refused(404, "not-found");
    }
}

#[test]
fn anonymous_access_is_as_the_settings_say() {
    for (anonymous, status) in [
        (AnonymousAccess::Auto, 401),
        (AnonymousAccess::None, 401),
        (AnonymousAccess::Viewer, 200),
        (AnonymousAccess::Admin, 200),
    ] {
        let server = AdminServer::with(&Storage::Sqlite, |options| options.settings.anonymous = anonymous);
        server.request("GET", "/v1/status").expect(status);
        let users = server.request("GET", "/v1/users").send().status;
        assert_eq!(users == 200, anonymous == AnonymousAccess::Admin);
        assert_eq!(server.links.view.is_some(), anonymous == AnonymousAccess::Auto);
    }
    let server = AdminServer::start();
    assert!(
        server.links.view.is_none() && server.links.setup.is_none(),
        "an admin exists in the settings"
    );
}

#[test]
fn secrets_are_in_no_response_no_audit_entry_no_log_and_no_file() {
    let control_secret = "canary-of-the-secret-of-the-control-plane";
    let server = AdminServer::with(&Storage::Sqlite, |options| {
        options.settings.tokens = tokens();
        options.control.secret = ControlSecret::new(control_secret);
    });
    let fresh = AdminServer::fresh();
    let (setup, view) = (fresh.links.setup.clone().unwrap(), fresh.links.view.clone().unwrap());
    let password = "canary-of-a-password";
    let body = json!({ "name": "anna", "role": "admin", "password": password });
    let mut seen = vec![server.by_admin("POST", "/v1/users").json(&body).expect(201).body];
    let token = json!({ "name": "ci", "role": "admin" });
    let token = server.by_admin("POST", "/v1/tokens").json(&token).expect(201).json();
    let token = token["token"].as_str().unwrap().to_owned();
    let secret = token.rsplit('_').next().unwrap().to_owned();
    let login = json!({ "name": "anna", "password": password });
    let answer = server.post_page("/v1/session", &login).expect(200);
    let cookie = cookie_of(&answer);
    let session = cookie.split('=').nth(1).unwrap().to_owned();
    seen.push(answer.body);
    // A password in the field of the name.
    let wrong = json!({ "code": "AAAA-AAAA-AAAA", "name": "eve", "password": password });
    seen.push(fresh.post_page("/v1/setup", &wrong).expect(403).body);
    let wrong = json!({ "view": "AAAA-AAAA" });
    seen.push(fresh.post_page("/v1/session", &wrong).expect(401).body);
    let misplaced = json!({ "name": password, "password": password });
    seen.push(server.post_page("/v1/session", &misplaced).expect(401).body);
    server.request("GET", "/v1/me").page(&cookie).expect(200);
    server.request("GET", "/v1/me").token(&token).expect(200);
    for path in [
        "/v1/users",
        "/v1/tokens",
        "/v1/sessions",
        "/v1/audit?limit=1000",
        "/v1/status",
        "/v1/openapi.json",
    ] {
        seen.push(server.get(path).expect(200).body);
    }
    let audit = server.get("/v1/audit?limit=1000").expect(200).body;
    assert!(audit.contains("login.failed") && audit.contains("user.add"), "{audit}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(server.data()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            files.extend(std::fs::read(path).unwrap());
        }
    }
    seen.push(log());
    seen.push(String::from_utf8_lossy(&files).into_owned());
    let hash = Digest(Sha256::digest(secret.as_bytes()).into()).to_string();
    for text in &seen {
        for canary in [password, &secret, &session, &setup, &view, control_secret, ADMIN] {
            assert!(!text.contains(canary), "{canary} is in {text}");
        }
    }
    let responses = seen.split_last().unwrap().1;
    assert!(
        responses
            .iter()
            .all(|text| !text.contains(&hash) && !text.contains("$argon2")),
        "a stored hash is shown"
    );
}

/// The number of attempts that were not refused by the limit. A minute may begin in between, once.
fn reached(server: &AdminServer, path: &str, attempts: usize, body: impl Fn(usize) -> Value) -> usize {
    let each = (0..attempts).map(|number| {
        let answer = server.request("POST", path).page("").json(&body(number)).send();
        if answer.status == 429 {
            assert_eq!(
                (answer.json()["code"].clone(), answer.header("retry-after")),
                (json!("too-many-requests"), Some("60"))
            );
        }
        answer.status != 429
    });
    each.filter(|reached| *reached).count()
}

#[test]
fn of_a_thousand_guesses_five_a_minute_reach_the_password() {
    let server = AdminServer::start();
    let user = json!({ "name": "anna", "role": "admin", "password": PASSWORD });
    server.by_admin("POST", "/v1/users").json(&user).expect(201);
    let guess = |number: usize| json!({ "name": "anna", "password": format!("guess number {number}") });
    let count = reached(&server, "/v1/session", 1_000, guess);
    assert!((5..=10).contains(&count), "{count} guesses reached the password");
    // Not even the right one, now.
    let right = json!({ "name": "anna", "password": PASSWORD });
    let answer = server.post_page("/v1/session", &right).send();
    assert!(answer.status == 429 || count > 5, "{}", answer.status);
    let audit = server.get("/v1/audit?action=login.failed").expect(200).json();
    assert!(
        (1..=2).contains(&audit["items"].as_array().unwrap().len()),
        "one entry per address and minute"
    );
}

#[test]
fn names_cannot_be_changed_to_guess_more_often() {
    let server = AdminServer::start();
    let guess = |number: usize| json!({ "name": format!("user{number}"), "password": "a guess of a password" });
    let count = reached(&server, "/v1/session", 60, guess);
    assert!((20..=40).contains(&count), "{count}");
}

#[test]
fn the_codes_are_guessed_five_times_a_minute() {
    let server = AdminServer::fresh();
    let guess =
        |number: usize| json!({ "code": format!("{number:04}-AAAA-AAAA"), "name": "eve", "password": PASSWORD });
    let count = reached(&server, "/v1/setup", 30, guess);
    assert!((5..=10).contains(&count), "{count}");
    let server = AdminServer::fresh();
    let guess = |number: usize| json!({ "view": format!("{number:04}-AAAA") });
    let count = reached(&server, "/v1/session", 30, guess);
    assert!((5..=10).contains(&count), "{count}");
    // With a name, as if it were a login, the guesses count together all the same.
    let server = AdminServer::fresh();
    let guess = |number: usize| json!({ "view": format!("{number:04}-AAAA"), "name": format!("user{number}") });
    let count = reached(&server, "/v1/session", 30, guess);
    assert!((5..=10).contains(&count), "{count}");
}
