//! The state that token bucket, GCRA, leaky bucket and `Cell` keep: until when the limit is busy with past charges.

mod packed;

use crate::algorithm::{Mark, Receipt, Step};
use crate::decision::{Cost, Decision};
use crate::meter::{Fine, Meter, Pace, Weighed};
use crate::rate::LONGEST;
use crate::time::{Heard, Micros, Now, Timestamp};
use std::num::{NonZeroU32, NonZeroU64};

pub use self::packed::PackedDebt;

/// Work still to be done: the moment it ends, exact to a fraction of a microsecond, and when that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt<G> {
    pub(crate) until_us: u64,
    pub(crate) at: Timestamp,
    pub(crate) grain: G,
}

/// The fraction of a debt's end, and what it must remember of the limit it was written under to be read under another.
pub(crate) trait Grain: Copy {
    /// How many parts make a microsecond.
    fn parts(self) -> NonZeroU64;

    /// The fraction, in parts, and in its two highest bits what receipts must know.
    fn rest(self) -> u32;

    fn with_rest(self, rest: u32) -> Self;

    /// Whether a debt of this grain was written at the pace of a limit of that one.
    fn is_as(self, limit: Self) -> bool;

    /// When a debt written in another grain ends for a limit with `meter`, and when it is forgotten at the latest.
    fn read(debt: &Debt<Self>, meter: &Meter) -> (Fine, Timestamp);
}

/// The whole pace, so that units stay units when the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByUnits {
    span: NonZeroU64,
    parts: NonZeroU32,
    rest: u32,
}

/// Only the denominator, so that time stays time when the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByTime {
    parts: NonZeroU32,
    rest: u32,
}

/// Always nanoseconds: nothing to remember but the fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByNanos {
    rest: u32,
}

/// Set in a rest once units of a debt were given back: then it no longer says where each charge has its place.
const LOOSE: u32 = 1 << 31;

/// Set once charges of different paces meet in a debt: then it no longer says what each of them is worth.
const MIXED: u32 = 1 << 30;

/// What is not fraction: a rate has at most 10^9 parts, which leaves both bits free.
const FLAGS: u32 = LOOSE | MIXED;

/// Nanoseconds in a microsecond.
pub(crate) const NANOS: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");

#[expect(
    private_bounds,
    reason = "a closed list: what a limit remembers is nobody else's to define"
)]
impl<G: Grain> Debt<G> {
    #[inline(always)]
    fn new(until: Fine, at: Timestamp, grain: G, flags: u32) -> Self {
        debug_assert!(until.frac < grain.parts().get());
        Self {
            until_us: until.us,
            at,
            grain: grain.with_rest(until.frac as u32 | flags),
        }
    }

    /// A debt that was read from outside, if a limit can have written it.
    pub(crate) fn checked(until_us: u64, at: u64, rest: u64, grain: G) -> Option<Self> {
        let rest = u32::try_from(rest).ok()?;
        let in_order = at <= until_us && at <= Now::MAX.as_micros() && until_us <= Timestamp::MAX.as_micros();
        let is_fraction = u64::from(rest & !FLAGS) < grain.parts().get();
        (in_order && is_fraction).then(|| Self {
            until_us,
            at: Timestamp::from_micros(at),
            grain: grain.with_rest(rest),
        })
    }

    #[inline]
    pub(crate) fn until(&self) -> Fine {
        Fine {
            us: self.until_us,
            frac: u64::from(self.grain.rest() & !FLAGS),
        }
    }

    #[inline]
    fn flags(&self) -> u32 {
        self.grain.rest() & FLAGS
    }

    /// When nothing is left, under any limit.
    #[inline]
    pub fn fresh_at(&self) -> Timestamp {
        self.until().ceil()
    }

