//! A rule book: rules that are data, and the store their counters are in. What every front end asks.

mod check_all;
mod hits;
mod lease_token;

pub use self::check_all::{AttemptItem, CombinedVerdict, Direction, InlineLimit, ItemVerdict};

use self::hits::HitCharge;
use self::lease_token::LeaseToken;
use crate::store::memory::Memory;
use crate::store::{CounterStore, Hit, HitOp, Settlement, StoreError};
use crate::{join, lease};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_core::rules::{Attempt, ChargeResult, CounterId, Explanation, Line, Plan, RuleSet, UnknownRule, Verdict};
use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, Timestamp};

/// One set of rules over a store. It never changes: other rules are another book over the same store, and whoever asks
/// one book sees no mixture.
pub struct RuleLimiter<S: CounterStore = Memory> {
    rules: RuleSet,
    store: Arc<S>,
    /// For each of the rules' counters.
    key_templates: Box<[S::Template]>,
    /// For each of them the key of the one subject that is everybody.
    global_keys: Box<[S::Key]>,
    /// The limits that leases are held of, by the tag that stands for their counters in a token.
    lease_limits: HashMap<u64, Limit>,
}

/// Why counters were not cleared.
#[derive(Debug)]
pub enum ForgetError {
    /// No rule and no window of the attempt's domain has that name.
    Unknown(UnknownRule),
    /// The store could not be asked for all of them. Some may be cleared.
    Store(StoreError),
}

/// What a check came to.
#[derive(Debug)]
pub struct CheckResult<'r> {
    /// May the attempt go on?
    pub verdict: Verdict<'r>,
    /// What the attempt holds of concurrency limits, to be released when it is done. Any instance can.
    pub lease: Option<String>,
    /// How often a cost attribute was not a whole number, and the default was charged.
    pub invalid_costs: u32,
    /// The store's time when it was settled. Nothing if nothing had to be.
    pub now: Option<Timestamp>,
}

impl<S: CounterStore> RuleLimiter<S> {
    /// A book of these rules. Their counters go on where an earlier book over the same store left them.
    pub fn new(rules: RuleSet, store: Arc<S>) -> Self {
        let template_of = |counter: &tollgate_core::rules::CounterSpec| store.template(&counter.counter(&[]));
        let key_templates: Box<[S::Template]> = rules.counters().iter().map(template_of).collect();
        let global_keys = key_templates.iter().map(|subjects| store.key(subjects, &[])).collect();
        let lease_limits = rules
            .counters()
            .iter()
            .filter(|counter| matches!(counter.limit, Limit::Concurrency(_)))
            .map(|counter| (lease_token::counter_tag(counter), counter.limit))
            .collect();
        Self {
            rules,
            store,
            key_templates,
            global_keys,
            lease_limits,
        }
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The store.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// May the attempt go on? If so, every rule it meets is charged; if not, none is.
    pub async fn check(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        let plan = self.plan(attempt);
        let invalid_costs = plan.invalid_costs;
        if plan.charges.is_empty() {
            return CheckResult {
                verdict: plan.verdict(S::SOURCE, []),
                lease: None,
                invalid_costs,
                now: None,
            };
        }
        let takes_lease = plan.charges.iter().any(takes_lease);
        let lease = if takes_lease {
            lease::random_id()
        } else {
            LeaseId::default()
        };
        let hit_charge = self.hit_charge(attempt, &plan, 0);
        let mut settlement = if plan.is_banned() {
            self.peek_attempt(&plan.charges, hit_charge.as_slice(), true).await
        } else {
            self.settle(&plan.charges, hit_charge.as_slice(), lease).await
        };
        let mut verdict = plan.verdict(S::SOURCE, charge_results(&settlement));
        if !verdict.allowed && !plan.is_banned() && !settlement.is_denied(&plan.charges) {
            // A rule is closed because its part of the store is away; another part has taken charges.
            self.store.compensate(&plan.charges, &mut settlement).await;
            verdict = plan.verdict(S::SOURCE, charge_results(&settlement));
        }
        let holds_lease = takes_lease && verdict.allowed;
        CheckResult {
            lease: holds_lease
                .then(|| self.lease_token(&plan, &settlement, lease))
                .flatten(),
            verdict,
            invalid_costs,
            now: Some(settlement.now),
        }
    }

    /// Why an attempt would be answered as it would be, rule by rule. Takes nothing.
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        let plan = self.plan(attempt);
        let hit_charge = self.hit_charge(attempt, &plan, 0);
        let verdict = match &*plan.charges {
            [] => plan.verdict(S::SOURCE, []),
            charges => {
                let peeked = self
                    .peek_attempt(charges, hit_charge.as_slice(), plan.is_banned())
                    .await;
                plan.verdict(S::SOURCE, charge_results(&peeked))
            }
        };
        let key = |counter, per: &[&[u8]]| {
            let key = self.key(counter, per);
            let hit = hits::hits(&plan.charges, hit_charge.as_slice()).find(|hit| hit.charge.key == key);
            hit.map_or_else(|| self.store.key_text(&key), |hit| self.store.hit_key_text(&hit))
        };
        self.rules.explain(attempt, verdict, key)
    }

