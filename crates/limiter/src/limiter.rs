//! The limiter a program embeds: rules made in code, and the questions it asks of them.

use crate::limits::IntoLimit;
use crate::store::memory::{ChargeOptions, Commit, Memory};
use crate::store::{Keyspace, Settlement, Store};
use std::fmt;
use std::sync::Arc;
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, LimitError, Micros, OnStoreFailure, Policy};

/// Limits by rules, over a store. Cheap to clone: all clones share the store.
///
/// Over the embedded store every question is answered at once, without async:
///
/// ```
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::limits::TokenBucket;
///
/// let limiter = Limiter::in_memory();
/// let logins = limiter.rule("logins", TokenBucket::per_minute(100).burst(2))?;
///
/// assert!(limiter.check(&logins, "user:42").is_allow());
/// assert!(limiter.check(&logins, "user:42").is_allow());
/// assert!(!limiter.check(&logins, "user:42").is_allow());
/// assert!(limiter.check(&logins, "user:43").is_allow());
/// # Ok::<(), tollgate_limiter::core::LimitError>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S = Memory> {
    store: Arc<S>,
}

/// A limit with a name of its own: every subject it is checked for has a counter.
pub struct NamedLimit<S: Store = Memory> {
    id: Box<str>,
    limit: Limit,
    policy: Policy,
    template: S::Template,
}

/// One question of several that must all be answered with yes.
pub struct LimitCheck<'a, S: Store = Memory> {
    /// The rule.
    pub limit: &'a NamedLimit<S>,
    /// Whom it is counted for.
    pub subject: &'a [u8],
    /// What it takes.
    pub cost: Cost,
}

impl Limiter {
    /// Over the embedded store with its defaults.
    pub fn in_memory() -> Self {
        Self::new(Memory::default())
    }

    /// May `subject` go on? Takes one unit if so.
    #[inline]
    pub fn check(&self, limit: &NamedLimit, subject: impl AsRef<[u8]>) -> Decision {
        self.check_cost(limit, subject, Cost::ONE)
    }

    /// May `subject` go on at this cost? Takes it if so; a cost of zero looks without taking.
    #[inline]
    pub fn check_cost(&self, limit: &NamedLimit, subject: impl AsRef<[u8]>, cost: Cost) -> Decision {
        self.settle_one(limit, subject.as_ref(), cost, LeaseId::default())
    }

    /// Asks for one unit for each of the subjects, each on its own, and tells the answers in order.
    ///
    /// Faster than one by one: the places of several keys are fetched from memory together.
    pub fn check_each<K: AsRef<[u8]>>(
        &self,
        limit: &NamedLimit,
        subjects: &[K],
        mut on_decision: impl FnMut(Decision),
    ) {
        for subjects in subjects.chunks(Memory::CHUNK) {
            let mut keys = [self.store.key(&limit.template, &[b""]); Memory::CHUNK];
            for (key, subject) in keys.iter_mut().zip(subjects) {
                *key = self.store.key(&limit.template, &[subject.as_ref()]);
            }
            let keys = keys.get(..subjects.len()).unwrap_or_default();
            let options = limit.charge_options(Cost::ONE, LeaseId::default());
            self.store.settle_keys(&limit.limit, keys, options, |decision| {
                on_decision(limit.unless_shadow(decision))
            });
        }
    }

    /// Asks all at one moment: every one is charged if every one passes, else none is.
    pub fn check_all(&self, checks: &[LimitCheck<'_>]) -> Settlement {
        self.store
            .settle_all(&self.charges(checks), Commit::Keep, crate::lease::random_id())
    }

    /// Out of line: it is large, and the same for all kinds of subjects.
    #[inline(never)]
    pub(crate) fn settle_one(&self, limit: &NamedLimit, subject: &[u8], cost: Cost, lease: LeaseId) -> Decision {
        let key = self.store.key(&limit.template, &[subject]);
        let options = limit.charge_options(cost, lease);
        if limit.policy == Policy::Shadow {
            return limit.unless_shadow(self.store.settle_cold(key, &limit.limit, options));
        }
        self.store.settle_one(key, &limit.limit, options)
    }
}

impl<S: Store> Limiter<S> {
    /// Over a store.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store) }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// A rule of this limiter. Two rules of one id and one algorithm share their counters.
    ///
    /// # Errors
    /// A limit that cannot be made, with what to write instead.
    pub fn limit(&self, id: &str, limit: impl IntoLimit) -> Result<NamedLimit<S>, LimitError> {
        let limit = limit.into_limit()?;
        let counter = Counter {
            domain: "",
            rule: id,
            variant: "",
            limit: &limit,
            per: &[],
        };
        let template = self.store.template(&counter);
        Ok(NamedLimit {
            id: id.into(),
            limit,
            policy: Policy::Enforce,
            template,
        })
    }

    /// Asks all at one moment: every one is charged if every one passes, else none is.
    pub async fn settle(&self, checks: &[LimitCheck<'_, S>]) -> Settlement {
        self.store
            .settle(&self.charges(checks), crate::lease::random_id())
            .await
    }

    /// How all of them stand, without taking anything.
    pub async fn peek(&self, checks: &[LimitCheck<'_, S>]) -> Settlement {
        self.store.peek(&self.charges(checks)).await
    }

    fn charges(&self, checks: &[LimitCheck<'_, S>]) -> Vec<Charge<S::Key>> {
        let charge = |check: &LimitCheck<'_, S>| {
            check
                .limit
                .charge(self.store.key(&check.limit.template, &[check.subject]), check.cost)
        };
        checks.iter().map(charge).collect()
    }
}

impl<S: Store> NamedLimit<S> {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The key of a subject's counter.
    pub fn key(&self, store: &S, per: &[&[u8]]) -> S::Key {
        store.key(&self.template, per)
    }

    fn charge(&self, key: S::Key, cost: Cost) -> Charge<S::Key> {
        Charge {
            key,
            limit: self.limit,
            cost,
            policy: self.policy,
            on_failure: OnStoreFailure::Local,
        }
    }

    #[inline]
    fn charge_options(&self, cost: Cost, lease: LeaseId) -> ChargeOptions {
        ChargeOptions {
            cost,
            policy: self.policy,
            lease,
        }
    }

    /// What a caller is told who asks this rule alone: a shadow says where it stands and lets everybody pass.
    #[inline]
    fn unless_shadow(&self, decision: Decision) -> Decision {
        match decision {
            Decision::Deny { standing, .. } if self.policy == Policy::Shadow => Decision::Allow {
                standing,
                delay: Micros::ZERO,
            },
            decision => decision,
        }
    }

    /// The same rule under another policy.
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }
}

impl<'a, S: Store> LimitCheck<'a, S> {
    /// One unit of `rule` for `subject`.
    pub fn one(limit: &'a NamedLimit<S>, subject: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            limit,
            subject: subject.as_ref(),
            cost: Cost::ONE,
        }
    }
}

impl<S: Store> Clone for NamedLimit<S> {
    fn clone(&self) -> Self {
        Self {
            id: self.id.clone(),
            limit: self.limit,
            policy: self.policy,
            template: self.template.clone(),
        }
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
        }
    }
}

impl Default for Limiter {
    fn default() -> Self {
        Self::in_memory()
    }
}

impl<S: Store> fmt::Debug for NamedLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("id", &self.id)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
