//! What is remembered of keys so that this instance can go on where the shared store left off, and pay back what it let
//! pass meanwhile. A table of a fixed size: noting takes the same time and memory however many keys there are, and where
//! there are too many, some are forgotten.

use crate::fingerprint::Fingerprint;
use crate::sync::Lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate_core::{Limit, Micros, Standing, Timestamp, muldiv};

/// How many keys share a lock, and how many such sets there are: 2^17 keys in 6 MiB.
const WAYS: usize = 4;
const SETS: usize = 1 << 15;

/// Notes of keys.
#[derive(Debug)]
pub(super) struct KeyHistory {
    sets: Box<[Lock<[KeyRecord; WAYS]>]>,
    /// How many keys have something to pay back, so that nobody looks for one while there is none.
    debtors: AtomicUsize,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyRecord {
    /// Zero where there is none.
    key: u64,
    /// What the shared store said last: so much was used, and so long it would take to be as new.
    used: u32,
    reset_after: Micros,
    at: Timestamp,
    /// Units let pass here that the shared store was not told of.
    debt: u32,
    /// Whether the counter here was brought to what the shared one showed, since that was last asked.
    pub(super) is_seeded: bool,
    /// Whether the shared store was asked for it and said nothing: it might take what is owed, and nobody knew.
    pub(super) outcome_unknown: bool,
}

impl KeyHistory {
    pub(super) fn new() -> Self {
        Self {
            sets: (0..SETS).map(|_| Lock::new([KeyRecord::default(); WAYS])).collect(),
            debtors: AtomicUsize::new(0),
        }
    }

    /// Learns from the shared store how a key stands. From now on it decides.
    pub(super) fn learn(&self, key: Fingerprint, standing: &Standing, at: Timestamp) {
        let used = narrow(standing.limit.saturating_sub(standing.remaining));
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

    /// Whether any key may have something to pay back.
    pub(super) fn has_debts(&self) -> bool {
        self.debtors.load(Ordering::Relaxed) > 0
    }

    /// What a key has to pay back, which is then taken for paid. Nothing while it is in doubt whether the shared store
    /// answers for it.
    pub(super) fn take_debt(&self, key: Fingerprint) -> u64 {
        let debt = self.with_existing(key, |record| match record.outcome_unknown {
            true => 0,
            false => std::mem::take(&mut record.debt),
        });
        debt.map_or(0, u64::from)
    }

    /// Notes that a key has so much to pay back, or again has.
    pub(super) fn add_debt(&self, key: Fingerprint, units: u64) {
        self.with(key, |record| record.add_debt(units));
    }

    /// Notes that so much was not let pass after all.
    pub(super) fn cancel_debt(&self, key: Fingerprint, units: u64) {
        self.with_existing(key, |record| record.cancel_debt(units));
    }

    /// Forgets all of a key.
    pub(super) fn forget(&self, key: Fingerprint) {
        self.with_existing(key, |record| *record = KeyRecord::default());
    }

    /// Does something with the note of a key, if there is one, while nobody else does.
    fn with_existing<T>(&self, key: Fingerprint, work: impl FnOnce(&mut KeyRecord) -> T) -> Option<T> {
        let mut set = self.set(key)?.lock();
        let record = set.iter_mut().find(|record| record.key == { key.high })?;
        Some(self.track_debt(record, work))
    }

    /// Does something with the note of a key, while nobody else does. Where there is no room for it, what was noted is
    /// forgotten at once.
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
            // Of those that owe nothing, the one whose limit is as new again first: an empty one before all.
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

    /// Does something with a note, and counts it if it owes from then on, or no more.
    #[inline]
    fn track_debt<T>(&self, record: &mut KeyRecord, work: impl FnOnce(&mut KeyRecord) -> T) -> T {
        let debt = record.debt > 0;
        let done = work(record);
        match (debt, record.debt > 0) {
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
    /// Notes units let pass here.
    pub(super) fn add_debt(&mut self, units: u64) {
        self.debt = self.debt.saturating_add(narrow(units));
    }

    /// Notes units that were not let pass after all.
    pub(super) fn cancel_debt(&mut self, units: u64) {
        self.debt = self.debt.saturating_sub(narrow(units));
    }

    /// How many units of a limit are used by now, as far as was said: what debts are measured in time shrink with it; a
    /// window's stay until it has passed, and so do a log's, which may leave earlier.
    pub(super) fn used_now(&self, limit: &Limit, now: Timestamp) -> u64 {
        let left = self.reset_after.get().saturating_sub(now.since(self.at).get());
        let used = u64::from(self.used);
        let Some(reset_after) = std::num::NonZeroU64::new(self.reset_after.get()).filter(|_| left > 0) else {
            return 0;
        };
        match limit {
            Limit::FixedWindow(_) | Limit::SlidingCounter(_) | Limit::SlidingLog(_) => used,
            Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::LeakyBucket(_) | Limit::Cell(_) => {
                let (units, rest) = muldiv(used, left, reset_after);
                units + u64::from(rest > 0)
            }
            // Leases end whenever they are released, and nobody here would hear of it.
            Limit::Concurrency(_) => 0,
        }
    }
}

fn narrow(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
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
