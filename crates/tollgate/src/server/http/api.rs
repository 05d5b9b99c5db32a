//! The endpoints of the HTTP API.

mod body;
mod explain;
mod ready;
pub mod request;
pub(super) mod response;
mod retry_after;
mod rls;

use self::body::{BodyBytes, IncomingBody, body_budget, read};
use self::request::CheckRequest;
use self::response::CheckResponse;
use super::forward::ForwardPath;
use super::json::ObjectWriter;
use super::problem_details::ProblemDetails;
use super::settings::HttpSettings;
use super::{auth, forward};
use crate::compat::ratelimit::debug_port;
use crate::server::auth::tokens::Rights;
use crate::server::gate::{Gate, Phase};
use crate::server::net::idle::RequestGuard;
use crate::server::net::memory_budget::MemoryBudget;
use crate::server::rls::request::is_refund;
use crate::server::telemetry::{Protocol, Telemetry};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_limiter::ForgetError;
use tollgate_limiter::core::rules::Attempt;
use tollgate_limiter::core::{Cost, Timestamp};
use tollgate_limiter::store::StoreError;

/// The OpenAPI document of this API.
pub const OPENAPI: &str = include_str!("api/openapi.json");

/// The state that all connections of one listener share.
#[derive(Debug)]
pub(super) struct HttpService {
    pub(super) gate: Arc<Gate>,
    pub(super) settings: HttpSettings,
    routes: &'static [RouteEntry],
    body_budget: MemoryBudget,
}

/// A path, its method, its route, and the right it needs; without one it is open to all.
pub(super) type RouteEntry = (&'static str, Method, Route, Option<Rights>);

/// An endpoint.
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
    Rls,
    Healthz,
    Readyz,
    Healthcheck,
    Metrics,
    OpenApi,
    DebugIndex,
    RlConfig,
    Stats,
}

/// A request with its route. Futures are moved, so a check carries no head, and rarer requests are boxed.
pub(super) enum RoutedRequest {
    Check(IncomingBody),
    /// With the address of the peer.
    Other(Route, Box<Request<Incoming>>, IpAddr),
    Rejected(Box<ProblemDetails>),
}

/// The routes of the API.
pub(super) const ROUTES: [RouteEntry; 13] = [
    ("/v1/check", Method::POST, Route::Check, Some(Rights::CHECK)),
    ("/v1/check/batch", Method::POST, Route::Batch, Some(Rights::CHECK)),
    ("/v1/refund", Method::POST, Route::Refund, Some(Rights::REFUND)),
    ("/v1/forget", Method::POST, Route::Forget, Some(Rights::FORGET)),
    ("/v1/release", Method::POST, Route::Release, Some(Rights::CHECK)),
    ("/v1/renew", Method::POST, Route::Renew, Some(Rights::CHECK)),
    ("/v1/explain", Method::POST, Route::Explain, Some(Rights::EXPLAIN)),
    ("/json", Method::POST, Route::Rls, Some(Rights::CHECK)),
    ("/healthz", Method::GET, Route::Healthz, None),
    ("/readyz", Method::GET, Route::Readyz, None),
    ("/healthcheck", Method::GET, Route::Healthcheck, None),
    ("/metrics", Method::GET, Route::Metrics, Some(Rights::METRICS)),
    ("/openapi.json", Method::GET, Route::OpenApi, None),
];

/// The endpoints of the debug port.
pub(super) const DEBUG_ROUTES: [RouteEntry; 3] = [
    ("/", Method::GET, Route::DebugIndex, None),
    ("/rlconfig", Method::GET, Route::RlConfig, Some(Rights::METRICS)),
    ("/stats", Method::GET, Route::Stats, Some(Rights::METRICS)),
];

impl HttpService {
    pub(super) fn new(gate: Arc<Gate>, settings: HttpSettings, routes: &'static [RouteEntry]) -> Self {
        Self {
            gate,
            settings,
            routes,
            body_budget: body_budget(),
        }
    }

