//! The limiter a program embeds: limits written in code, and checks of them. Here are the checks over the memory store,
//! which return at once; `limiter/shared.rs` has the same over a shared store, async.

#[cfg(feature = "redis")]
mod shared;

use crate::lease::{HeldSlot, Permit};
use crate::limits::{Concurrency, IntoLimit};
use crate::rule_limiter::poll_once;
use crate::store::memory::{ChargeOptions, Commit, Memory};
use crate::store::{CostCorrection, Keyspace, Settlement, Store, StoreError, correct_charge};
use std::fmt;
use std::sync::Arc;
use tollgate_core::{
    Charge, Cost, Counter, Decision, LeaseId, Limit, LimitError, Micros, OnStoreFailure, Outcome, Policy,
};

/// A rate limiter over a store. Cheap to clone: all clones share the store.
///
/// Over the memory store every check returns at once, without async. Over a [shared store](crate::store::SharedStore) the
/// methods have the same names and arguments, and are async.
///
/// ```
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::limits::TokenBucket;
///
/// let limiter = Limiter::in_memory();
/// let logins = limiter.limit("logins", TokenBucket::per_minute(100).burst(2))?;
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

/// A limit with a name: every subject it is checked for has a counter.
pub struct NamedLimit<S: Store = Memory> {
    id: Box<str>,
    limit: Limit,
    policy: Policy,
    template: S::Template,
}

/// A concurrency limit with a name. Its slots are taken by [`Limiter::acquire`] alone, and held by a permit:
///
/// ```compile_fail
/// # use tollgate_limiter::Limiter;
/// # use tollgate_limiter::limits::Concurrency;
/// let limiter = Limiter::in_memory();
/// let searches = limiter.concurrency("searches", Concurrency::at_most(20)).unwrap();
/// limiter.check(&searches, "user:42");
/// ```
///
/// ```compile_fail
/// # use tollgate_limiter::Limiter;
/// # use tollgate_limiter::limits::Concurrency;
/// Limiter::in_memory().limit("searches", Concurrency::at_most(20)).unwrap();
/// ```
pub struct ConcurrencyLimit<S: Store = Memory>(NamedLimit<S>);

/// One slot that a request asks for, of a concurrency limit.
pub struct SlotCheck<'a, S: Store = Memory> {
    /// The limit.
    pub limit: &'a ConcurrencyLimit<S>,
    /// The subject whose slots are counted.
    pub subject: &'a [u8],
}

/// One of several checks that pass together or not at all.
pub struct LimitCheck<'a, S: Store = Memory> {
    /// The limit.
    pub limit: &'a NamedLimit<S>,
    /// The subject it is counted for.
    pub subject: &'a [u8],
    /// The units it consumes.
    pub cost: Cost,
}

impl Limiter {
    /// A limiter over a memory store with default options.
    pub fn in_memory() -> Self {
        Self::new(Memory::default())
    }

    /// Decides about one unit for `subject`, and consumes it if allowed.
    #[inline]
    pub fn check(&self, limit: &NamedLimit, subject: impl AsRef<[u8]>) -> Decision {
        self.check_cost(limit, subject, Cost::ONE)
    }

    /// Decides about a cost for `subject`, and consumes it if allowed; a cost of zero peeks.
    #[inline]
    pub fn check_cost(&self, limit: &NamedLimit, subject: impl AsRef<[u8]>, cost: Cost) -> Decision {
        self.settle_one(limit, subject.as_ref(), cost, LeaseId::default())
    }

