//! The local limiter: a shared store with this instance behind it. While the store cannot be asked, rules that say so are
//! decided here, by a share of their limits.
//!
//! It is a store around a store. What the shared one says of a key is noted; when it falls silent, the counter here begins
//! where that left off. What is let pass here is noted too, and when the store is back, it is charged there in front of the
//! key's next requests. So neither refills while the other serves.
//!
//! Leases of concurrency limits stay where they were taken: one that was taken here can be released and renewed here, also
//! when the store is back.

mod heartbeat;
mod instances;
mod key_history;
mod local_limiter;
mod options;
mod portion_cache;
mod repayment;

use self::instances::Instances;
use self::key_history::KeyHistory;
use self::local_limiter::{FallbackLimit, LocalLimiter};
use super::memory::{Commit, Memory};
use super::{
    CounterStore, FallbackStatus, Hit, HitOp, Keyspace, Outcome, Settlement, Source, Store, StoreError, StoreStatus,
};
use crate::fingerprint::Fingerprint;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::time::timeout;
use tollgate_core::{Charge, Counter, Decision, LeaseId, Limit, Micros, OnStoreFailure, Policy, Receipt};

pub use self::options::{FallbackMetrics, FallbackOptions};
pub use super::{InstanceCount, StoreMode};

/// A shared store, and this instance behind it.
#[derive(Debug)]
pub struct Fallback<S> {
    inner: Arc<S>,
    local: Arc<LocalLimiter>,
}

/// Whether what is let pass here is charged to the shared store when that is back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repay {
    Yes,
    /// It is others' counters that would be charged, and they did not ask for it.
    No,
}

impl<S: CounterStore + 'static> Fallback<S> {
    /// Puts this instance behind a store. Unless the number of instances is said, they are counted in the store from now
    /// on: each keeps a lease there for as long as it lives.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(inner: Arc<S>, options: FallbackOptions) -> Self {
        Self::with_memory(inner, options, Memory::options())
    }

    /// The same with this to decide by, for tests: a clock that can be moved.
    pub fn with_memory(inner: Arc<S>, options: FallbackOptions, memory: super::memory::MemoryOptions) -> Self {
        let memory = memory.max_memory(options.max_memory).build();
        let local = LocalLimiter {
            template: memory.template(&heartbeat::counter(&heartbeat::limit())),
            memory,
            history: KeyHistory::new(),
            instances: Instances::new(options.instances),
            share_millionths: u64::from(options.share_millionths.clamp(1, 1_000_000)),
            compensation_timeout: options.compensation_timeout,
            mode: AtomicU8::new(options.mode as u8),
            metrics: FallbackMetrics::default(),
        };
        let local = Arc::new(local);
        if options.instances.is_none() {
            heartbeat::start(&inner, &local);
        }
        Self { inner, local }
    }
}

