//! Cell: GCRA with the arithmetic and the replies of `CL.THROTTLE`.
//!
//! Its interval is truncated to whole nanoseconds, so it runs slightly faster than the given rate (by up to one part in a
//! million at a thousand per second): its envelope is `limit + t / interval`. [`Gcra`](super::gcra::Gcra)
//! is the exact one.

mod long_time;
mod wide;

use self::long_time::{Interval, LongTime};
use self::wide::{WideMeter, is_wide_mark};
use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::state::debt::{Debt, DebtMeter, NANOS, NanoFraction};
use crate::state::meter::{ExactTime, Meter, Pace};
use crate::state::numbers::StateNumbers;
use crate::units::rate::{FILL_TIME_MAX, LimitError, Rate};
use crate::units::time::{Micros, Now, Timestamp};
use std::num::NonZeroU64;

pub use self::wide::WideDebt;

/// The limit of `CL.THROTTLE key max_burst count period`.
///
/// Any numbers that the call can have are valid. Most limits are decided in microseconds as all others are; those with
/// larger numbers, or on a key that such a call left far in the future, in seconds of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    interval: Interval,
    limit: u64,
    /// None if its numbers are too large.
    meter: Option<Meter>,
}

/// The theoretical arrival time of the next request, whatever the parameters were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A time that a timestamp can be.
    Narrow(Debt<NanoFraction>),
    /// A later one.
    Wide(Box<WideDebt>),
}

/// The five integers of a `CL.THROTTLE` reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// True if the call was denied.
    pub limited: bool,
    /// `max_burst + 1`.
    pub limit: u64,
    /// Units left.
    pub remaining: u64,
    /// Seconds until the same quantity would pass; none (−1 on the wire) if it passed or never can.
    pub retry_after_s: Option<u64>,
    /// Seconds until the key is fresh.
    pub reset_after_s: u64,
}

impl Cell {
    /// `count` per `period_s` seconds, and `max_burst` more at once. Numbers above 2^63 − 1, which no call can have,
    /// count as that.
    ///
    /// # Errors
    /// A count or period of zero, or more than 10^9 per second.
    pub fn new(max_burst: u64, count: u64, period_s: u64) -> Result<Self, LimitError> {
        let interval = Interval::new(count, period_s.min(INTEGER_MAX)).ok_or(LimitError::CellRate)?;
        Ok(Self::with_interval(interval, max_burst.min(INTEGER_MAX) + 1))
    }

    fn with_interval(interval: Interval, limit: u64) -> Self {
        // Numbers that doubles hold, since they are the twin's arguments.
        let span = u64::try_from(interval.nanos())
            .ok()
            .filter(|span| *span < 1 << f64::MANTISSA_DIGITS);
        let pace = span
            .and_then(NonZeroU64::new)
            .map(|span| Pace { parts: NANOS, span })
            .filter(|_| limit <= Rate::UNITS_MAX);
        Self {
            interval,
            limit,
            meter: pace.and_then(|pace| Meter::with_pace(pace, limit)),
        }
    }

    /// The share `part / whole` of this limit: of its capacity, not below one unit, and of its rate.
    pub(crate) fn portion(&self, part: NonZeroU64, whole: NonZeroU64) -> Self {
        let (part, whole) = (u128::from(part.get()), u128::from(whole.get()));
        let ns = self.interval.nanos().saturating_mul(whole).div_ceil(part);
        let limit = u128::from(self.limit) * part / whole;
        let limit = u64::try_from(limit).unwrap_or(self.limit).clamp(1, self.limit);
        Self::with_interval(Interval::from_nanos(ns).unwrap_or(self.interval), limit)
    }

    /// The most units at once: `max_burst + 1`.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Its numbers as arguments of its twin. The last is zero if they are those of a meter. Otherwise they are the low
    /// bits of the interval's seconds, the high ones above its nanoseconds, the low bits of the limit, and the high ones
    /// plus one.
    pub(crate) const fn numbers(&self) -> [u64; 4] {
        match &self.meter {
            Some(meter) => meter.numbers(),
            None => {
                let (s, ns) = self.interval.parts();
                [
                    s & LOW_BITS,
                    ((s >> LOW_BITS.count_ones()) << 30) | ns as u64,
                    self.limit & LOW_BITS,
                    (self.limit >> LOW_BITS.count_ones()) + 1,
                ]
            }
        }
    }