    /// What this debt is at `now`: nothing once it is done.
    #[inline(always)]
    pub(crate) fn heed(debt: Option<&Self>, now: Now) -> Heeded<G> {
        let Heard { now, back } = now.heed(debt.map(|debt| debt.at));
        let Some(&debt) = debt else {
            return Heeded {
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
        Heeded {
            debt: (debt.fresh_at() > now).then_some(debt),
            now,
            repair,
        }
    }

    /// Decides `cost` for a limit of `grain`. Always inlined: a step is large, and handing it from function to function
    /// costs more than deciding. Says also how long the charge waits for the work before it.
    #[inline(always)]
    pub(crate) fn decide(debt: Option<&Self>, (meter, grain): (&Meter, G), cost: Cost, now: Now) -> Charged<G> {
        // Kept even when the debt is done: a receipt from before may still come back.
        let flags = debt.map_or(0, |debt| debt.flags() | if debt.grain.is_as(grain) { 0 } else { MIXED });
        let Heeded { debt, now, repair } = Self::heed(debt, now);
        let (until, forgotten) = match &debt {
            None => (Fine::at(now), Timestamp::MAX),
            Some(debt) if debt.grain.is_as(grain) => (debt.until(), Timestamp::MAX),
            Some(debt) => G::read(debt, meter),
        };
        let Weighed { decision, after, begin } = meter.weigh(until, forgotten, cost, now);
        let step = Step {
            decision,
            next: after.map(|until| Self::new(until, now, grain, flags)),
            repair,
            fresh_at: now + decision.standing().reset_after,
            mark: begin.mark(now),
        };
        Charged {
            step,
            wait: begin.ceil().since(now),
        }
    }

    /// Takes one unit, if it is there: what [`Debt::decide`] says of that cost, and writes if it is allowed. Nothing if
    /// the debt was written at another pace or before the clock was set back.
    #[inline(always)]
    pub(crate) fn take_one(&mut self, (meter, grain): (&Meter, G), now: Now) -> Option<(Decision, Mark)> {
        let Heard { now, back } = now.heed(Some(self.at));
        if back > Micros::ZERO || !self.grain.is_as(grain) {
            return None;
        }
        // A debt that is done ends before now, and so needs no case of its own.
        let begin = self.until().max(Fine::at(now));
        let (decision, after) = meter.weigh_one(begin, now);
        if decision.is_allow() {
            *self = Self::new(after, now, grain, self.flags());
        }
        Some((decision, begin.mark(now)))
    }

    /// Takes one charge back that was made at this very pace.
    ///
    /// If it was the last, its place is known. If units were given back since, its place may have moved up, and it counts
    /// as worked off from the moment it was taken. If the pace changed, what it was worth cannot be told any more.
    pub(crate) fn undo(&self, (meter, grain): (&Meter, G), receipt: &Receipt, now: Now) -> Option<Self> {
        receipt.same_clock(self.at, now)?;
        let Heeded { debt, now, .. } = Self::heed(Some(self), now);
        let debt = debt.filter(|debt| debt.grain.is_as(grain))?;
        let mut begin = Fine::begin_of(&receipt.mark);
        let ends = meter.ends(begin, receipt.cost)?;
        let is_last = debt.at == receipt.mark.taken_at && debt.until() == ends;
        if !is_last && debt.flags() & MIXED != 0 {
            return None;
        }
        if !is_last && debt.flags() & LOOSE != 0 {
            begin = Fine::at(receipt.mark.taken_at);
        }
        Some(debt.less(meter.unspent(receipt.cost, begin, now)?, now))
    }

    /// With `work` less to do, but not less than none. The time of the last charge stays: from then on what was used is
    /// worked off at the pace of whatever limit reads it.
    fn less(&self, work: Fine, now: Timestamp) -> Self {
        let until = self.until().minus(work, self.grain.parts()).max(Fine::at(now));
        Self::new(until, self.at, self.grain, self.flags() | LOOSE)
    }
}

/// A debt as it stands at the moment of a decision.
pub(crate) struct Heeded<G> {
    pub(crate) debt: Option<Debt<G>>,
    pub(crate) now: Timestamp,
    /// To be written back because the clock was set back.
    pub(crate) repair: Option<Debt<G>>,
}

/// A step, and how long the charge waits for the work before it.
pub(crate) struct Charged<G> {
    pub(crate) step: Step<Debt<G>>,
    pub(crate) wait: Micros,
}

impl ByUnits {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            span: pace.span,
            parts: narrow(pace.parts),
            rest: 0,
        }
    }

