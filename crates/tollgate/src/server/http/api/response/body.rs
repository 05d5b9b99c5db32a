//! Writes the JSON body of a verdict.
//!
//! By hand, straight into the buffer of the response: it is on the path of every check (`bench/src/servers`, HTTP checks).

use super::{CheckResponse, quota, status};
use crate::server::http::json::{boolean, integer, integer_or_null, string};
use hyper::StatusCode;
use std::ops::Range;
use tollgate_limiter::core::Retry;
use tollgate_limiter::core::rules::{Mode, Ruling, Verdict};
use tollgate_tower::headers::problem::{DenialProblem, ProblemKind, denial_detail, reason_name};

/// `{"allowed":true,"rule":…}`; if denied, after the members of RFC 9457.
pub(crate) fn write(out: &mut Vec<u8>, check: &CheckResponse<'_>) {
    write_with(out, check, status(check.verdict));
}

/// The same for a response of this status.
pub(super) fn write_with(out: &mut Vec<u8>, check: &CheckResponse<'_>, status: StatusCode) {
    let CheckResponse { verdict, lease, .. } = check;
    out.push(b'{');
    if !verdict.allowed {
        problem(out, verdict, status);
    }
    out.extend_from_slice(b"\"allowed\":");
    boolean(out, verdict.allowed);
    let nearest = verdict.nearest();
    out.extend_from_slice(b",\"rule\":");
    text_or_null(out, nearest.map(|ruling| ruling.name));
    let start = out.len();
    numbers(out, nearest);
    let numbers = start..out.len();
    out.extend_from_slice(b",\"delay_ms\":");
    integer(out, verdict.delay.as_millis_ceil());
    out.extend_from_slice(b",\"source\":\"");
    out.extend_from_slice(verdict.source.name().as_bytes());
    out.extend_from_slice(b"\",\"lease\":");
    text_or_null(out, *lease);
    out.extend_from_slice(b",\"limits\":[");
    for (index, ruling) in verdict.rulings.iter().enumerate() {
        out.extend_from_slice(if index == 0 { &b"{"[..] } else { b",{" });
        // The numbers of the nearest limit are copied.
        let copied = (verdict.nearest == Some(index)).then(|| numbers.clone());
        ruling_with(out, ruling, copied);
        out.push(b'}');
    }
    out.push(b']');
    if let Some(unknown) = check.unknown_domain {
        out.extend_from_slice(b",\"warning\":");
        string(out, unknown.caller_text().as_bytes());
    }
    out.push(b'}');
}

/// The members of one limit.
pub(crate) fn write_ruling(out: &mut Vec<u8>, ruling: &Ruling<'_>) {
    ruling_with(out, ruling, None);
}

/// The same; `copy_from` is the range of its numbers in `out`, if they are there already.
fn ruling_with(out: &mut Vec<u8>, ruling: &Ruling<'_>, copy_from: Option<Range<usize>>) {
    out.extend_from_slice(b"\"rule\":");
    string(out, ruling.name.as_bytes());
    out.extend_from_slice(b",\"allowed\":");
    boolean(out, ruling.is_allow());
    match copy_from {
        Some(range) => out.extend_from_within(range),
        None => numbers(out, Some(ruling)),
    }
    out.extend_from_slice(b",\"mode\":\"");
    out.extend_from_slice(ruling.mode.name().as_bytes());
    out.extend_from_slice(b"\",\"source\":\"");
    out.extend_from_slice(ruling.source.name().as_bytes());
    out.push(b'"');
    if ruling.reserved {
        out.extend_from_slice(b",\"reserved\":true");
    }
}

/// The standing of a limit. Unknown and unlimited values are null.
fn numbers(out: &mut Vec<u8>, ruling: Option<&Ruling<'_>>) {
    let decision = ruling.and_then(|ruling| ruling.decision);
    let standing = decision.as_ref().map(|decision| decision.standing());
    let limit = match (standing, ruling) {
        (Some(standing), _) => Some(standing.limit),
        // The store did not decide, but the limit is known.
        (None, Some(ruling)) => ruling.window.map(|_| quota(ruling).units()),
        (None, None) => None,
    };
    out.extend_from_slice(b",\"limit\":");
    integer_or_null(out, limit);
    out.extend_from_slice(b",\"remaining\":");
    integer_or_null(out, standing.map(|standing| standing.remaining));
    out.extend_from_slice(b",\"reset_after_ms\":");
    integer_or_null(out, standing.map(|standing| standing.reset_after.as_millis_ceil()));
    out.extend_from_slice(b",\"retry_after_ms\":");
    let retry = decision.and_then(|decision| decision.retry());
    integer_or_null(
        out,
        match retry {
            Some(Retry::After(wait)) => Some(wait.as_millis_ceil()),
            Some(Retry::Unknown | Retry::Never) | None => None,
        },
    );
}

/// The members of RFC 9457, with a trailing comma.
fn problem(out: &mut Vec<u8>, verdict: &Verdict<'_>, status: StatusCode) {
    let violated = |ruling: &&Ruling<'_>| ruling.mode == Mode::Enforce && !ruling.is_allow();
    let nearest = verdict.nearest();
    let detail = nearest.and_then(detail);
    DenialProblem {
        kind: match verdict.is_closed() {
            true => ProblemKind::ReducedCapacity,
            false => ProblemKind::QuotaExceeded,
        },
        status,
        detail: detail.as_deref(),
        reason: nearest.and_then(|ruling| reason_name(ruling.denial_reason()?)),
    }
    .write_members(out, verdict.rulings.iter().filter(violated).map(|ruling| ruling.name));
    out.push(b',');
}

/// A sentence about the limit that denied; none if the store did not decide.
fn detail(ruling: &Ruling<'_>) -> Option<String> {
    let retry = ruling.decision.as_ref()?.retry()?;
    Some(denial_detail(
        ruling.name,
        quota(ruling),
        retry,
        ruling.denial_reason()?,
        ruling.reserved,
    ))
}

fn text_or_null(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => string(out, text.as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}
