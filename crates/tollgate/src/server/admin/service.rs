//! The service behind the routes: bounds, browser protection, authentication, rights and stored responses around each endpoint.

use super::access::browser::BrowserGuard;
use super::access::login_limit::CheckLimit;
use super::access::rights::{Access, Caller, CallerKind};
use super::access::secrets::{digest, random_hex};
use super::access::{AccessControl, SessionUse};
use super::audit_queue::AuditQueue;
use super::cursors::Cursors;
use super::problem::AdminProblem;
use super::reply::Reply;
use super::request::{Call, Query};
use super::routes::{Body, Route};
use super::settings::AdminOptions;
use super::streams::OpenStreams;
use crate::control::database::{IdempotencyKey, StoredResponse, with_shared_deadline};
use crate::control::{Control, RuleLayer, with_idempotency_key};
use crate::server::gate::Gate;
use crate::server::telemetry::Protocol;
use crate::ui::UiFiles;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::{CONTENT_LENGTH, ETAG, HeaderName, TRANSFER_ENCODING};
use hyper::{HeaderMap, Method, Request, StatusCode};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;

/// The state that all requests of the admin API share.
pub(super) struct AdminService {
    pub(super) gate: Arc<Gate>,
    pub(super) control: Control,
    pub(super) options: AdminOptions,
    pub(super) access: AccessControl,
    pub(super) browser: BrowserGuard,
    pub(super) cursors: Cursors,
    pub(super) audit: Arc<AuditQueue>,
    pub(super) ui: UiFiles,
    requests: Semaphore,
    /// Requests without a credential whose bodies are read: while they wait they do not take the places of the others.
    logins: Semaphore,
    /// Requests whose bodies may be large: each takes as much memory.
    large: Semaphore,
    pub(super) streams: OpenStreams,
    /// True once the server stops: streams end.
    pub(super) stopping: watch::Sender<bool>,
    /// Of checks from the dashboard.
    pub(super) checks: CheckLimit,
    /// Idempotency keys of requests in flight.
    in_flight: Mutex<HashSet<String>>,
}

impl AdminService {
    pub(super) fn new(gate: Arc<Gate>, control: Control, options: AdminOptions) -> Self {
        Self {
            gate,
            control,
            access: AccessControl::new(options.settings.clone()),
            ui: options.settings.ui_dir.clone().map_or(UiFiles::Packed, UiFiles::Folder),
            browser: BrowserGuard::new(&options),
            options,
            cursors: Cursors::default(),
            audit: Arc::default(),
            requests: Semaphore::new(REQUESTS_MAX),
            logins: Semaphore::new(LOGINS_MAX),
            large: Semaphore::new(LARGE_MAX),
            streams: OpenStreams::default(),
            stopping: watch::Sender::new(false),
            checks: CheckLimit::new(),
            in_flight: Mutex::default(),
        }
    }

    /// The response to a request of a route.
    pub(super) async fn respond(
        self: Arc<Self>,
        route: &'static Route,
        request: Request<axum::body::Body>,
        peer: IpAddr,
    ) -> Reply {
        let id = random_hex(8);
        let responded = with_shared_deadline(self.guarded(route, request, peer, &id));
        let responded = timeout(REQUEST_TIMEOUT, responded).await;
        let timed_out = || Err(AdminProblem::busy("the request took too long; it may have been done"));
        let reply = responded.unwrap_or_else(|_| timed_out());
        reply
            .unwrap_or_else(AdminProblem::into_reply)
            .with_header(HeaderName::from_static("x-request-id"), &id)
    }

