//! Writes a verdict as an HTTP response: status, headers and body.

mod body;

use crate::server::gate::RulesSnapshot;
use crate::server::headers::{self, HeaderInput, HeaderPolicy, PolicyQuota, RetryAfter, RetryCaller, retry_after};
use crate::server::http::forward::DenyStatus;
use crate::server::http::problem_details::{NO_STORE, PROBLEM_JSON};
use crate::server::http::settings::HttpSettings;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Response, StatusCode};
use tollgate_limiter::CheckResult;
use tollgate_limiter::core::rules::{Attempt, Mode, Ruling, UnknownDomain, Verdict};
use tollgate_limiter::core::{Cost, Micros, Retry, Timestamp};

pub(in crate::server::http) use body::{write as write_body, write_ruling};

/// A verdict and the rest of a response to a check.
#[derive(Clone, Copy, Debug)]
pub(in crate::server::http) struct CheckResponse<'a> {
    pub(in crate::server::http) verdict: &'a Verdict<'a>,
    /// The lease on concurrency limits.
    pub(in crate::server::http) lease: Option<&'a str>,
    /// The cost of the attempt.
    pub(in crate::server::http) cost: Cost,
    /// The time of the decision, by the store's clock.
    pub(in crate::server::http) now: Timestamp,
    /// The reason no rule matched, if the domain has none.
    pub(in crate::server::http) unknown_domain: Option<&'a UnknownDomain>,
    /// The extra wait of `Retry-After`.
    pub(in crate::server::http) extra: Micros,
}

impl<'a> CheckResponse<'a> {
    /// The response to a check that has this result.
    pub(in crate::server::http) fn new(
        attempt: &Attempt<'_>,
        result: &'a CheckResult<'a>,
        unknown_domain: Option<&'a UnknownDomain>,
    ) -> Self {
        Self {
            verdict: &result.verdict,
            lease: result.lease.as_deref(),
            cost: attempt.cost,
            now: result.now.unwrap_or(Timestamp::EPOCH),
            unknown_domain,
            extra: Micros::ZERO,
        }
    }

    /// Spreads the return of a denied caller, if the rule that denies or the settings say so.
    pub(in crate::server::http) fn spread(
        &mut self,
        settings: RetryAfter,
        snapshot: &RulesSnapshot<'_>,
        attempt: &Attempt<'_>,
        caller: RetryCaller,
    ) {
        if !self.verdict.allowed
            && let Some((ruling, _)) = longest_wait(self.verdict)
            && ruling.rule.spreads_retries(settings.spread)
        {
            self.extra = snapshot.spread_retry(attempt, ruling, caller, settings.spread_max);
        }
    }
}

/// The response to a check: 200, 429 if denied, 503 if the store is unavailable and a rule has `on_store_failure: closed`.
pub(in crate::server::http) fn check_response(
    settings: &HttpSettings,
    check: &CheckResponse<'_>,
) -> Response<Full<Bytes>> {
    with_status(settings, check, status(check.verdict))
}

/// The response to a gateway: 200 without a body if allowed, with the lease as a header; if denied, as for a check, or 403.
pub(in crate::server::http) fn gateway_response(
    settings: &HttpSettings,
    check: &CheckResponse<'_>,
    deny_status: DenyStatus,
) -> Response<Full<Bytes>> {
    let status = match (status(check.verdict), deny_status) {
        (StatusCode::OK, _) => StatusCode::OK,
        (_, DenyStatus::Forbidden) => StatusCode::FORBIDDEN,
        (status, DenyStatus::Plain) => status,
    };
    let mut response = with_status(settings, check, status);
    if status == StatusCode::OK {
        *response.body_mut() = Full::default();
        response.headers_mut().remove(CONTENT_TYPE);
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        // Base64, so the conversion succeeds.
        if let Some(lease) = check.lease.and_then(|lease| HeaderValue::try_from(lease).ok()) {
            response.headers_mut().insert(LEASE, lease);
        }
    }
    response
}

