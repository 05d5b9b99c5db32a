//! The local limiter: decisions of this instance alone, with its memory store.

use super::instances::Instances;
use super::key_history::{KeyHistory, KeyRecord};
use super::options::FallbackMetrics;
use super::portion_cache::cached_portion;
use crate::fingerprint::{Fingerprint, MemoryKeyTemplate};
use crate::store::memory::{ChargeOptions, Memory};
use crate::store::{Key, Outcome, Settlement, Source, Store, StoreError, StoreMode};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tollgate_core::{Charge, Cost, Decision, FailureAction, LeaseId, Limit, Policy, PortionRatio, failure_policy_with};

/// The state by which this instance decides alone.
#[derive(Debug)]
pub(super) struct LocalLimiter {
    pub(super) memory: Memory,
    pub(super) template: MemoryKeyTemplate,
    pub(super) history: KeyHistory,
    pub(super) instances: Instances,
    pub(super) share_millionths: u64,
    pub(super) compensation_timeout: Duration,
    pub(super) mode: AtomicU8,
    pub(super) metrics: FallbackMetrics,
}

impl LocalLimiter {
    pub(super) fn mode(&self) -> StoreMode {
        match self.mode.load(Ordering::Relaxed) {
            0 => StoreMode::Auto,
            1 => StoreMode::SharedOnly,
            _ => StoreMode::LocalOnly,
        }
    }

    /// This instance's share of a limit.
    pub(super) fn portion(&self, limit: &Limit) -> Limit {
        let ratio = PortionRatio::new(self.share_millionths, self.instances.count().count());
        cached_portion(ratio, limit)
    }

    /// Returns the failure policy of a charge.
    pub(super) fn failure_action<K>(&self, charge: &Charge<K>) -> FailureAction {
        failure_policy_with(charge, self.mode(), |limit| self.portion(limit))
    }

    /// The key of a counter in the memory store.
    #[inline]
    pub(super) fn key<K: Key>(&self, key: &K) -> Fingerprint {
        self.template.fingerprint(&[&key.bits().to_le_bytes()])
    }

    /// The charge on the memory store, if this instance decides by a limit.
    pub(super) fn charge<K: Key>(&self, charge: &Charge<K>, action: &FailureAction) -> Option<Charge<Fingerprint>> {
        Some(Charge {
            key: self.key(&charge.key),
            limit: *action.limit()?,
            cost: charge.cost,
            policy: charge.policy,
            on_failure: charge.on_failure,
        })
    }

    /// Seeds a local counter from the last shared state, once until the store replies for its key again.
    #[inline]
    pub(super) fn seed(&self, record: &mut KeyRecord, key: Fingerprint, shared: &Limit, portion: &Limit) {
        if !std::mem::replace(&mut record.is_seeded, true) {
            self.seed_counter(record, key, shared, portion);
        }
    }

    #[cold]
    fn seed_counter(&self, record: &KeyRecord, key: Fingerprint, shared: &Limit, portion: &Limit) {
        let (used, capacity) = (record.used_now(shared, self.memory.now()), shared.capacity());
        let used = u128::from(used.min(capacity)) * u128::from(portion.capacity());
        let target = u64::try_from(used.div_ceil(u128::from(capacity.max(1)))).unwrap_or(u64::MAX);
        let local_used = self.used(key, portion);
        let missing = if let Limit::SlidingLog(_) = portion {
            // A log's units leave it all at once, and the local ones left earlier than the shared ones: it starts anew.
            self.memory.forget_key(key, portion);
            target.max(local_used)
        } else {
            target.saturating_sub(local_used)
        };
        if missing > 0 {
            let seed = ChargeOptions {
                // A cell may hold more than the largest cost of other limits.
                cost: Cost::from_quantity(missing),
                policy: Policy::Count,
                lease: LeaseId::default(),
            };
            self.memory.settle_cold(key, portion, seed);
            self.metrics.seeded_counters.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The units used of a local counter.
    pub(super) fn used(&self, key: Fingerprint, portion: &Limit) -> u64 {
        let standing = *self.memory.settle_cold(key, portion, ChargeOptions::PEEK).standing();
        standing.limit.saturating_sub(standing.remaining)
    }

    /// Refunds a cost here, which reduces the repayment of its key. Units the shared store itself had counted refill with
    /// time.
    pub(super) async fn refund<K: Key>(
        &self,
        charge: &Charge<K>,
        action: &FailureAction,
    ) -> Result<(Decision, Source), StoreError> {
        let local_charge = self.charge(charge, action).ok_or(StoreError::Unavailable)?;
        self.history.with(local_charge.key, |record| {
            self.seed(record, local_charge.key, &charge.limit, &local_charge.limit);
            record.cancel_debt(local_charge.cost.get());
        });
        let (decision, _) = self.memory.refund(&local_charge).await?;
        Ok((decision, action.source()))
    }

    /// Settles the only charge of a request: the usual case, with one lock and no list.
    pub(super) fn settle_single<K: Key>(
        &self,
        charge: &Charge<K>,
        action: &FailureAction,
        lease: LeaseId,
    ) -> Settlement {
        let Some(local_charge) = self.charge(charge, action) else {
            return Settlement::failed(self.memory.now(), 1, StoreError::BreakerOpen);
        };
        let mut settlement = self.history.with(local_charge.key, |record| {
            record.outcome_unknown = false;
            self.seed(record, local_charge.key, &charge.limit, &local_charge.limit);
            let settlement = self.memory.settle_single(&local_charge, lease);
            let is_allowed =
                |outcome: &Result<Outcome, StoreError>| outcome.is_ok_and(|outcome| outcome.decision.is_allow());
            let is_kept = local_charge.policy == Policy::Count || settlement.outcomes.iter().all(is_allowed);
            if is_kept && action.is_repaid() {
                record.add_debt(local_charge.cost.get());
            }
            settlement
        });
        for outcome in settlement.outcomes.iter_mut().flatten() {
            outcome.source = action.source();
        }
        self.metrics.decided.fetch_add(1, Ordering::Relaxed);
        settlement
    }

    /// Records the shared state of the keys, and for which of them it is unknown.
    pub(super) fn learn<K: Key>(&self, charges: &[Charge<K>], settlement: &Settlement) {
        for (charge, outcome) in charges.iter().zip(&settlement.outcomes) {
            if outcome.is_err_and(|error| !error.is_definite()) {
                self.history
                    .with(self.key(&charge.key), |record| record.outcome_unknown = true);
            }
        }
        self.learn_standings(charges, settlement);
    }

    /// Records the shared standings of the keys.
    pub(super) fn learn_standings<K: Key>(&self, charges: &[Charge<K>], settlement: &Settlement) {
        let mut now = None;
        for (charge, outcome) in charges.iter().zip(&settlement.outcomes) {
            if let Ok(outcome) = outcome
                && matches!(outcome.source, Source::Shared | Source::Memory)
                && !matches!(charge.limit, Limit::Concurrency(_))
            {
                let at = *now.get_or_insert_with(|| self.memory.now());
                self.history
                    .learn(self.key(&charge.key), outcome.decision.standing(), at);
            }
        }
    }
}
