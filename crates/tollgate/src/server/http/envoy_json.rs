//! `POST /json`: Envoy's request as JSON, for gateways that speak HTTP and not gRPC.

use super::answer;
use super::problem::{NO_STORE, Problem};
use crate::server::envoy::rate_limit_response::Code;
use crate::server::envoy::{CLOSED, RateLimitRequest, Refusal, WITHOUT_RULES, ask, json};
use crate::server::gate::Gate;
use crate::server::headers::Dialects;
use crate::server::telemetry::Door;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::CACHE_CONTROL;
use hyper::{Response, StatusCode};

/// The request in a body.
pub(super) fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    json::read(body).map_err(|fault| match fault.field.is_empty() {
        true => Problem::bad(fault.detail),
        false => Problem::of_field(fault.field, fault.detail),
    })
}

/// 200, 429 if it is over a limit, 503 if a rule refuses what nobody could judge; or 400, for those who know it so.
pub(super) async fn answered(
    gate: &Gate,
    request: &RateLimitRequest,
    dialects: Dialects,
) -> Result<Response<Full<Bytes>>, Problem> {
    let answer = match ask(gate, Door::Http, request, dialects).await {
        Ok(answer) => answer,
        Err(Refusal::Invalid(what)) => return Err(Problem::bad(what.to_string())),
        Err(Refusal::Closed) => return Err(unjudged(gate, CLOSED)),
        Err(Refusal::WithoutRules) => return Err(unjudged(gate, WITHOUT_RULES)),
    };
    let mut response = answer::json(json::written(&answer).to_string().into_bytes());
    if answer.overall_code() == Code::OverLimit {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    }
    Ok(response)
}

/// What is said of a request that nobody can judge.
fn unjudged(gate: &Gate, words: &'static str) -> Problem {
    match gate.compat().modes().json_errors_as_400 {
        true => Problem::bad(words.to_owned()),
        false => Problem::new(StatusCode::SERVICE_UNAVAILABLE, words),
    }
}
