//! One limit as headers speak of it.

use tollgate_limiter::core::{Limit, Micros, Rate, Retry, Standing};

/// One enforced limit and how it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy<'a> {
    /// Its name, which a header can hold: rules are refused under any other.
    pub(crate) name: &'a str,
    pub(crate) quota: Quota,
    pub(crate) standing: Standing,
    /// When the same cost would pass, if it did not.
    pub(crate) retry: Option<Retry>,
}

/// What a limit allows, in the terms of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// So many units in a window, which is the time in which a limit that was used up fills again.
    Window { units: u64, window_s: u64 },
    /// So many at a time.
    Concurrent { slots: u64 },
    /// Nothing, ever.
    Banned,
}

impl Policy<'_> {
    /// The effective window: on allow, until the limit is as good as new; on deny, until this cost would pass. Nothing
    /// where a client cannot wait for it: a slot that somebody holds, a cost that can never pass.
    pub(crate) fn effective(&self) -> Option<Micros> {
        match (self.quota, self.retry) {
            (Quota::Concurrent { .. } | Quota::Banned, _) | (_, Some(Retry::Unknown | Retry::Never)) => None,
            (_, Some(Retry::After(wait))) => Some(wait),
            // A sliding counter is as good as new only after two windows, but in one of them it takes all it can hold.
            (Quota::Window { window_s, .. }, None) => Some(self.standing.reset_after.min(Micros::from_secs(window_s))),
        }
    }
}

impl Quota {
    /// What a limit allows; nothing stands for a limit of zero.
    pub(crate) fn of(limit: Option<&Limit>) -> Self {
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
            // No rule makes one: it is what CL.THROTTLE speaks.
            Some(Limit::Cell(_)) | None => Self::Banned,
        }
    }

    /// How many units.
    pub(crate) const fn units(self) -> u64 {
        match self {
            Self::Window { units, .. } => units,
            Self::Concurrent { slots } => slots,
            Self::Banned => 0,
        }
    }
}

/// In how many seconds `units` come back at this rate, rounded up; at least one.
fn fill_s(units: u64, rate: Rate) -> u64 {
    // Wide division takes a hundred times as long, and is hardly ever needed.
    let rate_per_s = rate.units().checked_mul(1_000_000);
    if let (Some(product), Some(rate_per_s)) = (units.checked_mul(rate.period().get()), rate_per_s) {
        return product.div_ceil(rate_per_s).max(1);
    }
    let product = u128::from(units) * u128::from(rate.period().get());
    let seconds = product.div_ceil(u128::from(rate.units()) * 1_000_000);
    u64::try_from(seconds).unwrap_or(u64::MAX).max(1)
}

/// Whole seconds, rounded up: who comes back early is refused again.
pub(super) const fn seconds_ceil(span: Micros) -> u64 {
    span.get().div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::{FixedWindow, TokenBucket};

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
            assert_eq!(Quota::of(Some(&bucket.into())), Quota::Window { units, window_s });
        }
        let rate = Rate::new(7, Micros::from_millis(1_500)).unwrap();
        let window = Quota::of(Some(&FixedWindow::new(rate).into()));
        assert_eq!(window, Quota::Window { units: 7, window_s: 2 });
    }
}
