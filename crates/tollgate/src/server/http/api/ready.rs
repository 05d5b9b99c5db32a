//! `/readyz`: the phase of the server, its store, its rules.

use super::response;
use crate::server::gate::{Gate, Phase};
use crate::server::http::json::{boolean, integer, string};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use tollgate_limiter::store::{StoreKind, StoreStatus};

/// Responds with 200 when requests should be sent here and with 503 while starting or draining. A failed reload is reported
/// and stays 200, since the previous rules are active; so does an unavailable store, since rules say what then applies.
pub(in crate::server::http) fn readiness(gate: &Gate) -> Response<Full<Bytes>> {
    let phase = gate.phase();
    let store = gate.store().status();
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"status\":");
    let status = match phase {
        Phase::Starting => "starting",
        Phase::Ready => "ready",
        Phase::Draining => "draining",
    };
    string(&mut out, status.as_bytes());
    write_store(&mut out, &store);
    out.extend_from_slice(b",\"rules\":{\"loaded\":");
    integer(&mut out, gate.rules_loaded());
    out.extend_from_slice(b",\"error\":");
    string_or_null(&mut out, gate.rules_error().as_deref().map(String::as_str));
    out.extend_from_slice(b"},\"breaker\":");
    string(&mut out, store.breaker.state.name().as_bytes());
    out.extend_from_slice(b",\"instances\":");
    integer(&mut out, store.instances().into());
    if let Some(fallback) = &store.fallback {
        out.extend_from_slice(b",\"instances_from\":");
        string(&mut out, fallback.instances.origin().as_bytes());
        out.extend_from_slice(b",\"mode\":");
        string(&mut out, fallback.mode.name().as_bytes());
    }
    out.push(b'}');
    let mut response = response::json(out);
    if phase != Phase::Ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

fn write_store(out: &mut Vec<u8>, store: &StoreStatus) {
    out.extend_from_slice(b",\"store\":{\"kind\":");
    string(out, store.kind.name().as_bytes());
    out.extend_from_slice(b",\"reachable\":");
    boolean(out, store.is_connected());
    if let Some(keys) = store.keys {
        out.extend_from_slice(b",\"keys\":");
        integer(out, keys);
    }
    // A store in this process has no connection, and so no error of one.
    if store.kind != StoreKind::Memory {
        write_errors(out, store);
    }
    out.push(b'}');
}

/// Writes the error of the connection, the last error of a call and the findings of the diagnostics.
fn write_errors(out: &mut Vec<u8>, store: &StoreStatus) {
    out.extend_from_slice(b",\"error\":");
    string_or_null(out, store.connection_error.as_deref());
    out.extend_from_slice(b",\"last_error\":");
    match &store.last_error {
        Some(last) => {
            out.extend_from_slice(b"{\"code\":");
            string(out, last.code.as_bytes());
            out.extend_from_slice(b",\"seconds_ago\":");
            integer(out, last.ago.get() / 1_000_000);
            out.push(b'}');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"warnings\":[");
    for (index, warning) in store.warnings.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string(out, warning.as_bytes());
    }
    out.push(b']');
}

fn string_or_null(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => string(out, text.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}
