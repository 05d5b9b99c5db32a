//! The subjects that are refused most.

use super::super::EndpointResult;
use crate::server::admin::access::now_ms;
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::Call;
use crate::server::telemetry::watch::report::{FiguresReport, is_reported};
use crate::server::telemetry::watch::top::{MINUTES_MAX, TopItem, TopQuery};
use serde_json::{Value, json};
use std::sync::Arc;

pub(in crate::server::admin) async fn top(call: Call) -> EndpointResult {
    let minutes = call.query.number("minutes")?.unwrap_or(MINUTES_DEFAULT);
    if !(1..=MINUTES_MAX).contains(&minutes) {
        return Err(AdminProblem::field(
            "minutes",
            format!("must be from 1 to {MINUTES_MAX}"),
        ));
    }
    let query = TopQuery {
        domains: call.domains()?,
        rule: call.query.get("rule").map(str::to_owned),
        minutes,
        limit: match call.query.raw("limit") {
            None => LIMIT_DEFAULT,
            Some(_) => call.limit(1_000)?,
        },
    };
    // Instances report one span only.
    let reports = match is_reported(&query) {
        true => call.control().fleet_figures(None).await.unwrap_or_default(),
        false => Arc::default(),
    };
    let others = reports.iter().map(FiguresReport::top).collect();
    let list = call.service.gate.watch().top().list(others, &query, now_ms());
    let items: Vec<Value> = list.items.iter().map(|item| top_item(&call, item)).collect();
    Ok(Reply::ok(&json!({
        "from": list.from_ms,
        "to": list.to_ms,
        "instances": list.instances,
        "items": items,
    })))
}

fn top_item(call: &Call, item: &TopItem) -> Value {
    let mut subject: Value = serde_json::from_str(&item.subject).unwrap_or_else(|_| json!({}));
    if let Value::Object(members) = &mut subject {
        for value in members.values_mut() {
            *value = call.show(value.as_str().unwrap_or_default()).into();
        }
    }
    json!({
        "domain": *item.name.domain,
        "rule": *item.name.rule,
        "subject": subject,
        "lower": item.lower,
        "upper": item.upper,
        "share_ppm": item.share_ppm,
    })
}

const MINUTES_DEFAULT: u64 = 15;
const LIMIT_DEFAULT: usize = 20;
