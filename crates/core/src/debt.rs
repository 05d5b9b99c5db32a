//! The state that token bucket, GCRA, leaky bucket and `Cell` keep: until when the limit is busy with past charges.

use crate::algorithm::{Mark, Receipt, Step};
use crate::decision::Cost;
use crate::meter::{Fine, Meter, Pace, Weighed};
use crate::rate::LONGEST;
use crate::time::{Heard, Micros, Now, Timestamp};
use std::num::{NonZeroU32, NonZeroU64};

/// Work still to be done: the moment it ends, exact to a fraction of a microsecond, and when that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt<G> {
    pub(crate) until_us: u64,
    pub(crate) at: Timestamp,
    /// The rest of `until_us`, in parts of a microsecond.
    pub(crate) frac: u32,
    pub(crate) grain: G,
}

/// What a debt must remember of the limit it was written under, to be read under another.
pub(crate) trait Grain: Copy + PartialEq {
    /// How many parts make a microsecond.
    fn parts(self) -> NonZeroU64;

    /// When a debt written in this grain ends for a limit with `meter`, and when it is forgotten at the latest.
    fn read(debt: &Debt<Self>, meter: &Meter) -> (Fine, Timestamp);
}

/// The whole pace, so that units stay units when the rate changes: 32-bit words, to keep the state at 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByUnits {
    parts: NonZeroU32,
    span: [u32; 2],
}

/// Only the denominator, so that time stays time when the rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByTime {
    pub(crate) parts: NonZeroU32,
}

/// Always nanoseconds: nothing to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByNanos;

/// Nanoseconds in a microsecond.
pub(crate) const NANOS: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");

#[expect(
    private_bounds,
    reason = "a closed list: what a limit remembers is nobody else's to define"
)]
impl<G: Grain> Debt<G> {
    #[inline]
    fn new(until: Fine, at: Timestamp, grain: G) -> Self {
        let frac = u32::try_from(until.frac).expect("a fraction is below its denominator, which fits");
        Self {
            until_us: until.us,
            at,
            frac,
            grain,
        }
    }

    /// A debt that was read from outside, if a limit can have written it.
    pub(crate) fn checked(until_us: u64, at: u64, frac: u64, grain: G) -> Option<Self> {
        let in_order = at <= until_us && until_us <= Timestamp::MAX.as_micros() && frac < grain.parts().get();
        in_order.then(|| Self::new(Fine { us: until_us, frac }, Timestamp::from_micros(at), grain))
    }

    #[inline]
    pub(crate) fn until(&self) -> Fine {
        Fine {
            us: self.until_us,
            frac: u64::from(self.frac),
        }
    }

    /// When nothing is left, under any limit.
    #[inline]
    pub fn fresh_at(&self) -> Timestamp {
        self.until().ceil()
    }

    /// What this debt is at `now`: nothing once it is done.
    #[inline]
    pub(crate) fn heed(debt: Option<&Self>, now: Now) -> Heeded<G> {
        let Some(&debt) = debt else {
            return Heeded {
                debt: None,
                now: now.at(),
                repair: None,
            };
        };
        let Heard { now, back } = now.heed(debt.at);
        if back == Micros::ZERO {
            return Heeded {
                debt: (debt.fresh_at() > now).then_some(debt),
                now,
                repair: None,
            };
        }
        let debt = Self {
            until_us: debt.until_us.saturating_sub(back.get()),
            at: now,
            ..debt
        };
        Heeded {
            debt: Some(debt),
            now,
            repair: Some(debt),
        }
    }

    /// Decides `cost`; says also when the work of the charge begins, and when it was decided.
    #[inline]
    pub(crate) fn decide(debt: Option<&Self>, (meter, grain): (&Meter, G), cost: Cost, now: Now) -> Charged<G> {
        let Heeded { debt, now, repair } = Self::heed(debt, now);
        let (until, forgotten) = debt.map_or((Fine::at(now), Timestamp::MAX), |debt| G::read(&debt, meter));
        let Weighed { decision, after, begin } = meter.weigh(until, forgotten, cost, now);
        let step = Step {
            decision,
            next: after.map(|until| Self::new(until, now, grain)),
            repair,
            fresh_at: now + decision.standing().reset_after,
            mark: Mark {
                at: Timestamp::from_micros(begin.us),
                frac: begin.frac,
                taken_at: now,
            },
        };
        Charged {
            step,
            wait: begin.ceil().since(now),
        }
    }

