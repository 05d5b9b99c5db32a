//! The rate limit service of Envoy (rls), as the gRPC and the HTTP front end serve it. Each descriptor is one attempt, and
//! all descriptors of a request settle together.

pub mod bounds;
pub mod json;
mod metadata;
pub mod request;
mod response;

use self::request::{InvalidRequest, RlsRequest};
use super::admission::AdmissionError;
use super::gate::Gate;
use super::headers::Dialects;
use super::telemetry::Protocol;
use super::telemetry::traces::RequestTrace;
use crate::compat::ratelimit::CallOutcome;

pub use self::messages::envoy::config::core::v3::HeaderValue;
pub use self::messages::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
pub use self::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response};
pub use self::messages::envoy::r#type::v3::RateLimitUnit;

/// The messages of `proto/`.
#[expect(
    missing_docs,
    unreachable_pub,
    reason = "generated from proto/, where the messages are documented"
)]
mod messages {
    include!("../../proto/generated/envoy.rs");
}

/// The descriptors of all messages, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../../proto/generated/envoy.bin");

/// The path of the service's only call.
pub const SHOULD_RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The names of the service in gRPC health checks: the server as a whole, the service, and the name that probes for
/// envoyproxy/ratelimit use.
pub const HEALTH_NAMES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// The reason a request has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RlsError {
    /// The request is invalid. The caller can fix it.
    Invalid(InvalidRequest),
    /// The request was denied without a verdict.
    Denied(AdmissionError),
}

/// Decides a request, with a span if it is sampled. The response carries the headers of these dialects, except those that Envoy writes itself.
///
/// # Errors
/// The reason there is no verdict.
pub async fn should_rate_limit(
    gate: &Gate,
    protocol: Protocol,
    request: &RateLimitRequest,
    dialects: Dialects,
    trace: RequestTrace,
) -> Result<RateLimitResponse, RlsError> {
    let (outcome, result) = match respond(gate, protocol, request, dialects, trace).await {
        Ok((response, outcome)) => (outcome, Ok(response)),
        Err(RlsError::Denied(AdmissionError::StoreUnavailable)) => (
            CallOutcome::StoreUnavailable,
            Err(RlsError::Denied(AdmissionError::StoreUnavailable)),
        ),
        Err(error) => (CallOutcome::Rejected, Err(error)),
    };
    gate.record_call(outcome);
    result
}

async fn respond(
    gate: &Gate,
    protocol: Protocol,
    request: &RateLimitRequest,
    dialects: Dialects,
    trace: RequestTrace,
) -> Result<(RateLimitResponse, CallOutcome), RlsError> {
    let attributes = request::attributes(request).map_err(RlsError::Invalid)?;
    let snapshot = gate.admit(protocol, &request.domain).map_err(RlsError::Denied)?;
    let snapshot = snapshot.traced(trace);
    let rules = snapshot.limiter().rules();
    let rls_request = RlsRequest::read(request, &attributes, rules).map_err(RlsError::Invalid)?;
    let combined = snapshot.check_all(&rls_request.items).await;
    if response::is_closed(&combined) {
        return Err(RlsError::Denied(AdmissionError::StoreUnavailable));
    }
    if gate.store().calls_shared() && response::has_store_failure(&combined) {
        gate.record_covered_store_failure();
    }
    let descriptors = rules.descriptors();
    let is_ratelimit_domain = descriptors.has_domain(&request.domain);
    let dialects = if is_ratelimit_domain { Dialects::NONE } else { dialects };
    let mut response = response::encode_response(request, &rls_request.items, &combined, dialects);
    let mut outcome = CallOutcome::Decided;
    if is_ratelimit_domain {
        outcome = gate.compat().apply(&mut response, &combined);
    }
    if descriptors.options.metadata && !rules.has_domain(&request.domain) {
        response.dynamic_metadata = Some(metadata::dynamic_metadata(request, &combined));
    }
    Ok((response, outcome))
}
