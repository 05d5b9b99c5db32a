//! Debt measured in time: the arithmetic that token bucket, GCRA, leaky bucket and `Cell` share.
//!
//! A charge of `c` units at a rate of `n` per `p` keeps the limit busy for `c * p / n`. The state is the time at
//! which that work ends, in whole microseconds and an exact fraction of one, so uneven rates neither drift nor round.

use crate::algorithm::Mark;
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::units::muldiv::muldiv;
use crate::units::rate::{FILL_TIME_MAX, LimitError, Rate};
use crate::units::time::Timestamp;
use std::num::NonZeroU64;

/// A time in whole microseconds and `frac` parts of one. The [`Pace`] it belongs to has the number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExactTime {
    pub(crate) us: u64,
    pub(crate) frac: u64,
}

/// `parts` units take `span` µs: one unit takes `span / parts`, so a time is exact in `parts`ths of a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    pub(crate) parts: NonZeroU64,
    pub(crate) span: NonZeroU64,
}

/// A pace and the largest debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Meter {
    pub(crate) pace: Pace,
    pub(crate) burst: u64,
    /// The time of one unit, the usual cost, computed once.
    unit_time: ExactTime,
    /// The time of a full burst.
    full_time: ExactTime,
    /// `2^64 * parts / span`, to count units by multiplying: a division would be the most expensive part of a decision.
    /// Zero at one unit per microsecond and above, where it does not fit.
    per_us: u64,
}

/// The evaluation of one cost.
pub(crate) struct MeterResult {
    pub(crate) decision: Decision,
    /// The end of the work if the charge is kept. On deny everything that remained is taken; none if nothing remained.
    pub(crate) after: Option<ExactTime>,
    /// The start of the work of this charge.
    pub(crate) start: ExactTime,
}

impl ExactTime {
    pub(crate) const fn at(moment: Timestamp) -> Self {
        Self {
            us: moment.as_micros(),
            frac: 0,
        }
    }

    /// The time of a mark.
    pub(crate) const fn from_mark(mark: &Mark) -> Self {
        Self {
            us: mark.at.as_micros(),
            frac: mark.frac,
        }
    }

    /// The mark of a charge taken at `taken_at` whose work starts here.
    pub(crate) const fn mark(self, taken_at: Timestamp) -> Mark {
        Mark {
            at: Timestamp::from_micros(self.us),
            frac: self.frac,
            taken_at,
        }
    }

    /// The time rounded up to a whole microsecond.
    pub(crate) const fn ceil(self) -> Timestamp {
        Timestamp::from_micros(self.us.saturating_add((self.frac > 0) as u64))
    }

    #[inline(always)]
    fn plus(self, other: Self, parts: NonZeroU64) -> Self {
        let frac = self.frac + other.frac;
        let carry = frac >= parts.get();
        Self {
            us: self.us.saturating_add(other.us).saturating_add(u64::from(carry)),
            frac: if carry { frac - parts.get() } else { frac },
        }
    }

    /// The difference, not below zero.
    #[inline]
    pub(crate) fn minus(self, other: Self, parts: NonZeroU64) -> Self {
        if self <= other {
            return Self { us: 0, frac: 0 };
        }
        self.less(other, parts)
    }

    /// The difference to `other`, which is not larger.
    #[inline(always)]
    fn less(self, other: Self, parts: NonZeroU64) -> Self {
        let borrow = self.frac < other.frac;
        Self {
            us: self.us - other.us - u64::from(borrow),
            frac: if borrow {
                self.frac + parts.get() - other.frac
            } else {
                self.frac - other.frac
            },
        }
    }
}

impl Pace {
    /// The most parts of a microsecond: a state has 30 bits for them.
    pub(crate) const PARTS_MAX: u64 = 1_000_000_000;

