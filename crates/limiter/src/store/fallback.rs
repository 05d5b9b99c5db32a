//! The fallback: a shared store with this instance's memory behind it. While the store is unavailable, rules with
//! `on_store_failure: local` are decided here, by a share of their limits.
//!
//! It is a store around a store. It records the shared state of each key; when the store fails, the local counter is
//! seeded from that. It also records what it allowed, and charges the store with it before the key's next request. So
//! neither counter refills while the other one decides.
//!
//! Leases of concurrency limits stay where they were taken: one taken here is released and renewed here, also when the
//! store is available again.

mod decide;
mod heartbeat;
mod instances;
mod key_history;
mod local_limiter;
mod options;
mod portion_cache;
mod repayment;

use self::decide::Repay;
use self::instances::Instances;
use self::key_history::KeyHistory;
use self::local_limiter::LocalLimiter;
use super::memory::{Commit, Memory, MemoryOptions};
use super::{
    CounterStore, FallbackStatus, Hit, HitOp, InstanceCount, Keyspace, Outcome, SettleRequest, Settlement, SharedStore,
    Source, Store, StoreError, StoreMode, StoreStatus,
};
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::runtime::Handle;
use tollgate_core::{Charge, Counter, Decision, FailureAction, LeaseId, Limit, Micros, Receipt};

pub use self::options::{FallbackMetrics, FallbackOptions, Registration};

/// A shared store, with this instance as its fallback.
#[derive(Debug)]
pub struct Fallback<S> {
    inner: Arc<S>,
    local: Arc<LocalLimiter>,
}

impl<S: CounterStore + 'static> Fallback<S> {
    /// Wraps a store. Unless the number of instances is configured, they count each other in the store by heartbeats.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(inner: Arc<S>, options: FallbackOptions) -> Self {
        Self::with_memory(inner, options, Memory::options())
    }

    /// Wraps a store and decides with this memory store, for tests: its clock can be moved.
    pub fn with_memory(inner: Arc<S>, options: FallbackOptions, memory: MemoryOptions) -> Self {
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
        if options.instances.is_none() && options.registration == Registration::Immediate {
            local.instances.registered.store(true, Ordering::Relaxed);
            // Nobody waits for the first heartbeat.
            drop(heartbeat::start(&inner, &local));
        }
        Self { inner, local }
    }
}

