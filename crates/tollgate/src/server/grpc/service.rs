//! Responds to calls.

mod deadline;

use self::deadline::{requested_timeout, run_within};
use super::settings::GrpcSettings;
use super::unary::{MESSAGE_BYTES_MAX, ReplyBody, encode, error_response, message_budget, read};
use crate::server::auth::tokens::Rights;
use crate::server::gate::Gate;
use crate::server::net::memory_budget::MemoryBudget;
use crate::server::panic_guard::{PANIC_TEXT, guard};
use crate::server::rls::request::is_refund;
use crate::server::rls::{self, FILE_DESCRIPTOR_SET, RateLimitRequest, RateLimitResponse, RlsError};
use crate::server::telemetry::Protocol;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode};
use std::pin::{Pin, pin};
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// The state that all connections of one listener share.
pub(super) struct GrpcService {
    pub(super) settings: GrpcSettings,
    gate: Arc<Gate>,
    message_budget: MemoryBudget,
    /// Health and reflection.
    other_services: Box<dyn Fn(Request<Incoming>) -> ResponseFuture + Send + Sync>,
}

type ResponseFuture = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl GrpcService {
    pub(super) fn new(gate: Arc<Gate>, settings: GrpcSettings, health: &HealthReporter) -> Self {
        Self {
            gate,
            message_budget: message_budget(),
            other_services: other_services(health),
            settings,
        }
    }

    /// The response to a call. A call without a verdict is counted.
    pub(super) async fn respond(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let decided = guard(&self.gate, Protocol::Grpc, pin!(self.decide(request))).await;
        let status = match decided {
            Some(Ok(response)) => return response,
            Some(Err(status)) => status,
            None => Status::internal(PANIC_TEXT),
        };
        self.gate.metrics().faults.add_rejected(&status);
        error_response(status)
    }

    async fn decide(&self, request: Request<Incoming>) -> Result<Response<ReplyBody>, Status> {
        if !is_grpc(request.headers()) {
            let status = Status::invalid_argument("the content type is not application/grpc");
            self.gate.metrics().faults.add_rejected(&status);
            let mut response = Response::new(ReplyBody::Other(Body::empty()));
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Ok(response);
        }
        let limit = match requested_timeout(request.headers()) {
            Some(limit) => limit.min(self.settings.call_timeout),
            None => self.settings.call_timeout,
        };
        if request.uri().path() != rls::SHOULD_RATE_LIMIT_PATH {
            let output = run_within(limit, (self.other_services)(request)).await;
            let response = output.ok_or_else(deadline_exceeded)?;
            if let Some(status) = Status::from_header_map(response.headers()) {
                self.gate.metrics().faults.add_rejected(&status);
            }
            return Ok(response.map(ReplyBody::Other));
        }
        let output = run_within(limit, pin!(self.should_rate_limit(request))).await;
        let response = output.ok_or_else(deadline_exceeded)??;
        Ok(encode(&response))
    }

    async fn should_rate_limit(&self, request: Request<Incoming>) -> Result<RateLimitResponse, Status> {
        let (head, body) = request.into_parts();
        // Before anything is buffered for an unauthenticated caller.
        self.check_token(&head.headers, Rights::CHECK)?;
        let check = |message: &[u8]| {
            let bounded = rls::bounds::check_bounds(message);
            bounded.map_err(|what| Status::invalid_argument(what.to_string()))
        };
        let request: RateLimitRequest = read(body, &self.message_budget, check).await?;
        if is_refund(&request) {
            self.check_token(&head.headers, Rights::CHECK | Rights::REFUND)?;
        }
        let trace = self.gate.traces().sample(&head.headers);
        let outcome = rls::should_rate_limit(&self.gate, Protocol::Grpc, &request, self.settings.headers, trace).await;
        outcome.map_err(|error| match error {
            RlsError::Invalid(what) => Status::invalid_argument(what.to_string()),
            RlsError::Denied(denial) => Status::unavailable(denial.text()),
        })
    }

    /// Accepts a call whose token has the needed rights.
    fn check_token(&self, metadata: &HeaderMap, needed: Rights) -> Result<(), Status> {
        let Some(tokens) = &self.settings.tokens else {
            return Ok(());
        };
        let tokens = tokens.tokens();
        let Some(caller) = tokens.caller_from_headers(metadata) else {
            let text = "missing or unknown token; send the metadata authorization: Bearer …";
            return Err(Status::unauthenticated(text));
        };
        if caller.rights.contains(needed) {
            return Ok(());
        }
        let text = format!("this needs the rights `{needed}`, which the token does not have");
        Err(Status::permission_denied(text))
    }
}

fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("deadline exceeded")
}

/// Health, reflection, and the error for unknown services. They need no token, like health over HTTP.
fn other_services(health: &HealthReporter) -> Box<dyn Fn(Request<Incoming>) -> ResponseFuture + Send + Sync> {
    let health = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let health = health.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let reflect = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let described = "the descriptors were generated with the messages";
    let reflection = reflect().build_v1().expect(described);
    let reflection = reflection.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let reflection_alpha = reflect().build_v1alpha().expect(described);
    let reflection_alpha = reflection_alpha.max_decoding_message_size(MESSAGE_BYTES_MAX);
    Box::new(move |request| match service_of(request.uri().path()) {
        "grpc.health.v1.Health" => boxed(health.clone().call(request)),
        "grpc.reflection.v1.ServerReflection" => boxed(reflection.clone().call(request)),
        "grpc.reflection.v1alpha.ServerReflection" => boxed(reflection_alpha.clone().call(request)),
        _ => Box::pin(async { Status::unimplemented("unknown service").into_http() }),
    })
}

fn boxed<F>(response: F) -> ResponseFuture
where
    F: Future<Output = Result<Response<Body>, std::convert::Infallible>> + Send + 'static,
{
    Box::pin(async {
        let Ok(response) = response.await;
        response
    })
}

/// The service that a path names: `/service/method`.
fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or(path, |(service, _)| service)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}
