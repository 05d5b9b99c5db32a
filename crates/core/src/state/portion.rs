//! A share of a limit: what one of several instances may allow on its own.

use crate::limit::Limit;
use crate::state::meter::gcd;
use crate::units::muldiv::muldiv;
use crate::units::rate::{PERIOD_MAX, Rate};
use crate::units::time::Micros;
use crate::{Concurrency, Gcra, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
use std::num::NonZeroU64;

impl Limit {
    /// The share `part / whole` of this limit, at most all of it.
    ///
    /// The capacity is rounded down, but not below one unit. The rate is exact if it can be written as a rate; otherwise
    /// it is slower by less than one unit in the longest period, but not below one unit in it. So all shares of a limit
    /// allow in sum what it does, or one unit each. The `min_interval` of a log grows, up to its period. Leases last as
    /// long.
    pub fn portion(&self, part: NonZeroU64, whole: NonZeroU64) -> Self {
        if part >= whole {
            return *self;
        }
        let units = |units: u64| muldiv(units, part.get(), whole).0.max(1);
        let rate = |rate: Rate| scale_rate(rate, part, whole);
        // Not larger than before, and so in range.
        let window = |rate: Rate| Rate::for_hits(units(rate.units()), rate.period());
        match self {
            Self::TokenBucket(limit) => {
                let slow = TokenBucket::new(rate(limit.rate()));
                let burst = slow.with_burst(units(limit.burst()));
                burst.or_else(|_| slow.with_burst(1)).unwrap_or(slow).into()
            }
            Self::Gcra(limit) => {
                let slow = Gcra::new(rate(limit.rate()));
                let burst = slow.with_burst(units(limit.burst()));
                burst.or_else(|_| slow.with_burst(1)).unwrap_or(slow).into()
            }
            Self::LeakyBucket(limit) => {
                let slow = LeakyBucket::new(rate(limit.rate()));
                let deep = slow.with_depth(units(limit.depth()));
                let deep = deep.or_else(|_| slow.with_depth(1)).unwrap_or(slow);
                if limit.is_shaping() { deep.shaping() } else { deep }.into()
            }
            Self::FixedWindow(limit) => limit.with_rate(window(limit.rate())).into(),
            Self::SlidingCounter(limit) => SlidingCounter::new(window(limit.rate())).into(),
            Self::SlidingLog(limit) => {
                let period = limit.rate().period();
                let min_interval = muldiv(limit.min_interval().get(), whole.get(), part).0;
                let log = SlidingLog::new(window(limit.rate())).expect("no more than it was");
                let spaced = log.with_min_interval(Micros::new(min_interval).min(period));
                spaced.expect("no longer than the period").into()
            }
            Self::Concurrency(limit) => {
                let slots = Concurrency::new(units(limit.slots()), limit.lease_ttl());
                slots.expect("no more than it was").into()
            }
            Self::Cell(limit) => limit.portion(part, whole).into(),
        }
    }
}

/// The share `part / whole` of a rate.
fn scale_rate(rate: Rate, part: NonZeroU64, whole: NonZeroU64) -> Rate {
    let common = gcd(part.get(), whole.get());
    let (part, whole) = (part.get() / common, whole.get() / common);
    // The rate is `units` per `period`; both may be out of range.
    let units = u128::from(rate.units()) * u128::from(part);
    let common = u128::from(gcd(u64::try_from(units % u128::from(whole)).unwrap_or(0), whole));
    let units = units / common;
    let period = u128::from(rate.period().get()) * (u128::from(whole) / common);
    let period_max = u128::from(PERIOD_MAX.get());
    let fits = |units: u128, period: u128| {
        let (units, period) = (u64::try_from(units).ok()?, u64::try_from(period).ok()?);
        Rate::new(units, Micros::new(period)).ok()
    };
    if let Some(exact) = fits(units, period) {
        return exact;
    }
    // The longest period for which the units are in range: rounding them down then costs least.
    let units_max = u128::from(Rate::UNITS_MAX);
    let new_period = period_max
        .min(period)
        .min(units_max.saturating_mul(period) / units.max(1))
        .max(1);
    let new_units = muldiv_wide(units, new_period, period).max(1);
    fits(new_units, new_period).unwrap_or(rate)
}

/// `a * b / n`, rounded down. While the product does not fit, both `a` and `n` are halved.
fn muldiv_wide(mut a: u128, b: u128, mut n: u128) -> u128 {
    loop {
        match a.checked_mul(b) {
            Some(product) => return product / n.max(1),
            None => {
                a /= 2;
                n = n.div_ceil(2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Calendar, CalendarUnit, Cell, FixedWindow};
    use proptest::prelude::*;

    fn portion_of(part: u64, whole: u64, limit: Limit) -> Limit {
        let [part, whole] = [part, whole].map(|number| NonZeroU64::new(number).expect("not zero"));
        limit.portion(part, whole)
    }

    fn rate(units: u64, period: Micros) -> Rate {
        Rate::new(units, period).expect("in range")
    }

    const SECOND: Micros = Micros::from_secs(1);

    #[test]
    fn a_quarter_of_a_hundred_a_second_is_twenty_five_a_second() {
        let bucket = TokenBucket::new(rate(100, SECOND)).with_burst(50).expect("in range");
        let quarter = portion_of(1, 4, bucket.into());
        let expected = TokenBucket::new(rate(25, SECOND)).with_burst(12).expect("in range");
        assert_eq!((quarter.capacity(), quarter.fill()), (12, Some(Micros::new(480_000))));
        assert_eq!(quarter.comparable_numbers(), Limit::from(expected).comparable_numbers());
        // 0.8 of it, on three instances: 26 2/3 a second.
        let uneven = portion_of(800_000, 3_000_000, bucket.into());
        assert_eq!(
            uneven.rate().map(|rate| (rate.units(), rate.period())),
            Some((80, Micros::from_secs(3)))
        );
        assert_eq!(uneven.capacity(), 13);
    }

    #[test]
    fn every_algorithm_keeps_what_is_not_a_number_of_units() {
        let minute = Micros::from_secs(60);
        let log = SlidingLog::new(rate(100, minute)).and_then(|log| log.with_min_interval(Micros::from_millis(50)));
        let Limit::SlidingLog(log) = portion_of(1, 10, log.expect("in range").into()) else {
            panic!("another algorithm");
        };
        assert_eq!(
            (log.rate(), log.min_interval()),
            (rate(10, minute), Micros::from_millis(500))
        );
        let queue = LeakyBucket::new(rate(50, SECOND)).shaping();
        let Limit::LeakyBucket(queue) = portion_of(1, 5, queue.into()) else {
            panic!("another algorithm");
        };
        assert!(queue.is_shaping());
        assert_eq!(queue.depth(), 10);
        let slots = Concurrency::new(3, minute).expect("in range");
        let Limit::Concurrency(one) = portion_of(1, 10, slots.into()) else {
            panic!("another algorithm");
        };
        assert_eq!((one.slots(), one.lease_ttl()), (1, minute));
        assert_eq!(portion_of(1, 4, FixedWindow::new(rate(7, minute)).into()).capacity(), 1);
        let month = Calendar::new("Europe/Berlin", CalendarUnit::Month).expect("a zone");
        let quota = |units| FixedWindow::of_calendar(units, month).expect("in range");
        assert_eq!(portion_of(1, 4, quota(1_000).into()), quota(250).into());
        assert_eq!(
            portion_of(1, 4, SlidingCounter::new(rate(9, minute)).into()).capacity(),
            2
        );
        assert_eq!(
            portion_of(1, 4, Cell::new(99, 100, 60).expect("in range").into()).capacity(),
            25
        );
        assert_eq!(portion_of(4, 4, slots.into()), slots.into());
    }

    impl Limit {
        /// Its numbers as arguments of its twin: limits with equal numbers decide alike.
        fn comparable_numbers(&self) -> [u64; 4] {
            match self {
                Self::TokenBucket(limit) => limit.numbers(),
                _ => [0; 4],
            }
        }
    }

    proptest! {
        #[test]
        fn all_parts_together_are_no_faster_than_the_whole(
            units in 1_u64..=1_000_000_000,
            period_ms in prop_oneof![1_u64..=100_000, 1_u64..=31_622_400_000],
            burst in 1_u64..=1_000_000_000,
            millionths in 1_u64..=1_000_000,
            instances in prop_oneof![1_u64..=20, 1_u64..=100_000],
        ) {
            let whole = rate(units, Micros::from_millis(period_ms));
            let Ok(bucket) = TokenBucket::new(whole).with_burst(burst) else { return Ok(()) };
            let part = portion_of(millionths, 1_000_000 * instances, bucket.into());
            let slow = part.rate().expect("a bucket has a rate");
            // slow <= whole * millionths / (10^6 * instances), by cross-multiplying in two halves that fit.
            let slow_per = u128::from(slow.units()) * u128::from(whole.period().get());
            let whole_per = u128::from(units) * u128::from(slow.period().get());
            let (scale, share) = (1_000_000 * u128::from(instances), u128::from(millionths));
            let is_floor = slow.units() == 1 && slow.period() == PERIOD_MAX;
            prop_assert!(is_floor || slow_per.saturating_mul(scale) <= whole_per.saturating_mul(share));
            let one_more = slow_per + u128::from(whole.period().get());
            prop_assert!(one_more.saturating_mul(scale) >= whole_per.saturating_mul(share));
            prop_assert!(part.capacity() == 1 || part.capacity() <= burst * millionths / 1_000_000 / instances);
        }
    }
}
