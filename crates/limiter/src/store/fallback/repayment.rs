//! Paying back: what was let pass here while the shared store was away is charged there when it is back, in front of the
//! next requests of the key, unit by unit as far as there are units.
//!
//! Each payment is a request of its own. So it refuses nobody who could pass beside it, and takes nothing if it is refused:
//! what could not be paid is owed on. It is only as much as time has not given back here since.

use super::{Fallback, LocalLimiter};
use crate::store::{CounterStore, Key, Settlement, StoreError};
use futures_util::future::{join, join_all};
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use tollgate_core::{Charge, Cost, LeaseId, Policy};

impl<S: CounterStore> Fallback<S> {
    /// Charges debts to the shared store, and settles behind them.
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
    /// What the keys of a request have to pay back, as charges. It is taken for paid until it is known not to be.
    pub(super) fn repayments<K: Key>(&self, charges: &[Charge<K>]) -> Vec<Charge<K>> {
        let mut repayments: Vec<Charge<K>> = Vec::new();
        for charge in charges.iter().filter(|charge| charge.cost > Cost::ZERO) {
            let key = self.key(&charge.key);
            let debt = self.history.take_debt(key);
            if debt == 0 {
                continue;
            }
            let repayable = debt.min(self.used(key, &self.ratio().apply(&charge.limit)));
            repayments.extend(installments(repayable).filter_map(|units| {
                Some(Charge {
                    cost: Cost::new(units).ok()?,
                    policy: Policy::Enforce,
                    ..*charge
                })
            }));
        }
        repayments
    }

    fn record_repayment<K: Key>(&self, repayment: &Charge<K>, settlement: &Settlement) {
        let units = repayment.cost.get();
        match settlement.outcomes.first() {
            Some(Ok(outcome)) if outcome.decision.is_allow() => {
                self.metrics.repaid_units.fetch_add(units, Ordering::Relaxed);
            }
            // What others keep there cannot be charged.
            Some(Err(StoreError::ForeignValue)) => {}
            // The next request brings it.
            Some(Ok(_)) => self.history.add_debt(self.key(&repayment.key), units),
            Some(Err(error)) if error.is_definite() => self.history.add_debt(self.key(&repayment.key), units),
            // Nobody knows; it is not charged twice.
            Some(Err(_)) | None => {}
        }
    }
}

/// A sum in parts of which as much can be paid as there is, to the unit, by taking each that still fits: the larger half of
/// what is left, again and again. No part is more than one above all behind it together.
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
