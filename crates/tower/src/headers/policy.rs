//! One limit in the terms of rate limit headers.

use tollgate_limiter::core::rules::{Mode, Ruling};
use tollgate_limiter::core::{Decision, Limit, Micros, Rate, Retry, Standing};

/// One enforced limit and its standing.
#[derive(Clone, Copy, Debug)]
pub struct HeaderPolicy<'a> {
    /// Its name. A header can hold it: the rules reject any other.
    pub name: &'a str,
    /// Its capacity.
    pub quota: PolicyQuota,
    /// Its standing after the decision.
    pub standing: Standing,
    /// The time until one more unit of a sliding counter is free: exact if the outcome determines it, otherwise an upper
    /// bound.
    pub next_unit_after: Option<Micros>,
    /// The time until the same cost would pass, if it was denied.
    pub retry: Option<Retry>,
}

/// The capacity of a limit, in the terms of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyQuota {
    /// Units per window, where the window is the time to fill the limit.
    Window {
        /// The units.
        units: u64,
        /// The window in seconds, rounded up.
        window_s: u64,
    },
    /// Units in flight.
    Concurrent {
        /// The slots.
        slots: u64,
    },
    /// A ban.
    Banned,
}

impl<'a> HeaderPolicy<'a> {
    /// The policy of an enforced ruling with a decision; none for others.
    #[inline]
    pub fn from_ruling(ruling: &Ruling<'a>) -> Option<Self> {
        Self::of_any_mode(ruling).filter(|_| ruling.mode == Mode::Enforce)
    }

    /// The policy of a ruling with a decision, enforced or not.
    #[inline]
    pub fn of_any_mode(ruling: &Ruling<'a>) -> Option<Self> {
        let decision = ruling.decision.as_ref()?;
        let limit = ruling.window.map(|window| window.limit());
        Some(Self::new(ruling.name, limit, decision, ruling.next_unit_after))
    }

    /// The policy of a limit with this decision; none is a limit of zero. `next_unit_after` is the exact time, if it is
    /// known.
    #[inline]
    pub fn new(name: &'a str, limit: Option<&Limit>, decision: &Decision, next_unit_after: Option<Micros>) -> Self {
        Self {
            name,
            quota: PolicyQuota::from_limit(limit),
            standing: *decision.standing(),
            next_unit_after: next_unit_after
                .or_else(|| limit.and_then(|limit| next_unit_bound(limit, decision.standing()))),
            retry: decision.retry(),
        }
    }
}

impl HeaderPolicy<'_> {
    /// The effective window: on allow, until the limit is fresh, or for a sliding counter until one more unit is free; on
    /// deny, until this cost would pass. None where a client cannot wait for it: a slot in use, a cost that can never pass.
    #[inline]
    pub fn effective_window(&self) -> Option<Micros> {
        match (self.quota, self.retry) {
            (PolicyQuota::Concurrent { .. } | PolicyQuota::Banned, _) | (_, Some(Retry::Unknown | Retry::Never)) => {
                None
            }
            (_, Some(Retry::After(wait))) => Some(wait),
            // A log is empty by then; the standing does not say when its first entry leaves.
            (PolicyQuota::Window { window_s, .. }, None) => {
                let until_fresh = self.standing.reset_after.min(Micros::from_secs(window_s));
                Some(self.next_unit_after.unwrap_or(until_fresh))
            }
        }
    }
}

impl PolicyQuota {
    /// The quota of a limit; none is a limit of zero.
    #[inline]
    pub fn from_limit(limit: Option<&Limit>) -> Self {
        let window = |units, rate: Rate| Self::Window {
            units,
            window_s: fill_s(units, rate),
        };
        match limit {
            Some(Limit::TokenBucket(bucket)) => window(bucket.burst(), bucket.rate()),
            Some(Limit::Gcra(gcra)) => window(gcra.burst(), gcra.rate()),
            Some(Limit::LeakyBucket(bucket)) => window(bucket.depth(), bucket.rate()),
            Some(Limit::FixedWindow(fixed)) => window(fixed.rate().units(), fixed.rate()),
            Some(Limit::SlidingCounter(counter)) => window(counter.rate().units(), counter.rate()),
            Some(Limit::SlidingLog(log)) => window(log.rate().units(), log.rate()),
            Some(Limit::Concurrency(concurrency)) => Self::Concurrent {
                slots: concurrency.slots(),
            },
            // No rule has this limit: it belongs to CL.THROTTLE.
            Some(Limit::Cell(_)) | None => Self::Banned,
        }
    }

    /// The number of units.
    #[inline]
    pub const fn units(self) -> u64 {
        match self {
            Self::Window { units, .. } => units,
            Self::Concurrent { slots } => slots,
            Self::Banned => 0,
        }
    }
}

/// The time until one more unit of a sliding counter is free, at the latest: for outcomes that do not determine it.
///
/// Units of the previous window decay evenly until the current one ends. Units of the current window stay until then and
/// decay evenly in the next: so if all are of the current one, the first of `used` is free after that part of the next.
#[inline]
fn next_unit_bound(limit: &Limit, standing: &Standing) -> Option<Micros> {
    let Limit::SlidingCounter(counter) = limit else {
        return None;
    };
    let (window, reset_after) = (counter.rate().period().get(), standing.reset_after.get());
    let used = standing.limit.saturating_sub(standing.remaining).max(1);
    let (unchanged, decaying) = match reset_after.checked_sub(window) {
        Some(unchanged) => (unchanged, window),
        None => (0, reset_after),
    };
    Some(Micros::new(unchanged.saturating_add(decaying.div_ceil(used))))
}