    /// The decision that a shared store made about a cost at `now`, and its mark, from the state that it left.
    /// `is_after` says that the state includes the charge. For calls with large numbers, of which its script gives only
    /// that.
    pub fn read_decision(
        &self,
        state: Option<&State>,
        cost: Cost,
        now: Timestamp,
        allowed: bool,
        is_after: bool,
    ) -> (Decision, Mark) {
        self.wide().read_decision(state, cost, now, allowed, is_after)
    }

    const fn wide(&self) -> WideMeter {
        WideMeter {
            interval: self.interval,
            limit: self.limit,
        }
    }

    /// The meter for a key with this state, unless its numbers are too large.
    #[inline]
    fn meter_for<'a>(&'a self, state: Option<&'a State>) -> Option<(&'a Meter, Option<&'a Debt<NanoFraction>>)> {
        match (&self.meter, state) {
            (Some(meter), None) => Some((meter, None)),
            (Some(meter), Some(State::Narrow(debt))) => Some((meter, Some(debt))),
            _ => None,
        }
    }

    /// The reply to a call with this decision and mark.
    ///
    /// Its seconds are rounded from nanoseconds as redis-cell does: down, and up from a millisecond on. So they are
    /// computed here and not from the decision, whose microseconds are rounded up.
    #[inline]
    pub fn reply(&self, decision: &Decision, mark: &Mark, cost: Cost) -> Reply {
        let Some(meter) = self.meter.as_ref().filter(|_| !is_wide_mark(mark)) else {
            return self.wide().reply(decision, mark, cost);
        };
        let now = ExactTime::at(mark.taken_at);
        let start = ExactTime::from_mark(mark);
        let allowed_at = meter.allowed_at(start, cost);
        // After its parameters were lowered a key can have more debt than the limit. A peek is then reported as limited.
        let owes = cost == Cost::ZERO && allowed_at > now;
        let retry_after_s = match decision.retry() {
            Some(Retry::After(_)) => Some(exact_reply_seconds(allowed_at.minus(now, NANOS))),
            None if owes => Some(exact_reply_seconds(allowed_at.minus(now, NANOS))),
            _ => None,
        };
        let until = match decision {
            Decision::Allow { .. } => meter.work_end(start, cost).unwrap_or(start),
            Decision::Deny { .. } => start,
        };
        Reply {
            limited: owes || !decision.is_allow(),
            limit: self.limit(),
            remaining: decision.standing().remaining,
            retry_after_s,
            reset_after_s: exact_reply_seconds(until.minus(now, NANOS)),
        }
    }

    /// The reply to a call that another limit decided, such as a share of this one.
    pub fn reply_from_decision(decision: &Decision) -> Reply {
        let standing = decision.standing();
        Reply {
            limited: !decision.is_allow(),
            limit: standing.limit,
            remaining: standing.remaining,
            retry_after_s: match decision.retry() {
                Some(Retry::After(wait)) => Some(reply_seconds(wait)),
                _ => None,
            },
            reset_after_s: reply_seconds(standing.reset_after),
        }
    }

    /// True if the times of a standing are not capped, as those of calls with large numbers may be.
    pub const fn is_exact(&self, standing: &Standing) -> bool {
        self.meter.is_some() && standing.reset_after.get() <= FILL_TIME_MAX.get()
    }

    /// The reply to a call that returned units.
    pub fn refund_reply(&self, standing: &Standing) -> Reply {
        Reply {
            limited: false,
            limit: self.limit(),
            remaining: standing.remaining,
            retry_after_s: None,
            reset_after_s: reply_seconds(standing.reset_after),
        }
    }
}

#[inline]
fn debt_meter(meter: &Meter) -> DebtMeter<'_, NanoFraction> {
    DebtMeter {
        meter,
        fraction: NanoFraction::NEW,
    }
}

impl Algorithm for Cell {
    const NAME: &'static str = "cell";
    type State = State;
    type Change = State;

