//! The state of this instance, of the fleet, and of the store.

use super::EndpointResult;
use crate::control::model::VersionMeta;
use crate::server::admin::access::now_ms;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::{Call, etag};
use serde_json::{Value, json};

pub(in crate::server::admin) async fn status(call: Call) -> EndpointResult {
    let mut status = call.control().status();
    status
        .rejected_rows
        .retain(|row| call.caller.as_ref().is_some_and(|caller| caller.covers(&row.domain)));
    for row in &mut status.rejected_rows {
        row.subject.values_mut().for_each(|value| *value = call.show(value));
        row.text = call.show_message(std::mem::take(&mut row.text));
    }
    if call.caller()?.is_restricted() {
        status.error = status.error.map(|_| "hidden: it may be about other domains".to_owned());
    }
    let live = match call.control().database() {
        // Without the database, status is reported all the same.
        Some(database) if status.version > 0 => database.version(status.version).await.ok().flatten(),
        _ => None,
    };
    let tag = etag::text(status.epoch, status.set_revision);
    let mut body = json!(status);
    if let Value::Object(members) = &mut body {
        members.insert("program".into(), env!("CARGO_PKG_VERSION").into());
        members.insert("etag".into(), tag.into());
        members.insert(
            "live".into(),
            live.as_ref()
                .map_or(Value::Null, |live| version(&call, live, live.number)),
        );
    }
    Ok(Reply::ok(&body))
}

/// A version as the API has it.
pub(in crate::server::admin) fn version(call: &Call, meta: &VersionMeta, live: u64) -> Value {
    let mut item = json!(meta);
    if let Value::Object(members) = &mut item {
        members.insert("reason".into(), call.show_reason(&meta.reason).into());
        members.insert("live".into(), (meta.number == live).into());
    }
    item
}

pub(in crate::server::admin) async fn instances(call: Call) -> EndpointResult {
    let status = call.control().status();
    let own = json!({
        "id": status.instance,
        "program": env!("CARGO_PKG_VERSION"),
        "epoch": status.epoch,
        "revision": status.revision,
        "version": status.version,
        "digest": status.digest,
        "rejected_rows": status.rejected_count,
        "seen_at": now_ms(),
        "self": true,
    });
    let mut items = vec![own];
    if let Some(database) = call.control().database() {
        let reports = database
            .instances(now_ms().saturating_sub(SEEN_WITHIN_MS))
            .await
            .unwrap_or_default();
        for report in reports.iter().filter(|report| report.id != status.instance) {
            let mut item: Value = serde_json::from_str(&report.status).unwrap_or_else(|_| json!({}));
            if let Value::Object(members) = &mut item {
                members.insert("id".into(), report.id.as_str().into());
                members.insert("seen_at".into(), report.seen_at.into());
                members.insert("self".into(), false.into());
            }
            items.push(item);
        }
    }
    Ok(Reply::page(items, None))
}

pub(in crate::server::admin) async fn store(call: Call) -> EndpointResult {
    let kind = if call.service.gate.store().calls_shared() {
        "shared"
    } else {
        "memory"
    };
    let available = !call.service.gate.is_missing_store();
    Ok(Reply::ok(&json!({ "kind": kind, "available": available })))
}

/// Instances that have not reported for longer are gone.
const SEEN_WITHIN_MS: u64 = 60_000;
