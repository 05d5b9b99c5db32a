//! The history of keys: their last shared state, the seed of a local counter, and their debts, to be repaid.
//!
//! A set-associative table of a fixed size: recording takes the same time and memory however many keys there are, and
//! where there are too many, some are evicted.

use crate::fingerprint::Fingerprint;
use crate::sync::Lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate_core::{Limit, Micros, Standing, Timestamp, muldiv};

/// Keys per set, which share a lock, and the number of sets: 2^17 keys in 6 MiB.
const WAYS: usize = 4;
const SETS: usize = 1 << 15;

/// The records of keys.
#[derive(Debug)]
pub(super) struct KeyHistory {
    sets: Box<[Lock<[KeyRecord; WAYS]>]>,
    /// The number of keys with a debt, so that no debt is looked up while it is zero.
    debtors: AtomicUsize,
}

/// The record of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyRecord {
    /// The high half of its fingerprint; zero in an empty slot.
    key: u64,
    /// The last shared state: the units used, the time until they are back, and the instant of the reply.
    used: u64,
    reset_after: Micros,
    at: Timestamp,
    /// Units allowed here and not repaid.
    debt: u64,
    /// True if the local counter was seeded since the last shared reply.
    pub(super) is_seeded: bool,
    /// True if the last shared call for it has an unknown outcome: a repayment might arrive unnoticed.
    pub(super) outcome_unknown: bool,
}

impl KeyHistory {
    pub(super) fn new() -> Self {
        Self {
            sets: (0..SETS).map(|_| Lock::new([KeyRecord::default(); WAYS])).collect(),
            debtors: AtomicUsize::new(0),
        }
    }

    /// Records the shared standing of a key.
    pub(super) fn learn(&self, key: Fingerprint, standing: &Standing, at: Timestamp) {
        let used = standing.limit.saturating_sub(standing.remaining);
        let learn = |record: &mut KeyRecord| {
            record.used = used;
            record.reset_after = standing.reset_after;
            record.at = at;
            record.is_seeded = false;
            record.outcome_unknown = false;
        };
        match used {
            0 => drop(self.with_existing(key, learn)),
            _ => self.with(key, learn),
        }
    }

    /// True if any key may have a debt.
    pub(super) fn has_debts(&self) -> bool {
        self.debtors.load(Ordering::Relaxed) > 0
    }

    /// Takes the debt of a key, which then counts as repaid. Zero while the outcome of its last shared call is unknown.
    pub(super) fn take_debt(&self, key: Fingerprint) -> u64 {
        let debt = self.with_existing(key, |record| match record.outcome_unknown {
            true => 0,
            false => std::mem::take(&mut record.debt),
        });
        debt.unwrap_or(0)
    }

    /// Adds units to the debt of a key.
    pub(super) fn add_debt(&self, key: Fingerprint, units: u64) {
        self.with(key, |record| record.add_debt(units));
    }

    /// Removes units from the debt of a key.
    pub(super) fn cancel_debt(&self, key: Fingerprint, units: u64) {
        self.with_existing(key, |record| record.cancel_debt(units));
    }

    /// Removes the record of a key.
    pub(super) fn forget(&self, key: Fingerprint) {
        self.with_existing(key, |record| *record = KeyRecord::default());
    }

    /// Runs `work` on the record of a key under its lock, if there is one.
    fn with_existing<T>(&self, key: Fingerprint, work: impl FnOnce(&mut KeyRecord) -> T) -> Option<T> {
        let mut set = self.set(key)?.lock();
        let record = set.iter_mut().find(|record| record.key == { key.high })?;
        Some(self.track_debt(record, work))
    }

    /// Runs `work` on the record of a key under its lock. In a set full of debts the record is temporary.
    #[inline]
    pub(super) fn with<T>(&self, key: Fingerprint, work: impl FnOnce(&mut KeyRecord) -> T) -> T {
        let name = { key.high };
        let mut spare = KeyRecord::default();
        let Some(set) = self.set(key) else {
            return work(&mut spare);
        };
        let mut set = set.lock();
        let record = match set.iter().position(|record| record.key == name) {
            Some(known) => set.get_mut(known),
            // Evicts a record without debt, the one that is fresh first: an empty slot before all.
            None => set
                .iter_mut()
                .filter(|record| record.debt == 0)
                .min_by_key(|record| record.at + record.reset_after),
        };
        let Some(record) = record else {
            return work(&mut spare);
        };
        if record.key != name {
            *record = KeyRecord {
                key: name,
                ..KeyRecord::default()
            };
        }
        self.track_debt(record, work)
    }