    /// The pace of a rate in lowest terms, so that equal rates are equal. If those have too many parts, the fastest pace
    /// that is slower: so the limit holds, and a second is missing a small part of a unit.
    fn from_rate(rate: Rate) -> Self {
        let (units, period) = (rate.units(), rate.period().get());
        let common = gcd(units, period);
        let (parts, span) = (units / common, period / common);
        let (parts, span) = if parts > Self::PARTS_MAX {
            fastest_below(parts, span)
        } else {
            (parts, span)
        };
        Self {
            parts: NonZeroU64::new(parts).expect("a rate has at least one unit"),
            span: NonZeroU64::new(span).expect("a period is at least a millisecond"),
        }
    }

    /// The time of `units`.
    #[inline]
    pub(crate) fn span_of(self, units: u64) -> ExactTime {
        let (us, frac) = muldiv(units, self.span.get(), self.parts);
        ExactTime { us, frac }
    }

    /// The whole units that fit in `time`.
    #[inline]
    pub(crate) fn units_in(self, time: ExactTime) -> u64 {
        let (units, rest) = muldiv(time.us, self.parts.get(), self.span);
        // The fraction of a microsecond is at most `parts / span` units, often zero: divide only if needed.
        let rest = rest + time.frac;
        if rest < self.span.get() {
            units
        } else {
            units + rest / self.span
        }
    }

    /// The units of `work`, rounded up.
    pub(crate) fn units_over(self, work: ExactTime) -> u64 {
        let (units, rest) = muldiv(work.us, self.parts.get(), self.span);
        units.saturating_add((rest + work.frac).div_ceil(self.span.get()))
    }
}

