//! One subject: what rules say about it, its counters, its rows.

use super::EndpointResult;
use super::overrides::row_item;
use crate::control::ControlError;
use crate::control::database::{AuditRecord, RowFilter};
use crate::server::admin::access::now_ms;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use crate::server::http::api::{explain_json, request as check_request};
use crate::server::telemetry::Protocol;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::ACCEPT;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tollgate_limiter::ForgetError;
use tollgate_limiter::core::rules::Attempt;

/// Decisions have a runtime of their own, and their connections belong to it.
pub(super) async fn on_decisions<T: Send + 'static>(
    call: &Call,
    work: impl Future<Output = Result<T, AdminProblem>> + Send + 'static,
) -> Result<T, AdminProblem> {
    let joined = call.service.options.decisions.spawn(work).await;
    joined.unwrap_or_else(|_| {
        Err(AdminProblem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the request failed; see the log",
        ))
    })
}

/// The explanation of an attempt, as JSON or as text.
async fn explained(call: &Call, body: Bytes, is_text: bool) -> Result<Vec<u8>, AdminProblem> {
    let gate = Arc::clone(&call.service.gate);
    on_decisions(call, async move {
        let request = check_request::attempt(&body)?;
        let attributes = request.attributes();
        let snapshot = gate.snapshot(Protocol::Http);
        let explanation = snapshot.explain(&request.attempt(&attributes)).await;
        Ok(match is_text {
            true => explanation.to_string().into_bytes(),
            false => explain_json(&explanation),
        })
    })
    .await
}

/// The domain that a body names.
fn check_domain(call: &Call, body: &Value) -> Result<(), AdminProblem> {
    let domain = body.get("domain").and_then(Value::as_str).unwrap_or(Attempt::DOMAIN);
    call.check_domain(domain)
}

pub(in crate::server::admin) async fn explain(call: Call) -> EndpointResult {
    let body: Value = call.json()?;
    check_domain(&call, &body)?;
    let accept = call
        .headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let is_text = accept.contains("text/plain") && !accept.contains("json");
    let content_type = if is_text {
        "text/plain; charset=utf-8"
    } else {
        "application/json"
    };
    let explanation = explained(&call, call.body.clone(), is_text).await?;
    Ok(Reply::new(StatusCode::OK, content_type, explanation))
}

pub(in crate::server::admin) async fn subject(call: Call) -> EndpointResult {
    let domain = call.query.get("domain").unwrap_or(Attempt::DOMAIN).to_owned();
    call.check_domain(&domain)?;
    let attributes: Map<String, Value> = call
        .query
        .others(&["domain"])
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let body = json!({ "domain": domain, "attributes": attributes }).to_string();
    let explanation = explained(&call, body.into(), false).await?;
    let explanation: Value = serde_json::from_slice(&explanation).unwrap_or(Value::Null);
    let filter = RowFilter {
        domains: vec![domain.clone()],
        ..RowFilter::default()
    };
    let mut rows = Vec::new();
    for (name, value) in &attributes {
        let text = value.as_str().map(str::to_owned);
        let filter = RowFilter { text, ..filter.clone() };
        for row in call.control().rows(&filter, None, ROWS_MAX).await {
            if row.subject.get(name).map(String::as_str) == value.as_str() {
                rows.push(row_item(&call, &row));
            }
        }
    }
    Ok(Reply::ok(&json!({
        "domain": domain,
        "attributes": attributes,
        "rows": rows,
        "explanation": explanation,
    })))
}

/// The body of a forget: the data API's, and a reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForgetBody {
    domain: Option<String>,
    attributes: Map<String, Value>,
    rule: Option<String>,
    #[serde(default)]
    reason: String,
}

pub(in crate::server::admin) async fn forget(call: Call) -> EndpointResult {
    let body: ForgetBody = call.json()?;
    let author = call.author(&body.reason)?;
    let domain = body.domain.unwrap_or_else(|| Attempt::DOMAIN.to_owned());
    call.check_domain(&domain)?;
    let mut subject = json!({ "domain": domain, "attributes": body.attributes });
    if let (Value::Object(members), Some(rule)) = (&mut subject, &body.rule) {
        members.insert("rule".into(), rule.as_str().into());
    }
    let gate = Arc::clone(&call.service.gate);
    if call.query.flag("dry_run")? {
        check_request::subject(subject.to_string().as_bytes())?;
        let is_known = body
            .rule
            .as_ref()
            .is_none_or(|rule| call.control().has_rule(&domain, rule));
        return match is_known {
            true => Ok(Reply::ok(&json!({ "forgotten": 0, "dry_run": true }))),
            false => Err(AdminProblem::field("rule", "there is no such rule in the domain")),
        };
    }
    // Nothing is done that could not be audited.
    let place = call.service.audit.reserve().ok_or_else(|| {
        ControlError::Unavailable("too many audit entries wait for it; try again when it is back".to_owned())
    })?;
    let target = subject.to_string();
    let text = target.clone();
    let forgotten = on_decisions(&call, async move {
        let request = check_request::subject(text.as_bytes())?;
        let attributes = request.attributes();
        let snapshot = gate.snapshot(Protocol::Http);
        let forgotten = snapshot.forget(&request.attempt(&attributes), request.rule()).await;
        forgotten.map_err(|error| match error {
            ForgetError::UnknownDomain(unknown) => AdminProblem::field("domain", unknown.to_string()),
            ForgetError::Unknown(unknown) => AdminProblem::field("rule", unknown.to_string()),
            ForgetError::Store(error) => {
                let detail = format!("{error}; some counters may be cleared; retry");
                AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
            }
        })
    })
    .await?;
    let record = AuditRecord {
        author,
        action: "forget".to_owned(),
        target,
        before: String::new(),
        after: json!({ "forgotten": forgotten, "at": now_ms() }).to_string(),
    };
    place.record(call.control(), record).await;
    Ok(Reply::ok(&json!({ "forgotten": forgotten })))
}

/// Rows of one value that are searched.
const ROWS_MAX: usize = 1_000;
