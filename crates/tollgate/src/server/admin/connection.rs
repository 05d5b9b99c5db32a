//! The front end: routes of the table on our own acceptor, by axum's router.

use super::endpoints::documents;
use super::problem::AdminProblem;
use super::reply::StreamHold;
use super::routes::ROUTES;
use super::service::AdminService;
use crate::server::http::{HttpLimits, serve_http};
use crate::server::net::StageReceiver;
use crate::server::net::accept::{ConnectionLimits, FrontEnd, Io};
use crate::server::net::tls::Tls;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{MethodFilter, get, on};
use hyper::{Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use tower_service::Service;

/// The router with its service.
pub(super) struct AdminFrontEnd {
    service: Arc<AdminService>,
    router: Router,
}

/// The address of the client, in the extensions of a request.
#[derive(Clone, Copy)]
struct Peer(IpAddr);

impl AdminFrontEnd {
    pub(super) fn new(service: Arc<AdminService>) -> Self {
        let mut router = Router::new();
        for route in ROUTES {
            let Ok(method) = MethodFilter::try_from(route.method.clone()) else {
                continue;
            };
            let service = Arc::clone(&service);
            let handler = move |request: Request| {
                let service = Arc::clone(&service);
                async move {
                    let Some(Peer(peer)) = request.extensions().get().copied() else {
                        return response(AdminProblem::unauthorized());
                    };
                    service.respond(route, request, peer).await.into_response()
                }
            };
            router = router.route(route.path, on(method, handler));
        }
        let files = Arc::clone(&service);
        let ui_file = move |request: Request| {
            let path = request.uri().path().strip_prefix("/a/").unwrap_or_default();
            let replied = documents::ui_file(&files.ui, path, request.headers());
            let reply = replied.unwrap_or_else(AdminProblem::into_reply);
            std::future::ready(reply.into_response().map(Body::new))
        };
        let router = router
            // Not in the table: its paths are no operations of the API.
            .route("/a/{digest}/{*file}", get(ui_file))
            .fallback(|| async { response(AdminProblem::not_found("no such path; see /v1/openapi.json")) })
            .method_not_allowed_fallback(|| async {
                let detail = "this path has other methods; see /v1/openapi.json";
                response(AdminProblem::new(StatusCode::METHOD_NOT_ALLOWED, "method", detail))
            });
        Self { service, router }
    }
}

fn response(problem: AdminProblem) -> Response<Body> {
    problem.into_reply().into_response()
}

impl FrontEnd for AdminFrontEnd {
    fn limits(&self) -> ConnectionLimits {
        let limits = limits();
        ConnectionLimits {
            connections: limits.connections,
            per_address: limits.connections_per_address,
            handshake_timeout: limits.header_timeout,
            drain: self.service.options.drain,
        }
    }

    fn tls(&self) -> Option<&Tls> {
        self.service.options.tls.as_deref()
    }

    async fn serve(self: Arc<Self>, stream: impl Io, peer: Option<IpAddr>, stage: StageReceiver) {
        let Some(peer) = peer else { return };
        let drain = self.service.options.drain;
        serve_http(stream, &limits(), drain, stage, move |request, guard| {
            let mut router = self.router.clone();
            // Before anything else: a page that resolves its own name to our address learns nothing, not even which paths exist.
            let checked = self.service.browser.check_host(request.uri(), request.headers());
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer));
            async move {
                if let Err(problem) = checked {
                    return Ok(response(problem));
                }
                // In a task: a panic ends this request only.
                let called = tokio::spawn(async move { router.call(request).await }).await;
                match called {
                    Ok(Ok(response)) => {
                        // A stream keeps its request open; of others the head is the end.
                        if let Some(hold) = response.extensions().get::<StreamHold>() {
                            hold.keep(guard);
                        }
                        Ok(response)
                    }
                    Ok(Err(never)) => match never {},
                    Err(_) => {
                        tracing::error!("a request of the admin API panicked; the others are served");
                        let detail = "the request failed; see the log of the server";
                        let problem = AdminProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
                        Ok(response(problem))
                    }
                }
            }
        })
        .await;
    }
}

/// Bounds of its connections.
fn limits() -> HttpLimits {
    HttpLimits {
        connections: 256,
        connections_per_address: 64,
        streams: 16,
        ..HttpLimits::default()
    }
}