/// The header with the lease of a forwarded request, for the service to release.
const LEASE: HeaderName = HeaderName::from_static("tollgate-lease");

fn with_status(settings: &HttpSettings, check: &CheckResponse<'_>, status: StatusCode) -> Response<Full<Bytes>> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut ranges = headers::HeaderRanges::default();
    rate_headers(settings, check, &mut buffer, &mut ranges);
    let body_at = buffer.len();
    body::write_with(&mut buffer, check, status);
    let buffer = Bytes::from(buffer);
    let mut fields = HeaderMap::with_capacity(if status == StatusCode::OK {
        HEADERS
    } else {
        HEADERS_DENIED
    });
    for (name, range) in ranges {
        // Our values are printable ASCII, so the conversion succeeds.
        if let Ok(value) = HeaderValue::from_maybe_shared(buffer.slice(range)) {
            fields.insert(name, value);
        }
    }
    if status == StatusCode::OK {
        fields.insert(CONTENT_TYPE, JSON);
    } else {
        fields.insert(CONTENT_TYPE, PROBLEM_JSON);
        fields.insert(CACHE_CONTROL, NO_STORE);
        if let Some(after) = longest_wait(check.verdict)
            .and_then(|(_, wait)| retry_after(settings.retry_after, wait, check.extra, check.now, fastrand::u32(..)))
            && let Ok(value) = HeaderValue::try_from(after)
        {
            fields.insert(RETRY_AFTER, value);
        }
    }
    let mut response = Response::new(Full::new(buffer.slice(body_at..)));
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

/// A response of JSON without further headers.
pub(in crate::server::http) fn json(body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn status(verdict: &Verdict<'_>) -> StatusCode {
    match verdict {
        verdict if verdict.allowed => StatusCode::OK,
        verdict if verdict.is_closed() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

fn rate_headers(
    settings: &HttpSettings,
    check: &CheckResponse<'_>,
    buffer: &mut Vec<u8>,
    ranges: &mut headers::HeaderRanges,
) {
    let rulings = &check.verdict.rulings;
    if let Some(nearest) = check.verdict.nearest().and_then(HeaderPolicy::from_ruling) {
        let input = HeaderInput {
            policies: rulings.iter().filter_map(HeaderPolicy::from_ruling),
            nearest,
            cost: check.cost,
            now: check.now,
        };
        headers::write(settings.headers, &input, buffer, ranges);
    }
}

fn quota(ruling: &Ruling<'_>) -> PolicyQuota {
    PolicyQuota::from_limit(ruling.window.map(|window| window.limit()))
}

/// The violated limit with the longest wait. A limit without a known wait, such as concurrency, does not shorten that of
/// another; a limit that can never allow the cost has none.
fn longest_wait<'a>(verdict: &'a Verdict<'_>) -> Option<(&'a Ruling<'a>, Retry)> {
    let violated = verdict
        .rulings
        .iter()
        .filter(|ruling| ruling.mode == Mode::Enforce && !ruling.is_allow());
    let waits = violated.filter_map(|ruling| Some((ruling, wait(ruling)?)));
    let order = |(_, retry): &(&Ruling<'_>, Retry)| match retry {
        Retry::Unknown => (0, Micros::ZERO),
        Retry::After(wait) => (1, *wait),
        Retry::Never => (2, Micros::ZERO),
    };
    waits.max_by_key(order)
}

/// The time until a denied attempt would pass; unknown if the store could not decide.
fn wait(ruling: &Ruling<'_>) -> Option<Retry> {
    match &ruling.decision {
        Some(decision) => decision.retry(),
        None => Some(Retry::Unknown),
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The usual size of headers and body: a limit or two.
const BUFFER_BYTES: usize = 1024;
/// Content type and the default dialects. A map of six fits the small size classes of the allocator, one of seven does not.
const HEADERS: usize = 6;
/// The same, `Retry-After` and `Cache-Control`.
const HEADERS_DENIED: usize = 8;
