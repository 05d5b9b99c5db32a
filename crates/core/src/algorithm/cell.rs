//! Cell: GCRA with the arithmetic and the replies of `CL.THROTTLE`.
//!
//! Its interval is truncated to whole nanoseconds, so it runs slightly faster than the given rate (by up to one part in a
//! million at a thousand per second): its envelope is `limit + t / interval`. [`Gcra`](super::gcra::Gcra)
//! is the exact one.

use super::Mark;
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::state::debt::{Debt, DebtLimit, DebtMeter, NANOS, NanoFraction};
use crate::state::meter::{ExactTime, Meter, Pace};
use crate::units::muldiv::muldiv;
use crate::units::rate::{LimitError, Rate};
use crate::units::time::Micros;
use std::num::NonZeroU64;

/// The limit of `CL.THROTTLE key max_burst count period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    meter: Meter,
}

/// The theoretical arrival time of the next request, whatever the parameters were.
pub type State = Debt<NanoFraction>;

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
    /// `count` per `period_s` seconds, and `max_burst` more at once.
    ///
    /// # Errors
    /// A count or period of zero, more than 10^9 per second, a limit above 10^9, or one that takes longer than
    /// 2^52 µs to come back.
    pub fn new(max_burst: u64, count: u64, period_s: u64) -> Result<Self, LimitError> {
        let interval_ns = (u128::from(period_s) * 1_000_000_000).checked_div(u128::from(count));
        let limit = max_burst.saturating_add(1);
        let interval_ns = interval_ns.ok_or(LimitError::CellRate)?;
        let interval_ns = u64::try_from(interval_ns).map_err(|_| LimitError::CellBurst { limit })?;
        let span = NonZeroU64::new(interval_ns).ok_or(LimitError::CellRate)?;
        if limit > Rate::UNITS_MAX {
            return Err(LimitError::CellBurst { limit });
        }
        let meter = Meter::with_pace(Pace { parts: NANOS, span }, limit);
        meter.map(|meter| Self { meter }).ok_or(LimitError::CellBurst { limit })
    }

    /// The share `part / whole` of this limit: of its capacity, not below one unit, and of its rate.
    pub(crate) fn portion(&self, part: NonZeroU64, whole: NonZeroU64) -> Self {
        let (span, rest) = muldiv(self.meter.pace.span.get(), whole.get(), part);
        let span = NonZeroU64::new(span.saturating_add(u64::from(rest > 0))).unwrap_or(NonZeroU64::MIN);
        let burst = muldiv(self.meter.burst, part.get(), whole).0.max(1);
        let pace = Pace { parts: NANOS, span };
        let meter = Meter::with_pace(pace, burst).or_else(|| Meter::with_pace(pace, 1));
        // If one unit would take a century, this limit with a capacity of one unit.
        let slowest = || Meter::with_pace(self.meter.pace, 1).expect("one unit takes no longer than all");
        Self {
            meter: meter.unwrap_or_else(slowest),
        }
    }

    /// The most units at once: `max_burst + 1`.
    pub const fn limit(&self) -> u64 {
        self.meter.burst
    }

    pub(crate) const fn numbers(&self) -> [u64; 4] {
        self.meter.numbers()
    }

    /// The reply to a call with this decision and mark.
    ///
    /// Its seconds are rounded from nanoseconds as redis-cell does: down, and up from a millisecond on. So they are
    /// computed here and not from the decision, whose microseconds are rounded up.
    #[inline]
    pub fn reply(&self, decision: &Decision, mark: &Mark, cost: Cost) -> Reply {
        let now = ExactTime::at(mark.taken_at);
        let start = ExactTime::from_mark(mark);
        let allowed_at = self.meter.allowed_at(start, cost);
        // After its parameters were lowered a key can have more debt than the limit. A peek is then reported as limited.
        let owes = cost == Cost::ZERO && allowed_at > now;
        let retry_after_s = match decision.retry() {
            Some(Retry::After(_)) => Some(exact_reply_seconds(allowed_at.minus(now, NANOS))),
            None if owes => Some(exact_reply_seconds(allowed_at.minus(now, NANOS))),
            _ => None,
        };
        let until = match decision {
            Decision::Allow { .. } => self.meter.work_end(start, cost).unwrap_or(start),
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

impl DebtLimit for Cell {
    const NAME: &'static str = "cell";
    type Fraction = NanoFraction;

    #[inline]
    fn meter(&self) -> DebtMeter<'_, NanoFraction> {
        DebtMeter {
            meter: &self.meter,
            fraction: NanoFraction::NEW,
        }
    }
}

/// A duration in the seconds of a reply: rounded down, or up if the rest is a millisecond or more.
pub const fn reply_seconds(span: Micros) -> u64 {
    span.get() / 1_000_000 + (span.get() % 1_000_000 >= 1_000) as u64
}

#[inline]
fn exact_reply_seconds(span: ExactTime) -> u64 {
    reply_seconds(Micros::new(span.us))
}
