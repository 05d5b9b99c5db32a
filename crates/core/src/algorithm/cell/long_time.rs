//! Times of any call: up to 2^63 units that take 2^63 seconds each, exact to the nanosecond.

use crate::units::time::Timestamp;

/// A time in whole seconds and nanoseconds. The seconds of the longest limit, 2^126, fit with a bit to spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LongTime {
    pub(super) s: u128,
    /// Below a second.
    pub(super) ns: u32,
}

/// The time of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Interval {
    s: u64,
    ns: u32,
}

/// The largest integer of a reply.
const INTEGER_MAX: u128 = i64::MAX as u128;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const MICROS_PER_SECOND: u128 = 1_000_000;
const NANOS_PER_MILLI: u32 = 1_000_000;
const NANOS_PER_MICRO: u32 = 1_000;

impl LongTime {
    pub(super) const ZERO: Self = Self { s: 0, ns: 0 };

    pub(super) fn at(moment: Timestamp) -> Self {
        Self::from_micros(moment.as_micros(), 0)
    }

    /// Microseconds and nanoseconds, of which there are less than a thousand.
    pub(super) fn from_micros(us: u64, ns: u32) -> Self {
        let (s, us) = (u128::from(us) / MICROS_PER_SECOND, us % 1_000_000);
        Self {
            s,
            ns: us as u32 * NANOS_PER_MICRO + ns,
        }
    }

    /// Whole microseconds and the nanoseconds left over, if a timestamp can be that late.
    pub(super) fn micros(self) -> Option<(u64, u32)> {
        let us = self.s.checked_mul(MICROS_PER_SECOND)? + u128::from(self.ns / NANOS_PER_MICRO);
        let us = u64::try_from(us).ok().filter(|us| *us <= Timestamp::MAX.as_micros())?;
        Some((us, self.ns % NANOS_PER_MICRO))
    }

    /// Rounded up to a whole microsecond, and capped at the last timestamp.
    pub(super) fn ceil(self) -> Timestamp {
        self.micros().map_or(Timestamp::MAX, |(us, ns)| {
            Timestamp::from_micros(us + u64::from(ns > 0))
        })
    }

    /// The seconds of a reply: rounded down, or up if the rest is a millisecond or more; at most the largest integer.
    pub(super) fn reply_seconds(self) -> u64 {
        let s = self.s.saturating_add(u128::from(self.ns >= NANOS_PER_MILLI));
        s.min(INTEGER_MAX) as u64
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let ns = u64::from(self.ns) + u64::from(other.ns);
        Self {
            s: self
                .s
                .saturating_add(other.s)
                .saturating_add(u128::from(ns >= NANOS_PER_SECOND)),
            ns: (ns % NANOS_PER_SECOND) as u32,
        }
    }

    /// The difference, not below zero.
    pub(super) fn minus(self, other: Self) -> Self {
        if self <= other {
            return Self::ZERO;
        }
        let borrow = self.ns < other.ns;
        let ns = u64::from(self.ns) + u64::from(borrow) * NANOS_PER_SECOND - u64::from(other.ns);
        Self {
            s: self.s - other.s - u128::from(borrow),
            ns: ns as u32,
        }
    }
}

impl Interval {
    /// `period_s / count` in whole nanoseconds. None if that is less than one.
    pub(super) fn new(count: u64, period_s: u64) -> Option<Self> {
        let ns = (u128::from(period_s) * u128::from(NANOS_PER_SECOND)).checked_div(u128::from(count))?;
        Self::from_nanos(ns)
    }

    /// None if it is zero. The longest has as many seconds as an integer can.
    pub(super) fn from_nanos(ns: u128) -> Option<Self> {
        let (s, ns) = (ns / u128::from(NANOS_PER_SECOND), ns % u128::from(NANOS_PER_SECOND));
        let s = s.min(INTEGER_MAX) as u64;
        (s > 0 || ns > 0).then_some(Self { s, ns: ns as u32 })
    }

    pub(super) fn nanos(self) -> u128 {
        u128::from(self.s) * u128::from(NANOS_PER_SECOND) + u128::from(self.ns)
    }

    /// Its whole seconds, and the nanoseconds left over.
    pub(super) const fn parts(self) -> (u64, u32) {
        (self.s, self.ns)
    }

    /// The time of `units`.
    pub(super) fn times(self, units: u64) -> LongTime {
        let ns = u128::from(self.ns) * u128::from(units);
        let whole = u128::from(self.s) * u128::from(units);
        LongTime {
            s: whole.saturating_add(ns / u128::from(NANOS_PER_SECOND)),
            ns: (ns % u128::from(NANOS_PER_SECOND)) as u32,
        }
    }

    /// The whole units that fit in `time`, at most `max`.
    pub(super) fn units_in(self, time: LongTime, max: u64) -> u64 {
        // Bisects between the most that fit and the fewest that do not.
        let (mut fits, mut too_many) = (0, max.saturating_add(1));
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.times(middle) <= time {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_limit_neither_overflows_nor_rounds() {
        let unit = Interval::new(1, i64::MAX as u64).expect("not zero");
        let full = unit.times(1 << 63);
        assert_eq!(full.s, (i64::MAX as u128) << 63);
        assert_eq!(unit.units_in(full, 1 << 63), 1 << 63);
        let short = full.minus(LongTime { s: 0, ns: 1 });
        assert_eq!(unit.units_in(short, 1 << 63), (1 << 63) - 1);
        assert_eq!(full.reply_seconds(), i64::MAX as u64);
        assert_eq!(full.ceil(), Timestamp::MAX);
        assert!(full.plus(full).s < u128::MAX);
    }

    proptest! {
        #[test]
        fn it_is_the_arithmetic_of_nanoseconds(s: u64, ns in 0_u32..1_000_000_000, units in 0_u64..1 << 32, less: u64) {
            let nanos = |time: LongTime| time.s * 1_000_000_000 + u128::from(time.ns);
            let s = s >> 2;
            let Some(unit) = Interval::from_nanos(u128::from(s) * 1_000_000_000 + u128::from(ns)) else { return Ok(()) };
            let product = unit.times(units);
            prop_assert_eq!(nanos(product), unit.nanos() * u128::from(units));
            let less = LongTime { s: less.into(), ns };
            prop_assert_eq!(nanos(product.minus(less)), nanos(product).saturating_sub(nanos(less)));
            prop_assert_eq!(nanos(product.plus(less)), nanos(product) + nanos(less));
            prop_assert_eq!(unit.units_in(product, u64::MAX), units);
        }
    }
}
