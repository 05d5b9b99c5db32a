//! The number of instances that share the limits: configured, or counted by heartbeats.

use crate::lease;
use crate::store::InstanceCount;
use crate::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::Mutex;
use tollgate_core::{LeaseId, Micros, Timestamp};

/// The number of instances that share the limits.
#[derive(Debug)]
pub(super) struct Instances {
    configured: Option<u32>,
    /// The largest recent count; zero before the first one.
    max: AtomicU32,
    counts: Lock<Counts>,
    /// The lease of this instance.
    pub(super) lease: LeaseId,
    /// True once this instance sends no more heartbeats.
    pub(super) deregistered: AtomicBool,
    /// Held during a heartbeat and during deregistration.
    pub(super) heartbeat_lock: Mutex<()>,
}

/// The largest count of each of the last minutes with a count.
#[derive(Debug, Default)]
struct Counts {
    minutes: [(u64, u32); MINUTES],
}

/// The largest count holds this long: an instance that is gone may only be cut off, and still serve.
const MINUTES: usize = 10;
const MINUTE: Micros = Micros::from_secs(60);

impl Instances {
    pub(super) fn new(configured: Option<u32>) -> Self {
        Self {
            configured: configured.map(|configured| configured.max(1)),
            max: AtomicU32::new(0),
            counts: Lock::new(Counts::default()),
            lease: lease::random_id(),
            deregistered: AtomicBool::new(false),
            heartbeat_lock: Mutex::default(),
        }
    }

    /// The number and its origin.
    #[inline]
    pub(super) fn count(&self) -> InstanceCount {
        match (self.configured, self.max.load(Ordering::Relaxed)) {
            (Some(configured), _) => InstanceCount::Configured(configured),
            (None, 0) => InstanceCount::Assumed,
            (None, max) => InstanceCount::Heartbeats(max),
        }
    }

    /// Records a count.
    pub(super) fn record_count(&self, count: u32, now: Timestamp) {
        let max = self.counts.lock().record(count.max(1), now);
        self.max.store(max, Ordering::Relaxed);
    }
}

impl Counts {
    /// Records a count, and returns the largest of the last ten minutes.
    fn record(&mut self, count: u32, now: Timestamp) -> u32 {
        let minute = now.as_micros() / MINUTE.get();
        let index = (minute % MINUTES as u64) as usize;
        if let Some(slot) = self.minutes.get_mut(index) {
            *slot = match *slot {
                (of, max) if of == minute => (minute, max.max(count)),
                _ => (minute, count),
            };
        }
        let recent = self.minutes.iter().filter(|(of, _)| of + MINUTES as u64 > minute);
        recent.map(|(_, max)| *max).max().unwrap_or(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Micros::from_secs(s)
    }

    #[test]
    fn the_largest_number_counts_for_ten_minutes() {
        let instances = Instances::new(None);
        assert_eq!(instances.count(), InstanceCount::Assumed);
        instances.record_count(4, at(0));
        instances.record_count(3, at(30));
        instances.record_count(2, at(500));
        assert_eq!(instances.count(), InstanceCount::Heartbeats(4));
        instances.record_count(2, at(640));
        assert_eq!(instances.count(), InstanceCount::Heartbeats(2));
        // Without the store nothing is counted, and the last count stays.
        instances.record_count(5, at(50_000));
        assert_eq!(instances.count(), InstanceCount::Heartbeats(5));
    }

    #[test]
    fn what_is_said_is_believed() {
        let instances = Instances::new(Some(0));
        instances.record_count(9, at(0));
        assert_eq!(instances.count(), InstanceCount::Configured(1));
    }
}
