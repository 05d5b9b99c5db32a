//! Every route × every role: the expected status comes from this table, which is that of the documentation, and not from the code.

use crate::client::{Request, document};
use crate::fixture::{ADMIN, AdminServer, EDITOR, OPERATOR, SHOP_EDITOR, VIEWER};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The right that a route needs, as the documentation has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed {
    /// Nothing.
    Open,
    /// A code or a password in the body.
    Login,
    /// Any credential.
    Any,
    View,
    Operator,
    Edit,
    Admin,
}

/// What a caller of some domains gets for an item of another domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elsewhere {
    /// 403 `domain`.
    Refused,
    /// The same as others: what it sees is limited, or of no domain.
    Same,
}

struct Line {
    method: &'static str,
    /// With `DOMAIN`, `RULE` in place of a domain and its rule.
    target: &'static str,
    needed: Needed,
    elsewhere: Elsewhere,
    body: &'static str,
    /// The status for those who have the right.
    allowed: u16,
    /// The status for viewers, where masking makes a difference.
    masked: u16,
}

macro_rules! table {
    ($($method:ident $target:literal $needed:ident $elsewhere:ident $body:literal $allowed:literal $(masked $masked:literal)?;)*) => {
        &[$(Line {
            method: stringify!($method),
            target: $target,
            needed: Needed::$needed,
            elsewhere: Elsewhere::$elsewhere,
            body: $body,
            allowed: $allowed,
            masked: { #[allow(unused_mut, unused_assignments)] let mut masked = $allowed; $(masked = $masked;)? masked },
        }),*]
    };
}

const TABLE: &[Line] = table! {
    GET "/" Open Same "" 200;
    GET "/v1/livez" Open Same "" 200;
    GET "/v1/openapi.json" Open Same "" 200;
    GET "/v1/schema/rules.json" Open Same "" 200;
    POST "/v1/setup" Login Same r#"{"code":"AAAA-AAAA-AAAA","name":"eve","password":"a password of eve"}"# 409;
    POST "/v1/session" Login Same r#"{"name":"eve","password":"a password of eve"}"# 401;
    DELETE "/v1/session" Any Same "" 204;
    GET "/v1/me" Any Same "" 200;
    GET "/v1/users" Admin Refused "" 200;
    POST "/v1/users?dry_run=true" Admin Refused r#"{"name":"eve","role":"viewer","password":"a password of eve"}"# 200;
    DELETE "/v1/users?name=nobody" Admin Refused "" 404;
    GET "/v1/tokens" Admin Refused "" 200;
    POST "/v1/tokens?dry_run=true" Admin Refused r#"{"name":"eve","role":"viewer"}"# 200;
    DELETE "/v1/tokens?name=nobody" Admin Refused "" 404;
    GET "/v1/sessions" Admin Refused "" 200;
    DELETE "/v1/sessions?principal=nobody" Admin Refused "" 404;
    GET "/v1/status" View Same "" 200;
    GET "/v1/instances" View Same "" 200;
    GET "/v1/store" View Same "" 200;
    GET "/v1/rules?domain=DOMAIN" View Refused "" 200;
    GET "/v1/rule?domain=DOMAIN&id=RULE" View Refused "" 200;
    PUT "/v1/rule?domain=DOMAIN&id=RULE" Edit Refused r#"{"yaml":"id: RULE\nlimit: 5/min\n","reason":"x"}"# 409;
    DELETE "/v1/rule?domain=DOMAIN&id=RULE&reason=x" Edit Refused "" 409;
    GET "/v1/rule/history?domain=DOMAIN&id=RULE" View Refused "" 200;
    POST "/v1/rules/check" View Same r#"{"files":[]}"# 200;
    POST "/v1/plan" View Same r#"{"files":[]}"# 200;
    GET "/v1/versions" View Same "" 200;
    POST "/v1/versions?dry_run=true" Edit Same r#"{"files":[]}"# 200;
    GET "/v1/version?number=live" View Refused "" 404;
    GET "/v1/diff?from=0&to=0" View Refused "" 200;
    POST "/v1/publish?dry_run=true" Edit Refused r#"{"files":[],"reason":"x"}"# 200;
    POST "/v1/rollback?dry_run=true" Edit Refused r#"{"version":7,"reason":"x"}"# 404;
    POST "/v1/adopt" Admin Refused r#"{"reason":""}"# 400;
    GET "/v1/overrides?domain=DOMAIN" View Refused "" 200;
    GET "/v1/override?domain=DOMAIN&rule=RULE&merchant=m" View Refused "" 404 masked 403;
    PUT "/v1/override?domain=DOMAIN&rule=RULE&merchant=m&dry_run=true" Operator Refused r#"{"terms":"5/min","reason":"x"}"# 200;
    DELETE "/v1/override?domain=DOMAIN&rule=RULE&merchant=m&reason=x" Operator Refused "" 404;
    POST "/v1/overrides/import?dry_run=true&domain=DOMAIN&rule=RULE" Operator Refused r#"{"subject":{"merchant":"m"},"terms":"5/min"}"# 200;
    GET "/v1/overrides/export?domain=DOMAIN" Operator Refused "" 200;
    GET "/v1/attributes" View Refused "" 200;
    GET "/v1/attribute?source=merchant&subject=m&name=tier" View Refused "" 404 masked 403;
    PUT "/v1/attribute?source=merchant&subject=m&name=tier&dry_run=true" Operator Refused r#"{"value":"gold","reason":"x"}"# 200;
    DELETE "/v1/attribute?source=merchant&subject=m&name=tier&reason=x" Operator Refused "" 404;
    POST "/v1/attributes/import?dry_run=true" Operator Refused r#"{"source":"merchant","subject":"m","name":"tier","value":"gold"}"# 200;
    GET "/v1/attributes/export" Operator Refused "" 200;
    GET "/v1/subject?domain=DOMAIN&merchant=m" Operator Refused "" 200;
    POST "/v1/explain" Operator Refused r#"{"domain":"DOMAIN","attributes":{"merchant":"m"}}"# 200;
    POST "/v1/forget?dry_run=true" Operator Refused r#"{"domain":"DOMAIN","attributes":{"merchant":"m"}}"# 200;
    GET "/v1/series?domain=DOMAIN&rule=RULE" View Refused "" 200;
    GET "/v1/top?domain=DOMAIN" View Refused "" 200;
    GET "/v1/stream" View Same "" 200;
    POST "/v1/try" Operator Refused r#"{"domain":"DOMAIN","attributes":{"merchant":"m"}}"# 200;
    GET "/v1/alerts" View Same "" 200;
    POST "/v1/alerts/silence?dry_run=true" Operator Refused r#"{"domain":"DOMAIN","until":UNTIL,"reason":"x"}"# 200;
    DELETE "/v1/alerts/silence?id=none&dry_run=true" Operator Same "" 404;
    POST "/v1/webhooks/test" Admin Refused r#"{"name":"none"}"# 404;
    GET "/v1/audit" Operator Same "" 200;
    GET "/v1/audit/verify" Operator Refused "" 200;
};

impl Line {
    fn path(&self) -> &'static str {
        self.target.split('?').next().unwrap()
    }

    /// True if the request names a domain.
    fn names_domain(&self) -> bool {
        self.target.contains("DOMAIN") || self.body.contains("DOMAIN")
    }

    fn request(&self, server: &AdminServer, domain: &str) -> Request {
        let rule = if domain == "shop" { "shop-plan" } else { "plan" };
        let of = |text: &str| {
            let in_an_hour = (tollgate::control::database::now_ms() + 3_600_000).to_string();
            text.replace("DOMAIN", domain)
                .replace("RULE", rule)
                .replace("UNTIL", &in_an_hour)
        };
        let mut request = server.request(self.method, &of(self.target)).page("").if_match("*");
        if !self.body.is_empty() {
            request = request.header("Content-Type", "application/json").body(of(self.body));
        }
        request
    }

    /// The status and, for refusals, the code that a role gets.
    fn expected(&self, role: Role) -> (u16, Option<&'static str>) {
        let least = match self.needed {
            Needed::Open | Needed::Login => return (self.allowed, None),
            Needed::Any | Needed::View => Role::Viewer,
            Needed::Operator => Role::Operator,
            Needed::Edit => Role::Editor,
            Needed::Admin => Role::Admin,
        };
        match role {
            Role::None => (401, Some("unauthorized")),
            role if role < least => (403, Some("forbidden")),
            Role::Viewer if self.masked == 403 => (403, Some("subjects")),
            _ => (self.allowed, None),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    None,
    Viewer,
    Operator,
    Editor,
    Admin,
}

#[track_caller]
fn assert_status(line: &Line, who: &str, request: &Request, (status, code): (u16, Option<&str>)) {
    let answer = request.send();
    assert_eq!(
        answer.status, status,
        "{} {} by {who}: {}",
        line.method, line.target, answer.body
    );
    if let Some(code) = code {
        assert_eq!(
            answer.json()["code"],
            code,
            "{} {} by {who}: {}",
            line.method,
            line.target,
            answer.body
        );
    }
}

#[test]
fn the_table_has_every_route_and_no_other_and_says_the_right_that_the_document_says() {
    let server = AdminServer::start();
    let document = document(server.address);
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let right = operation["x-right"].as_str().unwrap();
            described.insert((method.to_ascii_uppercase(), path.clone(), right.to_owned()));
        }
    }
    let mut listed = BTreeSet::new();
    for line in TABLE {
        let rights: &[&str] = match line.needed {
            Needed::Open => &["none"],
            Needed::Login => &["login"],
            Needed::Any => &["any"],
            Needed::View => &["view"],
            Needed::Operator => &["subjects", "explain", "forget", "override", "audit"],
            Needed::Edit => &["edit"],
            Needed::Admin => &["admin"],
        };
        let found = described
            .iter()
            .find(|(method, path, _)| method == line.method && path == line.path());
        let (_, _, right) = found.unwrap_or_else(|| panic!("{} {} is not described", line.method, line.path()));
        assert!(
            rights.contains(&right.as_str()),
            "{} {}: {right}",
            line.method,
            line.path()
        );
        listed.insert((line.method.to_owned(), line.path().to_owned()));
    }
    let described: BTreeSet<_> = described.into_iter().map(|(method, path, _)| (method, path)).collect();
    assert_eq!(listed, described);
}

