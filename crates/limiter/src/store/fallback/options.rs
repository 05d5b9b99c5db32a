//! How a local limiter is to be, who decides, and what it has done.

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

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// The shared store; this instance while that is away.
    #[default]
    Auto,
    /// The shared store only: without it, rules that would be decided here are closed.
    SharedOnly,
    /// This instance only, by its share, whatever rules say. The shared store is not asked.
    LocalOnly,
}

/// What a local limiter has done.
#[derive(Debug, Default)]
pub struct FallbackMetrics {
    pub(super) decided: AtomicU64,
    pub(super) seeded_counters: AtomicU64,
    pub(super) repaid_units: AtomicU64,
}

impl StoreMode {
    /// All there are, by the names that settings and answers have for them.
    pub const NAMES: [(&str, Self); 3] = [
        ("auto", Self::Auto),
        ("shared_only", Self::SharedOnly),
        ("local_only", Self::LocalOnly),
    ];

    /// As settings and answers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::SharedOnly => "shared_only",
            Self::LocalOnly => "local_only",
        }
    }
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