    #[inline(always)]
    fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<State> {
        let Some((meter, debt)) = self.meter_for(state) else {
            return self.wide().decide(state, cost, now);
        };
        let step = Debt::decide(debt, debt_meter(meter), cost, now);
        Step {
            decision: step.decision,
            next: step.next.map(State::Narrow),
            repair: step.repair.map(State::Narrow),
            fresh_at: step.fresh_at,
            mark: step.mark,
        }
    }

    fn refund(&self, state: &State, cost: Cost, now: Now) -> Option<State> {
        match self.meter_for(Some(state)) {
            Some((meter, debt)) => debt?.refund(meter, cost, now).map(State::Narrow),
            None => self.wide().refund(state, cost, now),
        }
    }

    /// Nothing for large numbers: their marks have no position. Calls come one by one, so none is ever taken back.
    fn undo(&self, state: &State, receipt: &Receipt, now: Now) -> Option<State> {
        let (meter, debt) = self.meter_for(Some(state))?;
        debt?.undo(debt_meter(meter), receipt, now).map(State::Narrow)
    }

    #[inline]
    fn start(&self, change: State, _: LeaseId) -> State {
        change
    }

    #[inline(always)]
    fn take_one(&self, state: &mut State, now: Now) -> Option<(Decision, Mark)> {
        match (&self.meter, state) {
            (Some(meter), State::Narrow(debt)) => debt.take_one(debt_meter(meter), now),
            _ => None,
        }
    }

    #[inline]
    fn fresh_at(&self, state: &State) -> Timestamp {
        state.fresh_at()
    }
}

impl State {
    /// The time at which the work is done, under any limit; at most the last timestamp.
    #[inline]
    pub fn fresh_at(&self) -> Timestamp {
        match self {
            Self::Narrow(debt) => debt.fresh_at(),
            Self::Wide(_) => Timestamp::MAX,
        }
    }

    /// Its bytes outside a table.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Narrow(_) => 0,
            Self::Wide(debt) => size_of_val(&**debt),
        }
    }
}

impl StateNumbers for State {
    /// A wide state has the time of the last write, the nanoseconds with the flags above them, and the bits of the
    /// seconds, the low ones first.
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        match self {
            Self::Narrow(debt) => debt.write_numbers(numbers),
            Self::Wide(debt) => {
                let s = debt.until.s;
                let low = |s: u128| s as u64 & LOW_BITS;
                numbers.extend([debt.at.as_micros(), u64::from(debt.until.ns | debt.flags)]);
                numbers.extend([
                    low(s),
                    low(s >> LOW_BITS.count_ones()),
                    low(s >> (2 * LOW_BITS.count_ones())),
                ]);
            }
        }
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[at, rest, low, middle, high] = numbers else {
            return Debt::from_numbers(numbers).map(Self::Narrow);
        };
        let is_time = at <= Now::MAX.as_micros() && low <= LOW_BITS && middle <= LOW_BITS && high <= HIGH_MAX;
        let (rest, bits) = (u32::try_from(rest).ok()?, LOW_BITS.count_ones());
        let ns = rest & !Debt::<NanoFraction>::FLAGS;
        let until = LongTime {
            s: u128::from(low) | u128::from(middle) << bits | u128::from(high) << (2 * bits),
            ns,
        };
        let is_wide = until.micros().is_none() && ns < 1_000_000_000;
        (is_time && is_wide).then(|| {
            Self::Wide(Box::new(WideDebt {
                until,
                at: Timestamp::from_micros(at),
                flags: rest & Debt::<NanoFraction>::FLAGS,
            }))
        })
    }
}

/// The largest integer of a call.
const INTEGER_MAX: u64 = i64::MAX as u64;

/// The bits of a large number that are one number of a state or a limit.
const LOW_BITS: u64 = (1 << 48) - 1;

/// The most above twice those bits in a time: 2^127 seconds in all, so that no sum overflows.
const HIGH_MAX: u64 = (1 << (127 - 96)) - 1;

/// A duration in the seconds of a reply: rounded down, or up if the rest is a millisecond or more.
pub const fn reply_seconds(span: Micros) -> u64 {
    span.get() / 1_000_000 + (span.get() % 1_000_000 >= 1_000) as u64
}

#[inline]
fn exact_reply_seconds(span: ExactTime) -> u64 {
    reply_seconds(Micros::new(span.us))
}
