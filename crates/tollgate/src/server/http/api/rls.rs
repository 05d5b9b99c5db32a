//! `POST /json`: the rls request as JSON, for gateways that speak HTTP and not gRPC.

use super::response;
use crate::server::admission::AdmissionError;
use crate::server::gate::Gate;
use crate::server::headers::Dialects;
use crate::server::http::problem_details::{NO_STORE, ProblemDetails};
use crate::server::rls::rate_limit_response::Code;
use crate::server::rls::{RateLimitRequest, RlsError, json, should_rate_limit};
use crate::server::telemetry::Protocol;
use crate::server::telemetry::traces::RequestTrace;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::CACHE_CONTROL;
use hyper::{Response, StatusCode};

/// Reads the request from a body.
pub(super) fn read(body: &[u8]) -> Result<RateLimitRequest, ProblemDetails> {
    json::read(body).map_err(|error| match error.field.is_empty() {
        true => ProblemDetails::bad_request(error.detail),
        false => ProblemDetails::for_field(error.field, error.detail),
    })
}

/// Responds with 200, with 429 if a limit denies, with 503 if there is no verdict; or then with 400 if so configured.
pub(super) async fn respond(
    gate: &Gate,
    request: &RateLimitRequest,
    dialects: Dialects,
    trace: RequestTrace,
) -> Result<Response<Full<Bytes>>, ProblemDetails> {
    let rls_response = match should_rate_limit(gate, Protocol::Http, request, dialects, trace).await {
        Ok(response) => response,
        Err(RlsError::Invalid(what)) => return Err(ProblemDetails::bad_request(what.to_string())),
        Err(RlsError::Denied(denial)) => return Err(undecided(gate, denial)),
    };
    let mut response = response::json(json::encode(&rls_response).to_string().into_bytes());
    if rls_response.overall_code() == Code::OverLimit {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    }
    Ok(response)
}

/// The problem of a request without a verdict.
fn undecided(gate: &Gate, denial: AdmissionError) -> ProblemDetails {
    match gate.compat().modes().json_errors_as_400 {
        true => ProblemDetails::bad_request(denial.text()),
        false => ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, denial.text()),
    }
}
