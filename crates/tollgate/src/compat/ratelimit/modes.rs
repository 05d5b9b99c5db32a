//! The answer modes of envoyproxy/ratelimit: response headers under its names, the global shadow mode, health and errors as
//! it reports them.

use super::CallOutcome;
use crate::server::rls::rate_limit_response::{Code, DescriptorStatus};
use crate::server::rls::{HeaderValue, RateLimitResponse};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tollgate_limiter::{CombinedVerdict, ItemVerdict};

/// The active modes.
#[derive(Debug, Default)]
pub struct RatelimitCompat {
    modes: ArcSwap<CompatModes>,
}

/// The modes that settings can change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompatModes {
    /// Allows every request; each descriptor status still carries its own code.
    pub shadow: bool,
    /// Response headers; none if absent.
    pub headers: Option<HeaderNames>,
    /// A server that starts without rules is unhealthy until they are installed.
    pub healthy_with_rules: bool,
    /// A server is unhealthy while its shared store is unavailable.
    pub healthy_with_store: bool,
    /// Metrics are also exported under the names of envoyproxy/ratelimit.
    pub prometheus_names: bool,
    /// `POST /json` answers a request without a verdict with 400, as envoyproxy/ratelimit does.
    pub json_errors_as_400: bool,
}

/// The names of the three headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// The limit of the window.
    pub limit: String,
    /// The remaining hits.
    pub remaining: String,
    /// Seconds until the next window.
    pub reset: String,
}

impl RatelimitCompat {
    /// The active modes.
    pub fn modes(&self) -> Guard<Arc<CompatModes>> {
        self.modes.load()
    }

    /// Replaces the modes.
    pub fn set_modes(&self, modes: CompatModes) {
        self.modes.store(Arc::new(modes));
    }

    /// Applies the modes to a response, and returns whether the global shadow mode changed its code.
    pub(crate) fn apply(&self, response: &mut RateLimitResponse, combined: &CombinedVerdict<'_>) -> CallOutcome {
        let modes = self.modes();
        if let Some(names) = &modes.headers {
            response.response_headers_to_add = names.response_headers(&response.statuses, &combined.items);
        }
        if modes.shadow && response.overall_code() == Code::OverLimit {
            response.set_overall_code(Code::Ok);
            return CallOutcome::Shadowed;
        }
        CallOutcome::Decided
    }
}

impl HeaderNames {
    /// Returns the headers of a response: those of the last limit that denies by itself, else of the one with the least
    /// remaining, the first on a tie.
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