/// The seconds in which `units` refill at this rate, rounded up; at least one.
#[inline]
fn fill_s(units: u64, rate: Rate) -> u64 {
    // A window of any capacity fills in its period, also one of zero.
    if units == rate.units() || rate.units() == 0 {
        return seconds_ceil(rate.period()).max(1);
    }
    // A 128-bit division takes a hundred times as long, and is hardly ever needed.
    let rate_per_s = rate.units().checked_mul(1_000_000);
    if let (Some(product), Some(rate_per_s)) = (units.checked_mul(rate.period().get()), rate_per_s) {
        return product.div_ceil(rate_per_s).max(1);
    }
    let product = u128::from(units) * u128::from(rate.period().get());
    let seconds = product.div_ceil(u128::from(rate.units()) * 1_000_000);
    u64::try_from(seconds).unwrap_or(u64::MAX).max(1)
}

/// Whole seconds, rounded up: a client that retries early is denied again.
#[inline]
pub const fn seconds_ceil(span: Micros) -> u64 {
    span.get().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tollgate_limiter::clock::Clock;
    use tollgate_limiter::core::{Cost, FixedWindow, SlidingCounter, SlidingLog, Timestamp, TokenBucket};
    use tollgate_limiter::store::memory::Memory;
    use tollgate_limiter::{Limiter, limits};

    /// The policy of a limit with this standing.
    fn policy(limit: &Limit, standing: Standing) -> HeaderPolicy<'static> {
        HeaderPolicy {
            name: "x",
            quota: PolicyQuota::from_limit(Some(limit)),
            standing,
            next_unit_after: next_unit_bound(limit, &standing),
            retry: None,
        }
    }

    proptest! {
        #[test]
        fn at_the_time_that_is_told_of_a_sliding_window_one_more_unit_is_free(
            units in 1_u64..20, start_ms in 0_u64..60_000,
            steps in proptest::collection::vec((0_u64..5, 0_u64..40_000), 1..12),
            is_log: bool,
        ) {
            let clock = Clock::manual(Timestamp::from_micros(1_794_782_040_000_000 + start_ms * 1_000));
            let limiter = Limiter::new(Memory::options().clock(clock.clone()).build());
            let rule = match is_log {
                true => limiter.limit("x", limits::SlidingLog::per_minute(units)),
                false => limiter.limit("x", limits::SlidingCounter::per_minute(units)),
            };
            let rule = rule.unwrap();
            for (cost, wait_ms) in steps {
                limiter.check_cost(&rule, "s", Cost::new(cost).unwrap());
                let peek = || *limiter.check_cost(&rule, "s", Cost::ZERO).standing();
                let before = peek();
                let effective = policy(rule.limit(), before).effective_window().unwrap();
                if before.remaining < units {
                    prop_assert!(effective > Micros::ZERO && effective <= before.reset_after);
                    clock.advance(effective);
                    prop_assert!(peek().remaining > before.remaining, "{:?} reported {:?}", before, effective);
                } else {
                    prop_assert_eq!(effective, Micros::ZERO);
                }
                clock.advance(Micros::from_millis(wait_ms));
            }
        }
    }

    #[test]
    fn each_algorithm_tells_when_it_gives_something_back() {
        let minute = |units| Rate::new(units, Micros::from_secs(60)).unwrap();
        let standing = |remaining, reset_s| Standing {
            limit: 10,
            remaining,
            reset_after: Micros::from_secs(reset_s),
        };
        let cases: [(Limit, Standing, u64); 6] = [
            // Until it is full; until the window ends; until the log is empty.
            (TokenBucket::new(minute(10)).into(), standing(5, 30), 30),
            (FixedWindow::new(minute(10)).into(), standing(9, 17), 17),
            (SlidingLog::new(minute(10)).unwrap().into(), standing(5, 60), 60),
            // All units may be of this window, which ends in 20 s; then one of five decays in 12 s.
            (SlidingCounter::new(minute(10)).into(), standing(5, 80), 32),
            // All units are of the previous window.
            (SlidingCounter::new(minute(10)).into(), standing(5, 20), 4),
            // A unit taken at the start of a window counts until the end of the next.
            (SlidingCounter::new(minute(10)).into(), standing(9, 120), 120),
        ];
        for (limit, standing, seconds) in cases {
            let effective = policy(&limit, standing).effective_window();
            assert_eq!(effective, Some(Micros::from_secs(seconds)), "{limit:?}");
        }
    }

    #[test]
    fn the_window_is_the_time_to_fill_the_capacity() {
        for (units, period_ms, burst, quota) in [
            (100, 60_000, 100, (100, 60)),
            (5_000, 60_000, 500, (500, 6)),
            (10, 500, 10, (10, 1)),
            (3, 10_000, 1, (1, 4)),
            (1, 86_400_000, 1, (1, 86_400)),
        ] {
            let rate = Rate::new(units, Micros::from_millis(period_ms)).unwrap();
            let bucket = TokenBucket::new(rate).with_burst(burst).unwrap();
            let (units, window_s) = quota;
            assert_eq!(
                PolicyQuota::from_limit(Some(&bucket.into())),
                PolicyQuota::Window { units, window_s }
            );
        }
        let rate = Rate::new(7, Micros::from_millis(1_500)).unwrap();
        let window = PolicyQuota::from_limit(Some(&FixedWindow::new(rate).into()));
        assert_eq!(window, PolicyQuota::Window { units: 7, window_s: 2 });
    }
}
