//! The reserve of a rule: the part of its limit that only some attempts may use.
//!
//! A limit with a reserve has two counters: all attempts are charged to the one, and those that may not use the reserve to
//! the other too, which has the remaining part of the limit. With `lend` there is one counter, and for the others its burst
//! is shorter.

use super::{Condition, CounterPart, Window};
use crate::decision::Standing;
use crate::limit::Limit;
use crate::problem::ValueError;
use crate::quantity::Share;
use crate::rules::attempt::Attempt;
use crate::units::muldiv::muldiv;
use crate::{Cost, Gcra, LeakyBucket, TokenBucket};
use std::fmt;
use std::num::NonZeroU64;

/// The `reserve` of a rule.
#[derive(Debug)]
pub struct Reserve {
    /// All of them must hold for an attempt that may use the reserve. Never empty.
    pub(crate) conditions: Box<[Condition]>,
    pub(crate) terms: ReserveTerms,
}

/// The size of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReserveTerms {
    pub(crate) share: Share,
    /// True if the others may use what is not used of the reserve, at the rate of the whole limit.
    pub(crate) lend: bool,
}

/// The windows of a rule with a reserve.
#[derive(Clone, Debug)]
pub struct ReservedWindows {
    /// Those of all attempts, then as many of the others, in the same order.
    windows: Box<[Window]>,
}

impl Reserve {
    /// The part of the limit that is kept.
    pub const fn share(&self) -> Share {
        self.terms.share
    }

    /// True if the others may use what is not used of the reserve.
    pub const fn lends(&self) -> bool {
        self.terms.lend
    }

    /// The conditions of attempts that may use it.
    pub const fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// True if an attempt may use it. Derived attributes are added before.
    pub(in crate::rules) fn is_for(&self, attempt: &Attempt<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(attempt))
    }
}

impl ReserveTerms {
    /// The counter of the others: a lending limit has only one.
    pub(in crate::rules) const fn counter_part(self) -> CounterPart {
        if self.lend {
            CounterPart::All
        } else {
            CounterPart::Others
        }
    }

    /// The limit of those that may not use the reserve.
    ///
    /// # Errors
    /// A limit of which they would get less than one unit, or less than one in the longest period.
    pub(in crate::rules) fn limit_of_others(self, limit: &Limit) -> Result<Limit, ValueError> {
        let (rest, whole) = (MILLION - u64::from(self.share.millionths()), MILLION_PARTS);
        let too_small = || {
            let capacity = limit.capacity();
            ValueError::new(
                format!(
                    "a reserve of {} of {capacity} leaves less than 1 to all others",
                    self.share
                ),
                "lower `share`, or raise the limit",
            )
        };
        // Rounded down, as the capacity of the portion is.
        let (capacity, _) = muldiv(limit.capacity(), rest, whole);
        let part = NonZeroU64::new(rest).filter(|_| capacity > 0).ok_or_else(too_small)?;
        let others = match self.lend {
            true => with_burst(limit, capacity),
            false => Some(limit.portion(part, whole)),
        };
        let others = others.filter(|others| others.capacity() == capacity);
        others
            .filter(|others| self.lend || is_rate_within(others, limit, part))
            .ok_or_else(too_small)
    }
}

/// A bucket of the same rate with another burst. None for other algorithms, and for a queue, which delays.
fn with_burst(limit: &Limit, burst: u64) -> Option<Limit> {
    let bucket = match limit {
        Limit::TokenBucket(limit) => TokenBucket::new(limit.rate()).with_burst(burst).map(Limit::from),
        Limit::Gcra(limit) => Gcra::new(limit.rate()).with_burst(burst).map(Limit::from),
        Limit::LeakyBucket(limit) if !limit.is_shaping() => {
            LeakyBucket::new(limit.rate()).with_depth(burst).map(Limit::from)
        }
        _ => return None,
    };
    bucket.ok()
}

/// True if the rate of a portion is at most that part of the rate: a rate is never portioned below one unit in the longest
/// period.
fn is_rate_within(portion: &Limit, limit: &Limit, part: NonZeroU64) -> bool {
    let (Some(slow), Some(rate)) = (portion.rate(), limit.rate()) else {
        return true;
    };
    let product = |units: u64, period: u64, scale: u64| {
        let product = u128::from(units).checked_mul(u128::from(period));
        product.and_then(|product| product.checked_mul(u128::from(scale)))
    };
    let slow_scaled = product(slow.units(), rate.period().get(), MILLION);
    let whole_scaled = product(rate.units(), slow.period().get(), part.get());
    slow_scaled.is_some_and(|slow| whole_scaled.is_none_or(|whole| slow <= whole))
}

/// True if the whole of a lending limit allows a cost that its part for the others denies with this standing. Known to the
/// microsecond.
pub(in crate::rules) fn whole_allows(whole: &Limit, standing: &Standing, cost: Cost) -> bool {
    let (Some(rate), Some(left)) = (whole.rate(), whole.capacity().checked_sub(cost.get())) else {
        return false;
    };
    let Some(units) = NonZeroU64::new(rate.units()) else {
        return false;
    };
    // What is used drains until the reset; the cost fits if that is no longer than the rest of the burst takes. Both times
    // are rounded up, so that they are equal where the units are.
    let (drain_us, rest) = muldiv(left, rate.period().get(), units);
    standing.reset_after.get() <= drain_us.saturating_add(u64::from(rest > 0))
}

