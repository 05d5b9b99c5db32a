//! Oracles of the sliding log and the concurrency limit: plain lists of timestamps and of leases.

use super::{Held, Key, LimitNumbers, Oracle, OracleDecision, OracleKey, UndoScope, retry_after};
use crate::algorithm::LeaseId;
use crate::decision::Retry;

/// A plain list, and the time of the last write.
#[derive(Clone, Debug)]
pub(super) struct List<T> {
    items: Vec<T>,
    written_at: u64,
}

/// An item of a list, which has one time.
pub(super) trait Timed: Copy {
    fn time(&mut self) -> &mut u64;
}

impl<T: Timed> Held for List<T> {
    fn written_at(&self) -> u64 {
        self.written_at
    }

    fn step_back(&mut self, by: u64) {
        self.written_at -= by;
        for item in &mut self.items {
            *item.time() -= by;
        }
    }
}

impl<T: Timed> OracleKey<List<T>> {
    fn items(&self) -> &[T] {
        self.held.as_ref().map_or(&[], |list| &list.items)
    }

    /// Writes these items, and returns them.
    fn write(&mut self, items: Vec<T>, now: u64) -> &mut Vec<T> {
        let list = List { items, written_at: now };
        &mut self.held.insert(list).items
    }
}

/// A sliding log: every stamp and its units, oldest first.
pub(super) type SlidingLogOracle = OracleKey<List<Entry>>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    stamp: u64,
    units: u64,
}

/// A charge in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogCharge {
    stamp: u64,
    cost: u64,
}

impl Timed for Entry {
    fn time(&mut self) -> &mut u64 {
        &mut self.stamp
    }
}

impl SlidingLogOracle {
    fn live(&self, now: u64) -> impl Iterator<Item = Entry> {
        let period = self.numbers.period;
        self.items()
            .iter()
            .copied()
            .filter(move |entry| entry.stamp + period > now)
    }

    fn used(&self, now: u64) -> u64 {
        self.live(now).map(|entry| entry.units).sum()
    }

    /// The end of `min_interval` after the last request, even if its units were refunded.
    fn interval_end(&self, now: u64) -> u64 {
        match self.live(now).last() {
            Some(last) if self.numbers.min_interval > 0 => now.max(last.stamp + self.numbers.min_interval),
            _ => now,
        }
    }

    /// The largest cost that passes.
    fn largest(&self, now: u64) -> u64 {
        if self.interval_end(now) > now {
            0
        } else {
            self.numbers.units.saturating_sub(self.used(now))
        }
    }

    /// The first time at which `cost` passes: now, or when one of the entries expires.
    fn first_allowed_at(&self, cost: u64, now: u64) -> u64 {
        let mut used = self.used(now);
        let mut moment = now;
        for entry in self.live(now) {
            if used + cost <= self.numbers.units {
                break;
            }
            used -= entry.units;
            moment = entry.stamp + self.numbers.period;
        }
        moment.max(self.interval_end(now))
    }

    fn drop_expired(&mut self, now: u64) -> &mut Vec<Entry> {
        self.write(self.live(now).collect(), now)
    }
}

impl Oracle for SlidingLogOracle {
    type ChargeRef = LogCharge;
    const UNDO: UndoScope = UndoScope::SameClock;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let LimitNumbers {
            units: limit,
            period,
            min_interval,
            ..
        } = self.numbers;
        let largest = self.largest(now);
        let last = self.live(now).last().map(|last| last.stamp + period);
        if cost > 0 && cost <= largest {
            let remaining = if min_interval > 0 { 0 } else { largest - cost };
            return OracleDecision::new((limit, remaining.into(), period.into()), None, true, now);
        }
        let denied = (cost > 0).then(|| {
            if cost > limit {
                Retry::Never
            } else {
                retry_after(u128::from(self.first_allowed_at(cost, now) - now))
            }
        });
        // An entry whose units were all refunded still delays the next request by the interval, no longer.
        let reset_at = last
            .filter(|_| self.used(now) > 0)
            .unwrap_or_else(|| self.interval_end(now));
        let standing = (limit, largest.into(), u128::from(reset_at - now));
        let mut decision = OracleDecision::new(standing, denied, cost > 0 && largest > 0, now);
        // But the interval may be changed, to a whole period at most, so the key is remembered for that long.
        decision.fresh_at = last.unwrap_or(now);
        decision
    }

    fn take(&mut self, cost: u64, now: u64, _: LeaseId) -> LogCharge {
        let units = cost.min(self.largest(now));
        let entries = self.drop_expired(now);
        entries.retain(|entry| entry.units > 0);
        match entries.last_mut() {
            Some(last) if last.stamp == now => last.units += units,
            _ => entries.push(Entry { stamp: now, units }),
        }
        LogCharge { stamp: now, cost }
    }

    /// The oldest units come back first.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        if self.used(now) == 0 {
            return false;
        }
        let entries = self.drop_expired(now);
        let last = entries.last().map(|last| last.stamp);
        let mut left = cost;
        for entry in entries.iter_mut() {
            let returned = entry.units.min(left);
            entry.units -= returned;
            left -= returned;
        }
        entries.retain(|entry| entry.units > 0 || Some(entry.stamp) == last);
        true
    }

    fn undo(&mut self, charge: LogCharge, now: u64) -> bool {
        let is_charged = |entry: &Entry| entry.stamp == charge.stamp && entry.units > 0;
        if !self.live(now).any(|entry| is_charged(&entry)) {
            return false;
        }
        let entries = self.drop_expired(now);
        for entry in entries.iter_mut() {
            if is_charged(entry) {
                entry.units = entry.units.saturating_sub(charge.cost);
            }
        }
        entries.retain(|entry| entry.units > 0 || entry.stamp != charge.stamp);
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        let last = self.items().last().map(|last| last.stamp + self.numbers.period);
        last.or(self.written_at())
    }
}