#[test]
fn every_role_gets_what_the_table_says_on_every_route() {
    let server = AdminServer::start();
    let state = server.state();
    let callers = [
        (Role::None, ""),
        (Role::Viewer, VIEWER),
        (Role::Operator, OPERATOR),
        (Role::Editor, EDITOR),
        (Role::Admin, ADMIN),
    ];
    for line in TABLE.iter().filter(|line| line.needed != Needed::Login) {
        for (role, token) in callers {
            let request = line.request(&server, "default");
            let request = if token.is_empty() {
                request
            } else {
                request.token(token)
            };
            assert_status(line, &format!("{role:?}"), &request, line.expected(role));
        }
        // A credential that is not valid is no caller at all.
        let invalid = line.request(&server, "default").token("tgt_0000000000000000_00");
        assert_status(line, "nobody", &invalid, line.expected(Role::None));
    }
    // Each counts as a guess, so they are asked once.
    for line in TABLE.iter().filter(|line| line.needed == Needed::Login) {
        assert_status(
            line,
            "anybody",
            &line.request(&server, "default"),
            line.expected(Role::None),
        );
    }
    assert_eq!(server.state(), state, "the matrix changes nothing");
}

#[test]
fn a_credential_for_some_domains_gets_what_the_table_says_on_every_route() {
    let server = AdminServer::start();
    let state = server.state();
    for line in TABLE.iter().filter(|line| line.needed != Needed::Login) {
        let (status, code) = line.expected(Role::Editor);
        let is_refused = status < 400 || status == 404 || status == 409;
        let elsewhere = match line.elsewhere {
            Elsewhere::Refused if is_refused => (403, Some("domain")),
            _ => (status, code),
        };
        let request = line.request(&server, "default").token(SHOP_EDITOR);
        assert_status(line, "shop, elsewhere", &request, elsewhere);
        if line.names_domain() {
            let request = line.request(&server, "shop").token(SHOP_EDITOR);
            assert_status(line, "shop, within", &request, (status, code));
        }
    }
    assert_eq!(server.state(), state, "the matrix changes nothing");
}

#[test]
fn special_powers_need_an_admin() {
    let server = AdminServer::start();
    let body = json!({ "files": [], "reason": "x", "break_glass": true });
    let publish = |token: &str, query: &str, body: &Value| {
        server
            .request("POST", &format!("/v1/publish?dry_run=true{query}"))
            .token(token)
            .if_match("*")
            .json(body)
    };
    publish(EDITOR, "", &body).refused(403, "forbidden");
    publish(ADMIN, "", &body).expect(200);
    let body = json!({ "files": [], "reason": "x" });
    publish(EDITOR, "&prepare=skip", &body).refused(403, "forbidden");
    publish(ADMIN, "&prepare=skip", &body).expect(200);
}