    async fn guarded(
        self: Arc<Self>,
        route: &'static Route,
        request: Request<axum::body::Body>,
        peer: IpAddr,
        id: &str,
    ) -> Result<Reply, AdminProblem> {
        let service = Arc::clone(&self);
        let (head, body) = request.into_parts();
        check_length(&head.headers, route.body)?;
        // The body of a request that brings no credential is read before it takes a place among the others.
        let body = match (route.access, route.body) {
            (Access::Open | Access::Login, Body::Small | Body::Large) => {
                self.browser.check_origin(&head.method, &head.uri, &head.headers)?;
                let _reading = acquire(&service.logins).await?;
                axum::body::Body::from(read_body(body, route.body, LOGIN_BODY_TIMEOUT).await?)
            }
            _ => body,
        };
        let _permit = acquire(&service.requests).await?;
        let caller = match route.access {
            Access::Open | Access::Login => None,
            Access::Any | Access::Needs(_) | Access::NeedsBeyondQuickstart(_) => {
                let cookie = self.browser.cookie_name();
                let control = &self.control;
                let access = &self.access;
                let caller = access.authenticate(&head.headers, &cookie, peer, control, SessionUse::Request);
                let caller = caller.await?;
                Some(caller.ok_or_else(AdminProblem::unauthorized)?)
            }
        };
        // Only a bearer token that was accepted shows that no browser sent the request by itself.
        if !caller.as_ref().is_some_and(has_bearer) {
            self.browser.check_origin(&head.method, &head.uri, &head.headers)?;
        }
        if let Some(caller) = &caller {
            let is_quickstart = || self.has_quickstart_rules();
            check_right(route.access, caller, is_quickstart)?;
        }
        let text = head.uri.query().unwrap_or_default();
        let query = Query::parse(text, route.query)?;
        let _large = match route.body {
            Body::Large => Some(acquire(&service.large).await?),
            Body::None | Body::Small => None,
        };
        let bytes = read_body(body, route.body, BODY_TIMEOUT).await?;
        let call = Call {
            service: self,
            caller,
            query,
            headers: head.headers,
            body: bytes,
            peer,
            request: id.to_owned(),
        };
        match head.method == Method::POST && route.is_idempotent {
            true => service.once(route, text, call).await,
            false => (route.handler)(call).await,
        }
    }

    /// True while the active rules are those that are built in.
    fn has_quickstart_rules(&self) -> bool {
        let snapshot = self.gate.snapshot(Protocol::Admin);
        let mut rules = snapshot.limiter().rules().rules().iter().peekable();
        rules.peek().is_some() && rules.all(|rule| self.control.layer_of(rule) == RuleLayer::Quickstart)
    }

    /// Runs a request once per idempotency key, and gives the first response again.
    async fn once(&self, route: &'static Route, query: &str, call: Call) -> Result<Reply, AdminProblem> {
        let Some(key) = call.headers.get("idempotency-key") else {
            return (route.handler)(call).await;
        };
        if !(1..=128).contains(&key.len()) {
            return Err(AdminProblem::field("Idempotency-Key", "must have 1 to 128 characters"));
        }
        let (Some(database), Some(caller)) = (self.control.database().cloned(), &call.caller) else {
            return (route.handler)(call).await;
        };
        let request = [route.path.as_bytes(), b"\n", query.as_bytes(), b"\n", &call.body].concat();
        let key = IdempotencyKey {
            principal: caller.id.clone(),
            key_hash: digest(key.as_bytes()),
            request_digest: digest(&request),
        };
        let _claim = Claim::take(&self.in_flight, format!("{} {}", key.principal, key.key_hash))?;
        if let Some(stored) = database.idempotent(&key).await? {
            return Ok(again(stored));
        }
        let is_dry_run = call.query.flag("dry_run")?;
        let reply = with_idempotency_key(key.clone(), (route.handler)(call)).await?;
        if is_dry_run {
            return Ok(reply);
        }
        let stored = StoredResponse {
            status: reply.status.as_u16(),
            body: String::from_utf8_lossy(&reply.body).into_owned(),
        };
        let remembered = match self.control.writable_database().await {
            Ok(database) => database.remember_response(&key, &stored).await.map_err(Into::into),
            Err(error) => Err(error),
        };
        if let Err(error) = remembered {
            tracing::warn!(%error, "a response could not be stored for its idempotency key; a retry gets a new one");
        }
        Ok(reply)
    }
}

