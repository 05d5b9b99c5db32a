//! The closed list of stores a server can have, and of limiters over them.

use std::sync::Arc;
use tollgate_limiter::core::algorithm::cell::Reply;
use tollgate_limiter::core::rules::{Attempt, AttributeEdit, EditProblems, Explanation, RowEdit, RuleSet, Verdict};
use tollgate_limiter::core::{Cell, Cost, Micros, Source};
use tollgate_limiter::store::fallback::Fallback;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::store::{CALL_BUCKETS, Store, StoreError, StoreMode, StoreStatus};
use tollgate_limiter::{self as limiter, AttemptItem, CheckResult, CombinedVerdict, ForgetError, RuleLimiter};

/// The shared store with its fallback.
pub type RedisStore = Fallback<Redis>;

/// The store of a server.
#[derive(Clone, Debug)]
pub enum AnyStore {
    /// In this process.
    Memory(Arc<Memory>),
    /// On Redis or Valkey, shared with other instances.
    Redis(Arc<RedisStore>),
}

/// A rule set over a store.
#[derive(Debug)]
pub enum AnyRuleLimiter {
    /// Over the memory store.
    Memory(RuleLimiter<Memory>),
    /// Over the shared store.
    Redis(RuleLimiter<RedisStore>),
}

/// Calls of `CL.THROTTLE` over a store.
#[derive(Debug)]
pub enum AnyThrottle {
    /// Over the memory store.
    Memory(limiter::ThrottleLimiter<Memory>),
    /// Over the shared store.
    Redis(limiter::ThrottleLimiter<RedisStore>),
}

impl AnyStore {
    /// The status that metrics, `/readyz` and the log read.
    pub fn status(&self) -> StoreStatus {
        match self {
            Self::Memory(store) => store.status(),
            Self::Redis(store) => store.status(),
        }
    }

    /// True if the settings allow calls to a shared store.
    pub fn calls_shared(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(store) => store.mode() != StoreMode::LocalOnly,
        }
    }

    /// The number of instances that share the limits.
    pub fn instances(&self) -> u32 {
        match self {
            Self::Memory(_) => 1,
            Self::Redis(store) => store.instances().count(),
        }
    }

    /// The times of calls to the shared store, by bucket. Zero for a store in this process.
    pub(super) fn call_times(&self) -> [u64; CALL_BUCKETS] {
        match self {
            Self::Memory(_) => [0; CALL_BUCKETS],
            Self::Redis(store) => store.status().calls.map_or([0; CALL_BUCKETS], |calls| calls.durations),
        }
    }

    /// Removes this instance from those that share the limits, because it is about to end.
    pub async fn deregister(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.deregister().await,
        }
    }

    /// Returns a limiter of these rules. Counters of unchanged rules are kept.
    pub fn rule_limiter(&self, rules: RuleSet) -> AnyRuleLimiter {
        match self {
            Self::Memory(store) => AnyRuleLimiter::Memory(RuleLimiter::new(rules, Arc::clone(store))),
            Self::Redis(store) => {
                let rules = match store.mode() {
                    StoreMode::SharedOnly => rules.closed_without_store(),
                    StoreMode::Auto | StoreMode::LocalOnly => rules,
                };
                AnyRuleLimiter::Redis(RuleLimiter::new(rules, Arc::clone(store)))
            }
        }
    }

    /// Returns the counters of `CL.THROTTLE`.
    pub fn throttle(&self) -> AnyThrottle {
        match self {
            Self::Memory(store) => AnyThrottle::Memory(limiter::ThrottleLimiter::new(Arc::clone(store))),
            Self::Redis(store) => AnyThrottle::Redis(limiter::ThrottleLimiter::new(Arc::clone(store))),
        }
    }
}

impl From<Arc<Memory>> for AnyStore {
    fn from(store: Arc<Memory>) -> Self {
        Self::Memory(store)
    }
}

impl From<Arc<RedisStore>> for AnyStore {
    fn from(store: Arc<RedisStore>) -> Self {
        Self::Redis(store)
    }
}

