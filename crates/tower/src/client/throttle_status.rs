//! The throttle status of Shopify's GraphQL API, which is in the body of a response and not in its headers.

use tollgate_limiter::core::Micros;
use tollgate_limiter::core::protect::PolicyReport;

/// `extensions.cost.throttleStatus` of a response, with the cost of the query that it answers. The program that reads
/// the body passes it to [`Pacing::learn`](super::Pacing::learn).
///
/// The limit is one of points, and requests have different costs: the pace is that of requests as costly as this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleStatus {
    /// `maximumAvailable`: the points it holds.
    pub maximum_available: u64,
    /// `currentlyAvailable`: the points that are left.
    pub currently_available: u64,
    /// `restoreRate`: the points that come back each second.
    pub restore_rate: u64,
    /// `requestedQueryCost`, which is what a query must find available.
    pub query_cost: u64,
}

impl From<ThrottleStatus> for PolicyReport {
    fn from(status: ThrottleStatus) -> Self {
        let cost = status.query_cost.max(1);
        // The burst is rounded down, and so is the rate: the window is that of a whole number of queries.
        let queries = status.maximum_available / cost;
        let points = queries.saturating_mul(cost);
        let window_us = points.saturating_mul(1_000_000).div_ceil(status.restore_rate.max(1));
        Self {
            id: THROTTLE_STATUS_ID,
            quota: Some(queries),
            window: (status.restore_rate > 0).then(|| Micros::new(window_us)),
            remaining: Some((status.currently_available / cost).min(queries)),
            reset: None,
        }
    }
}

/// The name of its policy. No header has it.
const THROTTLE_STATUS_ID: u64 = u64::from_be_bytes(*b"throttle");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_become_queries_of_the_same_cost() {
        let status = ThrottleStatus {
            maximum_available: 1_000,
            currently_available: 954,
            restore_rate: 50,
            query_cost: 46,
        };
        let report = PolicyReport::from(status);
        // 21 queries of 46 points take 19.32 s to come back.
        assert_eq!((report.quota, report.remaining), (Some(21), Some(20)));
        assert_eq!(report.window, Some(Micros::from_millis(19_320)));
        let hostile = ThrottleStatus {
            maximum_available: u64::MAX,
            currently_available: u64::MAX,
            restore_rate: 0,
            query_cost: 0,
        };
        assert_eq!(PolicyReport::from(hostile).window, None);
    }
}
