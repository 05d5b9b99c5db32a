//! Setup, sessions, users and tokens.

use super::EndpointResult;
use crate::control::database::{AuditRecord, DatabaseError};
use crate::control::model::{Author, Principal, PrincipalKind, Role, Session};
use crate::server::admin::access::rights::{CallerKind, Right, role_name};
use crate::server::admin::access::secrets::{HashingError, digest, equal, random_hex};
use crate::server::admin::access::{SESSION_TIME, is_active, now_ms};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use cookie::{Cookie, SameSite};
use hyper::StatusCode;
use hyper::header::SET_COOKIE;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetupBody {
    code: String,
    name: String,
    password: Option<String>,
    kind: Option<PrincipalKind>,
}

pub(in crate::server::admin) async fn setup(call: Call) -> EndpointResult {
    let access = &call.service.access;
    if !access.logins.allows(call.peer, "setup") {
        return Err(AdminProblem::too_many());
    }
    let body: SetupBody = call.json()?;
    let database = call.control().database();
    if access.has_principal(database).await? {
        return Err(AdminProblem::new(
            StatusCode::CONFLICT,
            "setup-done",
            "a principal exists already; log in",
        ));
    }
    if !equal(
        access.setup_code.as_bytes(),
        body.code.trim().to_ascii_uppercase().as_bytes(),
    ) {
        return Err(AdminProblem::forbidden(
            "code",
            "not the code that this server printed when it started",
        ));
    }
    check_name(&body.name)?;
    let mut author = call.author("setup")?;
    author.actor.clone_from(&body.name);
    let is_token = body.kind == Some(PrincipalKind::Token);
    let (mut principal, token) = if is_token {
        let (principal, token) = new_token(&body.name, Role::Admin);
        (principal, Some(token))
    } else {
        let password = body.password.unwrap_or_default();
        (new_user(&call, &body.name, Role::Admin, password).await?, None)
    };
    principal.created_by = "setup".to_owned();
    let database = call.control().writable_database().await?;
    match database.add_first_principal(principal.clone(), &author).await {
        Ok(()) => {}
        Err(DatabaseError::Exists(_)) => {
            return Err(AdminProblem::new(
                StatusCode::CONFLICT,
                "setup-done",
                "a principal exists already; log in",
            ));
        }
        Err(error) => return Err(error.into()),
    }
    access.close_setup();
    let mut item = principal_item(&principal);
    match token {
        Some(token) => {
            insert(&mut item, "token", token);
            Ok(Reply::json(StatusCode::CREATED, &item))
        }
        None => {
            let cookie = start_session(&call, &principal, &author).await?;
            Ok(Reply::json(StatusCode::CREATED, &item).with_header(SET_COOKIE, &cookie))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginBody {
    name: Option<String>,
    password: Option<String>,
    view: Option<String>,
}

pub(in crate::server::admin) async fn login(call: Call) -> EndpointResult {
    let access = &call.service.access;
    let body: LoginBody = call.json()?;
    let name = body.name.clone().unwrap_or_else(|| "view code".to_owned());
    if !access.logins.allows(call.peer, &name) {
        return Err(AdminProblem::too_many());
    }
    if let Some(code) = &body.view {
        let is_valid = equal(access.view_code.as_bytes(), code.trim().to_ascii_uppercase().as_bytes());
        if !is_valid || !is_view_open(&call).await? {
            return Err(AdminProblem::unauthorized());
        }
        let id = random_hex(32);
        access.add_view(digest(id.as_bytes()));
        let item = json!({ "name": "view", "role": "viewer", "domains": [] });
        return Ok(Reply::ok(&item).with_header(SET_COOKIE, &cookie(&call, &id)));
    }
    let (Some(name), Some(password)) = (body.name, body.password) else {
        return Err(AdminProblem::malformed("send `name` and `password`, or `view`"));
    };
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(AdminProblem::unauthorized());
    }
    let principal = call.database()?.principal_by_name(&name).await?;
    let principal = principal.filter(|principal| principal.kind == PrincipalKind::User && is_active(principal));
    let hash = principal.as_ref().map(|principal| principal.secret.clone());
    let is_valid = access.passwords.verify(password, hash).await.map_err(hashing_failed)?;
    let mut author = call.author("")?;
    let Some(principal) = principal.filter(|_| is_valid) else {
        audit_failure(&call, author, &name).await;
        return Err(AdminProblem::unauthorized());
    };
    author.actor.clone_from(&principal.name);
    let cookie = start_session(&call, &principal, &author).await?;
    let item = json!({ "name": principal.name, "role": role_name(principal.role), "domains": principal.domains });
    Ok(Reply::ok(&item).with_header(SET_COOKIE, &cookie))
}

/// Audits a failed login, once per address and minute. The name may be a password in the wrong field, so it is left out unless it
/// belongs to a principal.
async fn audit_failure(call: &Call, author: Author, name: &str) {
    if !call.service.access.audits_failure(call.peer) {
        return;
    }
    let Ok(database) = call.control().writable_database().await else {
        return;
    };
    let is_known = database
        .principal_by_name(name)
        .await
        .is_ok_and(|principal| principal.is_some());
    let record = AuditRecord {
        author,
        action: "login.failed".to_owned(),
        target: if is_known {
            name.to_owned()
        } else {
            "unknown".to_owned()
        },
        ..AuditRecord::default()
    };
    if let Err(error) = database.record(record).await {
        tracing::warn!(%error, "a failed login could not be audited");
    }
}

/// True while the printed link works: over loopback, until a principal exists.
async fn is_view_open(call: &Call) -> Result<bool, AdminProblem> {
    use crate::server::admin::settings::AnonymousAccess;
    let is_auto = call.service.options.settings.anonymous == AnonymousAccess::Auto;
    let has_principal = call.service.access.has_principal(call.control().database()).await?;
    Ok(is_auto && !has_principal && call.peer.to_canonical().is_loopback())
}

pub(in crate::server::admin) async fn logout(call: Call) -> EndpointResult {
    if let Some(session) = call.caller()?.session {
        call.service.access.remove_view(&session);
        call.service.access.forget_recent(&session);
        if call.caller()?.kind == CallerKind::User {
            let author = call.author("")?;
            call.control()
                .writable_database()
                .await?
                .delete_session(&session, &author)
                .await?;
        }
    }
    Ok(Reply::empty().with_header(SET_COOKIE, &removal(&call)))
}

pub(in crate::server::admin) async fn me(call: Call) -> EndpointResult {
    let caller = call.caller()?;
    let rights: Vec<&str> = Right::ALL
        .iter()
        .filter(|right| caller.has(**right))
        .map(|right| right.name())
        .collect();
    let has_principal = call
        .service
        .access
        .has_principal(call.control().database())
        .await
        .unwrap_or(true);
    Ok(Reply::ok(&json!({
        "name": caller.name,
        "kind": caller.kind.name(),
        "role": role_name(caller.role),
        "domains": caller.domains,
        "rights": rights,
        "setup_open": !has_principal,
    })))
}

pub(in crate::server::admin) async fn users(call: Call) -> EndpointResult {
    principals(&call, PrincipalKind::User).await
}

pub(in crate::server::admin) async fn tokens(call: Call) -> EndpointResult {
    principals(&call, PrincipalKind::Token).await
}

async fn principals(call: &Call, kind: PrincipalKind) -> EndpointResult {
    call.check_unrestricted()?;
    let limit = call.limit(1_000)?;
    let after: Option<String> = call.after()?;
    let mut all = call.database()?.principals().await?;
    all.retain(|principal| principal.kind == kind && after.as_ref().is_none_or(|after| principal.name > *after));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    let next = match all.len() > limit {
        true => all.get(limit - 1).and_then(|last| call.cursor(&last.name)),
        false => None,
    };
    Ok(Reply::page(all.iter().take(limit).map(principal_item).collect(), next))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrincipalBody {
    name: String,
    role: Role,
    #[serde(default)]
    domains: Vec<String>,
    password: Option<String>,
    #[serde(default)]
    expires_at: u64,
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn add_user(call: Call) -> EndpointResult {
    let mut body: PrincipalBody = call.json()?;
    check_name(&body.name)?;
    let generated = body.password.is_none().then(|| random_hex(16));
    let password = generated.clone().or(body.password.take()).unwrap_or_default();
    let principal = new_user(&call, &body.name, body.role, password).await?;
    add(&call, principal, body, generated.map(|password| ("password", password))).await
}

pub(in crate::server::admin) async fn add_token(call: Call) -> EndpointResult {
    let body: PrincipalBody = call.json()?;
    if body.password.is_some() {
        return Err(AdminProblem::field(
            "password",
            "a token has none; its secret is generated",
        ));
    }
    check_name(&body.name)?;
    let (principal, token) = new_token(&body.name, body.role);
    add(&call, principal, body, Some(("token", token))).await
}

async fn add(
    call: &Call,
    principal: Principal,
    body: PrincipalBody,
    secret: Option<(&'static str, String)>,
) -> EndpointResult {
    call.check_unrestricted()?;
    if body.domains.len() > DOMAINS_MAX {
        return Err(AdminProblem::field("domains", format!("more than {DOMAINS_MAX}")));
    }
    let principal = Principal {
        domains: body.domains,
        expires_at: body.expires_at,
        created_by: call.caller()?.name.clone(),
        ..principal
    };
    let author = call.author(&body.reason)?;
    let mut item = principal_item(&principal);
    if call.query.flag("dry_run")? {
        if call.database()?.principal_by_name(&principal.name).await?.is_some() {
            return Err(DatabaseError::Exists(principal.name).into());
        }
        insert(&mut item, "dry_run", true);
        return Ok(Reply::ok(&item));
    }
    call.control()
        .writable_database()
        .await?
        .add_principal(principal, &author)
        .await?;
    call.service.access.close_setup();
    if let Some((name, secret)) = secret {
        insert(&mut item, name, secret);
    }
    Ok(Reply::json(StatusCode::CREATED, &item))
}

pub(in crate::server::admin) async fn disable_user(call: Call) -> EndpointResult {
    disable(&call, PrincipalKind::User).await
}

pub(in crate::server::admin) async fn revoke_token(call: Call) -> EndpointResult {
    disable(&call, PrincipalKind::Token).await
}

async fn disable(call: &Call, kind: PrincipalKind) -> EndpointResult {
    call.check_unrestricted()?;
    let name = call.query.require("name")?;
    let author = call.author(call.query.get("reason").unwrap_or_default())?;
    let database = call.control().writable_database().await?;
    let all = database.principals().await?;
    let found = all
        .iter()
        .find(|principal| principal.name == name && principal.kind == kind);
    let found = found.ok_or_else(|| AdminProblem::not_found("there is no such principal"))?;
    let is_admin =
        |principal: &&Principal| principal.role == Role::Admin && is_active(principal) && principal.domains.is_empty();
    let has_other = all.iter().filter(is_admin).any(|principal| principal.id != found.id)
        || call
            .service
            .options
            .settings
            .tokens
            .iter()
            .any(|token| token.role == Role::Admin);
    if is_admin(&found) && !has_other {
        let detail = "this is the last admin; add another one first";
        return Err(AdminProblem::new(StatusCode::CONFLICT, "last-admin", detail));
    }
    if !call.query.flag("dry_run")? {
        database.disable_principal(&found.id, &author).await?;
        call.service.access.forget_principal(&found.id);
    }
    Ok(Reply::empty())
}

pub(in crate::server::admin) async fn sessions(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let database = call.database()?;
    let principals = database.principals().await?;
    let name = |id: &str| {
        principals
            .iter()
            .find(|principal| principal.id == id)
            .map(|found| found.name.clone())
    };
    let sessions = database.sessions().await?;
    let items = sessions.iter().take(SESSIONS_MAX).map(|session| {
        json!({
            "id": session.id_hash.to_string().get(..16),
            "principal": name(&session.principal),
            "created_at": session.created_at,
            "seen_at": session.seen_at,
            "expires_at": session.expires_at,
            "address": session.address,
        })
    });
    Ok(Reply::page(items.collect(), None))
}

pub(in crate::server::admin) async fn end_sessions(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let name = call.query.require("principal")?;
    let author = call.author(call.query.get("reason").unwrap_or_default())?;
    let database = call.control().writable_database().await?;
    let found = database.principal_by_name(name).await?;
    let found = found.ok_or_else(|| AdminProblem::not_found("there is no such principal"))?;
    database.delete_sessions_of(&found.id, &author).await?;
    call.service.access.forget_principal(&found.id);
    Ok(Reply::empty())
}

/// A new session, as the value of `Set-Cookie`.
async fn start_session(call: &Call, principal: &Principal, author: &Author) -> Result<String, AdminProblem> {
    let id = random_hex(32);
    let now = now_ms();
    let session = Session {
        id_hash: digest(id.as_bytes()),
        principal: principal.id.clone(),
        created_at: now,
        seen_at: now,
        expires_at: now + u64::try_from(SESSION_TIME.as_millis()).unwrap_or(0),
        address: call.peer.to_canonical().to_string(),
    };
    call.control()
        .writable_database()
        .await?
        .add_session(session, author)
        .await?;
    Ok(cookie(call, &id))
}

fn cookie(call: &Call, value: &str) -> String {
    let browser = &call.service.browser;
    let cookie = Cookie::build((browser.cookie_name(), value.to_owned()));
    let cookie = cookie
        .http_only(true)
        .same_site(SameSite::Strict)
        .path("/")
        .secure(browser.is_secure());
    cookie.build().to_string()
}

fn removal(call: &Call) -> String {
    format!("{}; Max-Age=0", cookie(call, ""))
}

async fn new_user(call: &Call, name: &str, role: Role, password: String) -> Result<Principal, AdminProblem> {
    if password.chars().count() < PASSWORD_MIN || password.len() > PASSWORD_BYTES_MAX {
        let detail =
            format!("a password has at least {PASSWORD_MIN} characters, and at most {PASSWORD_BYTES_MAX} bytes");
        return Err(AdminProblem::field("password", detail));
    }
    let secret = call
        .service
        .access
        .passwords
        .hash(password)
        .await
        .map_err(hashing_failed)?;
    Ok(principal(random_hex(8), PrincipalKind::User, name, role, secret))
}

/// A token's principal, and the token.
fn new_token(name: &str, role: Role) -> (Principal, String) {
    let (id, secret) = (random_hex(8), random_hex(32));
    let token = format!("tgt_{id}_{secret}");
    let hash = digest(secret.as_bytes()).to_string();
    (principal(id, PrincipalKind::Token, name, role, hash), token)
}

fn principal(id: String, kind: PrincipalKind, name: &str, role: Role, secret: String) -> Principal {
    Principal {
        id,
        kind,
        name: name.to_owned(),
        role,
        domains: Vec::new(),
        secret,
        created_at: now_ms(),
        created_by: String::new(),
        expires_at: 0,
        seen_at: 0,
        disabled_at: 0,
    }
}

fn check_name(name: &str) -> Result<(), AdminProblem> {
    let is_valid = |character: char| character.is_alphanumeric() || "._-@+".contains(character);
    let is_reserved = ["system", "anonymous", "view", "setup"].contains(&name);
    match (1..=64).contains(&name.len()) && name.chars().all(is_valid) && !is_reserved {
        true => Ok(()),
        false => Err(AdminProblem::field(
            "name",
            "1 to 64 letters, digits and `._-@+`; `system` and the like are reserved",
        )),
    }
}

/// A principal without its secret.
fn principal_item(principal: &Principal) -> Value {
    json!({
        "id": principal.id,
        "kind": principal.kind,
        "name": principal.name,
        "role": role_name(principal.role),
        "domains": principal.domains,
        "created_at": principal.created_at,
        "created_by": principal.created_by,
        "expires_at": principal.expires_at,
        "seen_at": principal.seen_at,
        "disabled_at": principal.disabled_at,
    })
}

fn insert(item: &mut Value, name: &str, value: impl Into<Value>) {
    if let Value::Object(members) = item {
        members.insert(name.to_owned(), value.into());
    }
}

fn hashing_failed(_: HashingError) -> AdminProblem {
    AdminProblem::busy("the password could not be hashed; retry")
}

const PASSWORD_MIN: usize = 12;
const PASSWORD_BYTES_MAX: usize = 1_024;
const DOMAINS_MAX: usize = 100;
const SESSIONS_MAX: usize = 1_000;
