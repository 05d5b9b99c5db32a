//! The closed list of stores a server can have, and of rule books over them.

use std::sync::Arc;
use tollgate_limiter::core::algorithm::cell::Reply;
use tollgate_limiter::core::rules::{Attempt, Explanation, RuleSet, Verdict};
use tollgate_limiter::core::{Cell, Cost, Micros, Source};
use tollgate_limiter::store::StoreError;
use tollgate_limiter::store::local::{Fallback, StoreMode};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::{self as limiter, CheckResult, ForgetError, AttemptItem, RuleLimiter, CombinedVerdict};

/// A server that other instances share, and this instance while that is away.
pub type Shared = Fallback<Redis>;

/// Where counters are kept.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this program.
    Memory(Arc<Memory>),
    /// On a server that other instances share.
    Redis(Arc<Shared>),
}

/// One set of rules over a store.
#[derive(Debug)]
pub enum Book {
    /// Over the embedded one.
    Memory(RuleLimiter<Memory>),
    /// Over the shared one.
    Redis(RuleLimiter<Shared>),
}

/// Calls of `CL.THROTTLE` over a store.
#[derive(Debug)]
pub enum Throttles {
    /// Over the embedded one.
    Memory(limiter::ThrottleLimiter<Memory>),
    /// Over the shared one.
    Redis(limiter::ThrottleLimiter<Shared>),
}

impl Store {
    /// A book of these rules. Their counters go on where an earlier book left them.
    pub fn book(&self, rules: RuleSet) -> Book {
        match self {
            Self::Memory(store) => Book::Memory(RuleLimiter::new(rules, Arc::clone(store))),
            Self::Redis(store) => {
                let rules = match store.mode() {
                    StoreMode::SharedOnly => rules.closed_without_store(),
                    StoreMode::Auto | StoreMode::LocalOnly => rules,
                };
                Book::Redis(RuleLimiter::new(rules, Arc::clone(store)))
            }
        }
    }

    /// Counters for limits that callers bring along.
    pub fn throttles(&self) -> Throttles {
        match self {
            Self::Memory(store) => Throttles::Memory(limiter::ThrottleLimiter::new(Arc::clone(store))),
            Self::Redis(store) => Throttles::Redis(limiter::ThrottleLimiter::new(Arc::clone(store))),
        }
    }
}

impl From<Arc<Memory>> for Store {
    fn from(store: Arc<Memory>) -> Self {
        Self::Memory(store)
    }
}

impl From<Arc<Shared>> for Store {
    fn from(store: Arc<Shared>) -> Self {
        Self::Redis(store)
    }
}

impl Throttles {
    /// Settles one call.
    ///
    /// # Errors
    /// Why the store could not.
    pub async fn settle(&self, key: &[u8], cell: Cell, cost: Cost) -> Result<(Reply, Source), StoreError> {
        match self {
            Self::Memory(throttles) => throttles.settle(&throttles.charge(key, cell, cost)).await,
            Self::Redis(throttles) => throttles.settle(&throttles.charge(key, cell, cost)).await,
        }
    }

    /// Gives the cost of a call back.
    ///
    /// # Errors
    /// Why the store could not.
    pub async fn give_back(&self, key: &[u8], cell: Cell, cost: Cost) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(throttles) => throttles.refund(&throttles.charge(key, cell, cost)).await,
            Self::Redis(throttles) => throttles.refund(&throttles.charge(key, cell, cost)).await,
        }
    }
}

impl Book {
    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        match self {
            Self::Memory(book) => book.rules(),
            Self::Redis(book) => book.rules(),
        }
    }

    /// See [`RuleBook::check`]. What waits stands apart, because whoever asks is moved about with the room for it.
    #[inline]
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        match self {
            Self::Memory(book) => book.check_now(attempt),
            Self::Redis(book) => Box::pin(book.check(attempt)).await,
        }
    }

    /// See [`RuleBook::check_together`]. What waits stands apart here, too.
    #[inline]
    pub async fn check_together(&self, parts: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        match self {
            Self::Memory(book) => book.check_all_now(parts),
            Self::Redis(book) => Box::pin(book.check_all(parts)).await,
        }
    }

    /// See [`RuleBook::explain`].
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        match self {
            Self::Memory(book) => book.explain(attempt).await,
            Self::Redis(book) => book.explain(attempt).await,
        }
    }

    /// See [`RuleBook::refund`].
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        match self {
            Self::Memory(book) => book.refund(attempt).await,
            Self::Redis(book) => book.refund(attempt).await,
        }
    }

    /// See [`RuleBook::forget`].
    ///
    /// # Errors
    /// Those of [`RuleBook::forget`].
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        match self {
            Self::Memory(book) => book.forget(attempt, rule).await,
            Self::Redis(book) => book.forget(attempt, rule).await,
        }
    }

    /// See [`RuleBook::release`].
    ///
    /// # Errors
    /// Those of [`RuleBook::release`].
    pub async fn release(&self, lease: &str) -> Result<bool, StoreError> {
        match self {
            Self::Memory(book) => book.release(lease).await,
            Self::Redis(book) => book.release(lease).await,
        }
    }

    /// See [`RuleBook::renew`].
    ///
    /// # Errors
    /// Those of [`RuleBook::renew`].
    pub async fn renew(&self, lease: &str) -> Result<Option<Micros>, StoreError> {
        match self {
            Self::Memory(book) => book.renew(lease).await,
            Self::Redis(book) => book.renew(lease).await,
        }
    }
}
