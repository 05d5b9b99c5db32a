//! What is answered to a call.

mod deadline;

use self::deadline::{named, within};
use super::settings::GrpcSettings;
use super::unary::{MESSAGE_BYTES_MAX, Reply, read, refused, room, written};
use crate::server::envoy::request::gives_back;
use crate::server::envoy::{self, CLOSED, DESCRIPTION, RateLimitRequest, RateLimitResponse, Refusal, WITHOUT_RULES};
use crate::server::gate::Gate;
use crate::server::room::Room;
use crate::server::telemetry::Door;
use crate::server::tokens::Rights;
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

/// What every connection of one listener shares.
pub(super) struct Front {
    pub(super) settings: GrpcSettings,
    gate: Arc<Gate>,
    messages: Room,
    /// What is seldom asked: health, reflection.
    others: Box<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>,
}

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl Front {
    pub(super) fn new(gate: Arc<Gate>, settings: GrpcSettings, health: &HealthReporter) -> Self {
        Self {
            gate,
            messages: room(),
            others: others(health),
            settings,
        }
    }

    /// The answer to a call, whatever it is.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Reply> {
        if !is_grpc(request.headers()) {
            let mut response = Response::new(Reply::Other(Body::empty()));
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let limit = match named(request.headers()) {
            Some(limit) => limit.min(self.settings.call_timeout),
            None => self.settings.call_timeout,
        };
        if request.uri().path() != SHOULD_RATE_LIMIT {
            let answered = within(limit, (self.others)(request)).await;
            return answered.map_or_else(late, |response| response.map(Reply::Other));
        }
        match within(limit, pin!(self.should_rate_limit(request))).await {
            None => late(),
            Some(Ok(response)) => written(&response),
            Some(Err(status)) => refused(status),
        }
    }

    async fn should_rate_limit(&self, request: Request<Incoming>) -> Result<RateLimitResponse, Status> {
        let (head, body) = request.into_parts();
        // Before anything is kept for whoever may not ask.
        self.permit(&head.headers, Rights::CHECK)?;
        let check = |message: &[u8]| {
            let bounded = envoy::bounds::is_bounded(message);
            bounded.map_err(|what| Status::invalid_argument(what.to_string()))
        };
        let request: RateLimitRequest = read(body, &self.messages, check).await?;
        if gives_back(&request) {
            self.permit(&head.headers, Rights::CHECK | Rights::REFUND)?;
        }
        let answered = envoy::ask(&self.gate, Door::Grpc, &request, self.settings.headers).await;
        answered.map_err(|refusal| match refusal {
            Refusal::Invalid(what) => Status::invalid_argument(what.to_string()),
            Refusal::Closed => Status::unavailable(CLOSED),
            Refusal::WithoutRules => Status::unavailable(WITHOUT_RULES),
        })
    }

    /// Lets a call pass whose token has the rights it needs.
    fn permit(&self, metadata: &HeaderMap, needed: Rights) -> Result<(), Status> {
        let Some(tokens) = &self.settings.tokens else {
            return Ok(());
        };
        let tokens = tokens.tokens();
        let Some(caller) = tokens.caller_from_headers(metadata) else {
            let words = "show a token that this server knows, in the metadata: authorization: Bearer …";
            return Err(Status::unauthenticated(words));
        };
        if caller.rights.contains(needed) {
            return Ok(());
        }
        let words = format!("this needs the rights `{needed}`, which the token does not have");
        Err(Status::permission_denied(words))
    }
}

fn late() -> Response<Reply> {
    refused(Status::deadline_exceeded("it took longer than the call may take"))
}

/// Health and reflection, and what is said to all others. They are open to everybody, as health is over HTTP.
fn others(health: &HealthReporter) -> Box<dyn Fn(Request<Incoming>) -> Answering + Send + Sync> {
    let health = HealthServer::new(HealthService::from_health_reporter(health.clone()));
    let health = health.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let reflect = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let described = "what describes the messages was made together with them";
    let reflection = reflect().build_v1().expect(described);
    let reflection = reflection.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let reflection_alpha = reflect().build_v1alpha().expect(described);
    let reflection_alpha = reflection_alpha.max_decoding_message_size(MESSAGE_BYTES_MAX);
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

/// The one call of Envoy's service.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
