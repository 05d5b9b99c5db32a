//! The status of a store: the one snapshot that metrics, `/readyz` and the log read.

use tollgate_core::{Micros, StoreMode};

/// The status of a store at one instant. Made on request and never on a request's path, so it may allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The kind of store.
    pub kind: StoreKind,
    /// Live keys, where the store can count them.
    pub keys: Option<u64>,
    /// The error that keeps the store from being reached. `None` while it can be reached.
    pub connection_error: Option<String>,
    /// The last error any call met, also one that met only some of them.
    pub last_error: Option<LastError>,
    /// Findings about the servers an operator should know of.
    pub warnings: Vec<String>,
    /// The circuit breaker.
    pub breaker: BreakerStatus,
    /// The round trip to the store, compared with its deadline. `None` before it is known, and for a store in this process.
    pub round_trip: Option<RoundTripStatus>,
    /// Requests that met an error, by its code: every code there is.
    pub errors: Vec<(&'static str, u64)>,
    /// Counts of calls to a server. `None` for a store in this process.
    pub calls: Option<CallMetrics>,
    /// The fallback around the store, if there is one.
    pub fallback: Option<FallbackStatus>,
    /// The servers of the store; empty for a store in this process.
    pub servers: Vec<ServerStatus>,
}

/// One server of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its address; empty for a socket of this machine, or while sentinels have not named it.
    pub address: String,
    /// True if it is only read.
    pub is_replica: bool,
    /// The state of its circuit breaker.
    pub breaker: BreakerState,
    /// The reason why no call is made to it; `None` while calls are made.
    pub error: Option<String>,
    /// The median of recent round trips, once it is known.
    pub round_trip: Option<Micros>,
}

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    Memory,
    /// On Redis or Valkey.
    Redis,
}

/// The last error of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastError {
    /// Its code, as [`StoreError::name`](super::StoreError::name) returns it.
    pub code: &'static str,
    /// Time since it occurred.
    pub ago: Micros,
}

/// The circuit breaker of a store; of several servers, the one that lets least through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerStatus {
    /// Its state.
    pub state: BreakerState,
    /// State changes since the store was opened, over all servers.
    pub transitions: u64,
}

/// The round trip to a store, and the deadline of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTripStatus {
    /// The median of recent round trips; of several servers, the longest.
    pub median: Micros,
    /// The deadline of a call.
    pub deadline: Micros,
    /// The deadline to set, if the current one is too short for this store.
    pub deadline_needed: Option<Micros>,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakerState {
    /// Every call is made.
    Closed = 0,
    /// A probe was answered, or one request tries the server.
    HalfOpen = 1,
    /// No call is made.
    Open = 2,
}

/// Counts of calls to a server since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallMetrics {
    /// Script calls.
    pub calls: u64,
    /// Charges settled by those calls.
    pub charges: u64,
    /// Script reloads after `NOSCRIPT` or a missing function.
    pub script_loads: u64,
    /// Attempts to connect.
    pub connect_attempts: u64,
    /// Calls that a cluster node redirected to another.
    pub redirects: u64,
    /// Charges reversed because another charge of their request was denied or failed.
    pub compensated_charges: u64,
    /// Charges whose reversal failed or is unknown.
    pub uncompensated_charges: u64,
    /// Leases left to expire because too many were being released.
    pub unreleased_leases: u64,
    /// Peeks answered by a replica.
    pub replica_reads: u64,
    /// Peeks a replica did not answer, sent to its primary.
    pub replica_misses: u64,
    /// Restarts of background tasks after a panic.
    pub task_restarts: u64,
    /// Script calls by their time, up to each of [`CALL_BOUNDS_US`] and above the last. Several calls in one write have the same time, and
    /// one without a reply takes until its deadline.
    pub durations: [u64; CALL_BUCKETS],
    /// The sum of these times, in microseconds.
    pub duration_us: u64,
}

/// The upper bounds of call times, in microseconds.
pub const CALL_BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000,
];

/// Buckets of call times.
pub const CALL_BUCKETS: usize = CALL_BOUNDS_US.len() + 1;

/// The fallback around a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackStatus {
    /// The part of the system that decides.
    pub mode: StoreMode,
    /// The number of instances that share the limits.
    pub instances: InstanceCount,
    /// Charges decided by this instance.
    pub decided_charges: u64,
    /// Local counters seeded from the last shared state.
    pub seeded_counters: u64,
    /// Units allowed by this instance and charged to the store afterwards.
    pub repaid_units: u64,
}

/// The number of instances that share the limits, with its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceCount {
    /// Set by the operator.
    Configured(u32),
    /// Counted by heartbeats in the store.
    Heartbeats(u32),
    /// Not known: one is assumed.
    Assumed,
}

impl StoreStatus {
    /// A store in this process, which is always reachable.
    pub fn in_process(keys: u64) -> Self {
        Self {
            kind: StoreKind::Memory,
            keys: Some(keys),
            connection_error: None,
            last_error: None,
            warnings: Vec::new(),
            breaker: BreakerStatus {
                state: BreakerState::Closed,
                transitions: 0,
            },
            round_trip: None,
            errors: vec![(super::StoreError::Unavailable.name(), 0)],
            calls: None,
            fallback: None,
            servers: Vec::new(),
        }
    }

    /// True while the store can be reached.
    pub const fn is_connected(&self) -> bool {
        self.connection_error.is_none()
    }

    /// The number of instances that share the limits.
    pub fn instances(&self) -> u32 {
        self.fallback.map_or(1, |fallback| fallback.instances.count())
    }
}

impl RoundTripStatus {
    /// The warning about a deadline that is too short, with the number to set.
    pub fn warning(&self) -> Option<String> {
        let needed = self.deadline_needed?;
        let effect = match self.median >= self.deadline {
            true => "calls time out",
            false => "calls that wait for another one time out",
        };
        Some(format!(
            "a round trip to the store takes {}, and `store.deadline` is {}: {effect} and are decided by each rule's \
             on_store_failure; set `store.deadline` to {} or more",
            milliseconds(self.median),
            milliseconds(self.deadline),
            milliseconds(needed),
        ))
    }
}

impl StoreKind {
    /// The name in settings and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
        }
    }
}

impl BreakerState {
    /// The name in answers and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

impl InstanceCount {
    /// The number, at least 1.
    pub const fn count(self) -> u32 {
        match self {
            Self::Configured(count) | Self::Heartbeats(count) => count,
            Self::Assumed => 1,
        }
    }

    /// Its origin, as answers name it.
    pub const fn origin(self) -> &'static str {
        match self {
            Self::Configured(_) => "settings",
            Self::Heartbeats(_) => "heartbeats",
            Self::Assumed => "assumed",
        }
    }
}

/// A duration as settings write it, with one digit after the point where it is short.
fn milliseconds(duration: Micros) -> String {
    let tenths = duration.get().div_ceil(100);
    match tenths % 10 {
        0 => format!("{}ms", tenths / 10),
        tenth => format!("{}.{tenth}ms", tenths / 10),
    }
}
