//! Oracles of the exact meters: a level that sinks (token and leaky bucket) and an arrival time (GCRA).

use super::{LimitNumbers, MeterCharge, Oracle, OracleDecision, UndoScope, narrow, retry_after};
use crate::algorithm::LeaseId;
use crate::decision::{Decision, Retry};
use crate::units::time::Micros;

/// A token bucket or a leaky one: a level in units times period, which sinks by `units` every microsecond.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketOracle {
    numbers: LimitNumbers,
    held: Option<Level>,
}

/// A level as it was last written, in the numbers of that time.
#[derive(Clone, Copy, Debug)]
struct Level {
    level: u128,
    /// The last charge, and the level without it.
    last: Option<(LeaseId, u128)>,
    units: u128,
    period: u128,
    /// Units were refunded: the position of each charge is then unknown.
    has_refund: bool,
    /// There were charges of different paces: the work of each is then unknown.
    has_mixed_paces: bool,
    written_at: u64,
}

impl Level {
    /// The time at which the level is zero by its own numbers: then the key expires, whatever the limit is by now.
    fn fresh_at(&self) -> u64 {
        self.written_at + narrow(self.level.div_ceil(self.units))
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

    /// The level at `now` in today's numbers, and for how long the key is remembered if that is known.
    fn level(&self, now: u64) -> (u128, Option<u128>) {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now) else {
            return (0, None);
        };
        let same_pace = held.units * self.period() == self.units() * held.period;
        let (level, forgotten) = if same_pace {
            (held.level * self.period() / held.period, None)
        } else {
            let used = held.level.div_ceil(held.period);
            (used * self.period(), Some(u128::from(held.fresh_at() - now)))
        };
        let sunk = u128::from(now - held.written_at) * self.units();
        (level.saturating_sub(sunk), forgotten)
    }
}

impl Oracle for BucketOracle {
    type ChargeRef = MeterCharge<u128>;
    const UNDO: UndoScope = UndoScope::InTurn;

    fn new(numbers: LimitNumbers) -> Self {
        Self { numbers, held: None }
    }

    fn edit(&mut self, numbers: LimitNumbers) {
        self.numbers = numbers;
    }

    fn written_at(&self) -> Option<u64> {
        self.held.map(|held| held.written_at)
    }

    fn step_back(&mut self, by: u64) {
        if let Some(held) = &mut self.held {
            held.written_at -= by;
        }
    }

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
        let has_refund = self.held.is_some_and(|held| held.has_refund);
        let same_pace = |held: &Level| held.units * self.period() == self.units() * held.period;
        let has_mixed_paces = self.held.is_some_and(|held| held.has_mixed_paces || !same_pace(&held));
        self.held = Some(Level {
            has_refund,
            has_mixed_paces,
            level: self.full().max(level).min(level + duration),
            last: Some((id, level)),
            units: self.units(),
            period: self.period(),
            written_at: now,
        });
        let starts_at = u128::from(now) * self.units() + level;
        MeterCharge {
            starts_at,
            duration,
            taken_at: now,
            id,
        }
    }

    /// Units come back at the pace they were taken at, as if they had never been taken: the time of the write stays.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now && !self.numbers.shaping) else {
            return false;
        };
        let sunk = u128::from(now - held.written_at) * held.units;
        self.held = Some(Level {
            level: held.level.saturating_sub(u128::from(cost) * held.period).max(sunk),
            last: None,
            has_refund: true,
            ..held
        });
        true
    }

    /// Leaves the level without the last charge; of an earlier charge, removes the work that is not done yet.
    fn undo(&mut self, work: MeterCharge<u128>, now: u64) -> bool {
        let undoable = |held: &Level| held.fresh_at() > now && !self.numbers.shaping;
        let Some(held) = self.held.filter(undoable) else {
            return false;
        };
        let sunk = u128::from(now - held.written_at) * held.units;
        let level = match held.last {
            Some((id, without)) if id == work.id => without.max(sunk),
            _ if held.has_mixed_paces => return false,
            _ => {
                let unfinished = unfinished_work(&work, held.has_refund, now, held.units);
                if unfinished == 0 {
                    return false;
                }
                held.level.saturating_sub(unfinished).max(sunk)
            }
        };
        self.held = Some(Level {
            level,
            last: None,
            has_refund: true,
            ..held
        });
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| held.fresh_at())
    }
}