/// A concurrency limit: every lease, in the order they were taken or renewed.
pub(super) type ConcurrencyOracle = OracleKey<List<Lease>>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    id: LeaseId,
    ends: u64,
    slots: u64,
}

impl Timed for Lease {
    fn time(&mut self) -> &mut u64 {
        &mut self.ends
    }
}

impl ConcurrencyOracle {
    fn live(&self, now: u64) -> impl Iterator<Item = Lease> {
        self.items().iter().copied().filter(move |lease| lease.ends > now)
    }

    fn free(&self, now: u64) -> u64 {
        let used: u64 = self.live(now).map(|lease| lease.slots).sum();
        self.numbers.units.saturating_sub(used)
    }

    fn drop_ended(&mut self, now: u64) -> &mut Vec<Lease> {
        self.write(self.live(now).collect(), now)
    }

    /// Removes a lease if it is held.
    fn remove(&mut self, id: LeaseId, now: u64) -> Option<Lease> {
        let lease = self.live(now).find(|lease| lease.id == id)?;
        self.drop_ended(now).retain(|lease| lease.id != id);
        Some(lease)
    }
}

impl Oracle for ConcurrencyOracle {
    type ChargeRef = LeaseId;
    const UNDO: UndoScope = UndoScope::Always;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let (limit, free) = (self.numbers.units, self.free(now));
        let allowed = cost <= free;
        let taken = if allowed { cost } else { 0 };
        let new_end = (taken > 0).then_some(now + self.numbers.period);
        let ends = self.live(now).map(|lease| lease.ends).chain(new_end).max();
        let denied = (!allowed).then_some(if cost > limit { Retry::Never } else { Retry::Unknown });
        let standing = (
            limit,
            (free - taken).into(),
            ends.map_or(0, |ends| u128::from(ends - now)),
        );
        OracleDecision::new(standing, denied, taken > 0, now)
    }

    fn take(&mut self, cost: u64, now: u64, id: LeaseId) -> LeaseId {
        let ends = now + self.numbers.period;
        self.drop_ended(now).push(Lease { id, ends, slots: cost });
        id
    }

    /// Slots of the leases that end first come back, of those the ones taken first.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        if self.live(now).next().is_none() {
            return false;
        }
        let leases = self.drop_ended(now);
        let mut left = cost;
        while left > 0 {
            let Some(first) = leases.iter_mut().min_by_key(|lease| lease.ends) else {
                break;
            };
            let returned = first.slots.min(left);
            first.slots -= returned;
            left -= returned;
            leases.retain(|lease| lease.slots > 0);
        }
        true
    }

    fn undo(&mut self, id: LeaseId, now: u64) -> bool {
        self.release(id, now)
    }

    fn release(&mut self, id: LeaseId, now: u64) -> bool {
        self.remove(id, now).is_some()
    }

    fn renew(&mut self, id: LeaseId, now: u64) -> bool {
        let Some(lease) = self.remove(id, now) else {
            return false;
        };
        let ends = now + self.numbers.period;
        self.drop_ended(now).push(Lease { ends, ..lease });
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        self.items().iter().map(|lease| lease.ends).max().or(self.written_at())
    }
}
