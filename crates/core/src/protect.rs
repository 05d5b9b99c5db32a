//! Controllers that protect a service and its callers: they shed, queue, size and spread load.
//!
//! Pure like the rest of this crate: time and random draws are arguments, shares are parts per million, times are
//! microseconds. A proxy or a layer owns them and acts on their answers; a simulator runs the same code.
//!
//! - [`LoadShedder`]: the slow loop: drops the least important requests while the service is overloaded.
//! - [`SlotQueue`]: the fast loop: bounds requests in flight, with waiting by priority class.
//! - [`AdaptiveLimit`]: moves the number of slots with the latency of responses.
//! - [`HoldTimes`]: the capacity of the service, from the time a slot is held.
//! - [`RetrySpread`]: gives each denied caller of a shared limit its own time to return.
//! - [`Pacer`]: the client side: waits instead of being denied, and retries within a [`RetryBudget`].

pub mod adaptive_limit;
pub mod adaptive_throttle;
mod arrivals;
mod baseline;
pub mod hold_times;
pub mod pacer;
pub mod retry_budget;
pub mod retry_spread;
pub mod shedder;
pub mod slot_queue;

pub use adaptive_limit::{AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, ResponseOutcome, ResponseSample};
pub use adaptive_throttle::AdaptiveThrottle;
pub use hold_times::HoldTimes;
pub use pacer::{
    Clearance, ExchangeOutcome, LocalRejection, PaceLimit, Pacer, PacerConfig, PolicyReport, PolicySource,
    Repeatability, ResponseSummary, RetryDecision,
};
pub use retry_budget::RetryBudget;
pub use retry_spread::{RetryDenial, RetrySpread, retry_after_s, return_interval};
pub use shedder::{LoadShedder, LoadSignals, ShedSelection, ShedderConfig, ShedderConfigError, signal_ppm, work_ppm};
pub use slot_queue::{
    QueueEntry, QueuePosition, SlotDecision, SlotGrant, SlotQueue, SlotQueueConfig, SlotUsage, WaiterId,
};

/// One whole, in parts per million.
pub const WHOLE_PPM: u64 = 1_000_000;

/// The importance of a request. Declared from the most important to the least, and ordered so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PriorityClass {
    /// Never shed, and may use the reserve.
    Critical,
    /// Shed after `normal`.
    High,
    /// The class of a request that no condition matches.
    #[default]
    Normal,
    /// Shed first.
    Low,
}

impl PriorityClass {
    /// All classes, most important first.
    pub const ALL: [Self; 4] = [Self::Critical, Self::High, Self::Normal, Self::Low];

    /// Its name in settings, metrics and attributes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// The class of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Its rank: 0 is the most important.
    pub const fn rank(self) -> usize {
        self as usize
    }
}
