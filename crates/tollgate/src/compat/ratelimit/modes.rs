//! How requests for descriptors of envoyproxy/ratelimit's files are answered, as its users know it: headers under its names,
//! and looking without refusing.

use super::CallCounts;
use crate::server::rls::rate_limit_response::{Code, DescriptorStatus};
use crate::server::rls::{HeaderValue, RateLimitResponse};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tollgate_limiter::{CombinedVerdict, ItemVerdict};

/// The modes in force.
#[derive(Debug, Default)]
pub struct RatelimitCompat {
    modes: ArcSwap<CompatModes>,
}

/// What can be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompatModes {
    /// Requests pass whatever their limits say; each status tells what its own said.
    pub shadow: bool,
    /// The headers that answers carry; none: none.
    pub headers: Option<HeaderNames>,
    /// A server that began without rules is not healthy before it has some.
    pub healthy_with_rules: bool,
    /// Metrics are told under the names of envoyproxy/ratelimit too.
    pub prometheus_names: bool,
    /// Over HTTP and JSON, what nobody can judge is 400, as it is there.
    pub json_errors_as_400: bool,
}

/// The names of the three headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// What passes in a window.
    pub limit: String,
    /// What is left of it.
    pub remaining: String,
    /// Seconds until the next window.
    pub reset: String,
}

impl RatelimitCompat {
    /// The modes in force.
    pub fn modes(&self) -> Guard<Arc<CompatModes>> {
        self.modes.load()
    }

    /// Takes others.
    pub fn set_modes(&self, modes: CompatModes) {
        self.modes.store(Arc::new(modes));
    }

    /// Makes an answer what the modes say, and counts what passes only by them.
    pub(crate) fn apply(&self, response: &mut RateLimitResponse, combined: &CombinedVerdict<'_>, calls: &CallCounts) {
        let modes = self.modes();
        if let Some(names) = &modes.headers {
            response.response_headers_to_add = names.response_headers(&response.statuses, &combined.items);
        }
        if modes.shadow && response.overall_code() == Code::OverLimit {
            response.set_overall_code(Code::Ok);
            calls.shadowed.add(1);
        }
    }
}

impl HeaderNames {
    /// The headers of an answer. They speak of the last limit that refuses by itself, else of the one with the least left,
    /// the first of several.
    fn response_headers(&self, statuses: &[DescriptorStatus], verdicts: &[ItemVerdict<'_>]) -> Vec<HeaderValue> {
        let is_over_limit = |(status, verdict): &(&DescriptorStatus, &ItemVerdict<'_>)| {
            status.code() == Code::OverLimit && !verdict.is_quota() && status.current_limit.is_some()
        };
        let over_limit = statuses
            .iter()
            .zip(verdicts)
            .rfind(is_over_limit)
            .map(|(status, _)| status);
        let limited = statuses.iter().filter(|status| status.current_limit.is_some());
        let Some(status) = over_limit.or_else(|| limited.min_by_key(|status| status.limit_remaining)) else {
            return Vec::new();
        };
        let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        let reset = status.duration_until_reset.map_or(0, |until| until.seconds);
        let header = |key: &String, value: String| HeaderValue {
            key: key.clone(),
            value,
        };
        vec![
            header(&self.limit, limit.to_string()),
            header(&self.remaining, status.limit_remaining.to_string()),
            header(&self.reset, reset.to_string()),
        ]
    }
}

impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        }
    }
}
