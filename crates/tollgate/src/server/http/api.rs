//! The HTTP API: finds the route of a request, reads its body and runs its endpoint.

mod body;
mod endpoints;
mod explain;
mod metrics_format;
mod ready;
pub mod request;
pub(super) mod response;
mod rls;

pub(in crate::server) use self::explain::encode as explain_json;

/// The body of the response to a check.
pub(in crate::server) fn check_json(
    attempt: &Attempt<'_>,
    result: &CheckResult<'_>,
    unknown_domain: Option<&UnknownDomain>,
) -> Vec<u8> {
    let mut out = Vec::new();
    response::write_body(&mut out, &CheckResponse::new(attempt, result, unknown_domain));
    out
}

use self::body::{BodyBytes, IncomingBody, body_budget, read};
use self::explain::ExplainFormat;
use self::metrics_format::MetricsFormat;
use self::response::CheckResponse;
use super::forward::ForwardPath;
use super::problem_details::ProblemDetails;
use super::settings::HttpSettings;
use super::{auth, forward};
use crate::compat::ratelimit::debug_port;
use crate::server::auth::tokens::Rights;
use crate::server::gate::{Gate, Phase};
use crate::server::headers::RetryCaller;
use crate::server::net::idle::RequestGuard;
use crate::server::net::memory_budget::MemoryBudget;
use crate::server::panic_guard::{self, PANIC_TEXT, guard_now};
use crate::server::telemetry::Protocol;
use crate::server::telemetry::traces::RequestTrace;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use tollgate_limiter::CheckResult;
use tollgate_limiter::core::rules::{Attempt, UnknownDomain};

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

/// The response of an endpoint, or the problem that takes its place.
type EndpointResult = Result<Response<Full<Bytes>>, ProblemDetails>;

/// A request with its route. Futures are moved, so a check carries no head, and rarer requests are boxed.
pub(super) enum RoutedRequest {
    Check(IncomingBody, RequestTrace),
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
        let matched = guard_now(&self.gate, Protocol::Http, || self.match_route(&request));
        match matched.unwrap_or_else(|| Err(panicked())) {
            Ok(Route::Check) => {
                let trace = self.gate.traces().sample(request.headers());
                RoutedRequest::Check(request.into(), trace)
            }
            Ok(route) => RoutedRequest::Other(route, Box::new(request), peer),
            Err(problem) => RoutedRequest::Rejected(Box::new(problem)),
        }
    }

    /// The response to a request, also to one that panics.
    #[allow(clippy::redundant_allocation, reason = "the outer count is that of one connection")]
    pub(super) async fn respond_guarded(
        service: Arc<Arc<Self>>,
        routed: RoutedRequest,
        guard: RequestGuard,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let protocol = match routed {
            RoutedRequest::Other(Route::Forward, ..) => Protocol::Forward,
            _ => Protocol::Http,
        };
        let responded = panic_guard::guard(&service.gate, protocol, pin!(service.respond(routed, guard))).await;
        Ok(responded.unwrap_or_else(|| panicked().into_response()))
    }

    /// The response to a request.
    async fn respond(&self, routed: RoutedRequest, guard: RequestGuard) -> Response<Full<Bytes>> {
        let mut response = match routed {
            RoutedRequest::Check(sent, trace) => self.check(sent, trace, &guard).await,
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

    async fn check(&self, incoming: IncomingBody, trace: RequestTrace, guard: &RequestGuard) -> EndpointResult {
        let body = self.body(incoming, guard).await?;
        let check_request = request::attempt(&body)?;
        let attributes = check_request.attributes();
        let attempt = check_request.attempt(&attributes);
        let snapshot = self.gate.snapshot(Protocol::Http).traced(trace);
        let result = snapshot.check(&attempt).await;
        let unknown = snapshot.unknown_domain(&attempt, &result.verdict);
        let mut response = CheckResponse::new(&attempt, &result, unknown.as_ref());
        response.spread(self.settings.retry_after, &snapshot, &attempt, RetryCaller::Attributes);
        Ok(response::check_response(&self.settings, &response))
    }

    /// Dispatches any request; checks have a shorter path.
    async fn dispatch(
        &self,
        route: Route,
        request: Request<Incoming>,
        peer: IpAddr,
        guard: &RequestGuard,
    ) -> EndpointResult {
        match route {
            Route::Check => {
                let trace = self.gate.traces().sample(request.headers());
                self.check(request.into(), trace, guard).await
            }
            Route::Batch => {
                let trace = self.gate.traces().sample(request.headers());
                self.batch(&self.batch_body(request, guard).await?, trace).await
            }
            Route::Refund => self.refund(&self.body(request.into(), guard).await?).await,
            Route::Forget => self.forget(&self.body(request.into(), guard).await?).await,
            Route::Release => self.release(&self.body(request.into(), guard).await?).await,
            Route::Renew => self.renew(&self.body(request.into(), guard).await?).await,
            Route::Explain => {
                let format = ExplainFormat::preferred_by(request.headers());
                self.explain(&self.body(request.into(), guard).await?, format).await
            }
            Route::Forward => self.forward(&request.into_parts().0, peer).await,
            Route::Rls => {
                let headers = request.headers().clone();
                self.rls(&self.body(request.into(), guard).await?, &headers).await
            }
            Route::Healthz => Ok(response::json(b"{\"status\":\"alive\"}".to_vec())),
            Route::Readyz => Ok(ready::readiness(&self.gate)),
            Route::Healthcheck => Ok(debug_port::health(&self.gate)),
            Route::Metrics => Ok(metrics(&self.gate, request.headers())),
            Route::OpenApi => Ok(response::json(OPENAPI.into())),
            Route::DebugIndex => Ok(debug_port::index()),
            Route::RlConfig => Ok(debug_port::limits(&self.gate)),
            Route::Stats => Ok(debug_port::stats(&self.gate)),
        }
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
        let (budget, timeout) = (&self.body_budget, limits.body_timeout);
        read(incoming, budget, limits.body_bytes, timeout, guard).await
    }

    async fn batch_body(
        &self,
        request: Request<Incoming>,
        guard: &RequestGuard,
    ) -> Result<BodyBytes<'_>, ProblemDetails> {
        let limits = &self.settings.limits;
        let (budget, timeout) = (&self.body_budget, limits.body_timeout);
        read(request.into(), budget, limits.batch_bytes, timeout, guard).await
    }
}

/// The problem of a request that panicked.
fn panicked() -> ProblemDetails {
    ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, PANIC_TEXT)
}

fn metrics(gate: &Gate, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let format = MetricsFormat::preferred_by(headers);
    let mut response = Response::new(Full::from(format.convert(gate.metrics_text())));
    let kind = HeaderValue::from_static(format.content_type());
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

pub(super) const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
