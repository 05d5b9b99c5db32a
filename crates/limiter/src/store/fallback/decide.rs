//! Decisions without the store, and their compensation. [`tollgate_core::failure_policy`] says what a charge does;
//! this file acts on it.

use super::Fallback;
use super::local_limiter::LocalLimiter;
use crate::fingerprint::Fingerprint;
use crate::store::memory::Commit;
use crate::store::{CounterStore, Outcome, Settlement, Source, Store, StoreError};
use std::sync::atomic::Ordering;
use tokio::time::timeout;
use tollgate_core::{Charge, FailureAction, LeaseId, Policy};

/// The repayment of units allowed here, once the shared store is available again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repay {
    Yes,
    /// The counters belong to another service, which did not ask for it.
    No,
}

/// A charge that is decided here: its index in the request, the action that says so, and the charge itself.
struct LocalCharge {
    index: usize,
    action: FailureAction,
    charge: Charge<Fingerprint>,
}

impl<S: CounterStore> Fallback<S> {
    /// Decides the charges that the shared store did not. If either denies the request, neither keeps anything.
    pub(super) async fn decide_locally(
        &self,
        charges: &[Charge<S::Key>],
        lease: LeaseId,
        (commit, repay): (Commit, Repay),
        settlement: &mut Settlement,
    ) {
        let local = &*self.local;
        let mut decided = Vec::new();
        let mut is_closed = false;
        for (index, (charge, outcome)) in charges.iter().zip(&settlement.outcomes).enumerate() {
            let Err(error) = outcome else { continue };
            if *error == StoreError::Skipped {
                continue;
            }
            let action = local.failure_action(charge);
            match local.charge(charge, &action) {
                Some(charge) => decided.push(LocalCharge { index, action, charge }),
                None => is_closed |= action.is_deny(),
            }
        }
        if decided.is_empty() {
            return;
        }
        local.seed_all(charges, &decided, settlement);
        let commit = match settlement.is_denied(charges) || is_closed {
            true => Commit::DryRun,
            false => commit,
        };
        let local_charges: Vec<Charge<Fingerprint>> = decided.iter().map(|decided| decided.charge).collect();
        let local_settlement = local.memory.settle_all(&local_charges, commit, lease);
        if commit == Commit::Keep && !local_settlement.allowed {
            // The caller waits at most this long; the reversal goes on without it.
            let _ = timeout(local.compensation_timeout, self.inner.compensate(charges, settlement)).await;
        }
        for (decided, outcome) in decided.iter().zip(&local_settlement.outcomes) {
            let (Ok(outcome), LocalCharge { charge, action, .. }) = (outcome, decided) else {
                continue;
            };
            let is_kept = charge.policy == Policy::Count || (local_settlement.allowed && outcome.decision.is_allow());
            if commit == Commit::Keep && is_kept && action.is_repaid() && repay == Repay::Yes {
                local.history.add_debt(charge.key, charge.cost.get());
            }
            if let Some(slot) = settlement.outcomes.get_mut(decided.index) {
                *slot = Ok(Outcome {
                    source: action.source(),
                    ..*outcome
                });
            }
        }
        local.metrics.decided.fetch_add(decided.len() as u64, Ordering::Relaxed);
        let is_allowed = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            charge.policy == Policy::Shadow || outcome.is_ok_and(|outcome| outcome.decision.is_allow())
        };
        settlement.allowed = charges.iter().zip(&settlement.outcomes).all(is_allowed);
    }

    /// Reverses the charges that the shared store kept.
    pub(super) async fn compensate_shared(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
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
    }

    /// Reverses the charges kept here. With a charge that failed closed, none was kept.
    pub(super) async fn compensate_locally(&self, charges: &[Charge<S::Key>], settlement: &mut Settlement) {
        let local = &*self.local;
        let is_closed = |(charge, outcome): (&Charge<S::Key>, &Result<Outcome, StoreError>)| {
            // Hits are decided by a call of their own.
            let is_hit = charge.policy == Policy::Count && self.inner.counts_hits();
            outcome.is_err() && !is_hit && local.failure_action(charge).is_deny()
        };
        if charges.iter().zip(&settlement.outcomes).any(is_closed) {
            return;
        }
        let kept: Vec<usize> = settlement.kept_charges(charges).collect();
        for index in kept {
            let (Some(charge), Some(Ok(outcome))) = (charges.get(index), settlement.outcomes.get(index)) else {
                continue;
            };
            let action = local.failure_action(charge);
            let Some(local_charge) = local.charge(charge, &action).filter(|_| is_local(outcome)) else {
                continue;
            };
            let mut kept = Settlement {
                allowed: false,
                now: settlement.now,
                outcomes: vec![Ok(*outcome)],
            };
            local.memory.compensate(&[local_charge], &mut kept).await;
            if action.is_repaid() {
                local.history.cancel_debt(local_charge.key, local_charge.cost.get());
            }
            if let (Some(slot), Some(Ok(outcome))) = (settlement.outcomes.get_mut(index), kept.outcomes.pop()) {
                *slot = Ok(outcome);
            }
        }
    }
}

impl LocalLimiter {
    /// Seeds the local counters of charges that are decided by a share.
    fn seed_all<K>(&self, charges: &[Charge<K>], decided: &[LocalCharge], settlement: &Settlement) {
        for LocalCharge { index, action, charge } in decided {
            if let (FailureAction::Share(portion), Some(shared)) = (action, charges.get(*index)) {
                let breaker_open = settlement.outcomes.get(*index) == Some(&Err(StoreError::BreakerOpen));
                self.history.with(charge.key, |record| {
                    record.outcome_unknown &= !breaker_open;
                    self.seed(record, charge.key, &shared.limit, portion);
                });
            }
        }
    }
}

/// True if this instance decided.
const fn is_local(outcome: &Outcome) -> bool {
    matches!(outcome.source, Source::Local | Source::Open)
}