impl<S: CounterStore> Fallback<S> {
    /// The shared store.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Who decides from now on.
    pub fn set_mode(&self, mode: StoreMode) {
        self.local.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Who decides.
    pub fn mode(&self) -> StoreMode {
        self.local.mode()
    }

    /// How many instances share the limits, and how that is known.
    pub fn instances(&self) -> InstanceCount {
        self.local.instances.count()
    }

    /// What was done here.
    pub fn metrics(&self) -> &FallbackMetrics {
        &self.local.metrics
    }

    /// What is kept here.
    pub fn local_store(&self) -> &Memory {
        &self.local.memory
    }

    /// Settles with the shared store, and in front of it what its keys have to pay back.
    async fn settle_shared(&self, charges: &[Charge<S::Key>], lease: LeaseId) -> Settlement {
        let repayments = match self.local.history.has_debts() {
            true => self.local.repayments(charges),
            false => Vec::new(),
        };
        match repayments.is_empty() {
            true => self.inner.settle(charges, lease).await,
            // Apart: hardly any request has to make room for this.
            false => Box::pin(self.repay_and_settle(&repayments, charges, lease)).await,
        }
    }

    /// Decides what the shared store did not. If either refuses, neither keeps anything.
    async fn decide_locally(
        &self,
        charges: &[Charge<S::Key>],
        lease: LeaseId,
        (commit, repay): (Commit, Repay),
        settlement: &mut Settlement,
    ) {
        let failed =
            |outcome: &Result<Outcome, StoreError>| matches!(outcome, Err(error) if *error != StoreError::Skipped);
        let mut indexes = Vec::new();
        let mut local_charges: Vec<Charge<Fingerprint>> = Vec::new();
        let mut is_closed = false;
        for (index, (charge, outcome)) in charges.iter().zip(&settlement.outcomes).enumerate() {
            if !failed(outcome) {
                continue;
            }
            match self.local.fallback_limit(charge) {
                Some(fallback) => {
                    local_charges.push(self.local.charge(charge, &fallback));
                    indexes.push((index, fallback));
                }
                None => is_closed |= fails_closed(charge),
            }
        }
        if local_charges.is_empty() {
            return;
        }
        for (charge, (index, fallback)) in local_charges.iter().zip(&indexes) {
            if let (FallbackLimit::Share(portion), Some(shared)) = (fallback, charges.get(*index)) {
                let breaker_open = settlement.outcomes.get(*index) == Some(&Err(StoreError::BreakerOpen));
                self.local.history.with(charge.key, |note| {
                    note.outcome_unknown &= !breaker_open;
                    self.local.seed(note, charge.key, &shared.limit, portion);
                });
            }
        }
        let commit = match settlement.is_denied(charges) || is_closed {
            true => Commit::DryRun,
            false => commit,
        };
        let local_settlement = self.local.memory.settle_all(&local_charges, commit, lease);
        if commit == Commit::Keep && !local_settlement.allowed {
            // Whoever waits does so for this long; it is taken back all the same.
            let _ = timeout(
                self.local.compensation_timeout,
                self.inner.compensate(charges, settlement),
            )
            .await;
        }
        for ((charge, (index, fallback)), outcome) in local_charges.iter().zip(indexes).zip(&local_settlement.outcomes)
        {
            let Ok(outcome) = outcome else { continue };
            let is_kept = charge.policy == Policy::Count || (local_settlement.allowed && outcome.decision.is_allow());
            if commit == Commit::Keep && is_kept && fallback.is_repaid() && repay == Repay::Yes {
                self.local.history.add_debt(charge.key, charge.cost.get());
            }
            if let Some(slot) = settlement.outcomes.get_mut(index) {
                *slot = Ok(fallback.label(*outcome));
            }
        }
        self.local
            .metrics
            .decided
            .fetch_add(local_charges.len() as u64, Ordering::Relaxed);
        let is_allowed = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            charge.policy == Policy::Shadow || outcome.is_ok_and(|outcome| outcome.decision.is_allow())
        };
        settlement.allowed = charges.iter().zip(&settlement.outcomes).all(is_allowed);
    }

    /// Takes back what was kept here of charges that were settled: nothing beside one that is closed.
    async fn compensate_locally(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
        let is_closed = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            // Those that are counted as hits are decided apart.
            let is_hit = charge.policy == Policy::Count && self.inner.counts_hits();
            outcome.is_err() && fails_closed(charge) && !is_hit && self.local.fallback_limit(charge).is_none()
        };
        if charges.iter().zip(&settlement.outcomes).any(is_closed) {
            return;
        }
        let kept: Vec<usize> = settlement.kept_charges(charges).collect();
        for index in kept {
            let (Some(charge), Some(Ok(outcome))) = (charges.get(index), settlement.outcomes.get(index)) else {
                continue;
            };
            let Some(fallback) = self.local.fallback_limit(charge).filter(|_| is_local(outcome)) else {
                continue;
            };
            let local_charge = [self.local.charge(charge, &fallback)];
            let mut kept = Settlement {
                allowed: false,
                now: settlement.now,
                outcomes: vec![Ok(*outcome)],
            };
            self.local.memory.compensate(&local_charge, &mut kept).await;
            for (charge, outcome) in local_charge.iter().zip(kept.outcomes) {
                if fallback.is_repaid() {
                    self.local.history.cancel_debt(charge.key, charge.cost.get());
                }
                if let (Some(slot), Ok(outcome)) = (settlement.outcomes.get_mut(index), outcome) {
                    *slot = Ok(outcome);
                }
            }
        }
    }

    /// Whether the shared store need not be asked.
    fn bypasses_shared(&self, charges: &[Charge<S::Key>]) -> bool {
        if self.local.mode() == StoreMode::LocalOnly {
            return true;
        }
        !charges.is_empty() && self.inner.is_unavailable(charges)
    }

    /// What nobody was asked for.
    fn unavailable_settlement(&self, charges: usize) -> Settlement {
        Settlement::failed(self.local.memory.now(), charges, StoreError::BreakerOpen)
    }
}