    /// Routes a request, before anything is awaited.
    pub(super) fn route(&self, request: Request<Incoming>, peer: IpAddr) -> RoutedRequest {
        match self.match_route(&request) {
            Ok(Route::Check) => RoutedRequest::Check(request.into()),
            Ok(route) => RoutedRequest::Other(route, Box::new(request), peer),
            Err(problem) => RoutedRequest::Rejected(Box::new(problem)),
        }
    }

    /// The response to a request.
    pub(super) async fn respond(&self, routed: RoutedRequest, guard: RequestGuard) -> Response<Full<Bytes>> {
        let mut response = match routed {
            RoutedRequest::Check(sent) => self.check(sent, &guard).await,
            RoutedRequest::Other(route, request, peer) => Box::pin(self.dispatch(route, *request, peer, &guard)).await,
            RoutedRequest::Rejected(problem) => Err(*problem),
        }
        .unwrap_or_else(ProblemDetails::into_response);
        // HTTP/2 has GOAWAY for it.
        if self.gate.phase() == Phase::Draining && !guard.is_multiplexed() {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// The route of a request, if it exists and the client has the right.
    fn match_route(&self, request: &Request<Incoming>) -> Result<Route, ProblemDetails> {
        host(request)?;
        let path = request.uri().path();
        let Some((_, method, route, needed)) = self.routes.iter().find(|(known, ..)| *known == path) else {
            return self.gateway_route(path, request.headers());
        };
        if request.method() != method && !(request.method() == Method::HEAD && method == Method::GET) {
            let allowed = if method == Method::GET { "GET, HEAD" } else { "POST" };
            let detail = format!("{path} needs the method {method}");
            let problem = ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, detail);
            return Err(problem.with_header(ALLOW, allowed));
        }
        match (&self.settings.tokens, needed) {
            (_, None) => {}
            (Some(tokens), Some(needed)) => auth::check_token(&tokens.tokens(), request.headers(), *needed)?,
            (None, Some(needed)) => auth::check_anonymous(self.settings.anonymous_rights, *needed)?,
        }
        Ok(*route)
    }

    /// True if this is the debug port.
    fn is_debug(&self) -> bool {
        self.routes.iter().all(|(.., route, _)| !matches!(route, Route::Check))
    }

    fn gateway_route(&self, path: &str, headers: &HeaderMap) -> Result<Route, ProblemDetails> {
        if ForwardPath::parse(path).is_none() || self.is_debug() {
            return Err(ProblemDetails::new(StatusCode::NOT_FOUND, self.not_found_detail(path)));
        }
        if let Some(tokens) = &self.settings.tokens {
            auth::check_gateway_token(&tokens.tokens(), headers)?;
        }
        Ok(Route::Forward)
    }

    /// Any method; the body is not awaited, because the original request is described in the head.
    async fn forward(&self, head: &Parts, peer: IpAddr) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let (Some(forward), Some(target)) = (&self.settings.forward, ForwardPath::parse(head.uri.path())) else {
            return Err(ProblemDetails::new(
                StatusCode::NOT_FOUND,
                "forward-auth is not configured; set `forward_auth: { gateway: … }`",
            ));
        };
        let extracted = forward.extract(head, target.rest, peer)?;
        let attempt = Attempt {
            domain: &target.domain,
            attributes: &extracted.attributes(),
            cost: Cost::ONE,
        };
        let snapshot = self.gate.snapshot(Protocol::Forward);
        let result = snapshot.check(&attempt).await;
        let response = CheckResponse::new(&attempt, &result);
        Ok(response::gateway_response(
            &self.settings,
            &response,
            target.deny_status,
        ))
    }

    async fn check(
        &self,
        incoming: IncomingBody,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let body = self.body(incoming, guard).await?;
        let check_request = request::attempt(&body)?;
        let attributes = check_request.attributes();
        let attempt = check_request.attempt(&attributes);
        let snapshot = self.gate.snapshot(Protocol::Http);
        let result = snapshot.check(&attempt).await;
        let response = CheckResponse::new(&attempt, &result);
        Ok(response::check_response(&self.settings, &response))
    }

