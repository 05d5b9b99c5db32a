//! Envoy's rate limit request, as the gRPC and the HTTP front end both take it: each descriptor is one attempt, and all
//! descriptors of a request settle together.

pub mod bounds;
mod compat;
pub mod json;
mod metadata;
mod reply;
pub mod request;

use self::request::{Asked, Invalid};
use super::gate::Gate;
use super::headers::Dialects;
use super::telemetry::Door;

pub use self::compat::{Compat, HeaderNames, Modes};

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
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

/// What describes the messages, for those who ask over reflection.
pub const DESCRIPTION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/envoy.bin"));

/// Why a request has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It makes no sense. The caller's to mend.
    Invalid(Invalid),
    /// The store could not be asked, and a rule says `closed`.
    Closed,
    /// The server began without the rules it was to have, and has none of this domain.
    WithoutRules,
}

/// May the request go on? The answer carries the headers of these dialects, except what Envoy writes itself.
///
/// # Errors
/// Why nobody can say.
pub async fn ask(
    gate: &Gate,
    door: Door,
    request: &RateLimitRequest,
    dialects: Dialects,
) -> Result<RateLimitResponse, Refusal> {
    let answer = answered(gate, door, request, dialects).await;
    let calls = &gate.metrics().envoy.calls;
    calls.all.add(1);
    match &answer {
        Ok(_) => {}
        Err(Refusal::Invalid(_) | Refusal::WithoutRules) => calls.invalid.add(1),
        Err(Refusal::Closed) => calls.closed.add(1),
    }
    answer
}

async fn answered(
    gate: &Gate,
    door: Door,
    request: &RateLimitRequest,
    dialects: Dialects,
) -> Result<RateLimitResponse, Refusal> {
    let sitting = gate.snapshot(door);
    let rules = sitting.limiter().rules();
    let attributes = request::attributes(request).map_err(Refusal::Invalid)?;
    let asked = Asked::read(request, &attributes, rules).map_err(Refusal::Invalid)?;
    if gate.rules_installed() == 0 && !rules.has_domain(&request.domain) {
        return Err(Refusal::WithoutRules);
    }
    let together = sitting.check_all(&asked.parts).await;
    if reply::is_closed(&together) {
        return Err(Refusal::Closed);
    }
    let is_descriptors = rules.descriptors().has_domain(&request.domain);
    let dialects = if is_descriptors { Dialects::NONE } else { dialects };
    let mut answer = reply::written(request, &asked.parts, &together, dialects);
    if is_descriptors {
        gate.compat().apply(&mut answer, &together, &gate.metrics().envoy.calls);
    }
    if rules.descriptors().options.metadata && !rules.has_domain(&request.domain) {
        answer.dynamic_metadata = Some(metadata::told(request, &together));
    }
    Ok(answer)
}

/// How a refusal by `closed` is told.
pub const CLOSED: &str = "the store cannot be asked, and a rule refuses what nobody can judge";

/// How it is told that there are no rules yet.
pub const WITHOUT_RULES: &str = "no rate limit configuration loaded";