impl Meter {
    /// # Errors
    /// A burst out of range, or one that takes longer than 2^52 µs to fill.
    pub(crate) fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        if burst == 0 || burst > Rate::UNITS_MAX {
            return Err(LimitError::Burst { given: burst });
        }
        Self::with_pace(Pace::from_rate(rate), burst).ok_or(LimitError::Fill { burst, rate })
    }

    /// None if filling `burst` takes too long.
    pub(crate) fn with_pace(pace: Pace, burst: u64) -> Option<Self> {
        let full = pace.span_of(burst);
        let per_us = (u128::from(pace.parts.get()) << 64) / u128::from(pace.span.get());
        (full.ceil() <= Timestamp::EPOCH + FILL_TIME_MAX).then(|| Self {
            pace,
            burst,
            unit_time: pace.span_of(1),
            full_time: full,
            per_us: u64::try_from(per_us).unwrap_or(0),
        })
    }

    /// Its numbers as arguments of its twin.
    pub(crate) const fn numbers(&self) -> [u64; 4] {
        [self.pace.parts.get(), self.pace.span.get(), self.burst, 0]
    }

    /// The whole units that fit in `time`, which is no longer than a fill.
    #[inline(always)]
    fn units_in(&self, time: ExactTime) -> u64 {
        let Pace { parts, span } = self.pace;
        let (Some(work), true) = (time.us.checked_mul(parts.get()), self.per_us > 0) else {
            return self.pace.units_in(time);
        };
        // The product is below the quotient by less than one, so the remainder is less than two spans too large.
        let units = ((u128::from(time.us) * u128::from(self.per_us)) >> 64) as u64;
        let rest = work - units * span.get() + time.frac;
        units + u64::from(rest >= span.get()) + u64::from(rest >= 2 * span.get())
    }

    /// Decides `cost` at `now` for a limit busy until `until`, whose key expires at `forgotten` at the latest.
    #[inline(always)]
    pub(crate) fn evaluate(&self, until: ExactTime, forgotten: Timestamp, cost: Cost, now: Timestamp) -> MeterResult {
        let parts = self.pace.parts;
        let start = until.max(ExactTime::at(now));
        let ceiling = ExactTime::at(now).plus(self.full_time, parts);
        let standing = |held: ExactTime, forgotten: Timestamp| Standing {
            limit: self.burst,
            remaining: self.units_in(ceiling.minus(held, parts)),
            reset_after: held.ceil().min(forgotten).since(now),
        };
        if cost == Cost::ZERO {
            let decision = Decision::allow(standing(start, forgotten));
            return MeterResult {
                decision,
                after: None,
                start,
            };
        }
        let left = (start < ceiling).then_some(ceiling);
        if cost.get() > self.burst {
            let decision = Decision::Deny {
                standing: standing(start, forgotten),
                retry: Retry::Never,
            };
            return MeterResult {
                decision,
                after: left,
                start,
            };
        }
        let after = start.plus(self.time_of(cost), parts);
        if after <= ceiling {
            let decision = Decision::allow(standing(after, Timestamp::MAX));
            return MeterResult {
                decision,
                after: Some(after),
                start,
            };
        }
        let allowed_at = self.allowed_at(start, cost).ceil().min(forgotten);
        let decision = Decision::Deny {
            standing: standing(start, forgotten),
            retry: Retry::After(allowed_at.since(now)),
        };
        MeterResult {
            decision,
            after: left,
            start,
        }
    }

    /// Decides one unit, the usual cost, whose work starts at `start`, not before `now`. Also returns the end of that work
    /// if it is kept. Has fewer cases than [`Meter::evaluate`], so that it can be inlined.
    #[inline(always)]
    pub(crate) fn evaluate_one(&self, start: ExactTime, now: Timestamp) -> (Decision, ExactTime) {
        let parts = self.pace.parts;
        let after = start.plus(self.unit_time, parts);
        let ceiling = ExactTime::at(now).plus(self.full_time, parts);
        let standing = |time: ExactTime, held: ExactTime| Standing {
            limit: self.burst,
            remaining: self.units_in(time),
            reset_after: held.ceil().since(now),
        };
        if after <= ceiling {
            return (Decision::allow(standing(ceiling.less(after, parts), after)), after);
        }
        let retry = Retry::After(after.minus(self.full_time, parts).ceil().since(now));
        let standing = standing(ceiling.minus(start, parts), start);
        (Decision::Deny { standing, retry }, after)
    }

    /// The time of a cost that the limit can hold.
    #[inline]
    pub(crate) fn time_of(&self, cost: Cost) -> ExactTime {
        if cost == Cost::ONE {
            self.unit_time
        } else {
            self.pace.span_of(cost.get().min(self.burst))
        }
    }

    /// The time at which a cost that the limit can hold passes, if the limit is busy until `until`.
    pub(crate) fn allowed_at(&self, until: ExactTime, cost: Cost) -> ExactTime {
        until
            .plus(self.time_of(cost), self.pace.parts)
            .minus(self.full_time, self.pace.parts)
    }

    /// The end of the work of `cost` that started at `start`. None if that is a time of another pace.
    pub(crate) fn work_end(&self, start: ExactTime, cost: Cost) -> Option<ExactTime> {
        (start.frac < self.pace.parts.get()).then(|| start.plus(self.time_of(cost), self.pace.parts))
    }

    /// The work of `cost`, started at `start`, that remains at `now`, if any.
    ///
    /// Work that is done cannot be reversed: time has returned those units already.
    pub(crate) fn remaining_work(&self, cost: Cost, start: ExactTime, now: Timestamp) -> Option<ExactTime> {
        let parts = self.pace.parts;
        let work = self.time_of(cost).minus(ExactTime::at(now).minus(start, parts), parts);
        (work > ExactTime { us: 0, frac: 0 }).then_some(work)
    }
}

