//! Users and tokens.

use super::EndpointResult;
use super::overrides::is_end;
use super::sessions::{PASSWORD_BYTES_MAX, hashing_failed};
use crate::config::{PRINCIPAL_NAMES, is_principal_name};
use crate::control::database::DatabaseError;
use crate::control::model::{Principal, PrincipalKind, Role};
use crate::server::admin::access::rights::role_name;
use crate::server::admin::access::secrets::{PasswordHashing, digest, random_hex};
use crate::server::admin::access::{is_active, now_ms};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use crate::server::admin::settings::AdminToken;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

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
    let (page, next) = call.first_page(&all, limit, |last| &last.name);
    Ok(Reply::page(page.iter().map(principal_item).collect(), next))
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
    call.check_unrestricted()?;
    let mut body: PrincipalBody = call.json()?;
    check_name(&body.name)?;
    let generated = body.password.is_none().then(|| random_hex(16));
    let password = generated.clone().or(body.password.take()).unwrap_or_default();
    let passwords = &call.service.access.passwords;
    let principal = new_user(passwords, &body.name, body.role, password).await?;
    add(&call, principal, body, generated.map(|password| ("password", password))).await
}

pub(in crate::server::admin) async fn add_token(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
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
    let is_domain = |domain: &String| (1..=256).contains(&domain.len());
    if body.domains.len() > DOMAINS_MAX || !body.domains.iter().all(is_domain) {
        let detail = format!("at most {DOMAINS_MAX}, of 1 to 256 bytes each");
        return Err(AdminProblem::field("domains", detail));
    }
    if !is_end(body.expires_at) {
        return Err(AdminProblem::field("expires_at", "is in the past, or no time"));
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
    let is_dry_run = call.query.flag("dry_run")?;
    let all = call.database()?.principals().await?;
    let is_named = |principal: &&Principal| principal.name == name && principal.kind == kind;
    let found = all.iter().filter(is_named).find(|principal| principal.disabled_at == 0);
    let found = found.ok_or_else(|| AdminProblem::not_found("there is no such principal, or it is disabled"))?;
    let is_admin =
        |principal: &&Principal| principal.role == Role::Admin && is_active(principal) && principal.domains.is_empty();
    let has_other = all.iter().filter(is_admin).any(|principal| principal.id != found.id)
        || call
            .service
            .options
            .settings
            .tokens
            .iter()
            .any(AdminToken::is_full_admin);
    if is_admin(&found) && !has_other {
        let detail = "this is the last admin; add another one first";
        return Err(AdminProblem::new(StatusCode::CONFLICT, "last-admin", detail));
    }
    if !is_dry_run {
        let database = call.control().writable_database().await?;
        database.disable_principal(&found.id, &author).await?;
        call.service.access.forget_principal(&found.id);
    }
    Ok(Reply::empty())
}

/// A user with a password.
pub(in crate::server::admin) async fn new_user(
    passwords: &PasswordHashing,
    name: &str,
    role: Role,
    password: String,
) -> Result<Principal, AdminProblem> {
    if password.chars().count() < PASSWORD_MIN || password.len() > PASSWORD_BYTES_MAX {
        let detail =
            format!("a password has at least {PASSWORD_MIN} characters, and at most {PASSWORD_BYTES_MAX} bytes");
        return Err(AdminProblem::field("password", detail));
    }
    let secret = passwords.hash(password).await.map_err(hashing_failed)?;
    Ok(principal(random_hex(8), PrincipalKind::User, name, role, secret))
}

/// A token's principal, and the token.
pub(in crate::server::admin) fn new_token(name: &str, role: Role) -> (Principal, String) {
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

/// Rejects a name that is not one of a principal.
pub(in crate::server::admin) fn check_name(name: &str) -> Result<(), AdminProblem> {
    match is_principal_name(name) {
        true => Ok(()),
        false => Err(AdminProblem::field("name", PRINCIPAL_NAMES)),
    }
}

/// A principal without its secret.
pub(in crate::server::admin) fn principal_item(principal: &Principal) -> Value {
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

/// Adds a member.
pub(in crate::server::admin) fn insert(item: &mut Value, name: &str, value: impl Into<Value>) {
    if let Value::Object(members) = item {
        members.insert(name.to_owned(), value.into());
    }
}

const PASSWORD_MIN: usize = 12;
const DOMAINS_MAX: usize = 100;