    /// The grain of numbers that were read from outside, if they are a pace.
    pub(crate) fn from_numbers(parts: NonZeroU32, span: u64) -> Option<Self> {
        let span = NonZeroU64::new(span).filter(|span| span.get() <= LONGEST.get())?;
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

impl Grain for ByUnits {
    #[inline]
    fn parts(self) -> NonZeroU64 {
        self.parts.into()
    }

    #[inline]
    fn rest(self) -> u32 {
        self.rest
    }

    #[inline]
    fn with_rest(self, rest: u32) -> Self {
        Self { rest, ..self }
    }

    #[inline]
    fn is_as(self, limit: Self) -> bool {
        self.parts == limit.parts && self.span == limit.span
    }

    /// What was used stays used: counted out in units at the old pace, a begun one whole, and worked off at the new
    /// pace from the last write on.
    #[cold]
    fn read(debt: &Debt<Self>, meter: &Meter) -> (Fine, Timestamp) {
        let work = debt.until().minus(Fine::at(debt.at), debt.grain.parts());
        let Fine { us, frac } = meter.pace.span_of(debt.grain.pace().units_over(work));
        let us = us.saturating_add(debt.at.as_micros()).min(Timestamp::MAX.as_micros());
        (Fine { us, frac }, debt.fresh_at())
    }
}

impl Debt<ByUnits> {
    /// Gives units back at the pace they were taken at.
    pub(crate) fn refund(&self, cost: Cost, now: Now) -> Option<Self> {
        let Heeded { debt, now, .. } = Self::heed(Some(self), now);
        debt.map(|debt| debt.less(debt.grain.pace().span_of(cost.get()), now))
    }
}

impl ByTime {
    pub(crate) fn new(pace: Pace) -> Self {
        Self::over(narrow(pace.parts))
    }

    pub(crate) fn over(parts: NonZeroU32) -> Self {
        Self { parts, rest: 0 }
    }
}

impl Grain for ByTime {
    #[inline]
    fn parts(self) -> NonZeroU64 {
        self.parts.into()
    }

    #[inline]
    fn rest(self) -> u32 {
        self.rest
    }

    #[inline]
    fn with_rest(self, rest: u32) -> Self {
        Self { rest, ..self }
    }

    #[inline]
    fn is_as(self, limit: Self) -> bool {
        self.parts == limit.parts
    }

    /// Time stays time; a fraction of another limit's is rounded up.
    #[cold]
    fn read(debt: &Debt<Self>, _: &Meter) -> (Fine, Timestamp) {
        (Fine::at(debt.fresh_at()), Timestamp::MAX)
    }
}

impl ByNanos {
    pub(crate) const NEW: Self = Self { rest: 0 };
}

impl Grain for ByNanos {
    #[inline]
    fn parts(self) -> NonZeroU64 {
        NANOS
    }

    #[inline]
    fn rest(self) -> u32 {
        self.rest
    }

    #[inline]
    fn with_rest(self, rest: u32) -> Self {
        Self { rest }
    }

    #[inline]
    fn is_as(self, _: Self) -> bool {
        true
    }

    fn read(debt: &Debt<Self>, _: &Meter) -> (Fine, Timestamp) {
        (debt.until(), Timestamp::MAX)
    }
}

/// Gives back time at a limit's own pace, where debt is time. In another grain a fraction is rounded down.
pub(crate) fn refund_time<G: Grain>(debt: &Debt<G>, meter: &Meter, cost: Cost, now: Now) -> Option<Debt<G>> {
    let Heeded { debt, now, .. } = Debt::heed(Some(debt), now);
    let debt = debt?;
    let Fine { us, frac } = meter.pace.span_of(cost.get());
    let (frac, _) = crate::muldiv(frac, debt.grain.parts().get(), meter.pace.parts);
    Some(debt.less(Fine { us, frac }, now))
}

fn narrow(parts: NonZeroU64) -> NonZeroU32 {
    NonZeroU32::try_from(parts).expect("a rate has at most 10^9 units")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::LeaseId;

    #[test]
    fn states_are_small() {
        assert_eq!(size_of::<Option<Debt<ByUnits>>>(), 32);
        assert_eq!(size_of::<Option<Debt<ByTime>>>(), 24);
        assert_eq!(size_of::<Debt<ByNanos>>(), 24);
    }

    #[test]
    fn a_receipt_of_another_pace_takes_nothing_back() {
        let meter = |units| {
            let rate = crate::Rate::new(units, Micros::from_secs(1)).expect("in range");
            Meter::new(rate, 10).expect("in range")
        };
        let (sevenths, thirds) = (meter(7), meter(3));
        let now = Now::new(Timestamp::from_micros(1_700_000_000_000_000));
        let decide = |debt, meter: &Meter, now| Debt::decide(debt, (meter, ByUnits::new(meter.pace)), Cost::ONE, now);
        let first = decide(None, &sevenths, now).step.next.expect("allowed");
        let second = decide(Some(&first), &sevenths, now).step;
        // Its key was forgotten since, and a new one began under the other limit.
        let later = Now::new(now.at() + Micros::from_secs(5));
        let other = decide(None, &thirds, later).step.next.expect("allowed");
        for frac in [second.mark.frac, 3, 6, u64::MAX] {
            let receipt = Receipt {
                cost: Cost::ONE,
                mark: Mark { frac, ..second.mark },
                lease: LeaseId::default(),
            };
            assert_eq!(other.undo((&thirds, ByUnits::new(thirds.pace)), &receipt, later), None);
        }
    }
}
