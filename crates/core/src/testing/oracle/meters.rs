//! Referees of the exact meters: a level that sinks (token and leaky bucket) and an arrival time (GCRA).

use super::{Numbers, Referee, Ruling, Undo, Work, after, narrow};
use crate::algorithm::LeaseId;
use crate::decision::{Decision, Retry};
use crate::time::Micros;

/// A token bucket or a leaky one: a level in units times period, which sinks by `units` every microsecond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    numbers: Numbers,
    held: Option<Level>,
}

/// A level as it was last written, in the numbers of that time.
#[derive(Clone, Copy, Debug)]
struct Level {
    level: u128,
    /// The last charge, and the level had it not been.
    last: Option<(LeaseId, u128)>,
    units: u128,
    period: u128,
    /// Something was given back: where a charge has its place is not known any more.
    loose: bool,
    /// Charges of different paces met: what each is worth is not known any more.
    mixed: bool,
    written: u64,
}

impl Level {
    /// When it is down to nothing by its own numbers: then the key is forgotten, whatever the limit is by now.
    fn fresh_at(&self) -> u64 {
        self.written + narrow(self.level.div_ceil(self.units))
    }
}

impl Bucket {
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
        let sunk = u128::from(now - held.written) * self.units();
        (level.saturating_sub(sunk), forgotten)
    }
}

impl Referee for Bucket {
    type Ticket = Work<u128>;
    const UNDO: Undo = Undo::InTurn;

    fn new(numbers: Numbers) -> Self {
        Self { numbers, held: None }
    }

    fn edit(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    fn written(&self) -> Option<u64> {
        self.held.map(|held| held.written)
    }

    fn set_back(&mut self, by: u64) {
        if let Some(held) = &mut self.held {
            held.written -= by;
        }
    }

    fn judge(&self, cost: u64, now: u64) -> Ruling {
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
                after(remembered((filled - full).div_ceil(units)))
            }
        });
        let standing = (self.numbers.burst, full.saturating_sub(shown) / period, reset_after);
        let mut ruling = Ruling::new(standing, denied, takes, now);
        if let Decision::Allow { delay, .. } = &mut ruling.decision
            && self.numbers.shaping
            && cost > 0
        {
            *delay = Micros::new(narrow(level.div_ceil(units)));
        }
        ruling
    }

    fn take(&mut self, cost: u64, now: u64, id: LeaseId) -> Work<u128> {
        let (level, _) = self.level(now);
        let takes = u128::from(cost) * self.period();
        let loose = self.held.is_some_and(|held| held.loose);
        let paced = |held: &Level| held.units * self.period() == self.units() * held.period;
        let mixed = self.held.is_some_and(|held| held.mixed || !paced(&held));
        self.held = Some(Level {
            loose,
            mixed,
            level: self.full().max(level).min(level + takes),
            last: Some((id, level)),
            units: self.units(),
            period: self.period(),
            written: now,
        });
        let begins = u128::from(now) * self.units() + level;
        Work {
            begins,
            takes,
            taken: now,
            id,
        }
    }

    /// Units come back at the pace they were taken at, as if they had never been taken: the time of the write stays.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now && !self.numbers.shaping) else {
            return false;
        };
        let sunk = u128::from(now - held.written) * held.units;
        self.held = Some(Level {
            level: held.level.saturating_sub(u128::from(cost) * held.period).max(sunk),
            last: None,
            loose: true,
            ..held
        });
        true
    }

    /// What would have been without it, or, with others behind it, what of it is not done yet is not to be done.
    fn undo(&mut self, work: Work<u128>, now: u64) -> bool {
        let undoable = |held: &Level| held.fresh_at() > now && !self.numbers.shaping;
        let Some(held) = self.held.filter(undoable) else {
            return false;
        };
        let sunk = u128::from(now - held.written) * held.units;
        let level = match held.last {
            Some((id, without)) if id == work.id => without.max(sunk),
            _ if held.mixed => return false,
            _ => {
                let undone = undone(&work, held.loose, now, held.units);
                if undone == 0 {
                    return false;
                }
                held.level.saturating_sub(undone).max(sunk)
            }
        };
        self.held = Some(Level {
            level,
            last: None,
            loose: true,
            ..held
        });
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| held.fresh_at())
    }
}

