//! Envoy's rate limit request, as the gRPC and the HTTP front end both take it: each descriptor is one attempt, and all
//! descriptors of a request settle together.

pub mod bounds;
pub mod json;
mod metadata;
pub mod request;
mod response;

use self::request::{InvalidRequest, RlsRequest};
use super::gate::Gate;
use super::headers::Dialects;
use super::telemetry::Protocol;

pub use self::messages::envoy::config::core::v3::HeaderValue;
pub use self::messages::envoy::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor};
pub use self::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response};
pub use self::messages::envoy::r#type::v3::RateLimitUnit;

/// The messages of `proto/`.
#[expect(
    missing_docs,
    unreachable_pub,
    reason = "made by a compiler, out of what is described in proto/"
)]
mod messages {
    include!("../../proto/generated/envoy.rs");
}

/// What describes the messages, for those who ask over reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../../proto/generated/envoy.bin");

/// Why a request has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RlsError {
    /// It makes no sense. The caller's to mend.
    Invalid(InvalidRequest),
    /// The store could not be asked, and a rule says `closed`.
    Closed,
    /// The server began without the rules it was to have, and has none of this domain.
    NoRules,
}

/// May the request go on? The answer carries the headers of these dialects, except what Envoy writes itself.
///
/// # Errors
/// Why nobody can say.
pub async fn should_rate_limit(
    gate: &Gate,
    protocol: Protocol,
    request: &RateLimitRequest,
    dialects: Dialects,
) -> Result<RateLimitResponse, RlsError> {
    let response = respond(gate, protocol, request, dialects).await;
    let calls = &gate.metrics().ratelimit.calls;
    calls.all.add(1);
    match &response {
        Ok(_) => {}
        Err(RlsError::Invalid(_) | RlsError::NoRules) => calls.invalid.add(1),
        Err(RlsError::Closed) => calls.closed.add(1),
    }
    response
}

async fn respond(
    gate: &Gate,
    protocol: Protocol,
    request: &RateLimitRequest,
    dialects: Dialects,
) -> Result<RateLimitResponse, RlsError> {
    let snapshot = gate.snapshot(protocol);
    let rules = snapshot.limiter().rules();
    let attributes = request::attributes(request).map_err(RlsError::Invalid)?;
    let rls_request = RlsRequest::read(request, &attributes, rules).map_err(RlsError::Invalid)?;
    if gate.rules_installed() == 0 && !rules.has_domain(&request.domain) {
        return Err(RlsError::NoRules);
    }
    let combined = snapshot.check_all(&rls_request.items).await;
    if response::is_closed(&combined) {
        return Err(RlsError::Closed);
    }
    let is_ratelimit_domain = rules.descriptors().has_domain(&request.domain);
    let dialects = if is_ratelimit_domain { Dialects::NONE } else { dialects };
    let mut response = response::encode_response(request, &rls_request.items, &combined, dialects);
    if is_ratelimit_domain {
        gate.compat()
            .apply(&mut response, &combined, &gate.metrics().ratelimit.calls);
    }
    if rules.descriptors().options.metadata && !rules.has_domain(&request.domain) {
        response.dynamic_metadata = Some(metadata::dynamic_metadata(request, &combined));
    }
    Ok(response)
}

/// How a refusal by `closed` is told.
pub const CLOSED: &str = "store unavailable, and a matching rule has on_store_failure: closed";

/// How it is told that there are no rules yet.
pub const NO_RULES: &str = "no rate limit configuration loaded";
