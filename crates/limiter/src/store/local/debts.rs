//! Paying back: what was let pass here while the shared store was away is charged there when it is back, in front of the
//! next requests of the key, unit by unit as far as there are units.
//!
//! Each payment is a request of its own. So it refuses nobody who could pass beside it, and takes nothing if it is refused:
//! what could not be paid is owed on. It is only as much as time has not given back here since.

use super::{Here, Local};
use crate::store::{Key, Settled, Store, StoreError};
use futures_util::future::{join, join_all};
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use tollgate_core::{Charge, Cost, LeaseId, Policy};

impl<S: Store> Local<S> {
    /// Charges debts to the shared store, and settles behind them.
    pub(super) async fn pay_and_settle(
        &self,
        debts: &[Charge<S::Key>],
        charges: &[Charge<S::Key>],
        lease: LeaseId,
    ) -> Settled {
        let paying = debts
            .iter()
            .map(|debt| self.inner.settle(from_ref(debt), LeaseId::default()));
        let (paid, settled) = join(join_all(paying), self.inner.settle(charges, lease)).await;
        for (debt, paid) in debts.iter().zip(paid) {
            self.here.note_payment(debt, &paid);
        }
        settled
    }
}

impl Here {
    /// What the keys of a request have to pay back, as charges. It is taken for paid until it is known not to be.
    pub(super) fn debts<K: Key>(&self, charges: &[Charge<K>]) -> Vec<Charge<K>> {
        let mut debts: Vec<Charge<K>> = Vec::new();
        for charge in charges.iter().filter(|charge| charge.cost > Cost::ZERO) {
            let key = self.key(&charge.key);
            let admitted = self.notes.take_owed(key);
            if admitted == 0 {
                continue;
            }
            let owed = admitted.min(self.used(key, &self.part().of(&charge.limit)));
            debts.extend(parts(owed).filter_map(|units| {
                Some(Charge {
                    cost: Cost::new(units).ok()?,
                    policy: Policy::Enforce,
                    ..*charge
                })
            }));
        }
        debts
    }

    fn note_payment<K: Key>(&self, debt: &Charge<K>, settled: &Settled) {
        let units = debt.cost.get();
        match settled.outcomes.first() {
            Some(Ok(outcome)) if outcome.decision.is_allow() => {
                self.figures.charged_back.fetch_add(units, Ordering::Relaxed);
            }
            // What others keep there cannot be charged.
            Some(Err(StoreError::Foreign)) => {}
            // The next request brings it.
            Some(Ok(_)) => self.notes.owe(self.key(&debt.key), units),
            Some(Err(error)) if error.is_certain() => self.notes.owe(self.key(&debt.key), units),
            // Nobody knows; it is not charged twice.
            Some(Err(_)) | None => {}
        }
    }
}

/// A sum in parts of which as much can be paid as there is, to the unit, by taking each that still fits: the larger half of
/// what is left, again and again. No part is more than one above all behind it together.
fn parts(units: u64) -> impl Iterator<Item = u64> {
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
        for owed in 0..200 {
            assert_eq!(parts(owed).sum::<u64>(), owed);
            for there in 0..250 {
                let mut left = there;
                for part in parts(owed) {
                    left -= if part <= left { part } else { 0 };
                }
                assert_eq!(there - left, owed.min(there), "{owed} owed, {there} there");
            }
        }
        assert!(parts(u64::from(u32::MAX)).count() <= 33);
    }
}