/// The largest fraction below `parts / span`, which is in lowest terms, with at most as many parts as a pace may have.
///
/// By the continued fraction of the time of a unit, `span / parts`: its last convergent with few enough parts, and the
/// last fraction on the way to the next one, are the closest on either side of it. The longer of the two times is the
/// slower pace.
fn fastest_below(parts: u64, span: u64) -> (u64, u64) {
    let max = u128::from(Pace::PARTS_MAX);
    let (parts, span) = (u128::from(parts), u128::from(span));
    // Times as (span, parts): two convergents in a row.
    let (mut older, mut newer) = ((0, 1), (1, 0));
    let (mut numerator, mut denominator) = (span, parts);
    let step =
        |from: (u128, u128), towards: (u128, u128), times| (from.0 + times * towards.0, from.1 + times * towards.1);
    while let Some(whole) = numerator.checked_div(denominator) {
        let next = step(older, newer, whole);
        if next.1 > max {
            break;
        }
        (older, newer) = (newer, next);
        (numerator, denominator) = (denominator, numerator % denominator);
    }
    let between = step(older, newer, (max - older.1) / newer.1.max(1));
    let is_slower = |time: (u128, u128)| time.0 * parts >= time.1 * span;
    let (span, parts) = if is_slower(newer) { newer } else { between };
    (parts as u64, span as u64)
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::time::Micros;

    fn meter(units: u64, period: Micros, burst: u64) -> Result<Meter, LimitError> {
        Rate::new(units, period).and_then(|rate| Meter::new(rate, burst))
    }

    #[test]
    fn only_a_fill_of_more_than_two_to_the_52_us_is_refused() {
        let year = Micros::from_secs(366 * 86_400);
        assert!(meter(1, year, 142).is_ok());
        let error = meter(1, year, 143).expect_err("143 years of 366 days");
        assert_eq!(
            error.to_string(),
            "a burst of 143 at 1 per 366day takes over 142 years to come back: lower the burst or raise the rate"
        );
        assert!(meter(1_000_000_000, Micros::from_millis(1), 1_000_000_000).is_ok());
        assert!(meter(Rate::UNITS_MAX, Micros::from_secs(1), Rate::UNITS_MAX).is_ok());
        assert!(meter(Rate::UNITS_MAX, Micros::from_millis(1), 1).is_err());
    }

    #[test]
    fn a_rate_with_too_many_parts_is_the_fastest_pace_below_it() {
        let paces = |units, period| meter(units, Micros::new(period), 1).expect("in range").pace;
        let (second, day) = (1_000_000, 86_400_000_000);
        for (units, period) in [
            (4_294_967_291, second),
            (12_345_678_901, day),
            (999_999_999_999_999, second),
            (999_999_999_999_999, 31_622_400_000_000),
            (1_000_000_007, 1_000),
        ] {
            let Pace { parts, span } = paces(units, period);
            assert!(parts.get() <= Pace::PARTS_MAX);
            // Slower, by less than two parts in 10^9: units * span - parts * period is what is missing.
            let exact = u128::from(units) * u128::from(span.get());
            let kept = u128::from(parts.get()) * u128::from(period);
            assert!(kept <= exact, "{units} in {period}");
            assert!(
                (exact - kept) * 500_000_000 <= exact,
                "{units} in {period}: {parts} in {span}"
            );
            // No fraction with as few parts is closer: a neighbour above it has more with it.
            assert!(
                exact - kept <= u128::from(period),
                "{units} in {period}: {parts} in {span}"
            );
        }
        // Whatever has few enough in lowest terms is exact.
        assert_eq!(paces(10_000_000_000, day).parts.get(), 25);
    }

    #[test]
    fn equal_rates_have_equal_paces() {
        let a = meter(100, Micros::from_secs(60), 1).expect("in range");
        let b = meter(1_000, Micros::from_secs(600), 1).expect("in range");
        assert_eq!(a.pace, b.pace);
    }

    #[test]
    fn whole_units_fit_exactly_however_uneven_the_rate() {
        for (units, period) in [
            (7, 1_000_000),
            (1_000, 420_000_000),
            (3, 31_622_400_000_000),
            (1_000_000_000, 1_000),
        ] {
            let meter = meter(units, Micros::new(period), units).expect("in range");
            let pace = meter.pace;
            for n in [1, 2, 3, 1_000_003.min(units)] {
                let time = pace.span_of(n);
                assert_eq!(pace.units_in(time), n);
                assert_eq!(meter.units_in(time), n);
                let short = time.minus(ExactTime { us: 0, frac: 1 }, pace.parts);
                assert_eq!(pace.units_in(short), n - 1);
                assert_eq!(meter.units_in(short), n - 1);
                assert_eq!(pace.units_over(time), n);
            }
        }
    }
}
