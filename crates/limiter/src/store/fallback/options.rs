//! How a local limiter is to be, who decides, and what it has done.

use crate::store::StoreMode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a local limiter is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackOptions {
    /// How much of each limit all instances together enforce while the store is away, in millionths.
    pub share_millionths: u32,
    /// How many instances share the limits. Unless said they count each other.
    pub instances: Option<u32>,
    /// Who decides.
    pub mode: StoreMode,
    /// How long a decision may take beyond the store's answer: to take back what it took.
    pub compensation_timeout: Duration,
    /// The most bytes of keys and states here.
    pub max_memory: usize,
}

/// What a local limiter has done.
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
            mode: StoreMode::Auto,
            compensation_timeout: Duration::from_millis(5),
            max_memory: 128 << 20,
        }
    }
}

impl FallbackMetrics {
    /// Charges decided here.
    pub fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// Counters here that were brought to what the shared store had shown.
    pub fn seeded_counters(&self) -> u64 {
        self.seeded_counters.load(Ordering::Relaxed)
    }

    /// Units let pass here that were then charged to the shared store.
    pub fn repaid_units(&self) -> u64 {
        self.repaid_units.load(Ordering::Relaxed)
    }
}
