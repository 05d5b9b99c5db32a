//! Decisions of calls with large numbers: the arithmetic of [`Cell`](super::Cell) in seconds of 128 bits.
//!
//! Nothing is rounded and nothing overflows. Only what leaves a decision is capped: times at what a timestamp holds,
//! and the integers of a reply at the largest one.

use super::long_time::{Interval, LongTime};
use super::{Reply, State};
use crate::algorithm::{Mark, Step};
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::state::debt::{Debt, NanoFraction};
use crate::units::time::{Micros, Now, Timestamp};

/// A debt that ends after the last timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WideDebt {
    pub(super) until: LongTime,
    pub(super) at: Timestamp,
    /// As those of [`Debt`].
    pub(super) flags: u32,
}

/// A limit of any numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WideMeter {
    pub(super) interval: Interval,
    pub(super) limit: u64,
}

/// The distance of a debt from the largest that the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// So much fits.
    Left(LongTime),
    /// So much more than the limit is owed: its numbers were lowered.
    Over(LongTime),
}

/// The first number that a fraction of [`Mark`] has only here: the other bits are seconds.
const WIDE_MARK: u64 = 1 << 63;
/// The bit above the nanoseconds of a mark that is set if more than the limit is owed.
const OVER_MARK: u64 = 1 << 30;

impl WideMeter {
    pub(super) fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<State> {
        let (debt, now, repair) = WideDebt::reconcile(state, now);
        let start = debt.start(now);
        let ceiling = LongTime::at(now).plus(self.full());
        let after = start.plus(self.interval.times(cost.get()));
        let fits = cost.get() <= self.limit && after <= ceiling;
        let (decision, mark) = self.evaluate(start, cost, fits, now);
        let next = match cost {
            Cost::ZERO => None,
            _ if fits => Some(after),
            _ => (start < ceiling).then_some(ceiling),
        };
        Step {
            next: next.map(|until| WideDebt { until, at: now, ..debt }.into()),
            repair: repair.map(State::from),
            fresh_at: now + decision.standing().reset_after,
            decision,
            mark,
        }
    }

    /// The decision about a cost for a limit that is busy until `start`, and its mark. `fits` says that it passes.
    fn evaluate(&self, start: LongTime, cost: Cost, fits: bool, now: Timestamp) -> (Decision, Mark) {
        let allowed = fits || cost == Cost::ZERO;
        let held = if allowed {
            start.plus(self.interval.times(cost.get()))
        } else {
            start
        };
        let room = self.room(held, now);
        let (remaining, mark) = self.mark(room, now);
        let standing = Standing {
            limit: self.limit,
            remaining,
            reset_after: held.ceil().since(now),
        };
        let wait = || {
            let allowed_at = start.plus(self.interval.times(cost.get())).minus(self.full());
            allowed_at.ceil().since(now)
        };
        (Decision::new(standing, allowed, cost.get(), wait), mark)
    }

    /// The decision that a shared store made, and its mark, from the state that it left. `is_after` says that the state
    /// includes the charge.
    pub(super) fn read_decision(
        &self,
        state: Option<&State>,
        cost: Cost,
        now: Timestamp,
        allowed: bool,
        is_after: bool,
    ) -> (Decision, Mark) {
        let debt = state.map_or_else(|| WideDebt::done(now), WideDebt::from);
        let start = debt.start(now);
        if allowed && is_after {
            let start = start.minus(self.interval.times(cost.get()));
            return self.evaluate(start, cost, true, now);
        }
        self.evaluate(start, cost, allowed, now)
    }

    pub(super) fn refund(&self, state: &State, cost: Cost, now: Now) -> Option<State> {
        let (debt, now, _) = WideDebt::reconcile(Some(state), now);
        let is_done = debt.until.ceil() <= now;
        let until = debt.until.minus(self.interval.times(cost.get()));
        (!is_done).then(|| {
            let until = until.max(LongTime::at(now));
            WideDebt { until, ..debt }.with_refund().into()
        })
    }

