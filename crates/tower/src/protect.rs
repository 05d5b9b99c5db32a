//! Protection of the service: a bound on requests in flight, and load shedding, both by priority class.
//!
//! The decisions are those of [`tollgate_limiter::core::protect`]; here are their lock, their clock and the wakers of those
//! who wait.

mod gate;
mod waiter;

pub use self::gate::ProtectionStatus;
pub(crate) use self::gate::{ProtectionGate, SlotGuard};
pub(crate) use self::waiter::SlotWaiter;
pub use tollgate_limiter::core::protect::{PriorityClass, ShedderConfig};
pub use tollgate_limiter::core::quantity::Share;

use crate::extract::KeyExtractor;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The numbers of a protection.
///
/// ```
/// use std::time::Duration;
/// use tollgate_tower::protect::{Protection, Share};
///
/// let protection = Protection::in_flight(200)
///     .reserve(Share::percent(20))
///     .queue(100)
///     .max_wait(Duration::from_millis(50));
/// # let _ = protection;
/// ```
#[derive(Clone)]
pub struct Protection {
    pub(crate) limit: u64,
    pub(crate) reserve: Share,
    pub(crate) queue_max: usize,
    pub(crate) wait_max: Duration,
    pub(crate) shedder: Option<ShedderConfig>,
    pub(crate) caller: Option<Arc<dyn KeyExtractor>>,
}

impl Protection {
    /// At most this many requests in flight, from the call of the service inside to the end of the response's body. Up to
    /// 100 more wait for up to 50 ms, and the least important are shed while the service is overloaded.
    pub fn in_flight(requests: u64) -> Self {
        Self {
            limit: requests.max(1),
            reserve: Share::NONE,
            queue_max: 100,
            wait_max: Duration::from_millis(50),
            shedder: Some(ShedderConfig::default()),
            caller: None,
        }
    }

    /// The share that only critical requests may use.
    pub const fn reserve(mut self, share: Share) -> Self {
        self.reserve = share;
        self
    }

    /// The most requests that wait.
    pub const fn queue(mut self, requests: usize) -> Self {
        self.queue_max = requests;
        self
    }

    /// The longest time a request waits.
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.wait_max = wait;
        self
    }

    /// The numbers of the load shedder. None: only the bound protects.
    pub const fn shed(mut self, shedder: Option<ShedderConfig>) -> Self {
        self.shedder = shedder;
        self
    }

    /// The caller of a request: one is served or shed as a whole. By default the peer's address.
    pub fn caller(mut self, caller: impl KeyExtractor) -> Self {
        self.caller = Some(Arc::new(caller));
        self
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection")
            .field("limit", &self.limit)
            .field("reserve", &self.reserve)
            .field("queue_max", &self.queue_max)
            .field("wait_max", &self.wait_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
