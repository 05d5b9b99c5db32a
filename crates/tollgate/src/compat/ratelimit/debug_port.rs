//! What is known from envoyproxy/ratelimit: `/healthcheck`, and on the debug port `/rlconfig` and `/stats`, as plain text.

use crate::server::gate::{Gate, Phase};
use crate::server::telemetry::Protocol;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tollgate_limiter::core::rules::ratelimit::DescriptorLimit;

/// 200 and `OK` while requests should be sent here, else 500. Why changed files are not in force stands below it.
pub(crate) fn health(gate: &Gate) -> Response<Full<Bytes>> {
    let is_healthy = gate.phase() == Phase::Ready && !gate.is_awaiting_rules();
    let mut body = match (is_healthy, gate.phase()) {
        (true, _) => "OK",
        (false, Phase::Starting) => "starting",
        (false, Phase::Draining) => "draining",
        (false, Phase::Ready) => "no rules yet",
    }
    .to_owned();
    if let Some(error) = gate.rules_error() {
        body.push_str("\nthe files as they are now are refused: ");
        body.push_str(&error);
        body.push('\n');
    }
    let mut response = text(body);
    if !is_healthy {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response
}

/// What the debug port has.
pub(crate) fn index() -> Response<Full<Bytes>> {
    text("/rlconfig: print out the limits of the files in force\n/stats: print out what was counted\n".to_owned())
}

/// Each limit in force, a line each.
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

/// What was counted, a line each, by name.
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