/// How much of a charge is still to be done at `now`, in its own parts, `each` of which make a microsecond. When its place
/// is not known, what would be left had it been done ever since it was taken.
fn undone(work: &Work<u128>, loose: bool, now: u64, each: u128) -> u128 {
    let begins = if loose {
        u128::from(work.taken) * each
    } else {
        work.begins
    };
    (begins + work.takes)
        .saturating_sub(u128::from(now) * each)
        .min(work.takes)
}

/// GCRA: when the next request should arrive, as a fraction of microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrivals {
    numbers: Numbers,
    held: Option<Arrival>,
}

/// An arrival time over the numerator that the rate had in lowest terms.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    time: u128,
    /// The last charge, and the time had it not been.
    last: Option<(LeaseId, u128)>,
    over: u128,
    /// Something was given back: where a charge has its place is not known any more.
    loose: bool,
    /// Charges of different paces met: what each is worth is not known any more.
    mixed: bool,
    written: u64,
}

impl Arrival {
    fn fresh_at(&self) -> u64 {
        narrow(self.time.div_ceil(self.over))
    }
}

impl Arrivals {
    /// What times are fractions over, and how many such parts one unit takes.
    fn scale(&self) -> (u128, u128) {
        let (mut a, mut b) = (u128::from(self.numbers.units), u128::from(self.numbers.period));
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (u128::from(self.numbers.units) / a, u128::from(self.numbers.period) / a)
    }

    /// How far ahead of `now` the arrival time is, in parts; a part of another size is rounded up to a microsecond.
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

impl Referee for Arrivals {
    type Ticket = Work<u128>;
    const UNDO: Undo = Undo::InTurn;

    fn new(numbers: Numbers) -> Self {
        Self { numbers, held: None }
    }

    fn edit(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    fn written(&self) -> Option<u64> {
        self.held.map(|held| held.written)
    }

    fn set_back(&mut self, by: u64) {
        if let Some(held) = &mut self.held {
            held.written -= by;
            held.time -= u128::from(by) * held.over;
            if let Some((_, without)) = &mut held.last {
                *without -= u128::from(by) * held.over;
            }
        }
    }

    fn judge(&self, cost: u64, now: u64) -> Ruling {
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
                after((then - early).div_ceil(over))
            }
        });
        let remaining = early.saturating_sub(shown) / unit;
        let standing = (self.numbers.burst, remaining, shown.div_ceil(over));
        Ruling::new(standing, denied, cost > 0 && (allowed || ahead < early), now)
    }

    fn take(&mut self, cost: u64, now: u64, id: LeaseId) -> Work<u128> {
        let (over, unit) = self.scale();
        let early = u128::from(self.numbers.burst) * unit;
        let ahead = self.ahead(now);
        let takes = u128::from(cost) * unit;
        let begins = u128::from(now) * over + ahead;
        self.held = Some(Arrival {
            time: u128::from(now) * over + (ahead + takes).min(early.max(ahead)),
            last: Some((id, begins)),
            over,
            loose: self.held.is_some_and(|held| held.loose),
            mixed: self.held.is_some_and(|held| held.mixed || held.over != over),
            written: now,
        });
        Work {
            begins,
            takes,
            taken: now,
            id,
        }
    }

    /// Time comes back, whole parts of it only; the time of the write stays.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now) else {
            return false;
        };
        let (over, unit) = self.scale();
        let given = u128::from(cost) * unit;
        let given = given / over * held.over + given % over * held.over / over;
        self.held = Some(Arrival {
            time: held.time.saturating_sub(given).max(u128::from(now) * held.over),
            last: None,
            loose: true,
            ..held
        });
        true
    }

    fn undo(&mut self, work: Work<u128>, now: u64) -> bool {
        let Some(held) = self.held.filter(|held| held.fresh_at() > now) else {
            return false;
        };
        let time = match held.last {
            Some((id, without)) if id == work.id => without,
            _ if held.mixed => return false,
            _ => {
                let undone = undone(&work, held.loose, now, held.over);
                if undone == 0 {
                    return false;
                }
                held.time - undone
            }
        };
        self.held = Some(Arrival {
            time: time.max(u128::from(now) * held.over),
            last: None,
            loose: true,
            ..held
        });
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| held.fresh_at())
    }
}
