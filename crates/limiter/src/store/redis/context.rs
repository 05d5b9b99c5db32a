//! State and settings that all servers of one store share, and the deadline of a call.

use super::key::{RedisKey, RedisKeyspace};
use super::metrics::RedisMetrics;
use super::near_cache::NearCache;
use crate::clock::Clock;
use crate::store::StoreError;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollgate_core::{Micros, Timestamp};

/// The clock that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The server's.
    Server,
    /// That of the calling machine. If it is further than the tolerance from the server's clock, the server's decides.
    Client {
        /// The largest accepted difference.
        skew_tolerance: Micros,
    },
}

/// Use of a function library in place of `EVALSHA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Functions {
    /// If the server has functions and allows one to be loaded.
    Auto,
    /// Always; a server without them counts as unreachable.
    On,
    /// Never.
    Off,
}

/// The server that answers [peeks](crate::store::Store::peek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// The primary: the standing is current.
    Primary,
    /// A replica, if one answers within half the deadline; its standing may lag. Otherwise the primary.
    Replica,
}

/// Thresholds of the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failed calls that open it.
    pub failures: u32,
    /// The time within which they must fall.
    pub within: Micros,
    /// The time it stays open.
    pub open_for: OpenFor,
}

/// The time a circuit breaker stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFor {
    /// Until background probes succeed. No request is used as a trial.
    Auto,
    /// This long; then one request is the trial.
    Fixed(Micros),
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            within: Micros::from_secs(10),
            open_for: OpenFor::Auto,
        }
    }
}

/// State and settings that all servers of a store share.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) near_cache: Option<NearCache>,
    pub(crate) keyspace: RedisKeyspace,
    pub(crate) metrics: Arc<RedisMetrics>,
    pub(crate) runtime: Handle,
    pub(crate) clock: Clock,
    pub(crate) clock_source: ClockSource,
    pub(crate) functions: Functions,
    pub(crate) read_from: ReadFrom,
    pub(crate) slack: Micros,
    /// The longest time of one call.
    pub(crate) deadline: Duration,
    pub(crate) breaker_config: BreakerConfig,
    /// Leases that the reaper is releasing.
    pub(crate) orphaned_leases: AtomicUsize,
}

/// The latest instant to finish a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// By the local clock.
    pub(crate) local: Timestamp,
    /// For timers.
    pub(crate) instant: Instant,
}

impl Deadline {
    /// The same deadline, `duration` earlier.
    pub(crate) fn earlier_by(self, duration: Duration) -> Self {
        Self {
            local: self.local - Micros::from(duration),
            instant: self.instant - duration,
        }
    }
}

impl StoreContext {
    /// The deadline of one call that starts now.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline_of(1)
    }

    /// The deadline of a pipeline of `calls` calls that starts now: the server runs them one after the other.
    pub(crate) fn deadline_of(&self, calls: u32) -> Deadline {
        let duration = self.deadline.saturating_mul(calls);
        Deadline {
            local: self.clock.now() + Micros::from(duration),
            instant: Instant::now() + duration,
        }
    }

    /// Counts an error that a request met.
    pub(crate) fn count_error(&self, error: StoreError) {
        self.metrics.count(error, self.clock.now());
    }

    /// Removes a key from the near cache, after cost was returned to it.
    pub(crate) fn invalidate(&self, key: RedisKey) {
        if let Some(near_cache) = &self.near_cache {
            near_cache.remove(key);
        }
    }
}

/// The drift of two clocks that run within one part in 5,000 of each other.
const DRIFT_DIVISOR: u64 = 5_000;

/// The most microseconds that two clocks may drift apart in this time.
pub(crate) fn clock_drift(elapsed: Micros) -> u64 {
    elapsed.get() / DRIFT_DIVISOR + 1
}
