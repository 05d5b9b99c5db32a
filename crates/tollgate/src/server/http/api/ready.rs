//! Whether requests should be sent here, and what is wrong if anything is.

use super::response;
use crate::server::gate::{Gate, Phase};
use crate::server::http::json::{boolean, integer, string};
use crate::server::store::AnyStore;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use tollgate_limiter::store::redis::Redis;

/// 200 when requests should be sent here, 503 while starting or draining. A broken edit of the rules is told, and does not
/// count: those before it are in force. Nor does a store that is away: rules say what then holds.
pub(in crate::server::http) fn readiness(gate: &Gate) -> Response<Full<Bytes>> {
    let phase = gate.phase();
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"{\"status\":");
    let status = match phase {
        Phase::Starting => "starting",
        Phase::Ready => "ready",
        Phase::Draining => "draining",
    };
    string(&mut out, status.as_bytes());
    out.extend_from_slice(b",\"store\":{\"kind\":");
    match gate.store() {
        // It is inside this program: it cannot be away.
        AnyStore::Memory(store) => {
            out.extend_from_slice(b"\"memory\",\"reachable\":true,\"keys\":");
            integer(&mut out, store.usage().keys as u64);
        }
        AnyStore::Redis(store) => {
            let error = store.inner().connection_error();
            out.extend_from_slice(b"\"redis\",\"reachable\":");
            boolean(&mut out, error.is_none());
            out.extend_from_slice(b",\"error\":");
            match error {
                Some(error) => string(&mut out, error.as_bytes()),
                None => out.extend_from_slice(b"null"),
            }
            store_errors(&mut out, store.inner());
        }
    }
    out.extend_from_slice(b"},\"rules\":{\"loaded\":");
    integer(&mut out, gate.rules_loaded());
    out.extend_from_slice(b",\"error\":");
    match gate.rules_error() {
        Some(error) => string(&mut out, error.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b"},\"breaker\":");
    match gate.store() {
        // It is inside this program: nothing can come between them.
        AnyStore::Memory(_) => out.extend_from_slice(b"\"closed\",\"instances\":1"),
        AnyStore::Redis(store) => {
            string(&mut out, store.inner().breaker().name().as_bytes());
            let instances = store.instances();
            out.extend_from_slice(b",\"instances\":");
            integer(&mut out, instances.count().into());
            out.extend_from_slice(b",\"instances_from\":");
            string(&mut out, instances.origin().as_bytes());
            out.extend_from_slice(b",\"mode\":");
            string(&mut out, store.mode().name().as_bytes());
        }
    }
    out.push(b'}');
    let mut response = response::json(out);
    if phase != Phase::Ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// What some calls met while others were answered, and what was found when the store was first reached.
fn store_errors(out: &mut Vec<u8>, store: &Redis) {
    out.extend_from_slice(b",\"last_error\":");
    match store.last_error() {
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
    for (index, warning) in store.warnings().iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string(out, warning.as_bytes());
    }
    out.push(b']');
}