    /// Dispatches any request; checks have a shorter path.
    async fn dispatch(
        &self,
        route: Route,
        request: Request<Incoming>,
        peer: IpAddr,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        match route {
            Route::Check => self.check(request.into(), guard).await,
            Route::Batch => self.batch(request, guard).await,
            Route::Refund => self.refund(request, guard).await,
            Route::Forget => self.forget(request, guard).await,
            Route::Release => self.release(request, guard).await,
            Route::Renew => self.renew(request, guard).await,
            Route::Explain => self.explain(request, guard).await,
            Route::Forward => self.forward(&request.into_parts().0, peer).await,
            Route::Rls => self.rls(request, guard).await,
            Route::Healthz => Ok(response::json(b"{\"status\":\"alive\"}".to_vec())),
            Route::Readyz => Ok(ready::readiness(&self.gate)),
            Route::Healthcheck => Ok(debug_port::health(&self.gate)),
            Route::Metrics => Ok(metrics(&self.gate)),
            Route::OpenApi => Ok(response::json(OPENAPI.into())),
            Route::DebugIndex => Ok(debug_port::index()),
            Route::RlConfig => Ok(debug_port::limits(&self.gate)),
            Route::Stats => Ok(debug_port::stats(&self.gate)),
        }
    }

    async fn batch(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let limits = &self.settings.limits;
        let body = read(
            request.into(),
            &self.body_budget,
            limits.batch_bytes,
            limits.body_timeout,
            guard,
        )
        .await?;
        let batch = request::batch(&body)?;
        let attributes: Vec<_> = batch.iter().map(CheckRequest::attributes).collect();
        let attempts: Vec<Attempt<'_>> = batch
            .iter()
            .zip(&attributes)
            .map(|(check_request, attributes)| check_request.attempt(attributes))
            .collect();
        let snapshot = self.gate.snapshot(Protocol::Http);
        let results = snapshot.check_each(&attempts).await;
        let mut out = Vec::with_capacity(ELEMENT_BYTES * batch.len());
        out.push(b'[');
        for (index, (attempt, result)) in attempts.iter().zip(&results).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            response::write_body(&mut out, &CheckResponse::new(attempt, result));
        }
        out.push(b']');
        Ok(response::json(out))
    }

    async fn refund(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let body = self.body(request.into(), guard).await?;
        let check_request = request::attempt(&body)?;
        let attributes = check_request.attributes();
        let attempt = check_request.attempt(&attributes);
        let snapshot = self.gate.snapshot(Protocol::Http);
        let verdict = snapshot.refund(&attempt).await;
        let response = CheckResponse {
            verdict: &verdict,
            lease: None,
            cost: attempt.cost,
            now: Timestamp::EPOCH,
        };
        let mut out = Vec::with_capacity(ELEMENT_BYTES);
        response::write_body(&mut out, &response);
        Ok(response::json(out))
    }

    async fn forget(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let body = self.body(request.into(), guard).await?;
        let check_request = request::subject(&body)?;
        let attributes = check_request.attributes();
        let snapshot = self.gate.snapshot(Protocol::Http);
        let forgotten = snapshot
            .forget(&check_request.attempt(&attributes), check_request.rule())
            .await;
        let forgotten = forgotten.map_err(|error| match error {
            ForgetError::Unknown(unknown) => ProblemDetails::for_field("rule", unknown.to_string()),
            ForgetError::Store(error) => store_unavailable(error, "some counters may be cleared; retry"),
        })?;
        Ok(response::json(json!({ "forgotten": forgotten }).to_string().into()))
    }

    async fn release(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let body = self.body(request.into(), guard).await?;
        let lease = request::lease(&body)?;
        let released = self.gate.snapshot(Protocol::Http).release(&lease).await;
        let released = released.map_err(|error| {
            store_unavailable(
                error,
                "the lease is released when the store is available again, or it expires",
            )
        })?;
        Ok(response::json(json!({ "released": released }).to_string().into()))
    }

    async fn renew(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let body = self.body(request.into(), guard).await?;
        let lease = request::lease(&body)?;
        let renewed = self.gate.snapshot(Protocol::Http).renew(&lease).await;
        let renewed = renewed.map_err(|error| store_unavailable(error, "the lease keeps its expiry; retry"))?;
        let Some(term) = renewed else {
            return Err(ProblemDetails::new(
                StatusCode::NOT_FOUND,
                "no such lease: it was released, or it expired; check again",
            ));
        };
        let mut out = Vec::new();
        ObjectWriter::write(&mut out, |object| {
            object.value("renewed", &true);
            object.value("expires_in_ms", &term.as_millis_ceil());
        });
        Ok(response::json(out))
    }

    async fn explain(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let wants_text = wants_text(request.headers());
        let body = self.body(request.into(), guard).await?;
        let check_request = request::attempt(&body)?;
        let attributes = check_request.attributes();
        let snapshot = self.gate.snapshot(Protocol::Http);
        let explanation = snapshot.explain(&check_request.attempt(&attributes)).await;
        if wants_text {
            let mut response = Response::new(Full::from(explanation.to_string()));
            response.headers_mut().insert(CONTENT_TYPE, PLAIN_TEXT);
            return Ok(response);
        }
        Ok(response::json(explain::encode(&explanation)))
    }

    async fn rls(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<Response<Full<Bytes>>, ProblemDetails> {
        let headers = request.headers().clone();
        let body = self.body(request.into(), guard).await?;
        let rls_request = rls::read(&body)?;
        if let (Some(tokens), true) = (&self.settings.tokens, is_refund(&rls_request)) {
            auth::check_token(&tokens.tokens(), &headers, Rights::REFUND)?;
        }
        rls::respond(&self.gate, &rls_request, self.settings.headers).await
    }

    /// The detail for a path without an endpoint.
    fn not_found_detail(&self, path: &str) -> String {
        let gateway_paths = if self.is_debug() { &[][..] } else { &forward::PATHS };
        let paths = || {
            self.routes
                .iter()
                .map(|(known, ..)| known)
                .chain(gateway_paths)
                .copied()
        };
        match paths().find(|known| path.trim_end_matches('/') == *known || path.strip_prefix("/v1") == Some(*known)) {
            Some(similar) => format!("no such endpoint; did you mean {similar}?"),
            None => format!(
                "no such endpoint; the endpoints are {}",
                paths().collect::<Vec<_>>().join(", ")
            ),
        }
    }

    async fn body(&self, incoming: IncomingBody, guard: &RequestGuard) -> Result<BodyBytes<'_>, ProblemDetails> {
        let limits = &self.settings.limits;
        read(
            incoming,
            &self.body_budget,
            limits.body_bytes,
            limits.body_timeout,
            guard,
        )
        .await
    }
}

