//! What this instance knows and decides by itself.

use super::instances::Instances;
use super::key_history::{KeyHistory, KeyRecord};
use super::options::FallbackMetrics;
use super::portion_cache::PortionRatio;
use crate::fingerprint::{Fingerprint, MemoryKeyTemplate};
use crate::store::memory::{ChargeOptions, Memory};
use crate::store::{Key, Outcome, Settlement, Source, Store, StoreError, StoreMode};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tollgate_core::{Charge, Cost, Decision, LeaseId, Limit, OnStoreFailure, Policy, TokenBucket};

/// What this instance knows and decides.
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

/// Who decides a charge that the shared store did not.
pub(super) enum FallbackLimit {
    /// A part of its limit.
    Share(Limit),
    /// The cap of this instance.
    Cap(Limit),
}

impl LocalLimiter {
    pub(super) fn mode(&self) -> StoreMode {
        match self.mode.load(Ordering::Relaxed) {
            0 => StoreMode::Auto,
            1 => StoreMode::SharedOnly,
            _ => StoreMode::LocalOnly,
        }
    }

    pub(super) fn ratio(&self) -> PortionRatio {
        PortionRatio::new(self.share_millionths, self.instances.count().count())
    }

    #[inline]
    pub(super) fn key<K: Key>(&self, key: &K) -> Fingerprint {
        self.template.fingerprint(&[&key.bits().to_le_bytes()])
    }

    /// Who decides a charge, if anybody here does.
    pub(super) fn fallback_limit<K>(&self, charge: &Charge<K>) -> Option<FallbackLimit> {
        let share = || Some(FallbackLimit::Share(self.ratio().apply(&charge.limit)));
        match (self.mode(), charge.on_failure) {
            (StoreMode::LocalOnly, _) | (StoreMode::Auto, OnStoreFailure::Local) => share(),
            (_, OnStoreFailure::Open { cap: Some(cap) }) => Some(FallbackLimit::Cap(TokenBucket::new(cap).into())),
            _ => None,
        }
    }

    pub(super) fn charge<K: Key>(&self, charge: &Charge<K>, fallback: &FallbackLimit) -> Charge<Fingerprint> {
        Charge {
            key: self.key(&charge.key),
            limit: *fallback.limit(),
            cost: charge.cost,
            policy: charge.policy,
            on_failure: charge.on_failure,
        }
    }

    /// Brings a counter here to what the shared one showed, once until that is asked again.
    #[inline]
    pub(super) fn seed(&self, record: &mut KeyRecord, key: Fingerprint, shared: &Limit, portion: &Limit) {
        if !std::mem::replace(&mut record.is_seeded, true) {
            self.seed_counter(record, key, shared, portion);
        }
    }

    #[cold]
    pub(super) fn seed_counter(&self, record: &KeyRecord, key: Fingerprint, shared: &Limit, portion: &Limit) {
        let (used, whole) = (record.used_now(shared, self.memory.now()), shared.capacity());
        let used = u128::from(used.min(whole)) * u128::from(portion.capacity());
        let target = u64::try_from(used.div_ceil(u128::from(whole.max(1)))).unwrap_or(u64::MAX);
        let local_used = self.used(key, portion);
        let missing = if let Limit::SlidingLog(_) = portion {
            // What a log holds leaves it all at once, and here earlier than there: it begins anew.
            self.memory.forget_key(key, portion);
            target.max(local_used)
        } else {
            target.saturating_sub(local_used)
        };
        // No limit holds more than a cost can be.
        if let (Ok(cost), true) = (Cost::new(missing), missing > 0) {
            let how = ChargeOptions {
                cost,
                policy: Policy::Count,
                lease: LeaseId::default(),
            };
            self.memory.settle_cold(key, portion, how);
            self.metrics.seeded_counters.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How much of a limit here is used.
    pub(super) fn used(&self, key: Fingerprint, portion: &Limit) -> u64 {
        let peek = ChargeOptions {
            cost: Cost::ZERO,
            policy: Policy::Enforce,
            lease: LeaseId::default(),
        };
        let standing = *self.memory.settle_cold(key, portion, peek).standing();
        standing.limit.saturating_sub(standing.remaining)
    }

    /// Gives a cost back here. So much less is charged to the shared store when that is back; what that has taken itself, time
    /// gives back.
    pub(super) async fn refund<K: Key>(
        &self,
        charge: &Charge<K>,
        portion: Limit,
    ) -> Result<(Decision, Source), StoreError> {
        let local_charge = self.charge(charge, &FallbackLimit::Share(portion));
        self.history.with(local_charge.key, |record| {
            self.seed(record, local_charge.key, &charge.limit, &local_charge.limit);
            record.cancel_debt(local_charge.cost.get());
        });
        let (decision, _) = self.memory.refund(&local_charge).await?;
        Ok((decision, Source::Local))
    }

    /// Settles the only charge of a request: the usual case, with one lock and no list.
    pub(super) fn settle_single<K: Key>(&self, charge: &Charge<K>, portion: Limit, lease: LeaseId) -> Settlement {
        let fallback = FallbackLimit::Share(portion);
        let local_charge = self.charge(charge, &fallback);
        let mut settlement = self.history.with(local_charge.key, |record| {
            record.outcome_unknown = false;
            self.seed(record, local_charge.key, &charge.limit, &local_charge.limit);
            let settlement = self.memory.settle_single(&local_charge, lease);
            let is_allowed =
                |outcome: &Result<Outcome, StoreError>| outcome.is_ok_and(|outcome| outcome.decision.is_allow());
            let is_kept = local_charge.policy == Policy::Count || settlement.outcomes.iter().all(is_allowed);
            if is_kept && fallback.is_repaid() {
                record.add_debt(local_charge.cost.get());
            }
            settlement
        });
        for outcome in settlement.outcomes.iter_mut().flatten() {
            *outcome = fallback.label(*outcome);
        }
        self.metrics.decided.fetch_add(1, Ordering::Relaxed);
        settlement
    }

    /// Notes what the shared store said, and where it said nothing.
    pub(super) fn learn<K: Key>(&self, charges: &[Charge<K>], settlement: &Settlement) {
        for (charge, outcome) in charges.iter().zip(&settlement.outcomes) {
            if outcome.is_err_and(|error| !error.is_definite()) {
                self.history
                    .with(self.key(&charge.key), |record| record.outcome_unknown = true);
            }
        }
        self.learn_standings(charges, settlement);
    }

    /// Notes how the shared store said that keys stand.
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

impl FallbackLimit {
    pub(super) const fn limit(&self) -> &Limit {
        match self {
            Self::Share(limit) | Self::Cap(limit) => limit,
        }
    }

    /// Leases are given back where they were taken, and a cap is nobody's limit.
    pub(super) const fn is_repaid(&self) -> bool {
        match self {
            Self::Share(limit) => !matches!(limit, Limit::Concurrency(_)),
            Self::Cap(_) => false,
        }
    }

    pub(super) const fn label(&self, outcome: Outcome) -> Outcome {
        let source = match self {
            Self::Share(_) => Source::Local,
            Self::Cap(_) => Source::Open,
        };
        Outcome { source, ..outcome }
    }
}
