//! The state that token bucket, GCRA, leaky bucket and `Cell` keep: until when the limit is busy with past charges.

mod limit;
mod packed;

use crate::algorithm::{Mark, Receipt, Step};
use crate::decision::{Cost, Decision};
use crate::state::meter::{ExactTime, Meter, MeterResult, Pace};
use crate::units::muldiv::muldiv;
use crate::units::rate::PERIOD_MAX;
use crate::units::time::{ClockReading, Micros, Now, Timestamp};
use std::num::{NonZeroU32, NonZeroU64};

pub(crate) use self::limit::{DebtLimit, DebtMeter};
pub use self::packed::PackedDebt;

/// Outstanding work: the time it ends, exact to a fraction of a microsecond, and the time of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt<G> {
    pub(crate) until_us: u64,
    pub(crate) at: Timestamp,
    pub(crate) fraction: G,
}

/// The fraction of a debt's end, and what a limit with another rate needs to read it.
pub(crate) trait Fraction: Copy {
    /// The parts of a microsecond.
    fn parts(self) -> NonZeroU64;

    /// The fraction in parts; its two highest bits are flags for undo.
    fn rest(self) -> u32;

    fn with_rest(self, rest: u32) -> Self;

    /// True if a debt with this fraction was written at the pace of `limit`.
    fn same_pace(self, limit: Self) -> bool;

    /// The end of a debt written at another pace for a limit with `meter`, and the time at which it expires at the latest.
    fn read(debt: &Debt<Self>, meter: &Meter) -> (ExactTime, Timestamp);

    /// The time that a refund under a limit with `meter` takes from a debt with this fraction.
    ///
    /// Where debt is time, it comes back at the pace of the limit. For another denominator its fraction is rounded down.
    fn refund_time(self, meter: &Meter, cost: Cost) -> ExactTime {
        let ExactTime { us, frac } = meter.pace.span_of(cost.get());
        let (frac, _) = muldiv(frac, self.parts().get(), meter.pace.parts);
        ExactTime { us, frac }
    }
}

/// A fraction with its whole pace, so that units stay units when the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnitFraction {
    span: NonZeroU64,
    parts: NonZeroU32,
    rest: u32,
}

/// A fraction with its denominator, so that time stays time when the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeFraction {
    parts: NonZeroU32,
    rest: u32,
}

/// A fraction in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NanoFraction {
    rest: u32,
    parts: NanoParts,
}

/// The parts of a microsecond that a nanosecond is: always the same number. Its bytes have room for the other cases of
/// an enum with a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
enum NanoParts {
    Thousand = 1_000,
}

/// Set once units were refunded: the position of each charge in the debt is then unknown.
const HAS_REFUND: u32 = 1 << 31;

/// Set once a debt has charges of different paces: the work of each charge is then unknown.
const HAS_MIXED_PACES: u32 = 1 << 30;

/// The bits that are not the fraction: a pace has at most 10^9 parts, which leaves both free.
const FLAGS: u32 = HAS_REFUND | HAS_MIXED_PACES;

/// Nanoseconds in a microsecond.
pub(crate) const NANOS: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");

impl Debt<NanoFraction> {
    /// See [`HAS_REFUND`].
    pub(crate) const HAS_REFUND: u32 = HAS_REFUND;
    /// See [`FLAGS`].
    pub(crate) const FLAGS: u32 = FLAGS;

    /// A debt that ends so many microseconds and nanoseconds after the epoch.
    pub(crate) fn in_nanos(until_us: u64, ns: u32, at: Timestamp, flags: u32) -> Self {
        let until = ExactTime {
            us: until_us,
            frac: ns.into(),
        };
        Self::new(until, at, NanoFraction::NEW, flags)
    }
}

