//! What is answered where.

mod bodies;

use self::bodies::{Sent, Whole, read, room};
use super::answer::{self, Told};
use super::forward::Target;
use super::problem::Problem;
use super::settings::HttpSettings;
use super::watch::Beat;
use super::{auth, debug, envoy_json, explain, forward, json, ready, request};
use crate::server::envoy::request::gives_back;
use crate::server::gate::{Gate, Phase};
use crate::server::room::Room;
use crate::server::telemetry::{Door, Telemetry};
use crate::server::tokens::Rights;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_limiter::ForgetError;
use tollgate_limiter::core::rules::Attempt;
use tollgate_limiter::core::{Cost, Timestamp};
use tollgate_limiter::store::StoreError;

/// The description of this API that machines read.
pub const OPENAPI: &str = include_str!("openapi.json");

/// What every connection of one listener shares.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) gate: Arc<Gate>,
    pub(super) settings: HttpSettings,
    routes: &'static [Entry],
    bodies: Room,
}

/// Where something is asked, how, and which right that takes; without one it is open to everybody.
pub(super) type Entry = (&'static str, Method, Route, Option<Rights>);

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Check,
    Batch,
    Refund,
    Forget,
    Release,
    Renew,
    Explain,
    Forward,
    Envoy,
    Healthz,
    Readyz,
    Healthcheck,
    Metrics,
    OpenApi,
    DebugIndex,
    RlConfig,
    Stats,
}

/// A request that was sorted. Whatever waits is moved about, so this carries no head, and what is asked less often stands
/// in a box.
pub(super) enum Asked {
    Check(Sent),
    /// With the address it comes from.
    Other(Route, Box<Request<Incoming>>, IpAddr),
    Nothing(Box<Problem>),
}

/// What is asked of the front end itself.
pub(super) const ROUTES: [Entry; 13] = [
    ("/v1/check", Method::POST, Route::Check, Some(Rights::CHECK)),
    ("/v1/check/batch", Method::POST, Route::Batch, Some(Rights::CHECK)),
    ("/v1/refund", Method::POST, Route::Refund, Some(Rights::REFUND)),
    ("/v1/forget", Method::POST, Route::Forget, Some(Rights::FORGET)),
    ("/v1/release", Method::POST, Route::Release, Some(Rights::CHECK)),
    ("/v1/renew", Method::POST, Route::Renew, Some(Rights::CHECK)),
    ("/v1/explain", Method::POST, Route::Explain, Some(Rights::EXPLAIN)),
    ("/json", Method::POST, Route::Envoy, Some(Rights::CHECK)),
    ("/healthz", Method::GET, Route::Healthz, None),
    ("/readyz", Method::GET, Route::Readyz, None),
    ("/healthcheck", Method::GET, Route::Healthcheck, None),
    ("/metrics", Method::GET, Route::Metrics, Some(Rights::METRICS)),
    ("/openapi.json", Method::GET, Route::OpenApi, None),
];

impl Front {
    pub(super) fn new(gate: Arc<Gate>, settings: HttpSettings, routes: &'static [Entry]) -> Self {
        Self {
            gate,
            settings,
            routes,
            bodies: room(),
        }
    }

    /// Finds out what is asked, before anything is waited for.
    pub(super) fn sort(&self, request: Request<Incoming>, peer: IpAddr) -> Asked {
        match self.route(&request) {
            Ok(Route::Check) => Asked::Check(request.into()),
            Ok(route) => Asked::Other(route, Box::new(request), peer),
            Err(problem) => Asked::Nothing(Box::new(problem)),
        }
    }