/// Whether nothing of a request passes while this charge cannot be decided.
fn fails_closed<K>(charge: &Charge<K>) -> bool {
    charge.on_failure == OnStoreFailure::Closed && charge.policy != Policy::Shadow
}

/// Whether the shared store was not asked, because it cannot be.
const fn is_unavailable(error: StoreError) -> bool {
    matches!(error, StoreError::BreakerOpen | StoreError::Unavailable)
}

/// Whether it was decided here.
const fn is_local(outcome: &Outcome) -> bool {
    matches!(outcome.source, Source::Local | Source::Open)
}

impl<S: Store> Keyspace for Fallback<S> {
    type Key = S::Key;
    type Template = S::Template;

    fn template(&self, counter: &Counter<'_>) -> S::Template {
        self.inner.template(counter)
    }

    fn key(&self, template: &S::Template, per: &[&[u8]]) -> S::Key {
        self.inner.key(template, per)
    }

    fn key_text(&self, key: &S::Key) -> String {
        self.inner.key_text(key)
    }
}

impl<S: CounterStore> Store for Fallback<S> {
    const SOURCE: Source = S::SOURCE;

    async fn settle(&self, charges: &[Charge<S::Key>], lease: LeaseId) -> Settlement {
        let mut settlement = if self.bypasses_shared(charges) {
            if let [charge] = charges
                && let Some(FallbackLimit::Share(portion)) = self.local.fallback_limit(charge)
            {
                return self.local.settle_single(charge, portion, lease);
            }
            self.unavailable_settlement(charges.len())
        } else {
            let settlement = self.settle_shared(charges, lease).await;
            self.local.learn(charges, &settlement);
            settlement
        };
        let kept = (Commit::Keep, Repay::Yes);
        self.decide_locally(charges, lease, kept, &mut settlement).await;
        settlement
    }

    async fn peek(&self, charges: &[Charge<S::Key>]) -> Settlement {
        let mut settlement = match self.bypasses_shared(charges) {
            true => self.unavailable_settlement(charges.len()),
            false => self.inner.peek(charges).await,
        };
        let dry_run = (Commit::DryRun, Repay::Yes);
        self.decide_locally(charges, LeaseId::default(), dry_run, &mut settlement)
            .await;
        settlement
    }

    /// Of the shared store. What was decided here and kept is not taken back by receipts.
    async fn undo(&self, key: S::Key, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.inner.undo(key, limit, receipt).await
    }

    async fn compensate(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
        let is_local = |outcome: &Result<Outcome, StoreError>| outcome.as_ref().is_ok_and(is_local);
        let saved = settlement.outcomes.clone();
        for outcome in settlement.outcomes.iter_mut().filter(|outcome| is_local(outcome)) {
            *outcome = Err(StoreError::Skipped);
        }
        let _ = timeout(
            self.local.compensation_timeout,
            self.inner.compensate(charges, settlement),
        )
        .await;
        for (outcome, saved) in settlement
            .outcomes
            .iter_mut()
            .zip(saved)
            .filter(|(_, saved)| is_local(saved))
        {
            *outcome = saved;
        }
        self.compensate_locally(charges, settlement).await;
    }

    /// Here if the shared store cannot be asked. Where it was, and nobody knows whether it gave back, it is not given here too.
    async fn refund(&self, charge: &Charge<S::Key>) -> Result<(Decision, Source), StoreError> {
        let refunded = match self.bypasses_shared(from_ref(charge)) {
            true => Err(StoreError::BreakerOpen),
            false => self.inner.refund(charge).await,
        };
        match (refunded, self.local.fallback_limit(charge)) {
            (Err(error), Some(FallbackLimit::Share(portion))) if is_unavailable(error) => {
                self.local.refund(charge, portion).await
            }
            (refunded, _) => refunded,
        }
    }