#[expect(private_bounds, reason = "a closed list: other crates cannot add fractions")]
impl<G: Fraction> Debt<G> {
    #[inline(always)]
    fn new(until: ExactTime, at: Timestamp, fraction: G, flags: u32) -> Self {
        debug_assert!(until.frac < fraction.parts().get());
        Self {
            until_us: until.us,
            at,
            fraction: fraction.with_rest(until.frac as u32 | flags),
        }
    }

    /// A debt read from outside, if a limit can have written it.
    pub(crate) fn from_parts(until_us: u64, at: u64, rest: u64, fraction: G) -> Option<Self> {
        let rest = u32::try_from(rest).ok()?;
        let in_order = at <= until_us && at <= Now::MAX.as_micros() && until_us <= Timestamp::MAX.as_micros();
        let is_fraction = u64::from(rest & !FLAGS) < fraction.parts().get();
        (in_order && is_fraction).then(|| Self {
            until_us,
            at: Timestamp::from_micros(at),
            fraction: fraction.with_rest(rest),
        })
    }

    #[inline]
    pub(crate) fn until(&self) -> ExactTime {
        ExactTime {
            us: self.until_us,
            frac: u64::from(self.fraction.rest() & !FLAGS),
        }
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.fraction.rest() & FLAGS
    }

    /// The time at which the work is done, under any limit.
    #[inline]
    pub fn fresh_at(&self) -> Timestamp {
        self.until().ceil()
    }

    /// The debt at `now`; none once the work is done.
    #[inline(always)]
    pub(crate) fn reconcile(debt: Option<&Self>, now: Now) -> CurrentDebt<G> {
        let ClockReading { now, back } = now.reconcile(debt.map(|debt| debt.at));
        let Some(&debt) = debt else {
            return CurrentDebt {
                debt: None,
                now,
                repair: None,
            };
        };
        let debt = Self {
            until_us: debt.until_us.saturating_sub(back.get()),
            at: debt.at - back,
            ..debt
        };
        let repair = (back > Micros::ZERO).then_some(debt);
        CurrentDebt {
            debt: (debt.fresh_at() > now).then_some(debt),
            now,
            repair,
        }
    }

    /// Decides `cost` for a limit. Always inlined: a step is large, and moving it between functions costs more than
    /// deciding.
    #[inline(always)]
    pub(crate) fn decide(
        debt: Option<&Self>,
        DebtMeter { meter, fraction }: DebtMeter<'_, G>,
        cost: Cost,
        now: Now,
    ) -> Step<Self> {
        // Kept even when the work is done: a charge from before may still be undone.
        let flags = debt.map_or(0, |debt| {
            debt.flags()
                | if debt.fraction.same_pace(fraction) {
                    0
                } else {
                    HAS_MIXED_PACES
                }
        });
        let CurrentDebt { debt, now, repair } = Self::reconcile(debt, now);
        let (until, forgotten) = match &debt {
            None => (ExactTime::at(now), Timestamp::MAX),
            Some(debt) if debt.fraction.same_pace(fraction) => (debt.until(), Timestamp::MAX),
            Some(debt) => G::read(debt, meter),
        };
        let MeterResult { decision, after, start } = meter.evaluate(until, forgotten, cost, now);
        Step {
            decision,
            next: after.map(|until| Self::new(until, now, fraction, flags)),
            repair,
            fresh_at: now + decision.standing().reset_after,
            mark: start.mark(now),
        }
    }

    /// Takes one unit in place, with the decision of [`Debt::decide`] for that cost. None if the debt was written at
    /// another pace or before the clock was set back.
    #[inline(always)]
    pub(crate) fn take_one(
        &mut self,
        DebtMeter { meter, fraction }: DebtMeter<'_, G>,
        now: Now,
    ) -> Option<(Decision, Mark)> {
        let ClockReading { now, back } = now.reconcile(Some(self.at));
        if back > Micros::ZERO || !self.fraction.same_pace(fraction) {
            return None;
        }
        // Work that is done ends before now, and so needs no case of its own.
        let start = self.until().max(ExactTime::at(now));
        let (decision, after) = meter.evaluate_one(start, now);
        if decision.is_allow() {
            *self = Self::new(after, now, fraction, self.flags());
        }
        Some((decision, start.mark(now)))
    }

