//! Oracles of the exact meters: a level that sinks (token and leaky bucket) and an arrival time (GCRA).

use super::work::{MeterCharge, Work};
use super::{Held, Oracle, OracleDecision, OracleKey, UndoScope, narrow, retry_after};
use crate::algorithm::LeaseId;
use crate::decision::{Decision, Retry};
use crate::units::time::Micros;

/// A token bucket or a leaky one: a level in units times period, which sinks by `units` every microsecond.
pub(super) type BucketOracle = OracleKey<Level>;

/// A level as it was last written, in the numbers of that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    work: Work<u128>,
    units: u128,
    period: u128,
}

impl Level {
    /// The time at which the level is zero by its own numbers: then the key expires, whatever the limit is by now.
    fn fresh_at(&self) -> u64 {
        self.work.written_at + narrow(self.work.end.div_ceil(self.units))
    }

    /// The same with another level after a refund or an undo, but no lower than it has sunk at `now`.
    fn returned(self, level: u128, now: u64) -> Self {
        let sunk = u128::from(now - self.work.written_at) * self.units;
        let work = self.work.returned(level.max(sunk));
        Self { work, ..self }
    }
}

impl Held for Level {
    fn written_at(&self) -> u64 {
        self.work.written_at
    }

    fn step_back(&mut self, by: u64) {
        self.work.written_at -= by;
    }
}

impl BucketOracle {
    fn units(&self) -> u128 {
        self.numbers.units.into()
    }

    fn period(&self) -> u128 {
        self.numbers.period.into()
    }

    fn full(&self) -> u128 {
        u128::from(self.numbers.burst) * self.period()
    }

    /// The level if it can be refunded or undone at `now`, which that of a queue cannot.
    fn undoable(&self, now: u64) -> Option<Level> {
        self.held.filter(|held| held.fresh_at() > now && !self.numbers.shaping)
    }

    fn same_pace(&self, held: &Level) -> bool {
        held.units * self.period() == self.units() * held.period
    }

    /// The level at `now` in today's numbers, and for how long the key is remembered if that is known.
    fn level(&self, now: u64) -> (u128, Option<u128>) {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now) else {
            return (0, None);
        };
        let (level, forgotten) = if self.same_pace(&held) {
            (held.work.end * self.period() / held.period, None)
        } else {
            let used = held.work.end.div_ceil(held.period);
            (used * self.period(), Some(u128::from(held.fresh_at() - now)))
        };
        let sunk = u128::from(now - held.work.written_at) * self.units();
        (level.saturating_sub(sunk), forgotten)
    }
}

impl Oracle for BucketOracle {
    type ChargeRef = MeterCharge<u128>;
    const UNDO: UndoScope = UndoScope::InTurn;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let (level, forgotten) = self.level(now);
        let (units, period, full) = (self.units(), self.period(), self.full());
        let filled = level + u128::from(cost) * period;
        let allowed = cost == 0 || filled <= full;
        let takes = cost > 0 && (allowed || level < full);
        let shown = if allowed { filled } else { level };
        let remembered = |wait: u128| forgotten.map_or(wait, |forgotten| wait.min(forgotten));
        let reset_after = shown.div_ceil(units);
        let reset_after = if allowed && cost > 0 {
            reset_after
        } else {
            remembered(reset_after)
        };
        let denied = (!allowed).then(|| {
            if cost > self.numbers.burst {
                Retry::Never
            } else {
                retry_after(remembered((filled - full).div_ceil(units)))
            }
        });
        let standing = (self.numbers.burst, full.saturating_sub(shown) / period, reset_after);
        let mut result = OracleDecision::new(standing, denied, takes, now);
        if let Decision::Allow { delay, .. } = &mut result.decision
            && self.numbers.shaping
            && cost > 0
        {
            *delay = Micros::new(narrow(level.div_ceil(units)));
        }
        result
    }

    fn take(&mut self, cost: u64, now: u64, id: LeaseId) -> MeterCharge<u128> {
        let (level, _) = self.level(now);
        let duration = u128::from(cost) * self.period();
        let filled = self.full().max(level).min(level + duration);
        let mut work = Work::charged(self.held.map(|held| held.work), filled, (id, level), now);
        work.has_mixed_paces |= self.held.is_some_and(|held| !self.same_pace(&held));
        self.held = Some(Level {
            work,
            units: self.units(),
            period: self.period(),
        });
        let starts_at = u128::from(now) * self.units() + level;
        MeterCharge::new(id, starts_at, duration, now)
    }

    /// Units come back at the pace they were taken at, as if they had never been taken: the time of the write stays.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let refunded = self.undoable(now).map(|held| {
            let level = held.work.end.saturating_sub(u128::from(cost) * held.period);
            held.returned(level, now)
        });
        self.replace(refunded)
    }

    fn undo(&mut self, work: MeterCharge<u128>, now: u64) -> bool {
        let undone = self.undoable(now).and_then(|held| {
            let parts = |us: u64| u128::from(us) * held.units;
            let level = held.work.without(&work, parts(work.taken_at), parts(now))?;
            Some(held.returned(level, now))
        });
        self.replace(undone)
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| held.fresh_at())
    }
}

