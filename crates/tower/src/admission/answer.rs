//! The headers of a response, and a denial, from the decisions of limits.

use crate::admission::denial::{Denial, DenialKind};
use crate::headers::problem::{denial_detail, reason_name};
use crate::headers::{Dialects, HeaderInput, HeaderPolicy, HeaderRanges, RetryAfter, retry_after, write};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{HeaderValue, RETRY_AFTER};
use tollgate_limiter::core::rules::DenialReason;
use tollgate_limiter::core::{Cost, Micros, Retry, Timestamp};

/// The headers that responses have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseSettings {
    pub(crate) dialects: Dialects,
    pub(crate) retry_after: RetryAfter,
}

/// The decisions about one request, as its response reports them.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    /// Every limit that applies.
    pub(crate) policies: Vec<HeaderPolicy<'a>>,
    /// The limit for dialects that hold only one: with the least remaining, or the longest wait.
    pub(crate) nearest: Option<HeaderPolicy<'a>>,
    pub(crate) cost: Cost,
    pub(crate) now: Timestamp,
}

/// The denial of a request.
#[derive(Debug)]
pub(crate) struct DenialAnswer<'a> {
    /// The limit that denies with the longest wait, and the reason.
    pub(crate) reason: Option<(HeaderPolicy<'a>, DenialReason)>,
    /// The time until it would pass.
    pub(crate) retry: Retry,
    /// The extra wait that spreads callers.
    pub(crate) extra: Micros,
    pub(crate) kind: DenialKind,
    /// Nothing but the reserve of a rule denies.
    pub(crate) reserved: bool,
    pub(crate) policies: Vec<Box<str>>,
}

impl Answer<'_> {
    /// Writes the rate limit headers.
    pub(crate) fn headers(&self, dialects: Dialects, capacity: usize) -> HeaderMap {
        let Some(nearest) = self.nearest.filter(|_| dialects != Dialects::NONE) else {
            return HeaderMap::new();
        };
        let input = HeaderInput {
            policies: self.policies.iter().copied(),
            nearest,
            cost: self.cost,
            now: self.now,
        };
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        let mut ranges = HeaderRanges::default();
        write(dialects, &input, &mut buffer, &mut ranges);
        let buffer = Bytes::from(buffer);
        let mut headers = HeaderMap::with_capacity(capacity);
        for (name, range) in ranges {
            // Printable ASCII, so the conversion succeeds.
            if let Ok(value) = HeaderValue::from_maybe_shared(buffer.slice(range)) {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// The denial with its headers.
    pub(crate) fn deny(&self, settings: &ResponseSettings, denial: DenialAnswer<'_>) -> Denial {
        let mut headers = self.headers(settings.dialects, HEADERS_DENIED);
        let draw = fastrand::u32(..);
        let after = retry_after(settings.retry_after, denial.retry, denial.extra, self.now, draw);
        if let Some(value) = after.and_then(|after| HeaderValue::try_from(after).ok()) {
            headers.insert(RETRY_AFTER, value);
        }
        let retry = match denial.retry {
            Retry::After(wait) => Retry::After(Micros::new(wait.get().saturating_add(denial.extra.get()))),
            retry => retry,
        };
        Denial {
            headers,
            detail: denial.reason.map(|(policy, reason)| {
                denial_detail(policy.name, policy.quota, denial.retry, reason, denial.reserved)
            }),
            reason: denial.reason.and_then(|(_, reason)| reason_name(reason)),
            policies: denial.policies,
            ..Denial::new(denial.kind, retry)
        }
    }
}

/// The usual size of the headers: a limit or two.
const BUFFER_BYTES: usize = 256;
/// The default dialects.
pub(crate) const HEADERS: usize = 6;
/// The same, `Retry-After`, content type and `Cache-Control`.
const HEADERS_DENIED: usize = 8;
