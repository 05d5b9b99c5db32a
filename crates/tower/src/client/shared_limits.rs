//! The limits of a pacer in a limiter, by which several clients keep to them: in this process, or over Redis.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tollgate_limiter::core::protect::PaceLimit;
use tollgate_limiter::core::{Decision, Gcra, Limit, Micros, Retry, TokenBucket};
use tollgate_limiter::store::Store;
use tollgate_limiter::{LimitCheck, Limiter, NamedLimit};

/// The configured limit and the learned ones.
pub(super) struct SharedLimits<S: Store> {
    limiter: Limiter<S>,
    /// The name by which other clients find the same limit.
    name: Box<str>,
    configured: Option<NamedLimit<S>>,
    transit: Micros,
    learned: Mutex<LearnedLimits<S>>,
}

/// By key and limit.
type LearnedLimits<S> = HashMap<(u64, PaceLimit), Arc<NamedLimit<S>>>;

/// The answer of the limits about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// It is charged, and may be sent after this long.
    After(Micros),
    /// It is not charged: wait and ask again.
    Wait(Micros),
    /// It will never pass.
    Never,
}

impl<S: Store> SharedLimits<S> {
    pub(super) fn new(limiter: Limiter<S>, name: &str, configured: Option<Limit>, transit: Micros) -> Self {
        let configured = configured.map(|limit| named(&limiter, name, with_tolerance(limit, transit)));
        Self {
            limiter,
            name: name.into(),
            configured: configured.flatten(),
            transit,
            learned: Mutex::default(),
        }
    }

    /// Charges a request to `host` to all limits, or to none.
    pub(super) async fn charge(&self, host: &str, learned: &[(u64, PaceLimit)]) -> Grant {
        let learned: Vec<Arc<NamedLimit<S>>> = learned.iter().filter_map(|policy| self.learned(*policy)).collect();
        let limits = self.configured.iter().chain(learned.iter().map(Arc::as_ref));
        let checks: Vec<LimitCheck<'_, S>> = limits.map(|limit| LimitCheck::one(limit, host)).collect();
        if checks.is_empty() {
            return Grant::After(Micros::ZERO);
        }
        let settlement = self.limiter.settle(&checks).await;
        let mut delay = Micros::ZERO;
        let mut wait = None;
        for outcome in &settlement.outcomes {
            match outcome.as_ref().map(|outcome| outcome.decision) {
                Ok(Decision::Allow { delay: shaped, .. }) => delay = delay.max(shaped),
                Ok(Decision::Deny { retry, .. }) => wait = wait.max(Some(retry)),
                Err(_) => wait = wait.max(Some(Retry::Unknown)),
            }
        }
        match wait {
            None => Grant::After(delay),
            Some(Retry::After(wait)) => Grant::Wait(wait.max(Micros::ONE)),
            Some(Retry::Unknown) => Grant::Wait(POLL),
            Some(Retry::Never) => Grant::Never,
        }
    }

    /// The limit of a learned policy.
    fn learned(&self, policy: (u64, PaceLimit)) -> Option<Arc<NamedLimit<S>>> {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = learned.get(&policy) {
            return Some(Arc::clone(limit));
        }
        let (id, pace) = policy;
        let limit = Gcra::new(pace.rate()).with_burst(pace.burst()).ok()?;
        let name = format!("{}:{id:016x}", self.name);
        let limit = Arc::new(named(&self.limiter, &name, with_tolerance(limit.into(), self.transit))?);
        // Servers choose these numbers.
        if learned.len() >= LEARNED_MAX {
            learned.clear();
        }
        learned.insert(policy, Arc::clone(&limit));
        Some(limit)
    }
}

fn named<S: Store>(limiter: &Limiter<S>, name: &str, limit: Limit) -> Option<NamedLimit<S>> {
    limiter.limit(name, limit).ok()
}

/// The limit with a smaller burst: requests that keep to it when they are sent keep to the whole one when they arrive,
/// each up to `transit` later.
fn with_tolerance(limit: Limit, transit: Micros) -> Limit {
    let (Some(pace), burst) = (PaceLimit::from_limit(&limit), limit.capacity()) else {
        return limit;
    };
    let late = transit.get().div_ceil(pace.interval().get().max(1));
    let burst = burst.saturating_sub(late).max(1);
    let smaller = match limit {
        Limit::Gcra(gcra) => gcra.with_burst(burst).map(|gcra: Gcra| Limit::from(gcra)),
        Limit::TokenBucket(bucket) => bucket.with_burst(burst).map(|bucket: TokenBucket| Limit::from(bucket)),
        other => Ok(other),
    };
    smaller.unwrap_or(limit)
}

/// The interval between attempts while the store cannot decide.
const POLL: Micros = Micros::from_millis(5);
/// The learned limits that are kept.
const LEARNED_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::Rate;

    #[test]
    fn a_burst_is_smaller_by_what_is_in_transit() {
        let gcra = |burst| {
            let rate = Rate::new(50, Micros::from_secs(1)).expect("in range");
            Limit::from(Gcra::new(rate).with_burst(burst).expect("in range"))
        };
        let transit = Micros::from_millis(100);
        for (burst, expected) in [(10, 5), (100, 95), (6, 1), (5, 1), (1, 1)] {
            assert_eq!(with_tolerance(gcra(burst), transit), gcra(expected), "{burst}");
        }
    }
}
