//! What is answered to a call.

mod deadline;

use self::deadline::{named, within};
use super::settings::GrpcSettings;
use crate::server::envoy::rate_limit_service_server::{RateLimitService, RateLimitServiceServer, SERVICE_NAME};
use crate::server::envoy::request::gives_back;
use crate::server::envoy::{self, CLOSED, DESCRIPTION, RateLimitRequest, RateLimitResponse, Refusal};
use crate::server::gate::Gate;
use crate::server::telemetry::Door;
use crate::server::tokens::Rights;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode};
use std::pin::Pin;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// What every connection of one listener shares.
pub(super) struct Front {
    pub(super) settings: GrpcSettings,
    envoy: RateLimitServiceServer<Envoy>,
    /// What is seldom asked: health, reflection.
    others: Box<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>,
}

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Envoy's rate limit service.
struct Envoy {
    gate: Arc<Gate>,
    settings: GrpcSettings,
}

impl Front {
    pub(super) fn new(gate: Arc<Gate>, settings: GrpcSettings, health: &HealthReporter) -> Self {
        let envoy = Envoy {
            gate,
            settings: settings.clone(),
        };
        Self {
            envoy: RateLimitServiceServer::new(envoy).max_decoding_message_size(MESSAGE_BYTES_MAX),
            others: others(health),
            settings,
        }
    }

    /// The answer to a call, whatever it is.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if !is_grpc(request.headers()) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let limit = match named(request.headers()) {
            Some(limit) => limit.min(self.settings.call_timeout),
            None => self.settings.call_timeout,
        };
        let answering = match service_of(request.uri().path()) {
            SERVICE_NAME => {
                let answering = self.envoy.clone().call(request);
                return match within(limit, answering).await {
                    Some(Ok(response)) => response,
                    None => late(),
                };
            }
            _ => (self.others)(request),
        };
        within(limit, answering).await.unwrap_or_else(late)
    }
}

fn late() -> Response<Body> {
    Status::deadline_exceeded("it took longer than the call may take").into_http()
}

#[tonic::async_trait]
impl RateLimitService for Envoy {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.permit(metadata.as_ref(), &request)?;
        match envoy::ask(&self.gate, Door::Grpc, &request, self.settings.headers).await {
            Ok(response) => Ok(tonic::Response::new(response)),
            Err(Refusal::Invalid(what)) => Err(Status::invalid_argument(what.to_string())),
            Err(Refusal::Closed) => Err(Status::unavailable(CLOSED)),
        }
    }
}

impl Envoy {
    /// Lets a call pass whose token has the rights it needs.
    fn permit(&self, metadata: &HeaderMap, request: &RateLimitRequest) -> Result<(), Status> {
        let Some(tokens) = &self.settings.tokens else {
            return Ok(());
        };
        let tokens = tokens.tokens();
        let Some(caller) = tokens.caller_of(metadata) else {
            let words = "show a token that this server knows, in the metadata: authorization: Bearer …";
            return Err(Status::unauthenticated(words));
        };
        let needed = match gives_back(request) {
            true => Rights::CHECK | Rights::REFUND,
            false => Rights::CHECK,
        };
        if caller.rights.cover(needed) {
            return Ok(());
        }
        let words = format!("this needs the rights `{needed}`, which the token does not have");
        Err(Status::permission_denied(words))
    }
}

/// Health and reflection, and what is said to all others. They are open to everybody, as health is over HTTP.
fn others(health: &HealthReporter) -> Box<dyn Fn(Request<Incoming>) -> Answering + Send + Sync> {
    let health = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let reflect = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let described = "what describes the messages was made together with them";
    let reflection = reflect().build_v1().expect(described);
    let reflection_alpha = reflect().build_v1alpha().expect(described);
    Box::new(move |request| match service_of(request.uri().path()) {
        "grpc.health.v1.Health" => finished(health.clone().call(request)),
        "grpc.reflection.v1.ServerReflection" => finished(reflection.clone().call(request)),
        "grpc.reflection.v1alpha.ServerReflection" => finished(reflection_alpha.clone().call(request)),
        _ => Box::pin(async { Status::unimplemented("there is no such service").into_http() }),
    })
}

fn finished<F>(answering: F) -> Answering
where
    F: Future<Output = Result<Response<Body>, std::convert::Infallible>> + Send + 'static,
{
    Box::pin(async {
        let Ok(response) = answering.await;
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

/// The largest message of a caller.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
