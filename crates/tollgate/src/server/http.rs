//! The HTTP front end: the check API, forward-auth, health, metrics.

pub mod api;
mod auth;
mod connection;
pub mod forward;
mod json;
mod problem_details;
pub mod settings;

pub use super::headers::{Dialect, DialectError, Dialects, RetryAfter, RetryAfterFormat};
pub use api::OPENAPI;
pub use forward::{Forward, Gateway, RequestField, UnknownDomainPolicy};
pub use problem_details::ProblemDetails;
pub use settings::{HttpLimits, HttpSettings};

pub(super) use connection::serve_http;

use super::gate::Gate;
use super::net::accept::accept;
use super::net::listen::Listener;
use api::HttpService;
use std::sync::Arc;

/// Serves requests on `listener` until `shutdown` completes, and then drains: it accepts no more connections, answers the
/// requests in flight with `Connection: close` (GOAWAY on HTTP/2), and drops the rest after the drain time.
///
/// An error of one connection ends that connection only; an error of accepting is retried after a backoff.
pub async fn serve(listener: Listener, gate: Arc<Gate>, settings: HttpSettings, shutdown: impl Future<Output = ()>) {
    serve_routes(listener, gate, settings, shutdown, &api::ROUTES).await;
}

/// Serves the debug port: the limits of `ratelimit` files and their statistics.
pub async fn serve_debug(
    listener: Listener,
    gate: Arc<Gate>,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
) {
    serve_routes(listener, gate, settings, shutdown, &api::DEBUG_ROUTES).await;
}

async fn serve_routes(
    listener: Listener,
    gate: Arc<Gate>,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
    routes: &'static [api::RouteEntry],
) {
    let service = Arc::new(HttpService::new(Arc::clone(&gate), settings, routes));
    accept(listener, &gate, service, shutdown).await;
}