    /// With `work` less to do, but not less than none. The time of the last charge stays: from then on what was used is
    /// worked off at the pace of whatever limit reads it.
    pub(crate) fn less(&self, work: Fine, now: Timestamp) -> Self {
        let until = self.until().minus(work, self.grain.parts()).max(Fine::at(now));
        Self::new(until, self.at, self.grain)
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
    #[inline]
    pub(crate) fn new(pace: Pace) -> Self {
        let span = pace.span.get();
        Self {
            parts: narrow(pace.parts),
            span: [(span >> 32) as u32, span as u32],
        }
    }

    /// Parts and span.
    pub(crate) fn numbers(self) -> (NonZeroU32, u64) {
        (self.parts, self.pace().span.get())
    }

    /// The grain of numbers that were read from outside, if they are a pace.
    pub(crate) fn from_numbers(parts: NonZeroU32, span: u64) -> Option<Self> {
        let span = NonZeroU64::new(span).filter(|span| span.get() <= LONGEST.get())?;
        Some(Self::new(Pace {
            parts: parts.into(),
            span,
        }))
    }

    fn pace(self) -> Pace {
        let [high, low] = self.span.map(u64::from);
        Pace {
            parts: self.parts.into(),
            span: NonZeroU64::new(high << 32 | low).expect("made from a pace, whose span is not zero"),
        }
    }
}

impl Grain for ByUnits {
    fn parts(self) -> NonZeroU64 {
        self.parts.into()
    }

    /// What was used stays used: counted out in units at the old pace, a begun one whole, and worked off at the new
    /// pace from the last write on.
    #[inline]
    fn read(debt: &Debt<Self>, meter: &Meter) -> (Fine, Timestamp) {
        if debt.grain == Self::new(meter.pace) {
            return (debt.until(), Timestamp::MAX);
        }
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

    pub(crate) fn undo(&self, meter: &Meter, receipt: &Receipt, now: Now) -> Option<Self> {
        receipt.is_on_this_clock(self.at, now)?;
        let Heeded { debt, now, .. } = Self::heed(Some(self), now);
        let debt = debt?;
        let mut work = meter.unspent(receipt, now)?;
        if debt.grain != ByUnits::new(meter.pace) {
            work = debt.grain.pace().span_of(meter.pace.units_in(work));
        }
        Some(debt.less(work, now))
    }
}

impl ByTime {
    #[inline]
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            parts: narrow(pace.parts),
        }
    }
}

impl Grain for ByTime {
    fn parts(self) -> NonZeroU64 {
        self.parts.into()
    }

    /// Time stays time; a fraction of another limit's is rounded up.
    #[inline]
    fn read(debt: &Debt<Self>, meter: &Meter) -> (Fine, Timestamp) {
        let until = if debt.grain == Self::new(meter.pace) {
            debt.until()
        } else {
            Fine::at(debt.fresh_at())
        };
        (until, Timestamp::MAX)
    }
}

impl Grain for ByNanos {
    fn parts(self) -> NonZeroU64 {
        NANOS
    }

    #[inline]
    fn read(debt: &Debt<Self>, _: &Meter) -> (Fine, Timestamp) {
        (debt.until(), Timestamp::MAX)
    }
}

/// Refund and undo where debt is time: what is given back is so at the limit's own pace.
pub(crate) fn refund<G: Grain>(debt: &Debt<G>, (meter, grain): (&Meter, G), cost: Cost, now: Now) -> Option<Debt<G>> {
    let Heeded { debt, now, .. } = Debt::heed(Some(debt), now);
    let debt = Debt::new(G::read(&debt?, meter).0, now, grain);
    Some(debt.less(meter.pace.span_of(cost.get()), now))
}

pub(crate) fn undo<G: Grain>(
    debt: &Debt<G>,
    (meter, grain): (&Meter, G),
    receipt: &Receipt,
    now: Now,
) -> Option<Debt<G>> {
    receipt.is_on_this_clock(debt.at, now)?;
    let Heeded { debt, now, .. } = Debt::heed(Some(debt), now);
    let debt = Debt::new(G::read(&debt?, meter).0, now, grain);
    Some(debt.less(meter.unspent(receipt, now)?, now))
}

fn narrow(parts: NonZeroU64) -> NonZeroU32 {
    NonZeroU32::try_from(parts).expect("a rate has at most 10^9 units")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_small() {
        assert_eq!(size_of::<Option<Debt<ByUnits>>>(), 32);
        assert_eq!(size_of::<Option<Debt<ByTime>>>(), 24);
        assert_eq!(size_of::<Debt<ByNanos>>(), 24);
    }
}