    /// The answer to a request, whatever it is.
    pub(super) async fn answer(&self, asked: Asked, beat: Beat) -> Response<Full<Bytes>> {
        let mut response = match asked {
            Asked::Check(sent) => self.check(sent, &beat).await,
            Asked::Other(route, request, peer) => Box::pin(self.other(route, *request, peer, &beat)).await,
            Asked::Nothing(problem) => Err(*problem),
        }
        .unwrap_or_else(Problem::into_response);
        // HTTP/2 has frames for it.
        if self.gate.phase() == Phase::Draining && !beat.is_multiplexed() {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// What is asked, if there is such a thing and the client may.
    fn route(&self, request: &Request<Incoming>) -> Result<Route, Problem> {
        host(request)?;
        let path = request.uri().path();
        let Some((_, method, route, needed)) = self.routes.iter().find(|(known, ..)| *known == path) else {
            return self.route_of_gateway(path, request.headers());
        };
        if request.method() != method && !(request.method() == Method::HEAD && method == Method::GET) {
            let allowed = if method == Method::GET { "GET, HEAD" } else { "POST" };
            let detail = format!("{path} is asked with {method}");
            let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
            return Err(problem.with(ALLOW, allowed));
        }
        match (&self.settings.tokens, needed) {
            (_, None) => {}
            (Some(tokens), Some(needed)) => auth::permit(&tokens.tokens(), request.headers(), *needed)?,
            (None, Some(needed)) => auth::permit_stranger(self.settings.strangers, *needed)?,
        }
        Ok(*route)
    }

    /// Whether it is the port for those who look after the server.
    fn is_debug(&self) -> bool {
        self.routes.iter().all(|(.., route, _)| !matches!(route, Route::Check))
    }

    fn route_of_gateway(&self, path: &str, headers: &HeaderMap) -> Result<Route, Problem> {
        if Target::of(path).is_none() || self.is_debug() {
            return Err(Problem::new(StatusCode::NOT_FOUND, self.nowhere(path)));
        }
        if let Some(tokens) = &self.settings.tokens {
            auth::permit_gateway(&tokens.tokens(), headers)?;
        }
        Ok(Route::Forward)
    }

    /// Any method, and a body is not waited for: what is asked about stands in the head.
    async fn forward(&self, head: &Parts, peer: IpAddr) -> Result<Response<Full<Bytes>>, Problem> {
        let (Some(forward), Some(target)) = (&self.settings.forward, Target::of(head.uri.path())) else {
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "no gateway is set up to ask here; write `forward_auth: { gateway: … }` into the settings",
            ));
        };
        let seen = forward.see(head, target.rest, peer)?;
        let attempt = Attempt {
            domain: &target.domain,
            attributes: &seen.attributes(),
            cost: Cost::ONE,
        };
        let sitting = self.gate.snapshot(Door::Forward);
        let checked = sitting.check(&attempt).await;
        let told = Told {
            verdict: &checked.verdict,
            lease: checked.lease.as_deref(),
            cost: attempt.cost,
            now: checked.now.unwrap_or(Timestamp::EPOCH),
        };
        Ok(answer::to_gateway(&self.settings, &told, target.refusal))
    }

    async fn check(&self, sent: Sent, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let body = self.body(sent, beat).await?;
        let asked = request::attempt(&body)?;
        let attributes = asked.attributes();
        let attempt = asked.attempt(&attributes);
        let sitting = self.gate.snapshot(Door::Http);
        let checked = sitting.check(&attempt).await;
        let told = Told {
            verdict: &checked.verdict,
            lease: checked.lease.as_deref(),
            cost: attempt.cost,
            now: checked.now.unwrap_or(Timestamp::EPOCH),
        };
        Ok(answer::to_check(&self.settings, &told))
    }

