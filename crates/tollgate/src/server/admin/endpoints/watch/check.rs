//! A check from the dashboard: a real one, that consumes.

use super::super::EndpointResult;
use super::super::subjects::on_decisions;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use crate::server::http::api::{check_json, request as check_request};
use crate::server::telemetry::Protocol;
use hyper::StatusCode;
use serde_json::Value;
use std::sync::Arc;
use tollgate_limiter::core::rules::Attempt;

pub(in crate::server::admin) async fn check(call: Call) -> EndpointResult {
    let body: Value = call.json()?;
    let domain = body.get("domain").and_then(Value::as_str).unwrap_or(Attempt::DOMAIN);
    call.check_domain(domain)?;
    if !call.service.checks.allows(&call.caller()?.id) {
        let detail = "too many checks from here; wait a minute, or use the check API";
        return Err(AdminProblem::too_many(detail));
    }
    let (gate, body) = (Arc::clone(&call.service.gate), call.body.clone());
    let checked = on_decisions(&call, async move {
        let request = check_request::attempt(&body)?;
        let attributes = request.attributes();
        let attempt = request.attempt(&attributes);
        let snapshot = gate.snapshot(Protocol::Admin);
        let result = snapshot.check(&attempt).await;
        let unknown = snapshot.unknown_domain(&attempt, &result.verdict);
        Ok(check_json(&attempt, &result, unknown.as_ref()))
    })
    .await?;
    Ok(Reply::new(StatusCode::OK, "application/json", checked))
}