impl AnyThrottle {
    /// The throttle that decides in one poll; none if the store is reached over the network.
    #[inline]
    pub const fn inline(&self) -> Option<&limiter::ThrottleLimiter> {
        match self {
            Self::Memory(throttle) => Some(throttle),
            Self::Redis(_) => None,
        }
    }

    /// Settles one call.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn settle(&self, key: &[u8], cell: Cell, cost: Cost) -> Result<(Reply, Source), StoreError> {
        match self {
            Self::Memory(throttle) => throttle.settle(&throttle.charge(key, cell, cost)).await,
            Self::Redis(throttle) => throttle.settle(&throttle.charge(key, cell, cost)).await,
        }
    }

    /// Refunds the cost of a call.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn refund(&self, key: &[u8], cell: Cell, cost: Cost) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(throttle) => throttle.refund(&throttle.charge(key, cell, cost)).await,
            Self::Redis(throttle) => throttle.refund(&throttle.charge(key, cell, cost)).await,
        }
    }
}

impl AnyRuleLimiter {
    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        match self {
            Self::Memory(limiter) => limiter.rules(),
            Self::Redis(limiter) => limiter.rules(),
        }
    }

    /// Calls [`RuleLimiter::amended`].
    pub fn amended(&self, rows: &[RowEdit], attributes: &[AttributeEdit]) -> (Self, EditProblems) {
        match self {
            Self::Memory(limiter) => {
                let (limiter, problems) = limiter.amended(rows, attributes);
                (Self::Memory(limiter), problems)
            }
            Self::Redis(limiter) => {
                let (limiter, problems) = limiter.amended(rows, attributes);
                (Self::Redis(limiter), problems)
            }
        }
    }

    /// Calls [`RuleLimiter::check`]. The future over a shared store is boxed, to keep that of the caller small.
    #[inline]
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        match self {
            Self::Memory(limiter) => limiter.check_now(attempt),
            Self::Redis(limiter) => Box::pin(limiter.check(attempt)).await,
        }
    }

    /// Calls [`RuleLimiter::check_each`].
    pub async fn check_each(&self, attempts: &[Attempt<'_>]) -> Vec<CheckResult<'_>> {
        match self {
            Self::Memory(limiter) => limiter.check_each_now(attempts),
            Self::Redis(limiter) => Box::pin(limiter.check_each(attempts)).await,
        }
    }

    /// Calls [`RuleLimiter::check_all`]. The future over a shared store is boxed, to keep that of the caller small.
    #[inline]
    pub async fn check_all(&self, items: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        match self {
            Self::Memory(limiter) => limiter.check_all_now(items),
            Self::Redis(limiter) => Box::pin(limiter.check_all(items)).await,
        }
    }

    /// Calls [`RuleLimiter::explain`].
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        match self {
            Self::Memory(limiter) => limiter.explain(attempt).await,
            Self::Redis(limiter) => limiter.explain(attempt).await,
        }
    }

    /// Calls [`RuleLimiter::refund`].
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        match self {
            Self::Memory(limiter) => limiter.refund(attempt).await,
            Self::Redis(limiter) => limiter.refund(attempt).await,
        }
    }

    /// Calls [`RuleLimiter::forget`].
    ///
    /// # Errors
    /// Those of [`RuleLimiter::forget`].
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        match self {
            Self::Memory(limiter) => limiter.forget(attempt, rule).await,
            Self::Redis(limiter) => limiter.forget(attempt, rule).await,
        }
    }

    /// Calls [`RuleLimiter::release`].
    ///
    /// # Errors
    /// Those of [`RuleLimiter::release`].
    pub async fn release(&self, lease: &str) -> Result<bool, StoreError> {
        match self {
            Self::Memory(limiter) => limiter.release(lease).await,
            Self::Redis(limiter) => limiter.release(lease).await,
        }
    }

    /// Calls [`RuleLimiter::renew`].
    ///
    /// # Errors
    /// Those of [`RuleLimiter::renew`].
    pub async fn renew(&self, lease: &str) -> Result<Option<Micros>, StoreError> {
        match self {
            Self::Memory(limiter) => limiter.renew(lease).await,
            Self::Redis(limiter) => limiter.renew(lease).await,
        }
    }
}
