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
    /// True once this instance sends heartbeats.
    pub(super) registered: AtomicBool,
    /// True once this instance sends no more heartbeats.
    pub(super) deregistered: AtomicBool,
    /// Held during a heartbeat and during deregistration.
    pub(super) heartbeat_lock: Mutex<()>,
}

/// The instances that the store knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// Leases held.
    pub(super) leases: u32,
    /// Instances that stopped and said so, in the current window of departures.
    pub(super) departures: u32,
}

/// The largest count of each of the last minutes with a count.
#[derive(Debug, Default)]
struct Counts {
    /// With the minute, and with the departures that were known then added.
    minutes: [(u64, u64); MINUTES],
    /// Departures in the last reading.
    last_departures: Option<u32>,
    /// All departures since the first reading.
    departures: u64,
}

/// The largest count holds this long, less the instances that said they stop: one that is merely gone may be cut off, and
/// still serve.
const MINUTES: usize = 10;
const MINUTE: Micros = Micros::from_secs(60);

impl Instances {
    pub(super) fn new(configured: Option<u32>) -> Self {
        Self {
            configured: configured.map(|configured| configured.max(1)),
            max: AtomicU32::new(0),
            counts: Lock::new(Counts::default()),
            lease: lease::random_id(),
            registered: AtomicBool::new(false),
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

    /// True if the number is configured and nothing is counted.
    pub(super) const fn is_configured(&self) -> bool {
        self.configured.is_some()
    }

    /// True once a heartbeat has counted this instance and the others.
    pub(super) fn has_counted(&self) -> bool {
        self.max.load(Ordering::Relaxed) > 0
    }

    /// Records what a heartbeat read.
    pub(super) fn record(&self, reading: Reading, now: Timestamp) {
        let max = self.counts.lock().record(reading, now);
        self.max.store(max, Ordering::Relaxed);
    }
}

impl Counts {
    /// Records a reading, and returns the largest count of the last ten minutes, less the departures since then.
    fn record(&mut self, reading: Reading, now: Timestamp) -> u32 {
        let count = reading.leases.max(1);
        self.departures += u64::from(match self.last_departures.replace(reading.departures) {
            Some(last) if reading.departures >= last => reading.departures - last,
            // A new window has begun, or a failover lost a write. Departures that were counted before must not count again:
            // too few would be counted, and their shares too large.
            Some(_) | None => 0,
        });
        let level = u64::from(count) + self.departures;
        let minute = now.as_micros() / MINUTE.get();
        let index = (minute % MINUTES as u64) as usize;
        if let Some(slot) = self.minutes.get_mut(index) {
            *slot = match *slot {
                (of, max) if of == minute => (minute, max.max(level)),
                _ => (minute, level),
            };
        }
        let recent = self.minutes.iter().filter(|(of, _)| of + MINUTES as u64 > minute);
        let max = recent.map(|(_, max)| *max).fold(level, u64::max);
        u32::try_from(max - self.departures).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Micros::from_secs(s)
    }

    fn record(instances: &Instances, leases: u32, departures: u32, s: u64) -> u32 {
        instances.record(Reading { leases, departures }, at(s));
        instances.count().count()
    }

    #[test]
    fn the_largest_number_counts_for_ten_minutes() {
        let instances = Instances::new(None);
        assert_eq!(instances.count(), InstanceCount::Assumed);
        record(&instances, 4, 0, 0);
        record(&instances, 3, 0, 30);
        record(&instances, 2, 0, 500);
        assert_eq!(instances.count(), InstanceCount::Heartbeats(4));
        record(&instances, 2, 0, 640);
        assert_eq!(instances.count(), InstanceCount::Heartbeats(2));
        // Without the store nothing is counted, and the last count stays.
        record(&instances, 5, 0, 50_000);
        assert_eq!(instances.count(), InstanceCount::Heartbeats(5));
    }

    #[test]
    fn an_instance_that_said_it_stops_is_not_counted_any_more() {
        let instances = Instances::new(None);
        assert_eq!(record(&instances, 4, 7, 0), 4);
        // Its lease is released, and then its departure is counted.
        assert_eq!(record(&instances, 3, 7, 1), 4);
        assert_eq!(record(&instances, 3, 8, 2), 3);
        // One that is silent stays, also when another one stops.
        assert_eq!(record(&instances, 2, 8, 10), 3);
        assert_eq!(record(&instances, 1, 9, 11), 2);
        // A successor takes the place of the one that stopped.
        assert_eq!(record(&instances, 2, 9, 12), 2);
        assert_eq!(record(&instances, 3, 9, 13), 3);
    }

    #[test]
    fn departures_are_counted_when_their_window_starts_over_too() {
        let instances = Instances::new(None);
        assert_eq!(record(&instances, 4, 2, 0), 4);
        assert_eq!(record(&instances, 4, 0, 1), 4);
        assert_eq!(record(&instances, 3, 1, 2), 3);
        // Never fewer than hold a lease.
        assert_eq!(record(&instances, 3, 9, 3), 3);
    }

    #[test]
    fn departures_that_a_failover_repeats_are_not_counted_again() {
        let instances = Instances::new(None);
        assert_eq!(record(&instances, 4, 5, 0), 4);
        // The new primary lacks the last departure, and cannot be reached by one instance.
        assert_eq!(record(&instances, 3, 4, 1), 4);
    }

    #[test]
    fn what_is_said_is_believed() {
        let instances = Instances::new(Some(0));
        record(&instances, 9, 0, 0);
        assert_eq!(instances.count(), InstanceCount::Configured(1));
    }
}
