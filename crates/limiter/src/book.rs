//! A rule book: rules that are data, and the store their counters are in. What every front end asks.

mod counted;
mod together;
mod token;

pub use self::together::{Judged, OwnLimit, Part, Together, Way};

use self::counted::Counted;
use self::token::Token;
use crate::store::memory::Memory;
use crate::store::{HitOp, Hit, Settled, Store, StoreError};
use crate::{join, lease};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tollgate_core::rules::{ChargeResult, Attempt, CounterId, Explanation, Line, Plan, RuleSet, UnknownRule, Verdict};
use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, Timestamp};

/// One set of rules over a store. It never changes: other rules are another book over the same store, and whoever asks
/// one book sees no mixture.
pub struct RuleBook<S: Store = Memory> {
    rules: RuleSet,
    store: Arc<S>,
    /// For each of the rules' counters.
    subjects: Box<[S::Subjects]>,
    /// For each of them the key of the one subject that is everybody.
    everybody: Box<[S::Key]>,
    /// The limits that leases are held of, by the tag that stands for their counters in a token.
    leased: HashMap<u64, Limit>,
}

/// Why counters were not cleared.
#[derive(Debug)]
pub enum NotForgotten {
    /// No rule and no window of the attempt's domain has that name.
    Unknown(UnknownRule),
    /// The store could not be asked for all of them. Some may be cleared.
    Store(StoreError),
}

/// What a check came to.
#[derive(Debug)]
pub struct Checked<'r> {
    /// May the attempt go on?
    pub verdict: Verdict<'r>,
    /// What the attempt holds of concurrency limits, to be released when it is done. Any instance can.
    pub lease: Option<String>,
    /// How often a cost attribute was not a whole number, and the default was charged.
    pub odd_costs: u32,
    /// The store's time when it was settled. Nothing if nothing had to be.
    pub now: Option<Timestamp>,
}

