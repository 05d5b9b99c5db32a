//! Repayment after an outage: units allowed here while the shared store was unavailable are charged to it before the
//! key's next request, as far as it has units left.
//!
//! Each repayment is a request of its own. So it denies no other charge, and consumes nothing if it is denied: what could
//! not be repaid stays a debt. A debt is never more than what is still used of the local counter.

use super::Fallback;
use super::local_limiter::LocalLimiter;
use crate::store::{CounterStore, Key, Settlement, StoreError};
use futures_util::future::{join, join_all};
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use tollgate_core::{Charge, Cost, LeaseId, Policy};

impl<S: CounterStore> Fallback<S> {
    /// Charges the repayments to the shared store, and settles after them.
    pub(super) async fn repay_and_settle(
        &self,
        repayments: &[Charge<S::Key>],
        charges: &[Charge<S::Key>],
        lease: LeaseId,
    ) -> Settlement {
        let repaying = repayments
            .iter()
            .map(|repayment| self.inner.settle(from_ref(repayment), LeaseId::default()));
        let (repaid, settlement) = join(join_all(repaying), self.inner.settle(charges, lease)).await;
        for (repayment, repaid) in repayments.iter().zip(repaid) {
            self.local.record_repayment(repayment, &repaid);
        }
        settlement
    }
}

impl LocalLimiter {
    /// The debts of a request's keys, as charges. They count as repaid until the store says otherwise.
    pub(super) fn repayments<K: Key>(&self, charges: &[Charge<K>]) -> Vec<Charge<K>> {
        let mut repayments: Vec<Charge<K>> = Vec::new();
        for charge in charges.iter().filter(|charge| charge.cost > Cost::ZERO) {
            let key = self.key(&charge.key);
            let debt = self.history.take_debt(key);
            if debt == 0 {
                continue;
            }
            let repayable = debt.min(self.used(key, &self.portion(&charge.limit)));
            repayments.extend(installments(repayable).map(|units| Charge {
                cost: Cost::from_quantity(units),
                policy: Policy::Enforce,
                ..*charge
            }));
        }
        repayments
    }

    /// Counts a repayment by its outcome, or restores the debt.
    pub(super) fn record_repayment<K: Key>(&self, repayment: &Charge<K>, settlement: &Settlement) {
        let units = repayment.cost.get();
        match settlement.outcomes.first() {
            Some(Ok(outcome)) if outcome.decision.is_allow() => {
                self.metrics.repaid_units.fetch_add(units, Ordering::Relaxed);
            }
            // A foreign value cannot be charged.
            Some(Err(StoreError::ForeignValue)) => {}
            // The key's next request tries again.
            Some(Ok(_)) => self.history.add_debt(self.key(&repayment.key), units),
            Some(Err(error)) if error.is_definite() => self.history.add_debt(self.key(&repayment.key), units),
            // The outcome is unknown: it may have arrived, so it is not repeated.
            Some(Err(_)) | None => {}
        }
    }
}

/// Splits a debt so that any number of units that are left can be repaid exactly, by taking each installment that fits:
/// the larger half of the rest, again and again. No installment exceeds the sum of those after it by more than one.
fn installments(units: u64) -> impl Iterator<Item = u64> {
    let mut left = units;
    std::iter::from_fn(move || {
        let part = left.div_ceil(2);
        left -= part;
        (part > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_there_is_paid_to_the_unit() {
        for debt in 0..200 {
            assert_eq!(installments(debt).sum::<u64>(), debt);
            for there in 0..250 {
                let mut left = there;
                for part in installments(debt) {
                    left -= if part <= left { part } else { 0 };
                }
                assert_eq!(there - left, debt.min(there), "{debt} owed, {there} there");
            }
        }
        assert!(installments(u64::from(u32::MAX)).count() <= 33);
    }
}