    /// Gives the cost of an attempt back to every rule it meets, never above full, and tells how they then stand: as a
    /// look would, so that it is always allowed.
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        self.refund_plan(attempt, &self.plan(attempt)).await
    }

    /// Gives back what a plan of the attempt would charge, all at once.
    async fn refund_plan<'r>(&self, attempt: &Attempt<'_>, plan: &Plan<'r, S::Key>) -> Verdict<'r> {
        let hit_charge = self.hit_charge(attempt, plan, 0);
        let hit_charges = hit_charge.as_slice();
        let refunds = plan.charges.iter().enumerate().map(|(index, charge)| async move {
            if let Some(target) = hits::target_of(hit_charges, index) {
                let settlement = self
                    .store
                    .hit(
                        &[Hit {
                            charge,
                            counting: target,
                        }],
                        HitOp::Decrement,
                    )
                    .await;
                return self::charge_results(&settlement).next().unwrap_or(ChargeResult::Failed);
            }
            // What is in flight is given back by releasing its lease; a refund only tells how the limit stands.
            let cost = if takes_lease(charge) { Cost::ZERO } else { charge.cost };
            let standing = self.store.refund(&Charge { cost, ..*charge }).await;
            standing.map_or(ChargeResult::Failed, |(decision, source)| {
                ChargeResult::Decided(decision, source)
            })
        });
        // All at once: an attempt that meets many limits would wait for each of them while the store is slow.
        let results = join::all(refunds).await;
        plan.standings(S::SOURCE, results)
    }

    /// Clears the counters of one subject, and says how many held something: of every rule whose `per` attributes are all
    /// given and whose conditions no given attribute contradicts. One that counted globally is cleared only when it
    /// is named. Of counters of envoyproxy/ratelimit it is the one that the attempt itself would be counted in.
    ///
    /// # Errors
    /// A name that no rule has, or a store that is away.
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, ForgetError> {
        let mut forgotten = 0;
        let counters = self
            .rules
            .counters_of(attempt, rule, |counter, per| self.key(counter, per))?;
        for (key, limit) in counters {
            forgotten += u64::from(self.store.forget(key, limit).await?);
        }
        let plan = self.plan(attempt);
        let hit_charge = self.hit_charge(attempt, &plan, 0);
        let is_selected = |line: &Line<'_>| match rule {
            Some(rule) => line.rule.id() == rule,
            None => !line.rule.per().is_empty(),
        };
        if plan.lines.iter().all(is_selected) {
            for hit in hits::hits(&plan.charges, hit_charge.as_slice()) {
                forgotten += u64::from(self.store.forget_hits(&hit).await?);
            }
        }
        Ok(forgotten)
    }

    /// Gives back what a lease holds. False if it holds nothing any more, or is made up.
    ///
    /// # Errors
    /// A store that is away. What it holds is given back when it is there again, or ends by itself.
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

    /// Lets a lease last a whole term from now, and says how long that is: of several limits the shortest. Nothing if it
    /// is held no more.
    ///
    /// # Errors
    /// A store that is away.
    pub async fn renew(&self, token: &str) -> Result<Option<Micros>, StoreError> {
        let Some(token) = LeaseToken::<S::Key>::parse(token) else {
            return Ok(None);
        };
        let mut shortest: Option<Micros> = None;
        for (key, limit) in self.leases_of(&token) {
            if let Some(term) = self.store.renew(key, limit, token.lease).await? {
                shortest = Some(shortest.map_or(term, |shortest| shortest.min(term)));
            }
        }
        Ok(shortest)
    }

    /// What settling the charges would come to, without taking anything. Of a banned attempt the store cannot know that it
    /// does not pass: what would have let it pass is told as it stands.
    async fn peek_attempt(&self, charges: &[Charge<S::Key>], hit_charges: &[HitCharge], is_banned: bool) -> Settlement {
        if !is_banned {
            return self.peek(charges, hit_charges).await;
        }
        let free_charges: Vec<_> = charges.iter().map(Charge::as_peek).collect();
        // Both at once, within one deadline.
        let mut peeks = join::all([charges, &free_charges].map(|charges| self.peek(charges, hit_charges)))
            .await
            .into_iter();
        let (Some(mut peeked), Some(standings)) = (peeks.next(), peeks.next()) else {
            unreachable!("there are two");
        };
        for (outcome, standing) in peeked.outcomes.iter_mut().zip(standings.outcomes) {
            if outcome.is_ok_and(|outcome| outcome.decision.is_allow()) {
                *outcome = standing;
            }
        }
        peeked
    }

    /// What an attempt would be charged for, and where.
    #[inline]
    pub fn plan(&self, attempt: &Attempt<'_>) -> Plan<'_, S::Key> {
        self.rules.plan(attempt, |counter, per| self.key(counter, per))
    }

    #[inline]
    fn key(&self, counter: CounterId, per: &[&[u8]]) -> S::Key {
        let index = counter.index();
        match per {
            [] => *self
                .global_keys
                .get(index)
                .expect("every counter of the rules has a key for everybody"),
            per => {
                let template = self
                    .key_templates
                    .get(index)
                    .expect("every counter of the rules has its subjects");
                self.store.key(template, per)
            }
        }
    }

    /// What stands for the leases that were taken.
    fn lease_token(&self, plan: &Plan<'_, S::Key>, settlement: &Settlement, lease: LeaseId) -> Option<String> {
        let windows = plan.lines.iter().filter_map(|line| line.window);
        let charges = windows.zip(&plan.charges).zip(&settlement.outcomes);
        let lines = charges.filter_map(|((window, charge), outcome)| {
            let is_allowed = outcome.as_ref().is_ok_and(|outcome| outcome.decision.is_allow());
            let counter = self.rules.counters().get(window.counter().index())?;
            (is_allowed && takes_lease(charge)).then(|| (lease_token::counter_tag(counter), charge.key))
        });
        let lines: Vec<(u64, S::Key)> = lines.collect();
        (!lines.is_empty()).then(|| LeaseToken { lease, counters: lines }.to_text())
    }

    /// The counters a token names, as far as these rules still have them.
    fn leases_of<'a>(&'a self, token: &'a LeaseToken<S::Key>) -> impl Iterator<Item = (S::Key, &'a Limit)> {
        let lines = token.counters.iter();
        lines.filter_map(|(tag, key)| Some((*key, self.lease_limits.get(tag)?)))
    }
}

impl RuleLimiter {
    /// The same as [`RuleBook::check`], without async: the embedded store answers at once.
    pub fn check_now(&self, attempt: &Attempt<'_>) -> CheckResult<'_> {
        poll_once(self.check(attempt))
    }

    /// The same as [`RuleBook::check_together`], without async.
    pub fn check_all_now(&self, items: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        poll_once(self.check_all(items))
    }
}

/// What comes of asking the embedded store.
fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("the embedded store never waits"),
    }
}

impl<S: CounterStore> std::fmt::Debug for RuleLimiter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleBook")
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

fn takes_lease<K>(charge: &Charge<K>) -> bool {
    matches!(charge.limit, Limit::Concurrency(_)) && charge.cost > Cost::ZERO
}

fn charge_results(settlement: &Settlement) -> impl Iterator<Item = ChargeResult> {
    settlement.outcomes.iter().map(|outcome| match outcome {
        Ok(outcome) if outcome.receipt.cost == Cost::ZERO => ChargeResult::Uncounted(outcome.decision, outcome.source),
        Ok(outcome) => ChargeResult::Decided(outcome.decision, outcome.source),
        Err(StoreError::Skipped) => ChargeResult::Skipped,
        Err(_) => ChargeResult::Failed,
    })
}
