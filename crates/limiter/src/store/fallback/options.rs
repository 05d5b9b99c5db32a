//! Options and counts of the fallback.

use crate::store::StoreMode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The options of a fallback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackOptions {
    /// The part of each limit that all instances enforce in total without the store, in millionths.
    pub share_millionths: u32,
    /// The number of instances that share the limits. By default they count each other.
    pub instances: Option<u32>,
    /// The time from which the others count this instance.
    pub registration: Registration,
    /// The part of the system that decides.
    pub mode: StoreMode,
    /// The time a decision may wait for its compensation, beyond the store's reply.
    pub compensation_timeout: Duration,
    /// The largest number of bytes of keys and states.
    pub max_memory: usize,
}

/// The time from which an instance is counted by the others that share its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// As soon as it opens its store.
    Immediate,
    /// When it calls [`Fallback::register`](super::Fallback::register), because it may not start yet.
    Deferred,
}

/// The counts of a fallback.
#[derive(Debug, Default)]
pub struct FallbackMetrics {
    pub(super) decided: AtomicU64,
    pub(super) seeded_counters: AtomicU64,
    pub(super) repaid_units: AtomicU64,
}

impl Default for FallbackOptions {
    fn default() -> Self {
        Self {
            share_millionths: 800_000,
            instances: None,
            registration: Registration::Immediate,
            mode: StoreMode::Auto,
            compensation_timeout: Duration::from_millis(5),
            max_memory: 128 << 20,
        }
    }
}

impl FallbackMetrics {
    /// Charges decided by this instance.
    pub fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// Local counters seeded from the last shared state.
    pub fn seeded_counters(&self) -> u64 {
        self.seeded_counters.load(Ordering::Relaxed)
    }

    /// Units allowed here and charged to the shared store afterwards.
    pub fn repaid_units(&self) -> u64 {
        self.repaid_units.load(Ordering::Relaxed)
    }
}
