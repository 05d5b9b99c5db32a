//! `/readyz`: readiness, with the status of the store and the rules.

use super::response;
use crate::server::gate::{Gate, Phase};
use crate::server::http::json::ObjectWriter;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use tollgate_limiter::store::StoreStatus;

/// 200 when requests should be sent here, 503 while starting or draining. Neither a failed reload nor an unavailable store
/// changes that: the previous rules are active, and each rule has its failure policy.
pub(in crate::server::http) fn readiness(gate: &Gate) -> Response<Full<Bytes>> {
    let phase = gate.phase();
    let status = gate.store().status();
    let mut out = Vec::with_capacity(256);
    ObjectWriter::write(&mut out, |object| {
        object.value(
            "status",
            match phase {
                Phase::Starting => "starting",
                Phase::Ready => "ready",
                Phase::Draining => "draining",
            },
        );
        object.object("store", |object| store(object, &status));
        object.object("rules", |object| {
            object.value("loaded", &gate.rules_loaded());
            object.value("error", &gate.rules_error().as_deref());
            object.value("never_matched", &gate.rules_never_matched());
            if let Some(live) = gate.metrics().control.live() {
                object.value("version", &live.version);
                object.value("revision", &live.revision);
                object.value("digest", &*live.digest);
                object.value("source", live.source);
                object.value("age_seconds", &live.since.elapsed().as_secs());
                object.value("rejected_rows", &(live.rejected_rows as u64));
            }
            if let Some(warnings) = gate.metrics().control.fleet_warnings() {
                object.value("warnings", &*warnings);
            }
        });
        object.value("breaker", status.breaker.state.name());
        match &status.fallback {
            None => object.value("instances", &1),
            Some(fallback) => {
                object.value("instances", &fallback.instances.count());
                object.value("instances_from", fallback.instances.origin());
                object.value("mode", fallback.mode.name());
            }
        }
    });
    let mut response = response::json(out);
    if phase != Phase::Ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

fn store(object: &mut ObjectWriter<'_>, status: &StoreStatus) {
    object.value("kind", status.kind.name());
    object.value("reachable", &status.is_connected());
    if let Some(keys) = status.keys {
        object.value("keys", &keys);
    }
    // A store in this process has no connection.
    if status.calls.is_none() {
        return;
    }
    object.value("error", &status.connection_error);
    match &status.last_error {
        None => object.value("last_error", &()),
        Some(last) => object.object("last_error", |object| {
            object.value("code", last.code);
            object.value("seconds_ago", &(last.ago.get() / 1_000_000));
        }),
    }
    object.value("warnings", &status.warnings);
}