    /// Everything, though checks have a shorter way.
    async fn other(
        &self,
        route: Route,
        request: Request<Incoming>,
        peer: IpAddr,
        beat: &Beat,
    ) -> Result<Response<Full<Bytes>>, Problem> {
        match route {
            Route::Check => self.check(request.into(), beat).await,
            Route::Batch => self.batch(request, beat).await,
            Route::Refund => self.refund(request, beat).await,
            Route::Forget => self.forget(request, beat).await,
            Route::Release => self.release(request, beat).await,
            Route::Renew => self.renew(request, beat).await,
            Route::Explain => self.explain(request, beat).await,
            Route::Forward => self.forward(&request.into_parts().0, peer).await,
            Route::Envoy => self.envoy(request, beat).await,
            Route::Healthz => Ok(answer::json(b"{\"status\":\"alive\"}".to_vec())),
            Route::Readyz => Ok(ready::readiness(&self.gate)),
            Route::Healthcheck => Ok(debug::health(&self.gate)),
            Route::Metrics => Ok(metrics(&self.gate)),
            Route::OpenApi => Ok(answer::json(OPENAPI.into())),
            Route::DebugIndex => Ok(debug::index()),
            Route::RlConfig => Ok(debug::limits(&self.gate)),
            Route::Stats => Ok(debug::figures(&self.gate)),
        }
    }

    async fn batch(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let bounds = &self.settings.bounds;
        let body = read(
            request.into(),
            &self.bodies,
            bounds.batch_bytes,
            bounds.body_timeout,
            beat,
        )
        .await?;
        let batch = request::batch(&body)?;
        let sitting = self.gate.snapshot(Door::Http);
        let mut out = Vec::with_capacity(ELEMENT_BYTES * batch.len());
        out.push(b'[');
        for (place, asked) in batch.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            let attributes = asked.attributes();
            let attempt = asked.attempt(&attributes);
            let checked = sitting.check(&attempt).await;
            let told = Told {
                verdict: &checked.verdict,
                lease: checked.lease.as_deref(),
                cost: attempt.cost,
                now: checked.now.unwrap_or(Timestamp::EPOCH),
            };
            answer::write_body(&mut out, &told);
        }
        out.push(b']');
        Ok(answer::json(out))
    }

    async fn refund(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let body = self.body(request.into(), beat).await?;
        let asked = request::attempt(&body)?;
        let attributes = asked.attributes();
        let attempt = asked.attempt(&attributes);
        let sitting = self.gate.snapshot(Door::Http);
        let verdict = sitting.refund(&attempt).await;
        let told = Told {
            verdict: &verdict,
            lease: None,
            cost: attempt.cost,
            now: Timestamp::EPOCH,
        };
        let mut out = Vec::with_capacity(ELEMENT_BYTES);
        answer::write_body(&mut out, &told);
        Ok(answer::json(out))
    }

    async fn forget(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let body = self.body(request.into(), beat).await?;
        let asked = request::subject(&body)?;
        let attributes = asked.attributes();
        let sitting = self.gate.snapshot(Door::Http);
        let forgotten = sitting.forget(&asked.attempt(&attributes), asked.rule()).await;
        let forgotten = forgotten.map_err(|error| match error {
            ForgetError::Unknown(unknown) => Problem::of_field("rule", unknown.to_string()),
            ForgetError::Store(error) => away(error, "some counters may be cleared; ask again"),
        })?;
        let mut out = Vec::new();
        out.extend_from_slice(b"{\"forgotten\":");
        json::integer(&mut out, forgotten);
        out.push(b'}');
        Ok(answer::json(out))
    }

    async fn release(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let body = self.body(request.into(), beat).await?;
        let lease = request::lease(&body)?;
        let released = self.gate.snapshot(Door::Http).release(&lease).await;
        let released = released.map_err(|error| {
            away(
                error,
                "the lease is released when the store is there again, or ends by itself",
            )
        })?;
        let mut out = Vec::new();
        out.extend_from_slice(b"{\"released\":");
        json::boolean(&mut out, released);
        out.push(b'}');
        Ok(answer::json(out))
    }

    async fn renew(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let body = self.body(request.into(), beat).await?;
        let lease = request::lease(&body)?;
        let renewed = self.gate.snapshot(Door::Http).renew(&lease).await;
        let renewed = renewed.map_err(|error| away(error, "the lease lasts as long as it would have; ask again"))?;
        let Some(term) = renewed else {
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "the lease is held no more: it was released, or it ran out; check again",
            ));
        };
        let mut out = Vec::new();
        out.extend_from_slice(b"{\"renewed\":true,\"expires_in_ms\":");
        json::integer(&mut out, term.as_millis_ceil());
        out.push(b'}');
        Ok(answer::json(out))
    }

    async fn explain(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let wants_text = wants_text(request.headers());
        let body = self.body(request.into(), beat).await?;
        let asked = request::attempt(&body)?;
        let attributes = asked.attributes();
        let sitting = self.gate.snapshot(Door::Http);
        let explanation = sitting.explain(&asked.attempt(&attributes)).await;
        if wants_text {
            let mut response = Response::new(Full::from(explanation.to_string()));
            response.headers_mut().insert(CONTENT_TYPE, PLAIN_TEXT);
            return Ok(response);
        }
        Ok(answer::json(explain::written(&explanation)))
    }

    async fn envoy(&self, request: Request<Incoming>, beat: &Beat) -> Result<Response<Full<Bytes>>, Problem> {
        let headers = request.headers().clone();
        let body = self.body(request.into(), beat).await?;
        let asked = envoy_json::read(&body)?;
        if let (Some(tokens), true) = (&self.settings.tokens, gives_back(&asked)) {
            auth::permit(&tokens.tokens(), &headers, Rights::REFUND)?;
        }
        envoy_json::answered(&self.gate, &asked, self.settings.headers).await
    }

    /// What is said of a path that nothing is at.
    fn nowhere(&self, path: &str) -> String {
        let of_gateways = if self.is_debug() { &[][..] } else { &forward::PATHS };
        let paths = || self.routes.iter().map(|(known, ..)| known).chain(of_gateways).copied();
        match paths().find(|known| path.trim_end_matches('/') == *known || path.strip_prefix("/v1") == Some(*known)) {
            Some(meant) => format!("there is nothing at this path; did you mean {meant}?"),
            None => format!(
                "there is nothing at this path; there is {}",
                paths().collect::<Vec<_>>().join(", ")
            ),
        }
    }

    async fn body(&self, sent: Sent, beat: &Beat) -> Result<Whole<'_>, Problem> {
        let bounds = &self.settings.bounds;
        read(sent, &self.bodies, bounds.body_bytes, bounds.body_timeout, beat).await
    }
}

