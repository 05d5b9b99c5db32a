//! The rule limiter: a rule set over a store. Every front end calls it.
//!
//! An attempt is planned, its charges are settled and recorded in the plan's lines, and the plan becomes a verdict.

mod acquire;
mod check_all;
mod check_each;
mod lease_token;
mod settle;

pub use self::acquire::ActualUse;
pub use self::check_all::{AttemptItem, CombinedVerdict, Direction, InlineLimit, ItemVerdict};

use self::lease_token::LeaseToken;
use crate::lease;
use crate::store::memory::Memory;
use crate::store::{CounterStore, StoreError};
use futures_util::future::join_all;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_core::rules::{
    Attempt, AttributeEdit, CounterId, CounterSpec, EditProblems, Explanation, Line, Plan, PlannedCharge, Prefetch,
    RowEdit, RuleSet, UnknownDomain, UnknownRule, Verdict,
};
use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, Timestamp};

/// One rule set over a store. It is immutable: a reload creates another limiter over the same store, so no check sees a
/// mixture of rules.
pub struct RuleLimiter<S: CounterStore = Memory> {
    rules: RuleSet,
    store: Arc<S>,
    /// Of the rules' own counters.
    keys: CounterKeys<S>,
    /// Of the counters that override rows added.
    added_keys: CounterKeys<S>,
    /// The concurrency limits, by the tag of their counters in a lease token.
    lease_limits: Arc<HashMap<u64, Limit>>,
}

/// The parts of the keys of counters, by counter.
struct CounterKeys<S: CounterStore> {
    /// The key template of each.
    templates: Arc<[S::Template]>,
    /// The key of each without a subject.
    global: Arc<[S::Key]>,
}

/// Asks for items with the instruction of the processor.
struct ProcessorCache;

impl Prefetch for ProcessorCache {
    #[inline]
    fn prefetch<T>(&self, items: &[T], index: usize) {
        prefetch_index::prefetch_index(items, index);
    }
}

/// The reason for which counters were not cleared.
#[derive(Debug)]
pub enum ForgetError {
    /// The attempt's domain has no rules.
    UnknownDomain(UnknownDomain),
    /// No rule and no window of the attempt's domain has that name.
    Unknown(UnknownRule),
    /// The store failed. Some counters may be cleared.
    Store(StoreError),
}

/// The result of a check.
#[derive(Debug)]
pub struct CheckResult<'r> {
    /// The verdict.
    pub verdict: Verdict<'r>,
    /// The leases of concurrency limits, as one token. Any instance can release it.
    pub lease: Option<String>,
    /// Number of cost attributes that were not whole numbers; the default was charged.
    pub invalid_costs: u32,
    /// True if the attempt lacks a `per` attribute of rules in its domain: see [`RuleSet::missing_keys`].
    pub lacks_key: bool,
    /// The store's time of the settlement. None if nothing had to be settled.
    pub now: Option<Timestamp>,
}

impl<S: CounterStore> RuleLimiter<S> {
    /// Returns a limiter for these rules. Counters that an earlier limiter over the same store used continue.
    pub fn new(rules: RuleSet, store: Arc<S>) -> Self {
        Self {
            keys: CounterKeys::<S>::new(rules.counters(), &store),
            added_keys: CounterKeys::<S>::new(rules.added_counters(), &store),
            lease_limits: lease_limits(&rules),
            rules,
            store,
        }
    }

    /// Returns a limiter with these edits of override rows and subject attributes, and the edits that could not be
    /// applied. Shares everything with this one but what they change.
    pub fn amended(&self, rows: &[RowEdit], attributes: &[AttributeEdit]) -> (Self, EditProblems) {
        let mut problems = EditProblems::default();
        let mut rules = self.rules.clone();
        if !rows.is_empty() {
            (rules, problems.rows) = rules.amend(rows);
        }
        if !attributes.is_empty() {
            (rules, problems.attributes) = rules.amend_attributes(attributes);
        }
        // They are shared unless they have changed.
        let has_same_counters = std::ptr::eq(rules.added_counters(), self.rules.added_counters());
        let (added_keys, lease_limits) = match has_same_counters {
            true => (self.added_keys.clone(), Arc::clone(&self.lease_limits)),
            false => (
                CounterKeys::<S>::new(rules.added_counters(), &self.store),
                lease_limits(&rules),
            ),
        };
        let amended = Self {
            rules,
            store: Arc::clone(&self.store),
            keys: self.keys.clone(),
            added_keys,
            lease_limits,
        };
        (amended, problems)
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The store.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Checks an attempt. If it is allowed, every matching rule is charged; otherwise none is.
    #[inline]
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        self.check_plan(self.plan(attempt)).await
    }