    /// Runs `work` on a record, and keeps the number of debtors.
    #[inline]
    fn track_debt<T>(&self, record: &mut KeyRecord, work: impl FnOnce(&mut KeyRecord) -> T) -> T {
        let had_debt = record.debt > 0;
        let done = work(record);
        match (had_debt, record.debt > 0) {
            (false, true) => drop(self.debtors.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.debtors.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        done
    }

    #[inline]
    fn set(&self, key: Fingerprint) -> Option<&Lock<[KeyRecord; WAYS]>> {
        self.sets.get(key.low.get() as usize % SETS)
    }
}

impl KeyRecord {
    /// Adds units to its debt.
    pub(super) fn add_debt(&mut self, units: u64) {
        self.debt = self.debt.saturating_add(units);
    }

    /// Removes units from its debt.
    pub(super) fn cancel_debt(&mut self, units: u64) {
        self.debt = self.debt.saturating_sub(units);
    }

    /// The units used by now, by the last shared state: those of a bucket refill with time; those of a window or a log
    /// count until the window has passed, although a log's may leave earlier.
    pub(super) fn used_now(&self, limit: &Limit, now: Timestamp) -> u64 {
        let left = self.reset_after.get().saturating_sub(now.since(self.at).get());
        let used = self.used;
        let Some(reset_after) = std::num::NonZeroU64::new(self.reset_after.get()).filter(|_| left > 0) else {
            return 0;
        };
        match limit {
            Limit::FixedWindow(_) | Limit::SlidingCounter(_) | Limit::SlidingLog(_) => used,
            Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::LeakyBucket(_) | Limit::Cell(_) => {
                let (units, rest) = muldiv(used, left, reset_after);
                units + u64::from(rest > 0)
            }
            // Leases may be released at any time, unseen by this instance.
            Limit::Concurrency(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    use tollgate_core::{FixedWindow, Rate, TokenBucket};

    fn key(number: u64) -> Fingerprint {
        Fingerprint {
            high: number + 1,
            low: NonZeroU32::MIN,
        }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Micros::from_millis(ms)
    }

    fn standing(remaining: u64, reset_ms: u64) -> Standing {
        Standing {
            limit: 100,
            remaining,
            reset_after: Micros::from_millis(reset_ms),
        }
    }

    #[test]
    fn a_debt_shrinks_with_time_and_a_window_stays_until_it_has_passed() {
        let rate = Rate::new(100, Micros::from_secs(1)).expect("in range");
        let (bucket, window) = (Limit::from(TokenBucket::new(rate)), Limit::from(FixedWindow::new(rate)));
        let history = KeyHistory::new();
        history.learn(key(1), &standing(40, 600), at(0));
        let used = |limit: &Limit, ms| history.with(key(1), |record| record.used_now(limit, at(ms)));
        assert_eq!([0, 300, 301, 599, 600].map(|ms| used(&bucket, ms)), [60, 30, 30, 1, 0]);
        assert_eq!([0, 300, 599, 600].map(|ms| used(&window, ms)), [60, 60, 60, 0]);
    }

    #[test]
    fn what_is_owed_is_taken_once_and_never_forgotten_for_another_key() {
        let history = KeyHistory::new();
        assert!(!history.has_debts());
        for number in 0..WAYS as u64 {
            history.add_debt(key(number), 3);
        }
        history.add_debt(key(0), 2);
        // All of one set are taken: more find no room, and are forgotten.
        for number in WAYS as u64..100 {
            history.add_debt(key(number), 7);
            history.learn(key(number), &standing(0, 1_000), at(0));
        }
        assert!(history.has_debts());
        assert_eq!((history.take_debt(key(0)), history.take_debt(key(0))), (5, 0));
        for number in 1..WAYS as u64 {
            assert_eq!(history.take_debt(key(number)), 3);
        }
        assert!(!history.has_debts());
        assert_eq!(history.take_debt(key(50)), 0);
    }

    #[test]
    fn of_keys_that_owe_nothing_the_one_that_is_as_new_first_makes_room() {
        let history = KeyHistory::new();
        for number in 0..WAYS as u64 {
            history.learn(key(number), &standing(0, 1_000 + number), at(0));
        }
        history.learn(key(9), &standing(0, 5_000), at(0));
        let is_known = |number| history.with(key(number), |record| record.used > 0);
        assert_eq!([3, 2, 9, 1].map(is_known), [true; 4]);
        assert!(!is_known(0));
    }
}