    async fn release(&self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        let portion = self.local.ratio().apply(limit);
        if self.local.memory.release_lease(self.local.key(&key), &portion, lease) {
            return Ok(true);
        }
        match self.local.mode() {
            StoreMode::LocalOnly => Err(StoreError::BreakerOpen),
            StoreMode::Auto | StoreMode::SharedOnly => self.inner.release(key, limit, lease).await,
        }
    }

    async fn renew(&self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        let portion = self.local.ratio().apply(limit);
        if let Some(term) = self.local.memory.renew_lease(self.local.key(&key), &portion, lease) {
            return Ok(Some(term));
        }
        match self.local.mode() {
            StoreMode::LocalOnly => Err(StoreError::BreakerOpen),
            StoreMode::Auto | StoreMode::SharedOnly => self.inner.renew(key, limit, lease).await,
        }
    }

    async fn forget(&self, key: S::Key, limit: &Limit) -> Result<bool, StoreError> {
        let local_key = self.local.key(&key);
        self.local.history.forget(local_key);
        let portion = self.local.ratio().apply(limit);
        let was_local = self.local.memory.forget_key(local_key, &portion);
        match self.local.mode() {
            StoreMode::LocalOnly => Ok(was_local),
            StoreMode::Auto | StoreMode::SharedOnly => self
                .inner
                .forget(key, limit)
                .await
                .map(|was_shared| was_shared || was_local),
        }
    }

    fn status(&self) -> StoreStatus {
        let metrics = &self.local.metrics;
        StoreStatus {
            fallback: Some(FallbackStatus {
                mode: self.mode(),
                instances: self.local.instances.count(),
                decided_charges: metrics.decided(),
                seeded_counters: metrics.seeded_counters(),
                repaid_units: metrics.repaid_units(),
            }),
            ..self.inner.status()
        }
    }
}

impl<S: CounterStore> CounterStore for Fallback<S> {
    fn counts_hits(&self) -> bool {
        self.inner.counts_hits()
    }

    /// Hits the store could not count are decided locally as any charge is, and never repaid.
    async fn hit(&self, hits: &[Hit<'_, S::Key>], op: HitOp) -> Settlement {
        let is_local_only = self.local.mode() == StoreMode::LocalOnly;
        let mut settlement = match is_local_only {
            true => self.unavailable_settlement(hits.len()),
            false => self.inner.hit(hits, op).await,
        };
        let charges: Vec<Charge<S::Key>> = hits.iter().map(|hit| *hit.charge).collect();
        let commit = match op {
            HitOp::Increment => {
                self.local.learn_standings(&charges, &settlement);
                Commit::Keep
            }
            HitOp::Get => Commit::DryRun,
            HitOp::Decrement => {
                for (charge, outcome) in charges.iter().zip(&mut settlement.outcomes) {
                    let is_unanswered = outcome.is_err_and(is_unavailable);
                    if let (true, Some(FallbackLimit::Share(portion))) =
                        (is_unanswered, self.local.fallback_limit(charge))
                    {
                        let refunded = self.local.refund(charge, portion).await;
                        *outcome = refunded.map(|(decision, source)| Outcome {
                            decision,
                            receipt: Receipt {
                                cost: charge.cost,
                                mark: Default::default(),
                                lease: LeaseId::default(),
                            },
                            source,
                        });
                    }
                }
                return settlement;
            }
        };
        let not_repaid = (commit, Repay::No);
        self.decide_locally(&charges, LeaseId::default(), not_repaid, &mut settlement)
            .await;
        settlement
    }

    async fn forget_hits(&self, hit: &Hit<'_, S::Key>) -> Result<bool, StoreError> {
        match self.local.mode() {
            StoreMode::LocalOnly => Ok(false),
            StoreMode::Auto | StoreMode::SharedOnly => self.inner.forget_hits(hit).await,
        }
    }

    fn hit_key_text(&self, hit: &Hit<'_, S::Key>) -> String {
        self.inner.hit_key_text(hit)
    }
}
