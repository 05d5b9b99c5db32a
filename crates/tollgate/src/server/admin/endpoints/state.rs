//! The state of this instance, of the fleet, and of the store.

use super::EndpointResult;
use crate::control::model::VersionMeta;
use crate::server::admin::reply::Reply;
use crate::server::admin::request::{Call, etag};
use serde_json::{Value, json};
use tollgate_limiter::core::Micros;

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
        status.error = status.error.map(|_| OTHER_DOMAINS.to_owned());
    }
    status.error = status.error.map(|error| call.show_message(error));
    let live = match call.control().database() {
        // Without the database, status is reported all the same.
        Some(database) if status.version > 0 => database.version(status.version).await.ok().flatten(),
        _ => None,
    };
    let fleet = call.control().instances().await;
    let tag = etag::text(status.epoch, status.set_revision);
    let mut body = json!(status);
    if let Value::Object(members) = &mut body {
        members.insert("program".into(), env!("CARGO_PKG_VERSION").into());
        members.insert("etag".into(), tag.into());
        members.insert(
            "fleet".into(),
            json!({
                "instances": fleet.instances.len(),
                "differ": fleet.differ,
                "warnings": fleet.warnings,
                "error": fleet.error,
            }),
        );
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
    let own = call.control().instance();
    let fleet = call.control().instances().await;
    let is_restricted = call.caller()?.is_restricted();
    let items = fleet.instances.iter().map(|instance| {
        let mut item = json!(instance);
        if let Value::Object(members) = &mut item {
            members.insert("seen_at".into(), instance.status.at.into());
            members.insert("self".into(), (instance.id == own).into());
            // Of instances only: they quote rules before anything is live.
            members.remove("vote");
            members.remove("preparing");
            if let Some(error) = &instance.status.error {
                let shown = match is_restricted {
                    true => OTHER_DOMAINS.to_owned(),
                    false => call.show_message(error.clone()),
                };
                members.insert("error".into(), shown.into());
            }
        }
        item
    });
    Ok(Reply::ok(&json!({
        "items": items.collect::<Vec<Value>>(),
        "next": null,
        "differ": fleet.differ,
        "warnings": fleet.warnings,
        "error": fleet.error,
    })))
}

pub(in crate::server::admin) async fn store(call: Call) -> EndpointResult {
    let kind = if call.service.gate.store().calls_shared() {
        "shared"
    } else {
        "memory"
    };
    let available = !call.service.gate.is_missing_store();
    let status = call.service.gate.store().status();
    let servers = status.servers.iter().map(|server| {
        json!({
            "address": server.address,
            "role": if server.is_replica { "replica" } else { "primary" },
            "breaker": server.breaker.name(),
            "error": server.error,
            "round_trip_us": server.round_trip.map(Micros::get),
        })
    });
    let servers: Vec<Value> = servers.collect();
    Ok(Reply::ok(&json!({
        "kind": kind,
        "available": available,
        "error": status.connection_error,
        "instances": status.instances(),
        "servers": servers,
    })))
}

/// The text in place of a message that may be about any domain.
pub(super) const OTHER_DOMAINS: &str = "hidden: it may be about other domains";