/// The problem of a request that failed because the store is unavailable.
fn store_unavailable(error: StoreError, next_step: &str) -> ProblemDetails {
    let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; {next_step}"));
    problem.with_header(RETRY_AFTER, "1")
}

fn metrics(gate: &Gate) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(gate.metrics_text()));
    let kind = HeaderValue::from_static(Telemetry::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Rejects what RFC 9112 (3.2) says a server must reject: HTTP/1.1 without `Host`, more than one, or an invalid one. Two
/// servers that take such a request for different hosts are open to request smuggling.
fn host<B>(request: &Request<B>) -> Result<(), ProblemDetails> {
    if request.version() > Version::HTTP_11 {
        return Ok(());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    let is_host = |value: &HeaderValue| {
        let is_valid = |byte: &u8| byte.is_ascii_graphic() && !b"/\\?#@,\"<>^`{|}".contains(byte);
        value.as_bytes().iter().all(is_valid)
    };
    let detail = match (first, second) {
        (Some(value), None) if is_host(value) => return Ok(()),
        (None, _) if request.version() < Version::HTTP_11 => return Ok(()),
        (None, _) => "missing Host header; HTTP/1.1 requires one, such as `Host: 127.0.0.1:8080`",
        (Some(_), Some(_)) => "more than one Host header; send one",
        (Some(_), None) => "invalid Host header; send for example `Host: 127.0.0.1:8080`",
    };
    Err(ProblemDetails::bad_request(detail).with_header(CONNECTION, "close"))
}

/// True if plain text is preferred: it is named, and JSON is not.
fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    accept.contains("text/plain") && !accept.contains("json")
}

pub(super) const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// The usual size of one body.
const ELEMENT_BYTES: usize = 512;
