//! Setup, logins and sessions.

use super::EndpointResult;
use super::principals::{check_name, insert, new_token, new_user, principal_item};
use crate::control::database::{AuditRecord, DatabaseError};
use crate::control::model::{Author, Principal, PrincipalKind, Role, Session};
use crate::server::admin::access::rights::{CallerKind, Right, role_name};
use crate::server::admin::access::secrets::{HashingError, digest, equal, random_hex};
use crate::server::admin::access::{SESSION_TIME, is_active, now_ms, session_cookie};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use cookie::{Cookie, SameSite};
use hyper::StatusCode;
use hyper::header::SET_COOKIE;
use serde::Deserialize;
use serde_json::json;

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
        return Err(AdminProblem::too_many(TOO_MANY));
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
        (
            new_user(&access.passwords, &body.name, Role::Admin, password).await?,
            None,
        )
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
    // All guesses of the code count together, whatever name comes with them.
    let counted = match (&body.view, &body.name) {
        (None, Some(name)) => name,
        _ => "view code",
    };
    if !access.logins.allows(call.peer, counted) {
        return Err(AdminProblem::too_many(TOO_MANY));
    }
    if body.view.is_some() && (body.name.is_some() || body.password.is_some()) {
        return Err(AdminProblem::malformed("send `name` and `password`, or `view`"));
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
    end_presented(&call, &author).await?;
    let cookie = start_session(&call, &principal, &author).await?;
    let item = json!({ "name": principal.name, "role": role_name(principal.role), "domains": principal.domains });
    Ok(Reply::ok(&item).with_header(SET_COOKIE, &cookie))
}

/// Ends the session that a login comes with: the new one takes its place.
async fn end_presented(call: &Call, author: &Author) -> Result<(), AdminProblem> {
    let Some(id) = session_cookie(&call.headers, &call.service.browser.cookie_name()) else {
        return Ok(());
    };
    let id = digest(id.as_bytes());
    call.service.access.remove_view(&id);
    call.service.access.forget_recent(&id);
    let database = call.control().writable_database().await?;
    match database.delete_session(&id, author).await {
        Ok(()) | Err(DatabaseError::Missing(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Audits a failed login, once per address and minute. The name may be a password in the wrong field, so it is left out unless it
/// belongs to a principal.
async fn audit_failure(call: &Call, author: Author, name: &str) {
    // Where there is no user yet nothing is written: a guess is no change.
    let has_users = match call.control().database() {
        Some(database) => database.has_principals().await.unwrap_or(false),
        None => false,
    };
    if !has_users || !call.service.access.audits_failure(call.peer) {
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
            let database = call.control().writable_database().await?;
            match database.delete_session(&session, &author).await {
                Ok(()) | Err(DatabaseError::Missing(_)) => {}
                Err(error) => return Err(error.into()),
            }
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

pub(in crate::server::admin) async fn sessions(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let limit = call.limit(1_000)?;
    let after: Option<(u64, String)> = call.after()?;
    let database = call.database()?;
    let principals = database.principals().await?;
    let name = |id: &str| {
        principals
            .iter()
            .find(|principal| principal.id == id)
            .map(|found| found.name.clone())
    };
    // The newest first, and of one time by their hash.
    let mut found = database.sessions().await?;
    found.retain(|session| {
        let is_later = |(at, hash): &(u64, String)| {
            session.created_at < *at || (session.created_at == *at && session.id_hash.to_string() > *hash)
        };
        after.as_ref().is_none_or(is_later)
    });
    let key = |last: &Session| (last.created_at, last.id_hash.to_string());
    let (page, next) = call.first_page(&found, limit, key);
    let items = page.iter().map(|session| {
        json!({
            "id": session.id_hash.to_string().get(..16),
            "principal": name(&session.principal),
            "created_at": session.created_at,
            "seen_at": session.seen_at,
            "expires_at": session.expires_at,
            "address": session.address,
        })
    });
    Ok(Reply::page(items.collect(), next))
}

pub(in crate::server::admin) async fn end_sessions(call: Call) -> EndpointResult {
    call.check_unrestricted()?;
    let name = call.query.require("principal")?;
    let author = call.author(call.query.get("reason").unwrap_or_default())?;
    let is_dry_run = call.query.flag("dry_run")?;
    let found = call.database()?.principal_by_name(name).await?;
    let found = found.ok_or_else(|| AdminProblem::not_found("there is no such principal"))?;
    if !is_dry_run {
        let database = call.control().writable_database().await?;
        database.delete_sessions_of(&found.id, &author).await?;
        call.service.access.forget_principal(&found.id);
    }
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

/// The problem of a password that could not be hashed.
pub(super) fn hashing_failed(_: HashingError) -> AdminProblem {
    AdminProblem::busy("the password could not be hashed; retry")
}

pub(super) const PASSWORD_BYTES_MAX: usize = 1_024;

const TOO_MANY: &str = "too many attempts; wait a minute";
