//! Endpoints of envoyproxy/ratelimit in plain text: `/healthcheck`, and on the debug port `/rlconfig` and `/stats`.

use crate::server::admission::Health;
use crate::server::gate::Gate;
use crate::server::telemetry::Protocol;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tollgate_limiter::core::rules::ratelimit::DescriptorLimit;

/// Responds with 200 and `OK` while requests should be sent here, else with 500. The error of a failed reload follows.
pub(crate) fn health(gate: &Gate) -> Response<Full<Bytes>> {
    let health = gate.health();
    let mut body = match health {
        Health::Serving => "OK",
        Health::Starting => "starting",
        Health::AwaitingRules => "no rules yet",
        Health::StoreUnavailable => "no connection to the store",
        Health::Draining => "draining",
    }
    .to_owned();
    if let Some(error) = gate.rules_error() {
        body.push_str("\nthe current files are rejected: ");
        body.push_str(&error);
        body.push('\n');
    }
    let mut response = text(body);
    if health != Health::Serving {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response
}

/// Lists the endpoints of the debug port.
pub(crate) fn index() -> Response<Full<Bytes>> {
    text("/rlconfig: print out the active limits\n/stats: print out the statistics\n".to_owned())
}

/// Lists the active limits, one per line.
pub(crate) fn limits(gate: &Gate) -> Response<Full<Bytes>> {
    let snapshot = gate.snapshot(Protocol::Http);
    let limits = snapshot.limiter().rules().descriptors().limits();
    text(limits.iter().map(|(path, limit)| line(path, limit)).collect())
}

fn line(path: &str, limit: &DescriptorLimit) -> String {
    let (requests, unit) = match limit.rate {
        Some((requests, unit)) => (requests, unit.name()),
        None => (0, "UNKNOWN"),
    };
    let (shadow, quota) = (limit.shadow, limit.quota);
    let native = limit.native.as_ref().map_or_else(String::new, |exact| {
        format!(", limit: {}, algorithm: {}", exact.text, exact.limit.algorithm())
    });
    format!("{path}: unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}{native}\n")
}

/// Lists the statistics, one per line, sorted by name.
pub(crate) fn stats(gate: &Gate) -> Response<Full<Bytes>> {
    let stats = &gate.metrics().ratelimit;
    let mut lines: Vec<String> = vec![
        format!("ratelimit.service.config_load_success: {}\n", gate.rules_installed()),
        format!("ratelimit.service.config_load_error: {}\n", gate.reload_failures()),
        format!(
            "ratelimit_server.ShouldRateLimit.total_requests: {}\n",
            stats.calls.all.get()
        ),
    ];
    let stat_lines = stats.text();
    lines.extend(stat_lines.lines().map(|line| format!("{line}\n")));
    lines.sort_unstable();
    text(lines.concat())
}

fn text(body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
