//! The endpoints apart from `/v1/check`: each takes the body of a request and makes the response.

use super::explain::ExplainFormat;
use super::request::CheckRequest;
use super::response::CheckResponse;
use super::{EndpointResult, HttpService, PLAIN_TEXT, explain, request, response, rls};
use crate::server::auth::tokens::Rights;
use crate::server::headers::RetryCaller;
use crate::server::http::auth;
use crate::server::http::forward::{ForwardPath, UnknownDomainPolicy};
use crate::server::http::json::ObjectWriter;
use crate::server::http::problem_details::ProblemDetails;
use crate::server::rls::request::is_refund;
use crate::server::telemetry::Protocol;
use crate::server::telemetry::traces::RequestTrace;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use serde_json::json;
use std::net::IpAddr;
use tollgate_limiter::ForgetError;
use tollgate_limiter::core::rules::{Attempt, Ruling};
use tollgate_limiter::core::{Cost, Limit, Micros, Timestamp};
use tollgate_limiter::store::StoreError;

impl HttpService {
    pub(super) async fn batch(&self, body: &[u8], trace: RequestTrace) -> EndpointResult {
        let batch = request::batch(body)?;
        let attributes: Vec<_> = batch.iter().map(CheckRequest::attributes).collect();
        let attempts: Vec<Attempt<'_>> = batch
            .iter()
            .zip(&attributes)
            .map(|(check_request, attributes)| check_request.attempt(attributes))
            .collect();
        let snapshot = self.gate.snapshot(Protocol::Http).traced(trace);
        let results = snapshot.check_each(&attempts).await;
        let mut out = Vec::with_capacity(ELEMENT_BYTES * batch.len());
        out.push(b'[');
        for (index, (attempt, result)) in attempts.iter().zip(&results).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            let unknown = snapshot.unknown_domain(attempt, &result.verdict);
            response::write_body(&mut out, &CheckResponse::new(attempt, result, unknown.as_ref()));
        }
        out.push(b']');
        Ok(response::json(out))
    }

    pub(super) async fn refund(&self, body: &[u8]) -> EndpointResult {
        let check_request = request::attempt(body)?;
        let attributes = check_request.attributes();
        let attempt = check_request.attempt(&attributes);
        let snapshot = self.gate.snapshot(Protocol::Http);
        let verdict = snapshot.refund(&attempt).await;
        let unknown = snapshot.unknown_domain(&attempt, &verdict);
        let limit = |ruling: &Ruling<'_>| ruling.window.map(|window| *window.limit());
        let is_slot = |ruling: &Ruling<'_>| matches!(limit(ruling), Some(Limit::Concurrency(_)));
        let mut counted = verdict
            .rulings
            .iter()
            .filter(|ruling| ruling.window.is_some())
            .peekable();
        if counted.peek().is_some() && counted.all(is_slot) {
            return Err(ProblemDetails::bad_request(
                "a refund frees no slot of a concurrency limit, and no other limit matches; send the lease of the check \
                 to /v1/release",
            ));
        }
        let response = CheckResponse {
            verdict: &verdict,
            lease: None,
            cost: attempt.cost,
            now: Timestamp::EPOCH,
            unknown_domain: unknown.as_ref(),
            extra: Micros::ZERO,
        };
        let mut out = Vec::with_capacity(ELEMENT_BYTES);
        response::write_body(&mut out, &response);
        Ok(response::json(out))
    }

    pub(super) async fn forget(&self, body: &[u8]) -> EndpointResult {
        let check_request = request::subject(body)?;
        let attributes = check_request.attributes();
        let snapshot = self.gate.snapshot(Protocol::Http);
        let forgotten = snapshot
            .forget(&check_request.attempt(&attributes), check_request.rule())
            .await;
        let forgotten = forgotten.map_err(|error| match error {
            ForgetError::UnknownDomain(unknown) => ProblemDetails::for_field("domain", unknown.to_string()),
            ForgetError::Unknown(unknown) => ProblemDetails::for_field("rule", unknown.to_string()),
            ForgetError::Store(error) => store_unavailable(error, "some counters may be cleared; retry"),
        })?;
        Ok(response::json(json!({ "forgotten": forgotten }).to_string().into()))
    }

    pub(super) async fn release(&self, body: &[u8]) -> EndpointResult {
        let lease = request::lease(body)?;
        let released = self.gate.snapshot(Protocol::Http).release(&lease).await;
        let released = released.map_err(|error| {
            store_unavailable(
                error,
                "the lease is released when the store is available again, or it expires",
            )
        })?;
        Ok(response::json(json!({ "released": released }).to_string().into()))
    }

    pub(super) async fn renew(&self, body: &[u8]) -> EndpointResult {
        let lease = request::lease(body)?;
        let renewed = self.gate.snapshot(Protocol::Http).renew(&lease).await;
        let renewed = renewed.map_err(|error| store_unavailable(error, "the lease keeps its expiry; retry"))?;
        let Some(term) = renewed else {
            return Err(ProblemDetails::new(
                StatusCode::NOT_FOUND,
                "no such lease: it was released, or it expired; check again",
            ));
        };
        let mut out = Vec::new();
        ObjectWriter::write(&mut out, |object| {
            object.value("renewed", &true);
            object.value("expires_in_ms", &term.as_millis_ceil());
        });
        Ok(response::json(out))
    }

    pub(super) async fn explain(&self, body: &[u8], format: ExplainFormat) -> EndpointResult {
        let check_request = request::attempt(body)?;
        let attributes = check_request.attributes();
        let snapshot = self.gate.snapshot(Protocol::Http);
        let explanation = snapshot.explain(&check_request.attempt(&attributes)).await;
        Ok(match format {
            ExplainFormat::Json => response::json(explain::encode(&explanation)),
            ExplainFormat::Text => {
                let mut response = Response::new(Full::from(explanation.to_string()));
                response.headers_mut().insert(CONTENT_TYPE, PLAIN_TEXT);
                response
            }
        })
    }

    pub(super) async fn rls(&self, body: &[u8], headers: &HeaderMap) -> EndpointResult {
        let rls_request = rls::read(body)?;
        if let (Some(tokens), true) = (&self.settings.tokens, is_refund(&rls_request)) {
            auth::check_token(&tokens.tokens(), headers, Rights::REFUND)?;
        }
        let trace = self.gate.traces().sample(headers);
        rls::respond(&self.gate, &rls_request, self.settings.headers, trace).await
    }

    /// Any method; the body is not awaited, because the original request is described in the head.
    pub(super) async fn forward(&self, head: &Parts, peer: IpAddr) -> EndpointResult {
        let (Some(forward), Some(target)) = (&self.settings.forward, ForwardPath::parse(head.uri.path())) else {
            return Err(ProblemDetails::new(
                StatusCode::NOT_FOUND,
                "forward-auth is not configured; set `forward_auth: { gateway: … }`",
            ));
        };
        let snapshot = self.gate.snapshot(Protocol::Forward);
        if forward.unknown_domain == UnknownDomainPolicy::Deny
            && let Some(unknown) = snapshot.reject_unknown_domain(&target.domain)
        {
            return Err(ProblemDetails::new(StatusCode::NOT_FOUND, unknown.public_text()));
        }
        let extracted = forward.extract(head, target.rest, peer)?;
        let attempt = Attempt {
            domain: &target.domain,
            attributes: &extracted.attributes(),
            cost: Cost::ONE,
        };
        let snapshot = snapshot.traced(self.gate.traces().sample(&head.headers));
        let result = snapshot.check(&attempt).await;
        let mut response = CheckResponse::new(&attempt, &result, None);
        if !result.verdict.allowed {
            let caller = RetryCaller::Address(forward.client_address(head, peer));
            response.spread(self.settings.retry_after, &snapshot, &attempt, caller);
        }
        Ok(response::gateway_response(
            &self.settings,
            &response,
            target.deny_status,
        ))
    }
}

/// The problem of a request that failed because the store is unavailable.
fn store_unavailable(error: StoreError, next_step: &str) -> ProblemDetails {
    let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; {next_step}"));
    problem.with_header(RETRY_AFTER, "1")
}

/// The usual size of one body.
const ELEMENT_BYTES: usize = 512;
