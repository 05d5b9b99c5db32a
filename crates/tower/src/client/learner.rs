//! The limits that a response reports: `RateLimit` fields in all their dialects, `X-RateLimit-*`, `Retry-After`.
//!
//! All of it comes from outside. A field that cannot be parsed is ignored as a whole; the pacer ignores numbers that are
//! out of range.

mod fields;
mod retry_after;

use http::HeaderMap;
use tollgate_limiter::core::protect::PolicyReport;
use tollgate_limiter::core::{Micros, Timestamp};

/// Reads headers. It has no state: what is learned is kept by the pacer.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyLearner;

impl PolicyLearner {
    /// The policies that a response reports, at most eight. `wall` is the time by the machine's clock, for a server that
    /// sends times and no `Date`.
    ///
    /// Of several forms the one that says most counts: named policies, then `RateLimit-*`, then `X-RateLimit-*`.
    pub fn policies(headers: &HeaderMap, wall: Timestamp) -> Vec<PolicyReport> {
        let now = retry_after::server_time(headers, wall);
        let mut reports = fields::named(headers);
        for prefix in PREFIXES {
            if reports.is_empty() {
                reports = fields::numbered(headers, prefix, now);
            }
        }
        reports.truncate(REPORTS_MAX);
        reports
    }

    /// The wait that `Retry-After` asks for, as seconds or as a date.
    pub fn retry_after(headers: &HeaderMap, wall: Timestamp) -> Option<Micros> {
        retry_after::parse(headers, retry_after::server_time(headers, wall))
    }
}

/// The dialects with a header for each number.
const PREFIXES: [&str; 2] = ["ratelimit", "x-ratelimit"];
const REPORTS_MAX: usize = 8;

#[cfg(test)]
mod tests;