/// The work of a charge that remains at `now`, in its own parts, of which `parts_per_us` make a microsecond. If its
/// position is unknown, its work counts as started when it was taken.
fn unfinished_work(work: &MeterCharge<u128>, has_refund: bool, now: u64, parts_per_us: u128) -> u128 {
    let starts_at = if has_refund {
        u128::from(work.taken_at) * parts_per_us
    } else {
        work.starts_at
    };
    (starts_at + work.duration)
        .saturating_sub(u128::from(now) * parts_per_us)
        .min(work.duration)
}

/// GCRA: when the next request should arrive, as a fraction of microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct GcraOracle {
    numbers: LimitNumbers,
    held: Option<Arrival>,
}

/// An arrival time over the numerator that the rate had in lowest terms.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    time: u128,
    /// The last charge, and the time without it.
    last: Option<(LeaseId, u128)>,
    over: u128,
    /// Units were refunded: the position of each charge is then unknown.
    has_refund: bool,
    /// There were charges of different paces: the work of each is then unknown.
    has_mixed_paces: bool,
    written_at: u64,
}

impl Arrival {
    fn fresh_at(&self) -> u64 {
        narrow(self.time.div_ceil(self.over))
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
            Some(held) if held.over == over => held.time,
            Some(held) => u128::from(held.fresh_at()) * over,
            None => 0,
        };
        time.saturating_sub(u128::from(now) * over)
    }
}

impl Oracle for GcraOracle {
    type ChargeRef = MeterCharge<u128>;
    const UNDO: UndoScope = UndoScope::InTurn;

    fn new(numbers: LimitNumbers) -> Self {
        Self { numbers, held: None }
    }

    fn edit(&mut self, numbers: LimitNumbers) {
        self.numbers = numbers;
    }

    fn written_at(&self) -> Option<u64> {
        self.held.map(|held| held.written_at)
    }

    fn step_back(&mut self, by: u64) {
        if let Some(held) = &mut self.held {
            held.written_at -= by;
            held.time -= u128::from(by) * held.over;
            if let Some((_, without)) = &mut held.last {
                *without -= u128::from(by) * held.over;
            }
        }
    }

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
        self.held = Some(Arrival {
            time: u128::from(now) * over + (ahead + duration).min(early.max(ahead)),
            last: Some((id, starts_at)),
            over,
            has_refund: self.held.is_some_and(|held| held.has_refund),
            has_mixed_paces: self.held.is_some_and(|held| held.has_mixed_paces || held.over != over),
            written_at: now,
        });
        MeterCharge {
            starts_at,
            duration,
            taken_at: now,
            id,
        }
    }

    /// Time comes back, whole parts of it only; the time of the write stays.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now) else {
            return false;
        };
        let (over, unit) = self.scale();
        let returned = u128::from(cost) * unit;
        let returned = returned / over * held.over + returned % over * held.over / over;
        self.held = Some(Arrival {
            time: held.time.saturating_sub(returned).max(u128::from(now) * held.over),
            last: None,
            has_refund: true,
            ..held
        });
        true
    }

    fn undo(&mut self, work: MeterCharge<u128>, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now) else {
            return false;
        };
        let time = match held.last {
            Some((id, without)) if id == work.id => without,
            _ if held.has_mixed_paces => return false,
            _ => {
                let unfinished = unfinished_work(&work, held.has_refund, now, held.over);
                if unfinished == 0 {
                    return false;
                }
                held.time - unfinished
            }
        };
        self.held = Some(Arrival {
            time: time.max(u128::from(now) * held.over),
            last: None,
            has_refund: true,
            ..held
        });
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| held.fresh_at())
    }
}