/// GCRA: when the next request should arrive, as a fraction of microseconds.
pub(super) type GcraOracle = OracleKey<Arrival>;

/// An arrival time over the numerator that the rate had in lowest terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    work: Work<u128>,
    over: u128,
}

impl Arrival {
    fn fresh_at(&self) -> u64 {
        narrow(self.work.end.div_ceil(self.over))
    }

    /// The same with another time after a refund or an undo, but not before `now`.
    fn returned(self, time: u128, now: u64) -> Self {
        let work = self.work.returned(time.max(self.parts(now)));
        Self { work, ..self }
    }

    /// A time in the parts of this one.
    fn parts(&self, us: u64) -> u128 {
        u128::from(us) * self.over
    }
}

impl Held for Arrival {
    fn written_at(&self) -> u64 {
        self.work.written_at
    }

    fn step_back(&mut self, by: u64) {
        self.work.written_at -= by;
        self.work.move_ends(self.parts(by));
    }
}

impl GcraOracle {
    /// The denominator of times, and the parts of one unit.
    fn scale(&self) -> (u128, u128) {
        let (mut a, mut b) = (u128::from(self.numbers.units), u128::from(self.numbers.period));
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (u128::from(self.numbers.units) / a, u128::from(self.numbers.period) / a)
    }

    /// The distance of the arrival time from `now`, in parts; with another denominator it is rounded up to a microsecond.
    fn ahead(&self, now: u64) -> u128 {
        let (over, _) = self.scale();
        let time = match self.held {
            Some(held) if held.over == over => held.work.end,
            Some(held) => u128::from(held.fresh_at()) * over,
            None => 0,
        };
        time.saturating_sub(u128::from(now) * over)
    }
}

impl Oracle for GcraOracle {
    type ChargeRef = MeterCharge<u128>;
    const UNDO: UndoScope = UndoScope::InTurn;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let (over, unit) = self.scale();
        let early = u128::from(self.numbers.burst) * unit;
        let ahead = self.ahead(now);
        let then = ahead + u128::from(cost) * unit;
        let allowed = cost == 0 || then <= early;
        let shown = if allowed { then } else { ahead };
        let denied = (!allowed).then(|| {
            if cost > self.numbers.burst {
                Retry::Never
            } else {
                retry_after((then - early).div_ceil(over))
            }
        });
        let remaining = early.saturating_sub(shown) / unit;
        let standing = (self.numbers.burst, remaining, shown.div_ceil(over));
        OracleDecision::new(standing, denied, cost > 0 && (allowed || ahead < early), now)
    }

    fn take(&mut self, cost: u64, now: u64, id: LeaseId) -> MeterCharge<u128> {
        let (over, unit) = self.scale();
        let early = u128::from(self.numbers.burst) * unit;
        let ahead = self.ahead(now);
        let duration = u128::from(cost) * unit;
        let starts_at = u128::from(now) * over + ahead;
        let time = u128::from(now) * over + (ahead + duration).min(early.max(ahead));
        let mut work = Work::charged(self.held.map(|held| held.work), time, (id, starts_at), now);
        work.has_mixed_paces |= self.held.is_some_and(|held| held.over != over);
        self.held = Some(Arrival { work, over });
        MeterCharge::new(id, starts_at, duration, now)
    }

    /// Time comes back, whole parts of it only; the time of the write stays.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let (over, unit) = self.scale();
        let returned = u128::from(cost) * unit;
        let refunded = self.held.filter(|held| held.fresh_at() > now).map(|held| {
            let returned = returned / over * held.over + returned % over * held.over / over;
            held.returned(held.work.end.saturating_sub(returned), now)
        });
        self.replace(refunded)
    }

    fn undo(&mut self, work: MeterCharge<u128>, now: u64) -> bool {
        let undone = self.held.filter(|held| held.fresh_at() > now).and_then(|held| {
            let time = held.work.without(&work, held.parts(work.taken_at), held.parts(now))?;
            Some(held.returned(time, now))
        });
        self.replace(undone)
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| held.fresh_at())
    }
}