    /// Checks one unit for each of the subjects independently, and reports the decisions in order.
    ///
    /// Faster than single checks: the slots of several keys are prefetched at once.
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
                on_decision(limit.unless_shadow(decision));
            });
        }
    }

    /// Checks all at one instant: every check is charged if every one passes, otherwise none is.
    pub fn check_all(&self, checks: &[LimitCheck<'_>]) -> Settlement {
        self.store
            .settle_all(&self.charges(checks), Commit::Keep, crate::lease::random_id())
    }

    /// Checks all at one instant, and takes a slot of each concurrency limit: every check is charged and every slot taken, or
    /// nothing is. The permit holds the slots, if there are any; the outcomes are those of the checks, then of the slots.
    ///
    /// ```
    /// use tollgate_limiter::limits::{Concurrency, TokenBucket};
    /// use tollgate_limiter::{LimitCheck, Limiter, SlotCheck};
    ///
    /// let limiter = Limiter::in_memory();
    /// let rate = limiter.limit("rate", TokenBucket::per_minute(100))?;
    /// let slots = limiter.concurrency("slots", Concurrency::at_most(1))?;
    /// let acquire = || limiter.acquire_all(&[LimitCheck::one(&rate, "u_1")], &[SlotCheck::new(&slots, "u_1")]);
    /// let (first, permit) = acquire();
    /// assert!(first.allowed && permit.is_some());
    /// assert!(!acquire().0.allowed, "the slot is taken, and the rate is not charged");
    /// drop(permit);
    /// assert!(acquire().0.allowed);
    /// # Ok::<(), tollgate_limiter::core::LimitError>(())
    /// ```
    pub fn acquire_all(&self, checks: &[LimitCheck<'_>], slots: &[SlotCheck<'_>]) -> (Settlement, Option<Permit>) {
        poll_once(self.settle_with_slots(checks, slots))
    }

    /// Brings the charge of an admitted request from what was charged to the actual cost.
    pub fn correct_cost(
        &self,
        limit: &NamedLimit,
        subject: impl AsRef<[u8]>,
        charged: Cost,
        actual: Cost,
    ) -> CostCorrection {
        poll_once(self.settle_correction(limit, subject.as_ref(), charged, actual)).unwrap_or_default()
    }

    /// Settles one charge. Out of line: the code is large, and the same for all types of subjects.
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
    /// A limiter over this store.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store) }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    pub(crate) const fn shared_store(&self) -> &Arc<S> {
        &self.store
    }

    /// A limit of this limiter. Two limits of one id and one algorithm share their counters.
    ///
    /// # Errors
    /// Numbers out of range; the error says what to write instead.
    pub fn limit(&self, id: &str, limit: impl IntoLimit) -> Result<NamedLimit<S>, LimitError> {
        Ok(self.named_limit(id, limit.into_limit()?))
    }

    /// A concurrency limit of this limiter, for [`Limiter::acquire`].
    ///
    /// # Errors
    /// Numbers out of range; the error says what to write instead.
    pub fn concurrency(&self, id: &str, limit: Concurrency) -> Result<ConcurrencyLimit<S>, LimitError> {
        Ok(ConcurrencyLimit(self.named_limit(id, limit.build()?)))
    }

    pub(crate) fn named_limit(&self, id: &str, limit: Limit) -> NamedLimit<S> {
        let counter = Counter {
            domain: "",
            rule: id,
            variant: "",
            limit: &limit,
            per: &[],
        };
        let template = self.store.template(&counter);
        NamedLimit {
            id: id.into(),
            limit,
            policy: Policy::Enforce,
            template,
        }
    }

    /// Checks all at one instant: every check is charged if every one passes, otherwise none is.
    pub async fn settle(&self, checks: &[LimitCheck<'_, S>]) -> Settlement {
        let charges = self.charges(checks);
        let mut settlement = self.store.settle(&charges, crate::lease::random_id()).await;
        self.deny_undecided(&charges, &mut settlement).await;
        settlement
    }

    /// Does the same, and takes a slot of each concurrency limit: the permit holds them. The outcomes are those of the checks,
    /// then of the slots.
    pub async fn settle_with_slots(
        &self,
        checks: &[LimitCheck<'_, S>],
        slots: &[SlotCheck<'_, S>],
    ) -> (Settlement, Option<Permit<S>>) {
        let charges = self.all_charges(checks, slots);
        let lease = lease_for(slots);
        let mut settlement = self.store.settle(&charges, lease).await;
        // Before the next await: it releases what was taken if the caller leaves there.
        let permit = self.held_slots(&charges, &settlement, checks.len(), lease);
        self.deny_undecided(&charges, &mut settlement).await;
        let permit = permit.filter(|_| settlement.allowed);
        (settlement, permit)
    }

    /// Decides about a cost for `subject` at once, and consumes it if allowed. None if the store may have to wait.
    #[inline]
    pub fn check_cost_now(&self, limit: &NamedLimit<S>, subject: &[u8], cost: Cost) -> Option<Decision> {
        let key = self.store.key(&limit.template, &[subject]);
        let decision = self.store.settle_now(&limit.charge(key, cost))?;
        Some(limit.unless_shadow(decision))
    }

    /// Brings the charge of an admitted request from what was charged to the actual cost, over any store.
    ///
    /// # Errors
    /// The store could not be reached; the charge stays.
    pub async fn settle_correction(
        &self,
        limit: &NamedLimit<S>,
        subject: &[u8],
        charged: Cost,
        actual: Cost,
    ) -> Result<CostCorrection, StoreError> {
        let charge = limit.charge(self.store.key(&limit.template, &[subject]), charged);
        correct_charge(&*self.store, &charge, actual).await
    }

    /// Denies a request of which a charge could not be decided, and reverses the others: those of other nodes, and those
    /// beside a key with a foreign value, which is not counted. Nothing is left to reverse if a limit denies the request.
    pub(crate) async fn deny_undecided(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
        let is_undecided = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            charge.policy != Policy::Shadow && outcome.is_err()
        };
        if settlement.is_denied(charges) {
            return;
        }
        let is_undecided = charges.iter().zip(&settlement.outcomes).any(is_undecided);
        if is_undecided {
            self.store.compensate(charges, settlement).await;
        }
        settlement.allowed = !is_undecided;
    }

    /// Decides as [`Limiter::settle`] does, and consumes nothing.
    pub async fn peek(&self, checks: &[LimitCheck<'_, S>]) -> Settlement {
        self.store.peek(&self.charges(checks)).await
    }

    fn charges(&self, checks: &[LimitCheck<'_, S>]) -> Vec<Charge<S::Key>> {
        self.all_charges(checks, &[])
    }

    /// The charges of checks, then of slots.
    fn all_charges(&self, checks: &[LimitCheck<'_, S>], slots: &[SlotCheck<'_, S>]) -> Vec<Charge<S::Key>> {
        let mut charges = Vec::with_capacity(checks.len() + slots.len());
        charges.extend(checks.iter().map(|check| {
            let key = self.store.key(&check.limit.template, &[check.subject]);
            check.limit.charge(key, check.cost)
        }));
        charges.extend(slots.iter().map(|slot| {
            let limit = slot.limit.named();
            limit.charge(self.store.key(&limit.template, &[slot.subject]), Cost::ONE)
        }));
        charges
    }

    /// The permit for the slots that a settlement took; none if a limit denies it. Those of an undecided one are taken.
    fn held_slots(
        &self,
        charges: &[Charge<S::Key>],
        settlement: &Settlement,
        checks: usize,
        lease: LeaseId,
    ) -> Option<Permit<S>> {
        if settlement.is_denied(charges) {
            return None;
        }
        let slots = charges.iter().zip(&settlement.outcomes).skip(checks);
        let held = slots.filter(|(_, outcome)| outcome.is_ok_and(|outcome| outcome.decision.is_allow()));
        let held = held.map(|(charge, _)| HeldSlot {
            key: charge.key,
            limit: charge.limit,
        });
        Permit::new(&self.store, lease, held)
    }
}

/// The lease of a request: a new one if it asks for a slot.
fn lease_for<S: Store>(slots: &[SlotCheck<'_, S>]) -> LeaseId {
    match slots {
        [] => LeaseId::default(),
        _ => crate::lease::random_id(),
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

    /// The decision for a caller of this limit alone: a shadow shows its standing and denies nothing.
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

    /// The same limit with another policy.
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }
}

impl<S: Store> ConcurrencyLimit<S> {
    /// Its name.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// Its limit.
    pub fn limit(&self) -> &Limit {
        self.0.limit()
    }

    /// The same limit with another policy.
    pub fn with_policy(self, policy: Policy) -> Self {
        Self(self.0.with_policy(policy))
    }

    /// The limit as a charge of it is settled, by a caller that holds the lease.
    pub(crate) fn named(&self) -> &NamedLimit<S> {
        &self.0
    }
}

impl<'a, S: Store> SlotCheck<'a, S> {
    /// One slot of `limit` for `subject`.
    pub fn new(limit: &'a ConcurrencyLimit<S>, subject: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self {
            limit,
            subject: subject.as_ref(),
        }
    }
}

impl<'a, S: Store> LimitCheck<'a, S> {
    /// A check of one unit of `limit` for `subject`.
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

impl<S: Store> Clone for ConcurrencyLimit<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
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
        f.debug_struct("NamedLimit")
            .field("id", &self.id)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl<S: Store> fmt::Debug for ConcurrencyLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConcurrencyLimit").field(&self.0).finish()
    }
}