impl<S: Store> RuleBook<S> {
    /// A book of these rules. Their counters go on where an earlier book over the same store left them.
    pub fn new(rules: RuleSet, store: Arc<S>) -> Self {
        let of_counter = |counter: &tollgate_core::rules::CounterSpec| store.subjects(&counter.counter(&[]));
        let subjects: Box<[S::Subjects]> = rules.counters().iter().map(of_counter).collect();
        let everybody = subjects.iter().map(|subjects| store.key(subjects, &[])).collect();
        let leased = rules
            .counters()
            .iter()
            .filter(|counter| matches!(counter.limit, Limit::Concurrency(_)))
            .map(|counter| (token::tag(counter), counter.limit))
            .collect();
        Self {
            rules,
            store,
            subjects,
            everybody,
            leased,
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
    pub async fn check(&self, attempt: &Attempt<'_>) -> Checked<'_> {
        let plan = self.plan(attempt);
        let odd_costs = plan.invalid_costs;
        if plan.charges.is_empty() {
            return Checked {
                verdict: plan.verdict(S::SOURCE, []),
                lease: None,
                odd_costs,
                now: None,
            };
        }
        let is_leased = plan.charges.iter().any(is_leased);
        let lease = if is_leased { lease::random_id() } else { LeaseId::default() };
        let counted = self.counted(attempt, &plan, 0);
        let mut settled = if plan.is_banned() {
            self.look(&plan.charges, counted.as_slice(), true).await
        } else {
            self.settle(&plan.charges, counted.as_slice(), lease).await
        };
        let mut verdict = plan.verdict(S::SOURCE, answers(&settled));
        if !verdict.allowed && !plan.is_banned() && !settled.is_refused(&plan.charges) {
            // A rule is closed because its part of the store is away; another part has taken charges.
            self.store.take_back(&plan.charges, &mut settled).await;
            verdict = plan.verdict(S::SOURCE, answers(&settled));
        }
        let held = is_leased && verdict.allowed;
        Checked {
            lease: held.then(|| self.token(&plan, &settled, lease)).flatten(),
            verdict,
            odd_costs,
            now: Some(settled.now),
        }
    }

    /// Why an attempt would be answered as it would be, rule by rule. Takes nothing.
    pub async fn explain(&self, attempt: &Attempt<'_>) -> Explanation<'_> {
        let plan = self.plan(attempt);
        let counted = self.counted(attempt, &plan, 0);
        let verdict = match &*plan.charges {
            [] => plan.verdict(S::SOURCE, []),
            charges => {
                let looked = self.look(charges, counted.as_slice(), plan.is_banned()).await;
                plan.verdict(S::SOURCE, answers(&looked))
            }
        };
        let key = |counter, per: &[&[u8]]| {
            let key = self.key(counter, per);
            let hit = counted::hits(&plan.charges, counted.as_slice()).find(|hit| hit.charge.key == key);
            hit.map_or_else(|| self.store.key_text(&key), |hit| self.store.hit_text(&hit))
        };
        self.rules.explain(attempt, verdict, key)
    }

    /// Gives the cost of an attempt back to every rule it meets, never above full, and tells how they then stand: as a
    /// look would, so that it is always allowed.
    pub async fn refund(&self, attempt: &Attempt<'_>) -> Verdict<'_> {
        self.refund_planned(attempt, &self.plan(attempt)).await
    }

    /// Gives back what a plan of the attempt would charge, all at once.
    async fn refund_planned<'r>(&self, attempt: &Attempt<'_>, plan: &Plan<'r, S::Key>) -> Verdict<'r> {
        let counted = self.counted(attempt, plan, 0);
        let counted = counted.as_slice();
        let given = plan.charges.iter().enumerate().map(|(place, charge)| async move {
            if let Some(counting) = counted::counting(counted, place) {
                let given = self.store.hit(&[Hit { charge, counting }], HitOp::Decrement).await;
                return self::answers(&given).next().unwrap_or(ChargeResult::Failed);
            }
            // What is in flight is given back by releasing its lease; a refund only tells how the limit stands.
            let cost = if is_leased(charge) { Cost::ZERO } else { charge.cost };
            let standing = self.store.refund(&Charge { cost, ..*charge }).await;
            standing.map_or(ChargeResult::Failed, |(decision, source)| ChargeResult::Decided(decision, source))
        });
        // All at once: an attempt that meets many limits would wait for each of them while the store is slow.
        let answers = join::all(given).await;
        plan.standings(S::SOURCE, answers)
    }

    /// Clears the counters of one subject, and says how many held something: of every rule whose `per` attributes are all
    /// given and whose conditions no given attribute contradicts. One that counts for everybody is cleared only when it
    /// is named. Of counters of envoyproxy/ratelimit it is the one that the attempt itself would be counted in.
    ///
    /// # Errors
    /// A name that no rule has, or a store that is away.
    pub async fn forget(&self, attempt: &Attempt<'_>, rule: Option<&str>) -> Result<u64, NotForgotten> {
        let mut forgotten = 0;
        let counters = self
            .rules
            .counters_of(attempt, rule, |counter, per| self.key(counter, per))?;
        for (key, limit) in counters {
            forgotten += u64::from(self.store.forget(key, limit).await?);
        }
        let plan = self.plan(attempt);
        let counted = self.counted(attempt, &plan, 0);
        let is_meant = |line: &Line<'_>| match rule {
            Some(rule) => line.rule.id() == rule,
            None => !line.rule.per().is_empty(),
        };
        if plan.lines.iter().all(is_meant) {
            for hit in counted::hits(&plan.charges, counted.as_slice()) {
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
        let Some(token) = Token::<S::Key>::read(token) else {
            return Ok(false);
        };
        let (mut released, mut failed) = (false, None);
        for (key, limit) in self.held(&token) {
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
        let Some(token) = Token::<S::Key>::read(token) else {
            return Ok(None);
        };
        let mut shortest: Option<Micros> = None;
        for (key, limit) in self.held(&token) {
            if let Some(term) = self.store.renew(key, limit, token.lease).await? {
                shortest = Some(shortest.map_or(term, |shortest| shortest.min(term)));
            }
        }
        Ok(shortest)
    }

    /// What settling the charges would come to, without taking anything. Of a banned attempt the store cannot know that it
    /// does not pass: what would have let it pass is told as it stands.
    async fn look(&self, charges: &[Charge<S::Key>], counted: &[Counted], is_banned: bool) -> Settled {
        if !is_banned {
            return self.peek(charges, counted).await;
        }
        let as_they_are: Vec<_> = charges.iter().map(Charge::as_peek).collect();
        // Both at once, within one deadline.
        let mut looks = join::all([charges, &as_they_are].map(|charges| self.peek(charges, counted)))
            .await
            .into_iter();
        let (Some(mut looked), Some(standings)) = (looks.next(), looks.next()) else {
            unreachable!("there are two");
        };
        for (outcome, standing) in looked.outcomes.iter_mut().zip(standings.outcomes) {
            if outcome.is_ok_and(|outcome| outcome.decision.is_allow()) {
                *outcome = standing;
            }
        }
        looked
    }

    /// What an attempt would be charged for, and where.
    #[inline]
    pub fn plan(&self, attempt: &Attempt<'_>) -> Plan<'_, S::Key> {
        self.rules.plan(attempt, |counter, per| self.key(counter, per))
    }

    #[inline]
    fn key(&self, counter: CounterId, per: &[&[u8]]) -> S::Key {
        let place = counter.index();
        match per {
            [] => *self
                .everybody
                .get(place)
                .expect("every counter of the rules has a key for everybody"),
            per => {
                let subjects = self
                    .subjects
                    .get(place)
                    .expect("every counter of the rules has its subjects");
                self.store.key(subjects, per)
            }
        }
    }

    /// What stands for the leases that were taken.
    fn token(&self, plan: &Plan<'_, S::Key>, settled: &Settled, lease: LeaseId) -> Option<String> {
        let windows = plan.lines.iter().filter_map(|line| line.window);
        let charges = windows.zip(&plan.charges).zip(&settled.outcomes);
        let lines = charges.filter_map(|((window, charge), outcome)| {
            let taken = outcome.as_ref().is_ok_and(|outcome| outcome.decision.is_allow());
            let counter = self.rules.counters().get(window.counter().index())?;
            (taken && is_leased(charge)).then(|| (token::tag(counter), charge.key))
        });
        let lines: Vec<(u64, S::Key)> = lines.collect();
        (!lines.is_empty()).then(|| Token { lease, lines }.write())
    }

    /// The counters a token names, as far as these rules still have them.
    fn held<'a>(&'a self, token: &'a Token<S::Key>) -> impl Iterator<Item = (S::Key, &'a Limit)> {
        let lines = token.lines.iter();
        lines.filter_map(|(tag, key)| Some((*key, self.leased.get(tag)?)))
    }
}

impl RuleBook {
    /// The same as [`RuleBook::check`], without async: the embedded store answers at once.
    pub fn check_now(&self, attempt: &Attempt<'_>) -> Checked<'_> {
        at_once(self.check(attempt))
    }

    /// The same as [`RuleBook::check_together`], without async.
    pub fn check_together_now(&self, parts: &[Part<'_>]) -> Together<'_> {
        at_once(self.check_together(parts))
    }
}

/// What comes of asking the embedded store.
fn at_once<T>(asked: impl Future<Output = T>) -> T {
    match pin!(asked).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the embedded store never waits"),
    }
}

impl<S: Store> std::fmt::Debug for RuleBook<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleBook")
            .field("rules", &self.rules.rules().len())
            .finish_non_exhaustive()
    }
}

impl From<UnknownRule> for NotForgotten {
    fn from(unknown: UnknownRule) -> Self {
        Self::Unknown(unknown)
    }
}

impl std::fmt::Display for NotForgotten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(unknown) => unknown.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotForgotten {}

impl From<StoreError> for NotForgotten {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn is_leased<K>(charge: &Charge<K>) -> bool {
    matches!(charge.limit, Limit::Concurrency(_)) && charge.cost > Cost::ZERO
}

fn answers(settled: &Settled) -> impl Iterator<Item = ChargeResult> {
    settled.outcomes.iter().map(|outcome| match outcome {
        Ok(outcome) if outcome.receipt.cost == Cost::ZERO => ChargeResult::Uncounted(outcome.decision, outcome.source),
        Ok(outcome) => ChargeResult::Decided(outcome.decision, outcome.source),
        Err(StoreError::Unasked) => ChargeResult::Skipped,
        Err(_) => ChargeResult::Failed,
    })
}
