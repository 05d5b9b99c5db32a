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
        let learned: Vec<Arc<NamedLimit<S>>> = shared(learned)
            .into_iter()
            .filter_map(|policy| self.learned(policy))
            .collect();
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

    /// The limit of a learned policy, by the number of its name.
    fn learned(&self, policy: (u64, PaceLimit)) -> Option<Arc<NamedLimit<S>>> {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limit) = learned.get(&policy) {
            return Some(Arc::clone(limit));
        }
        let (id, pace) = policy;
        let limit = Gcra::new(pace.rate()).with_burst(pace.burst()).ok()?;
        let name = format!("{}:{id:x}", self.name);
        let limit = Arc::new(named(&self.limiter, &name, with_tolerance(limit.into(), self.transit))?);
        // Servers choose these numbers.
        if learned.len() >= LEARNED_MAX {
            learned.clear();
        }
        learned.insert(policy, Arc::clone(&limit));
        Some(limit)
    }
}

/// The learned policies that are shared, each with the number of its name. Servers choose ids and windows, so that a host has
/// few names and none of their keys is kept for long: other policies bind each client by itself.
fn shared(learned: &[(u64, PaceLimit)]) -> Vec<(u64, PaceLimit)> {
    let mut shared: Vec<(u64, PaceLimit)> = Vec::new();
    for (id, pace) in learned {
        let window = pace.interval().get().saturating_mul(pace.burst());
        if window.max(pace.rate().period().get()) > SHARED_WINDOW_MAX.get() {
            continue;
        }
        let name = id % SHARED_NAMES;
        match shared.iter_mut().find(|(known, _)| *known == name) {
            // One key has one limit: the slower of two.
            Some((_, known)) if known.interval() < pace.interval() => *known = *pace,
            Some(_) => {}
            None => shared.push((name, *pace)),
        }
    }
    shared
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
/// The names of the learned limits of a host.
const SHARED_NAMES: u64 = 16;
/// The longest window of a learned policy that is shared.
const SHARED_WINDOW_MAX: Micros = Micros::from_secs(3_600);

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

    #[test]
    fn a_server_that_names_thousands_of_policies_fills_sixteen_keys() {
        let pace = |seconds| {
            let rate = Rate::new(10, Micros::from_secs(seconds)).expect("in range");
            PaceLimit::new(rate, 10)
        };
        let mut known: Vec<u64> = Vec::new();
        for id in 0..5_000_u64 {
            for (name, _) in shared(&[(id.wrapping_mul(0x9e37_79b9_7f4a_7c15), pace(60))]) {
                if !known.contains(&name) {
                    known.push(name);
                }
            }
        }
        assert!(known.len() <= 16, "{}", known.len());
        // Of two with one name the slower one is shared; a policy of a day is not.
        assert_eq!(
            shared(&[(3, pace(60)), (19, pace(600)), (35, pace(6))]),
            [(3, pace(600))]
        );
        assert_eq!(shared(&[(3, pace(3_600)), (4, pace(86_400))]), [(3, pace(3_600))]);
    }

    #[tokio::test]
    async fn a_host_cannot_fill_the_store() {
        use tollgate_limiter::store::memory::Memory;
        let limiter = Limiter::new(Memory::default());
        let limits = SharedLimits::new(limiter.clone(), "pacer", None, Micros::ZERO);
        for id in 0..1_000 {
            for seconds in [60, 31_536_000] {
                let rate = Rate::new(10, Micros::from_secs(seconds)).expect("in range");
                limits.charge("h:1", &[(id, PaceLimit::new(rate, 10))]).await;
            }
        }
        let keys = limiter.store().usage().keys;
        assert!((1..=16).contains(&keys), "{keys} keys");
    }
}
