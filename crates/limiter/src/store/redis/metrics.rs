//! Metrics of the shared store.

use crate::store::{CALL_BOUNDS_US, CALL_BUCKETS, CallMetrics, LastError, RedisErrorCode, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::{Micros, Timestamp};

/// Counts since a shared store was opened.
#[derive(Debug, Default)]
pub struct RedisMetrics {
    /// Calls of the script.
    pub calls: AtomicCount,
    /// Charges and other operations answered by those calls.
    pub charges: AtomicCount,
    /// Script reloads, because the server did not know it.
    pub script_loads: AtomicCount,
    /// Attempts to connect.
    pub connect_attempts: AtomicCount,
    /// Redirects followed in a cluster.
    pub redirects: AtomicCount,
    /// Charges compensated because another slot of their request denied or failed.
    pub compensated_charges: AtomicCount,
    /// Charges whose compensation failed or is unknown: their units are missing until they refill.
    pub uncompensated_charges: AtomicCount,
    /// Leases left to expire because too many were being released.
    pub unreleased_leases: AtomicCount,
    /// Peeks answered by a replica.
    pub replica_reads: AtomicCount,
    /// Peeks that a replica failed to answer, and its primary did.
    pub replica_misses: AtomicCount,
    /// Restarts of background tasks after a panic.
    pub task_restarts: AtomicCount,
    durations: [AtomicCount; CALL_BUCKETS],
    duration_us: AtomicCount,
    errors: [AtomicCount; CODES],
    /// The local time of the last of each, in microseconds; zero if there was none.
    last: [AtomicU64; CODES],
}

/// A count that only grows.
#[derive(Debug, Default)]
pub struct AtomicCount(AtomicU64);

/// Errors without a server's code; those with one follow.
const LOCAL_ERRORS: [StoreError; 9] = [
    StoreError::Unavailable,
    StoreError::Timeout,
    StoreError::ConnectionLost,
    StoreError::DeadlinePassed,
    StoreError::Overloaded,
    StoreError::BreakerOpen,
    StoreError::Skipped,
    StoreError::ForeignValue,
    StoreError::InvalidReply,
];
const CODES: usize = LOCAL_ERRORS.len() + RedisErrorCode::ALL.len();

impl RedisMetrics {
    /// The number of requests that met each error, by its code: all codes.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let server_errors = RedisErrorCode::ALL.into_iter().map(StoreError::Server);
        let all = LOCAL_ERRORS.into_iter().chain(server_errors);
        all.zip(&self.errors).map(|(error, count)| (error.name(), count.get()))
    }

    pub(super) fn snapshot(&self) -> CallMetrics {
        CallMetrics {
            calls: self.calls.get(),
            charges: self.charges.get(),
            script_loads: self.script_loads.get(),
            connect_attempts: self.connect_attempts.get(),
            redirects: self.redirects.get(),
            compensated_charges: self.compensated_charges.get(),
            uncompensated_charges: self.uncompensated_charges.get(),
            unreleased_leases: self.unreleased_leases.get(),
            replica_reads: self.replica_reads.get(),
            replica_misses: self.replica_misses.get(),
            task_restarts: self.task_restarts.get(),
            durations: std::array::from_fn(|index| self.durations.get(index).map_or(0, AtomicCount::get)),
            duration_us: self.duration_us.get(),
        }
    }

    /// Counts calls that took this long.
    pub(crate) fn record_calls(&self, duration: Micros, calls: u64) {
        let us = duration.get();
        let bound = CALL_BOUNDS_US.iter().position(|bound| us <= *bound);
        if let Some(count) = self.durations.get(bound.unwrap_or(CALL_BOUNDS_US.len())) {
            count.add(calls);
        }
        self.duration_us.add(us.saturating_mul(calls));
    }

    pub(crate) fn count(&self, error: StoreError, now: Timestamp) {
        let index = match error {
            StoreError::Server(error_code) => LOCAL_ERRORS.len() + error_code as usize,
            local => LOCAL_ERRORS
                .iter()
                .position(|other| *other == local)
                .unwrap_or_default(),
        };
        if let (Some(count), Some(last)) = (self.errors.get(index), self.last.get(index)) {
            count.add(1);
            last.store(now.as_micros(), Ordering::Relaxed);
        }
    }

    /// The last error, if there was any. An open circuit breaker is not an error of its own.
    pub(crate) fn last_error(&self, now: Timestamp) -> Option<LastError> {
        let occurrences = self.errors().zip(&self.last);
        let occurrences = occurrences.map(|((code, _), last)| (last.load(Ordering::Relaxed), code));
        let is_reportable = |(at, code): &(u64, &str)| *at > 0 && *code != StoreError::BreakerOpen.name();
        let (at, code) = occurrences.filter(is_reportable).max_by_key(|(at, _)| *at)?;
        let ago = now.since(Timestamp::from_micros(at));
        Some(LastError { code, ago })
    }
}

impl AtomicCount {
    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::Micros;

    #[test]
    fn each_error_is_counted_under_its_own_name() {
        let metrics = RedisMetrics::default();
        let server_errors = RedisErrorCode::ALL.into_iter().map(StoreError::Server);
        for (index, error) in LOCAL_ERRORS.into_iter().chain(server_errors).enumerate() {
            for _ in 0..=index {
                metrics.count(error, Timestamp::from_micros(1));
            }
        }
        let expected = (1..)
            .zip(metrics.errors())
            .all(|(count, (_, counted))| count == counted);
        assert!(expected, "{:?}", metrics.errors().collect::<Vec<_>>());
        let mut names: Vec<&str> = metrics.errors().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CODES);
    }

    #[test]
    fn the_last_error_is_told_with_its_age() {
        let metrics = RedisMetrics::default();
        let at = |s| Timestamp::from_micros(1_700_000_000_000_000) + Micros::from_secs(s);
        assert_eq!(metrics.last_error(at(0)), None);
        metrics.count(StoreError::Server(RedisErrorCode::TryAgain), at(1));
        metrics.count(StoreError::Server(RedisErrorCode::CrossSlot), at(3));
        metrics.count(StoreError::BreakerOpen, at(9));
        let last = LastError {
            code: "crossslot",
            ago: Micros::from_secs(7),
        };
        assert_eq!(metrics.last_error(at(10)), Some(last));
    }

    #[test]
    fn the_page_lists_every_code_and_no_other() {
        const PAGE: &str = include_str!("../../../../../docs/redis.md");
        let (_, table) = PAGE
            .split_once("| code | meaning |\n|---|---|\n")
            .expect("the page has the table");
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let mut listed: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let metrics = RedisMetrics::default();
        let mut known: Vec<&str> = metrics.errors().map(|(name, _)| name).collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