    /// Returns units.
    pub(crate) fn refund(&self, meter: &Meter, cost: Cost, now: Now) -> Option<Self> {
        let CurrentDebt { debt, now, .. } = Self::reconcile(Some(self), now);
        debt.map(|debt| debt.less(debt.fraction.refund_time(meter, cost), now))
    }

    /// Reverses one charge that was made at this very pace.
    ///
    /// The position of the last charge is known. If units were refunded since, an earlier charge may have moved up, so it
    /// counts as worked off from the time it was taken. If the pace changed, its work is unknown and nothing is reversed.
    pub(crate) fn undo(
        &self,
        DebtMeter { meter, fraction }: DebtMeter<'_, G>,
        receipt: &Receipt,
        now: Now,
    ) -> Option<Self> {
        receipt.same_clock(self.at, now)?;
        let CurrentDebt { debt, now, .. } = Self::reconcile(Some(self), now);
        let debt = debt.filter(|debt| debt.fraction.same_pace(fraction))?;
        let mut start = ExactTime::from_mark(&receipt.mark);
        let ends = meter.work_end(start, receipt.cost)?;
        let is_last = debt.at == receipt.mark.taken_at && debt.until() == ends;
        if !is_last && debt.flags() & HAS_MIXED_PACES != 0 {
            return None;
        }
        if !is_last && debt.flags() & HAS_REFUND != 0 {
            start = ExactTime::at(receipt.mark.taken_at);
        }
        Some(debt.less(meter.remaining_work(receipt.cost, start, now)?, now))
    }

    /// The debt with less work, not below zero. The time of the last charge stays: from then on the debt is worked off at
    /// the pace of the limit that reads it.
    fn less(&self, work: ExactTime, now: Timestamp) -> Self {
        let until = self.until().minus(work, self.fraction.parts()).max(ExactTime::at(now));
        Self::new(until, self.at, self.fraction, self.flags() | HAS_REFUND)
    }
}

/// A debt at the moment of a decision.
pub(crate) struct CurrentDebt<G> {
    pub(crate) debt: Option<Debt<G>>,
    pub(crate) now: Timestamp,
    /// The state to write because the clock was set back.
    pub(crate) repair: Option<Debt<G>>,
}

/// The denominator of a debt that stores it.
macro_rules! stored_parts {
    () => {
        #[inline]
        fn parts(self) -> NonZeroU64 {
            self.parts.into()
        }
    };
}

/// The fraction of a debt that stores it.
macro_rules! stored_rest {
    () => {
        #[inline]
        fn rest(self) -> u32 {
            self.rest
        }

        #[inline]
        fn with_rest(self, rest: u32) -> Self {
            Self { rest, ..self }
        }
    };
}

impl UnitFraction {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            span: pace.span,
            parts: narrow(pace.parts),
            rest: 0,
        }
    }

    /// The fraction of numbers read from outside, if they are a pace.
    pub(crate) fn from_numbers(parts: NonZeroU32, span: u64) -> Option<Self> {
        let span = NonZeroU64::new(span).filter(|span| span.get() <= PERIOD_MAX.get())?;
        Some(Self { span, parts, rest: 0 })
    }

    /// Its span.
    pub(crate) fn span(self) -> u64 {
        self.span.get()
    }

    fn pace(self) -> Pace {
        Pace {
            parts: self.parts.into(),
            span: self.span,
        }
    }
}

impl Fraction for UnitFraction {
    stored_parts!();
    stored_rest!();

    #[inline]
    fn same_pace(self, limit: Self) -> bool {
        self.parts == limit.parts && self.span == limit.span
    }