    /// Settles a plan and turns it into a result.
    #[inline]
    async fn check_plan<'r>(&self, mut plan: Plan<'r, S::Key>) -> CheckResult<'r> {
        let lease = plan_lease(&plan);
        let now = self.settle(&mut plan, lease.unwrap_or_default()).await;
        self.check_result(plan, lease, now)
    }

    /// Turns a settled plan into a result.
    #[inline]
    fn check_result<'r>(
        &self,
        plan: Plan<'r, S::Key>,
        lease: Option<LeaseId>,
        now: Option<Timestamp>,
    ) -> CheckResult<'r> {
        CheckResult {
            lease: lease.and_then(|lease| self.lease_token(&plan, lease)),
            invalid_costs: plan.invalid_costs,
            lacks_key: plan.lacks_key,
            now,
            verdict: plan.verdict(S::SOURCE),
        }
    }

    /// Explains, rule by rule, the verdict that an attempt would get. Consumes nothing.
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        let mut plan = self
            .rules
            .plan_to_explain(attempt, |counter, per| self.key(counter, per));
        self.peek(&mut plan).await;
        // At most one charge of an attempt is counted as hits.
        let hit = self
            .hits(&plan)
            .next()
            .map(|hit| (hit.charge.key, self.store.hit_key_text(&hit)));
        let reserve_rulings = plan.reserve_rulings(S::SOURCE);
        let verdict = plan.verdict(S::SOURCE);
        let key_text = |counter, per: &[&[u8]]| {
            let key = self.key(counter, per);
            match &hit {
                Some((hit_key, text)) if *hit_key == key => text.clone(),
                _ => self.store.key_text(&key),
            }
        };
        self.rules.explain(attempt, (verdict, reserve_rulings), key_text)
    }

    /// Refunds the cost of an attempt to every matching rule, never above the capacity. Returns the standings after it;
    /// like a peek it is always allowed.
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        self.refund_plan(self.plan(attempt)).await
    }

    /// Refunds all charges of a plan.
    async fn refund_plan<'r>(&self, mut plan: Plan<'r, S::Key>) -> Verdict<'r> {
        // Concurrently: an attempt that matches many limits would wait for each of them while the store is slow.
        let outcomes = join_all(plan.charges().map(|planned| self.refund_charge(planned))).await;
        plan.record(outcomes);
        plan.standings(S::SOURCE)
    }

    /// Clears the counters of one subject and returns how many held something: those of every rule whose `per`
    /// attributes are all given and whose conditions no given attribute contradicts. A global counter is cleared only
    /// by name. Of the counters of hits it is the one that the attempt itself would be counted in.
    ///
    /// # Errors
    /// A domain without rules, a name that no rule has, or an unavailable store.
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        if let Some(unknown) = self.rules.unknown_domain(attempt.domain) {
            return Err(ForgetError::UnknownDomain(unknown));
        }
        let mut forgotten = 0;
        let counters = self
            .rules
            .counters_of(attempt, rule, |counter, per| self.key(counter, per))?;
        for (key, limit) in counters {
            forgotten += u64::from(self.store.forget(key, limit).await?);
        }
        let plan = self.plan(attempt);
        let is_selected = |line: &Line<'_, S::Key>| match rule {
            Some(rule) => line.rule.id() == rule,
            None => !line.rule.per().is_empty(),
        };
        if plan.lines.iter().all(is_selected) {
            for hit in self.hits(&plan) {
                forgotten += u64::from(self.store.forget_hits(&hit).await?);
            }
        }
        Ok(forgotten)
    }

    /// Releases a lease. False if it is not held any more, or is forged.
    ///
    /// # Errors
    /// An unavailable store. The lease is released when the store is available again, or expires.
    pub async fn release(&self, token: &str) -> Result<bool, StoreError> {
        let Some(token) = LeaseToken::<S::Key>::parse(token) else {
            return Ok(false);
        };
        let (mut released, mut failed) = (false, None);
        for (key, limit) in self.leases_of(&token) {
            match self.store.release(key, limit, token.lease).await {
                Ok(was_held) => released |= was_held,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// Renews a lease and returns its new lifetime: the shortest of all its limits. None if it is not held any more.
    ///
    /// # Errors
    /// An unavailable store.
    pub async fn renew(&self, token: &str) -> Result<Option<Micros>, StoreError> {
        let Some(token) = LeaseToken::<S::Key>::parse(token) else {
            return Ok(None);
        };
        let mut shortest: Option<Micros> = None;
        for (key, limit) in self.leases_of(&token) {
            if let Some(lifetime) = self.store.renew(key, limit, token.lease).await? {
                shortest = Some(shortest.map_or(lifetime, |shortest| shortest.min(lifetime)));
            }
        }
        Ok(shortest)
    }

    /// Plans the charges of an attempt.
    #[inline]
    pub fn plan(&self, attempt: &Attempt<'_>) -> Plan<'_, S::Key> {
        self.rules
            .plan_with(attempt, |counter, per| self.key(counter, per), &ProcessorCache)
    }

    #[inline]
    fn key(&self, counter: CounterId, per: &[&[u8]]) -> S::Key {
        let index = counter.index();
        // Those that rows added follow those of the rules.
        let added = || index.checked_sub(self.keys.global.len());
        match per {
            [] => *self
                .keys
                .global
                .get(index)
                .or_else(|| self.added_keys.global.get(added()?))
                .expect("every counter of the rules has a global key"),
            per => {
                let template = self
                    .keys
                    .templates
                    .get(index)
                    .or_else(|| self.added_keys.templates.get(added()?))
                    .expect("every counter of the rules has a key template");
                self.store.key(template, per)
            }
        }
    }

    /// The token of the leases that a settled plan took. None if its attempt is denied.
    fn lease_token(&self, plan: &Plan<'_, S::Key>, lease: LeaseId) -> Option<String> {
        let counters = plan.lines.iter().filter_map(|line| {
            let planned = line.charge.as_ref().filter(|planned| takes_lease(&planned.charge))?;
            planned.decided().filter(|outcome| outcome.decision.is_allow())?;
            let counter = self.rules.counter(line.window?.counter())?;
            Some((lease_token::counter_tag(counter), planned.charge.key))
        });
        let counters: Vec<(u64, S::Key)> = counters.collect();
        let is_held = !counters.is_empty() && plan.is_allowed();
        is_held.then(|| LeaseToken { lease, counters }.to_text())
    }

    /// The counters of a token, as far as these rules still have them.
    fn leases_of<'a>(&'a self, token: &'a LeaseToken<S::Key>) -> impl Iterator<Item = (S::Key, &'a Limit)> {
        let counters = token.counters.iter();
        counters.filter_map(|(tag, key)| Some((*key, self.lease_limits.get(tag)?)))
    }
}

impl<S: CounterStore> CounterKeys<S> {
    fn new(counters: &[CounterSpec], store: &S) -> Self {
        let template_of = |counter: &CounterSpec| store.template(&counter.counter(&[]));
        let templates: Arc<[S::Template]> = counters.iter().map(template_of).collect();
        Self {
            global: templates.iter().map(|template| store.key(template, &[])).collect(),
            templates,
        }
    }
}

impl<S: CounterStore> Clone for CounterKeys<S> {
    fn clone(&self) -> Self {
        Self {
            templates: Arc::clone(&self.templates),
            global: Arc::clone(&self.global),
        }
    }
}

/// The concurrency limits of all counters, by their tag in a lease token.
fn lease_limits(rules: &RuleSet) -> Arc<HashMap<u64, Limit>> {
    let counters = rules.counters().iter().chain(rules.added_counters());
    let limits = counters.filter(|counter| matches!(counter.limit, Limit::Concurrency(_)));
    Arc::new(
        limits
            .map(|counter| (lease_token::counter_tag(counter), counter.limit))
            .collect(),
    )
}

impl RuleLimiter {
    /// Does the same as [`RuleLimiter::check`] without async: the memory store never waits.
    pub fn check_now(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        poll_once(self.check(attempt))
    }

    /// Does the same as [`RuleLimiter::check_all`] without async.
    pub fn check_all_now(&self, items: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        poll_once(self.check_all(items))
    }

    /// Does the same as [`RuleLimiter::check_each`] without async.
    pub fn check_each_now(&self, attempts: &[Attempt<'_>]) -> Vec<CheckResult<'_>> {
        poll_once(self.check_each(attempts))
    }
}

/// Runs a future over the memory store, which is ready at once.
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the memory store never waits"),
    }
}

impl<S: CounterStore> std::fmt::Debug for RuleLimiter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleLimiter")
            .field("rules", &self.rules.rules().len())
            .finish_non_exhaustive()
    }
}

impl From<UnknownRule> for ForgetError {
    fn from(unknown: UnknownRule) -> Self {
        Self::Unknown(unknown)
    }
}

impl std::fmt::Display for ForgetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownDomain(unknown) => unknown.fmt(f),
            Self::Unknown(unknown) => unknown.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ForgetError {}

impl From<StoreError> for ForgetError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A new lease id, if one of the charges takes a lease.
#[inline]
fn plan_lease<K>(plan: &Plan<'_, K>) -> Option<LeaseId> {
    let takes_lease = |planned: &PlannedCharge<K>| takes_lease(&planned.charge);
    plan.charges().any(takes_lease).then(lease::random_id)
}

fn takes_lease<K>(charge: &Charge<K>) -> bool {
    matches!(charge.limit, Limit::Concurrency(_)) && charge.cost > Cost::ZERO
}