    /// The reply to a call with this decision and mark, which must be one of [`WideMeter::evaluate`].
    pub(super) fn reply(&self, decision: &Decision, mark: &Mark, cost: Cost) -> Reply {
        let standing = decision.standing();
        let room = self.read_mark(mark, standing.remaining);
        let wanted = self.interval.times(cost.get());
        let retry_after = match room {
            Room::Left(room) => wanted.minus(room),
            Room::Over(excess) => wanted.plus(excess),
        };
        let reset_after = match room {
            Room::Left(room) => self.full().minus(room),
            Room::Over(excess) => self.full().plus(excess),
        };
        // A peek at a key with more debt than the limit is reported as limited.
        let owes = cost == Cost::ZERO && matches!(room, Room::Over(_));
        let is_limited = owes || !decision.is_allow();
        Reply {
            limited: is_limited,
            limit: self.limit,
            remaining: standing.remaining,
            retry_after_s: (is_limited && decision.retry() != Some(Retry::Never)).then(|| retry_after.reply_seconds()),
            reset_after_s: reset_after.reply_seconds(),
        }
    }

    fn full(&self) -> LongTime {
        self.interval.times(self.limit)
    }

    fn room(&self, held: LongTime, now: Timestamp) -> Room {
        let ceiling = LongTime::at(now).plus(self.full());
        if held <= ceiling {
            Room::Left(ceiling.minus(held))
        } else {
            Room::Over(held.minus(ceiling))
        }
    }

    /// The units that remain, and a mark that holds what is left of the room besides them. Of an excess it holds as many
    /// seconds as a reply can.
    fn mark(&self, room: Room, now: Timestamp) -> (u64, Mark) {
        let (remaining, rest, flag) = match room {
            Room::Left(room) => {
                let units = self.interval.units_in(room, self.limit);
                (units, room.minus(self.interval.times(units)), 0)
            }
            Room::Over(excess) => (0, excess, OVER_MARK),
        };
        let s = u64::try_from(rest.s).unwrap_or(u64::MAX).min(WIDE_MARK - 1);
        let mark = Mark {
            at: Timestamp::from_micros(u64::from(rest.ns) | flag),
            frac: s | WIDE_MARK,
            taken_at: now,
        };
        (remaining, mark)
    }

    fn read_mark(&self, mark: &Mark, remaining: u64) -> Room {
        let at = mark.at.as_micros();
        let rest = LongTime {
            s: u128::from(mark.frac & !WIDE_MARK),
            ns: (at & (OVER_MARK - 1)) as u32,
        };
        if at & OVER_MARK == 0 {
            Room::Left(self.interval.times(remaining).plus(rest))
        } else {
            Room::Over(rest)
        }
    }
}

/// True for a mark of [`WideMeter::evaluate`].
pub(super) const fn is_wide_mark(mark: &Mark) -> bool {
    mark.frac & WIDE_MARK != 0
}

impl WideDebt {
    fn done(now: Timestamp) -> Self {
        Self {
            until: LongTime::at(now),
            at: now,
            flags: 0,
        }
    }

    /// The start of the next charge.
    fn start(&self, now: Timestamp) -> LongTime {
        // Compared in microseconds, as everywhere: a debt ends with the microsecond that it ends in.
        if self.until.ceil() > now {
            self.until
        } else {
            LongTime::at(now)
        }
    }

    /// The debt on the clock of `now`, that time, and the debt to write if the clock was set back.
    fn reconcile(state: Option<&State>, now: Now) -> (Self, Timestamp, Option<Self>) {
        let debt = state.map(Self::from);
        let reading = now.reconcile(debt.map(|debt| debt.at));
        let Some(debt) = debt else {
            return (Self::done(reading.now), reading.now, None);
        };
        let debt = Self {
            until: debt.until.minus(LongTime::from_micros(reading.back.get(), 0)),
            at: debt.at - reading.back,
            ..debt
        };
        (debt, reading.now, (reading.back > Micros::ZERO).then_some(debt))
    }

    fn with_refund(self) -> Self {
        Self {
            flags: self.flags | Debt::<NanoFraction>::HAS_REFUND,
            ..self
        }
    }
}

impl From<&State> for WideDebt {
    fn from(state: &State) -> Self {
        match state {
            State::Wide(debt) => **debt,
            State::Narrow(debt) => {
                let until = debt.until();
                Self {
                    until: LongTime::from_micros(until.us, until.frac as u32),
                    at: debt.at,
                    flags: debt.flags(),
                }
            }
        }
    }
}

impl From<WideDebt> for State {
    /// A wide state only if the debt ends after the last timestamp.
    fn from(debt: WideDebt) -> Self {
        match debt.until.micros() {
            Some((us, ns)) => Self::Narrow(Debt::in_nanos(us, ns, debt.at, debt.flags)),
            None => Self::Wide(Box::new(debt)),
        }
    }
}