    /// Units that were used stay used: they are counted at the old pace, rounded up, and worked off at the new pace
    /// from the last write on.
    #[cold]
    fn read(debt: &Debt<Self>, meter: &Meter) -> (ExactTime, Timestamp) {
        let work = debt.until().minus(ExactTime::at(debt.at), debt.fraction.parts());
        let ExactTime { us, frac } = meter.pace.span_of(debt.fraction.pace().units_over(work));
        let us = us.saturating_add(debt.at.as_micros()).min(Timestamp::MAX.as_micros());
        (ExactTime { us, frac }, debt.fresh_at())
    }

    /// Units come back at the pace they were taken at.
    fn refund_time(self, _: &Meter, cost: Cost) -> ExactTime {
        self.pace().span_of(cost.get())
    }
}

impl TimeFraction {
    pub(crate) fn new(pace: Pace) -> Self {
        Self::with_parts(narrow(pace.parts))
    }

    pub(crate) fn with_parts(parts: NonZeroU32) -> Self {
        Self { parts, rest: 0 }
    }
}

impl Fraction for TimeFraction {
    stored_parts!();
    stored_rest!();

    #[inline]
    fn same_pace(self, limit: Self) -> bool {
        self.parts == limit.parts
    }

    /// Time stays time; a fraction of another limit is rounded up.
    #[cold]
    fn read(debt: &Debt<Self>, _: &Meter) -> (ExactTime, Timestamp) {
        (ExactTime::at(debt.fresh_at()), Timestamp::MAX)
    }
}

impl NanoFraction {
    pub(crate) const NEW: Self = Self {
        rest: 0,
        parts: NanoParts::Thousand,
    };
}

impl Fraction for NanoFraction {
    stored_rest!();

    #[inline]
    fn parts(self) -> NonZeroU64 {
        NANOS
    }

    #[inline]
    fn same_pace(self, _: Self) -> bool {
        true
    }

    fn read(debt: &Debt<Self>, _: &Meter) -> (ExactTime, Timestamp) {
        (debt.until(), Timestamp::MAX)
    }
}

fn narrow(parts: NonZeroU64) -> NonZeroU32 {
    NonZeroU32::try_from(parts).expect("a pace has at most 10^9 parts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::LeaseId;

    #[test]
    fn states_are_small() {
        assert_eq!(size_of::<Option<Debt<UnitFraction>>>(), 32);
        assert_eq!(size_of::<Option<Debt<TimeFraction>>>(), 24);
        assert_eq!(size_of::<Debt<NanoFraction>>(), 24);
    }

    #[test]
    fn a_receipt_of_another_pace_takes_nothing_back() {
        let meter = |units| {
            let rate = crate::Rate::new(units, Micros::from_secs(1)).expect("in range");
            Meter::new(rate, 10).expect("in range")
        };
        fn at_pace(meter: &Meter) -> DebtMeter<'_, UnitFraction> {
            let fraction = UnitFraction::new(meter.pace);
            DebtMeter { meter, fraction }
        }
        let (sevenths, thirds) = (meter(7), meter(3));
        let now = Now::new(Timestamp::from_micros(1_700_000_000_000_000));
        let decide = |debt, meter: &Meter, now| Debt::decide(debt, at_pace(meter), Cost::ONE, now);
        let first = decide(None, &sevenths, now).next.expect("allowed");
        let second = decide(Some(&first), &sevenths, now);
        // Its key has expired since, and a new one was created under the other limit.
        let later = Now::new(now.at() + Micros::from_secs(5));
        let other = decide(None, &thirds, later).next.expect("allowed");
        for frac in [second.mark.frac, 3, 6, u64::MAX] {
            let receipt = Receipt {
                cost: Cost::ONE,
                mark: Mark { frac, ..second.mark },
                lease: LeaseId::default(),
            };
            assert_eq!(other.undo(at_pace(&thirds), &receipt, later), None);
        }
    }
}