impl ReservedWindows {
    /// Returns these windows; `others` has one for each of `all`.
    pub(in crate::rules) fn new(all: Vec<Window>, others: Vec<Window>) -> Self {
        debug_assert_eq!(all.len(), others.len(), "each window has one for the others");
        let mut windows = all;
        windows.extend(others);
        Self {
            windows: windows.into(),
        }
    }

    /// Those of all attempts together.
    pub fn all(&self) -> &[Window] {
        self.halves().0
    }

    /// Those of the attempts that may not use the reserve, in the order of [`ReservedWindows::all`].
    pub fn others(&self) -> &[Window] {
        self.halves().1
    }

    /// Each window with that of the others.
    pub(in crate::rules) fn pairs(&self) -> impl Iterator<Item = (&Window, &Window)> {
        let (all, others) = self.halves();
        all.iter().zip(others)
    }

    fn halves(&self) -> (&[Window], &[Window]) {
        let half = self.windows.len() / 2;
        self.windows.split_at_checked(half).unwrap_or_default()
    }

    /// All of them.
    pub(super) fn windows_mut(&mut self) -> &mut [Window] {
        &mut self.windows
    }
}

impl PartialEq for Reserve {
    fn eq(&self, other: &Self) -> bool {
        self.terms == other.terms && super::meaning::same_list(&self.conditions, &other.conditions)
    }
}

/// As rules write it: `20% for priority`.
impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for ", self.share())?;
        for (index, Condition { attribute, test }) in self.conditions.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{attribute} = {test}")?;
        }
        f.write_str(if self.lends() { ", lent" } else { "" })
    }
}

/// The parts of a share.
const MILLION: u64 = 1_000_000;
const MILLION_PARTS: NonZeroU64 = NonZeroU64::new(MILLION).expect("not zero");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::parse_share;
    use crate::testing::limits::rate;
    use crate::units::time::Micros;
    use crate::{Calendar, CalendarUnit, Concurrency, FixedWindow, SlidingCounter, SlidingLog};

    fn others(share: &str, lend: bool, limit: impl Into<Limit>) -> Option<Limit> {
        let share = parse_share(share).expect("a share");
        ReserveTerms { share, lend }.limit_of_others(&limit.into()).ok()
    }

    #[test]
    fn the_others_get_the_portion_of_rate_and_burst_alike() {
        let second = Micros::from_secs(1);
        let bucket = TokenBucket::new(rate(1_000, second)).with_burst(50).expect("in range");
        let portion = others("20%", false, bucket).expect("enough for all");
        assert_eq!((portion.capacity(), portion.rate()), (40, Some(rate(800, second))));
        let lent = others("20%", true, bucket).expect("enough for all");
        assert_eq!((lent.capacity(), lent.rate()), (40, Some(rate(1_000, second))));
        let month = Calendar::new("Europe/Berlin", CalendarUnit::Month).expect("a zone");
        let quota = |units| FixedWindow::of_calendar(units, month).expect("in range");
        assert_eq!(others("20%", false, quota(10)), Some(quota(8).into()));
        let log = |units| SlidingLog::new(rate(units, second)).expect("in range");
        assert_eq!(others("25%", false, log(10)), Some(log(7).into()));
        let counter = |units| SlidingCounter::new(rate(units, second));
        assert_eq!(others("99%", false, counter(100)), Some(counter(1).into()));
        let slots = |slots| Concurrency::new(slots, second).expect("in range");
        assert_eq!(others("0.1%", false, slots(20)), Some(slots(19).into()));
    }

    #[test]
    fn less_than_one_unit_for_the_others_is_rejected() {
        let second = Micros::from_secs(1);
        for (share, units) in [("20%", 1), ("100%", 1_000_000), ("99.9999%", 999_999)] {
            for lend in [false, true] {
                assert_eq!(
                    others(share, lend, TokenBucket::new(rate(units, second))),
                    None,
                    "{share}"
                );
            }
        }
        assert!(others("99.9999%", false, TokenBucket::new(rate(1_000_000, second))).is_some());
        // Half a unit in the longest period is no rate, so the part of the others would be a whole one.
        let slowest = TokenBucket::new(rate(1, Micros::from_secs(366 * 86_400)));
        let slowest = slowest.with_burst(10).expect("in range");
        assert_eq!(others("50%", false, slowest), None);
        assert!(others("50%", true, slowest).is_some());
    }

    #[test]
    fn only_buckets_lend() {
        let second = Micros::from_secs(1);
        let queue = LeakyBucket::new(rate(10, second));
        assert!(others("20%", true, queue).is_some());
        assert!(others("20%", true, Gcra::new(rate(10, second))).is_some());
        assert_eq!(others("20%", true, queue.shaping()), None);
        assert_eq!(others("20%", true, FixedWindow::new(rate(10, second))), None);
        assert_eq!(
            others("20%", true, Concurrency::new(10, second).expect("in range")),
            None
        );
    }

    #[test]
    fn what_the_whole_allows_is_known_from_the_time_to_drain() {
        let limit = Limit::from(TokenBucket::new(rate(1_000, Micros::from_secs(1))));
        let standing = |reset_us| Standing {
            limit: 800,
            remaining: 0,
            reset_after: Micros::new(reset_us),
        };
        for (reset_us, cost, expected) in [
            (800_000, 1, true),
            (999_000, 1, true),
            (999_001, 1, false),
            (1_000_000, 1, false),
            (800_000, 200, true),
            (800_000, 201, false),
            (0, 1_000, true),
            (0, 1_001, false),
        ] {
            let cost = Cost::new(cost).expect("in range");
            assert_eq!(
                whole_allows(&limit, &standing(reset_us), cost),
                expected,
                "{reset_us} {cost:?}"
            );
        }
    }
}