impl<S: CounterStore> Fallback<S> {
    /// The shared store.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Sets who decides from now on.
    pub fn set_mode(&self, mode: StoreMode) {
        self.local.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// The part of the system that decides.
    pub fn mode(&self) -> StoreMode {
        self.local.mode()
    }

    /// The number of instances that share the limits.
    pub fn instances(&self) -> InstanceCount {
        self.local.instances.count()
    }

    /// Its counts.
    pub fn metrics(&self) -> &FallbackMetrics {
        &self.local.metrics
    }

    /// The memory store that decides here.
    pub fn local_store(&self) -> &Memory {
        &self.local.memory
    }

    /// Settles with the shared store, after the repayments of the keys.
    async fn settle_shared(&self, charges: &[Charge<S::Key>], lease: LeaseId) -> Settlement {
        let repayments = match self.local.history.has_debts() {
            true => self.local.repayments(charges),
            false => Vec::new(),
        };
        match repayments.is_empty() {
            true => self.inner.settle(charges, lease).await,
            // Boxed: few requests come here, and every future would be larger by it.
            false => Box::pin(self.repay_and_settle(&repayments, charges, lease)).await,
        }
    }

    /// Settles several requests with the shared store in one call, after the repayments of their keys.
    async fn settle_each_shared(&self, requests: &[SettleRequest<'_, S::Key>]) -> Vec<Settlement> {
        if requests.is_empty() {
            return Vec::new();
        }
        if !self.local.history.has_debts() {
            return self.inner.settle_each(requests).await;
        }
        let repayments: Vec<Charge<S::Key>> = requests
            .iter()
            .flat_map(|request| self.local.repayments(request.charges))
            .collect();
        let repaying = repayments.iter().map(|repayment| SettleRequest {
            charges: from_ref(repayment),
            lease: LeaseId::default(),
        });
        let all: Vec<SettleRequest<'_, S::Key>> = repaying.chain(requests.iter().copied()).collect();
        let mut settlements = self.inner.settle_each(&all).await;
        let replies = settlements.split_off(repayments.len().min(settlements.len()));
        for (repayment, settlement) in repayments.iter().zip(&settlements) {
            self.local.record_repayment(repayment, settlement);
        }
        replies
    }

    /// True if the shared store need not be called.
    fn bypasses_shared(&self, charges: &[Charge<S::Key>]) -> bool {
        if self.local.mode() == StoreMode::LocalOnly {
            return true;
        }
        !charges.is_empty() && self.inner.is_unavailable(charges)
    }

    /// The settlement of charges for which the store was not called.
    fn unavailable_settlement(&self, charges: usize) -> Settlement {
        Settlement::failed(self.local.memory.now(), charges, StoreError::BreakerOpen)
    }
}

/// True if the shared store was not called, because it is unavailable.
const fn is_unavailable(error: StoreError) -> bool {
    matches!(error, StoreError::BreakerOpen | StoreError::Unavailable)
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
                && let action @ FailureAction::Share(_) = self.local.failure_action(charge)
            {
                return self.local.settle_single(charge, &action, lease);
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

    async fn settle_each(&self, requests: &[SettleRequest<'_, S::Key>]) -> Vec<Settlement> {
        let is_bypassed: Vec<bool> = requests
            .iter()
            .map(|request| self.bypasses_shared(request.charges))
            .collect();
        let sent = requests
            .iter()
            .zip(&is_bypassed)
            .filter(|(_, is_bypassed)| !**is_bypassed);
        let sent: Vec<SettleRequest<'_, S::Key>> = sent.map(|(request, _)| *request).collect();
        let mut replies = self.settle_each_shared(&sent).await.into_iter();
        let mut settlements = Vec::with_capacity(requests.len());
        for (request, is_bypassed) in requests.iter().zip(is_bypassed) {
            let reply = if is_bypassed { None } else { replies.next() };
            let mut settlement = match reply {
                Some(settlement) => {
                    self.local.learn(request.charges, &settlement);
                    settlement
                }
                None => self.unavailable_settlement(request.charges.len()),
            };
            let kept = (Commit::Keep, Repay::Yes);
            self.decide_locally(request.charges, request.lease, kept, &mut settlement)
                .await;
            settlements.push(settlement);
        }
        settlements
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

    /// Reverses a charge of the shared store. Charges kept here have no receipts for it; [`Store::compensate`] reverses
    /// those.
    async fn undo(&self, key: S::Key, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.inner.undo(key, limit, receipt).await
    }

    async fn compensate(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
        self.compensate_shared(charges, settlement).await;
        self.compensate_locally(charges, settlement).await;
    }

    /// Refunds here if the shared store is unavailable. Where the store was called and its outcome is unknown, nothing is
    /// refunded here as well.
    async fn refund(&self, charge: &Charge<S::Key>) -> Result<(Decision, Source), StoreError> {
        let refunded = match self.bypasses_shared(from_ref(charge)) {
            true => Err(StoreError::BreakerOpen),
            false => self.inner.refund(charge).await,
        };
        match (refunded, self.local.failure_action(charge)) {
            (Err(error), action @ FailureAction::Share(_)) if is_unavailable(error) => {
                self.local.refund(charge, &action).await
            }
            (refunded, _) => refunded,
        }
    }

    async fn release(&self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        let portion = self.local.portion(limit);
        if self.local.memory.release_lease(self.local.key(&key), &portion, lease) {
            return Ok(true);
        }
        match self.local.mode() {
            StoreMode::LocalOnly => Err(StoreError::BreakerOpen),
            StoreMode::Auto | StoreMode::SharedOnly => self.inner.release(key, limit, lease).await,
        }
    }

    fn release_later(&self, key: S::Key, limit: &Limit, lease: LeaseId) {
        let portion = self.local.portion(limit);
        let is_local = self.local.memory.release_lease(self.local.key(&key), &portion, lease);
        // A lease of the shared store expires if only this instance decides.
        if !is_local && self.local.mode() != StoreMode::LocalOnly {
            self.inner.release_later(key, limit, lease);
        }
    }

    async fn renew(&self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        let portion = self.local.portion(limit);
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
        let was_local = self.local.memory.forget_key(local_key, &self.local.portion(limit));
        match self.local.mode() {
            StoreMode::LocalOnly => Ok(was_local),
            StoreMode::Auto | StoreMode::SharedOnly => self
                .inner
                .forget(key, limit)
                .await
                .map(|was_shared| was_shared || was_local),
        }
    }

    fn instance_count(&self) -> u32 {
        self.local.instances.count().count()
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
                self.refund_hits(&charges, &mut settlement).await;
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

impl<S: SharedStore> SharedStore for Fallback<S> {
    fn runtime(&self) -> &Handle {
        self.inner.runtime()
    }
}

impl<S: CounterStore> Fallback<S> {
    /// Refunds here the hits for which the shared store was not called.
    async fn refund_hits(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
        for (charge, outcome) in charges.iter().zip(&mut settlement.outcomes) {
            if !outcome.is_err_and(is_unavailable) {
                continue;
            }
            let action = self.local.failure_action(charge);
            if let FailureAction::Share(_) = action {
                let refunded = self.local.refund(charge, &action).await;
                *outcome = refunded.map(|(decision, source)| Outcome {
                    decision,
                    receipt: Receipt::without_mark(charge.cost, LeaseId::default()),
                    source,
                });
            }
        }
    }
}