/// What could not be done because the store could not be asked.
fn away(error: StoreError, then: &str) -> Problem {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; {then}"));
    problem.with(RETRY_AFTER, "1")
}

fn metrics(gate: &Gate) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(gate.metrics_text()));
    let kind = HeaderValue::from_static(Telemetry::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Refuses what RFC 9112 (3.2) says is to be refused: HTTP/1.1 without `Host`, more than one, or one that is no host. Two
/// servers that take such a request for different hosts can be played off against each other.
fn host<B>(request: &Request<B>) -> Result<(), Problem> {
    if request.version() > Version::HTTP_11 {
        return Ok(());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let is_host = |value: &HeaderValue| {
        let sound = |byte: &u8| byte.is_ascii_graphic() && !b"/\\?#@,\"<>^`{|}".contains(byte);
        value.as_bytes().iter().all(sound)
    };
    let detail = match (first, second) {
        (Some(value), None) if is_host(value) => return Ok(()),
        (None, _) if request.version() < Version::HTTP_11 => return Ok(()),
        (None, _) => "there is no Host header; HTTP/1.1 asks for one, such as `Host: 127.0.0.1:8080`",
        (Some(_), Some(_)) => "there is more than one Host header; send one",
        (Some(_), None) => "the Host header is no host; send for example `Host: 127.0.0.1:8080`",
    };
    Err(Problem::bad(detail).with(CONNECTION, "close"))
}

/// Whether plain text is preferred: it is named, and JSON is not.
fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    accept.contains("text/plain") && !accept.contains("json")
}

pub(super) const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Room for the usual answer.
const ELEMENT_BYTES: usize = 512;