/// The response that was stored, with the tag that its body names.
fn again(stored: StoredResponse) -> Reply {
    let body: serde_json::Value = serde_json::from_str(&stored.body).unwrap_or_default();
    let tag = body.get("etag").and_then(|tag| tag.as_str()).map(str::to_owned);
    let status = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::OK);
    let reply = Reply::new(status, "application/json", stored.body);
    match tag {
        Some(tag) => reply.with_header(ETAG, &tag),
        None => reply,
    }
}

/// An idempotency key in use; free again when this is dropped.
struct Claim<'a>(&'a Mutex<HashSet<String>>, String);

impl<'a> Claim<'a> {
    fn take(in_flight: &'a Mutex<HashSet<String>>, key: String) -> Result<Self, AdminProblem> {
        let is_new = in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.clone());
        match is_new {
            true => Ok(Self(in_flight, key)),
            false => Err(AdminProblem::new(
                StatusCode::CONFLICT,
                "idempotency-key-in-use",
                "a request with this Idempotency-Key is in flight; wait for its response",
            )),
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// Rejects a caller that does not have the right.
fn check_right(access: Access, caller: &Caller, is_quickstart: impl Fn() -> bool) -> Result<(), AdminProblem> {
    match access {
        Access::NeedsBeyondQuickstart(right) if !caller.has(right) && is_quickstart() => Ok(()),
        Access::Needs(right) | Access::NeedsBeyondQuickstart(right) if !caller.has(right) => {
            let detail = format!(
                "this needs the right `{}`, which your role does not include",
                right.name()
            );
            Err(AdminProblem::forbidden("forbidden", detail))
        }
        _ => Ok(()),
    }
}

/// True if the credential of the caller is a bearer token.
fn has_bearer(caller: &Caller) -> bool {
    caller.session.is_none() && matches!(caller.kind, CallerKind::Token | CallerKind::Settings)
}

/// Rejects a body where a route reads none, before it arrives.
fn check_length(headers: &HeaderMap, kind: Body) -> Result<(), AdminProblem> {
    let has_length = headers.get_all(CONTENT_LENGTH).iter().any(|length| length != "0");
    match kind == Body::None && (has_length || headers.contains_key(TRANSFER_ENCODING)) {
        false => Ok(()),
        true => Err(AdminProblem::malformed("this request has no body; leave it out")),
    }
}

async fn acquire(semaphore: &Semaphore) -> Result<SemaphorePermit<'_>, AdminProblem> {
    match timeout(QUEUE_TIMEOUT, semaphore.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(AdminProblem::busy("too many requests at a time; retry")),
    }
}

async fn read_body(body: axum::body::Body, kind: Body, wait: Duration) -> Result<Bytes, AdminProblem> {
    let bytes_max = match kind {
        Body::None => return Ok(Bytes::new()),
        Body::Small => SMALL_BYTES_MAX,
        Body::Large => LARGE_BYTES_MAX,
    };
    let collected = timeout(wait, Limited::new(body, bytes_max).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.downcast_ref::<LengthLimitError>().is_some() => Err(AdminProblem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            format!("the body has more than {bytes_max} bytes"),
        )),
        Ok(Err(_)) => Err(AdminProblem::malformed("the body ended early")),
        Err(_) => Err(AdminProblem::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the body did not arrive in time",
        )),
    }
}

/// Requests at a time.
const REQUESTS_MAX: usize = 32;
/// Requests without a credential whose bodies are read at a time.
const LOGINS_MAX: usize = 16;
/// Requests with large bodies at a time.
const LARGE_MAX: usize = 4;
const SMALL_BYTES_MAX: usize = 64 << 10;
/// 16 MiB of text, the most that a version may have, escaped as JSON.
const LARGE_BYTES_MAX: usize = 20 << 20;
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The wait for the body of a request without a credential.
const LOGIN_BODY_TIMEOUT: Duration = Duration::from_secs(3);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
