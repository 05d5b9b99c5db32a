//! The correction of a charge once the actual cost is known.

use super::{Store, StoreError};
use std::slice::from_ref;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Receipt};

/// The effect of a correction, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostCorrection {
    /// Units that were charged and not consumed: given back, as far as the charge still holds them.
    pub refunded: u64,
    /// Units that were consumed beyond the charge, and are charged now.
    pub charged: u64,
    /// Units that were consumed and could not be charged: nothing remained.
    pub overrun: u64,
}

/// Brings a kept charge to the actual cost: refunds the difference, or charges it up to what remains.
pub(crate) async fn correct_charge<S: Store>(
    store: &S,
    charge: &Charge<S::Key>,
    actual: Cost,
) -> Result<CostCorrection, StoreError> {
    let difference = charge.cost.get().abs_diff(actual.get());
    let more = Charge {
        cost: Cost::new(difference).unwrap_or(Cost::MAX),
        ..*charge
    };
    let mut correction = CostCorrection::default();
    if difference == 0 {
        return Ok(correction);
    }
    if actual < charge.cost {
        store.refund(&more).await?;
        correction.refunded = difference;
        return Ok(correction);
    }
    correction.charged = settle_up_to(store, more).await?;
    correction.overrun = difference - correction.charged;
    Ok(correction)
}

/// Charges the whole cost, or else what remains. Returns the units charged.
async fn settle_up_to<S: Store>(store: &S, mut charge: Charge<S::Key>) -> Result<u64, StoreError> {
    // What remains may be taken by others meanwhile.
    for _ in 0..ATTEMPTS {
        if charge.cost == Cost::ZERO {
            return Ok(0);
        }
        let settlement = store.settle(from_ref(&charge), LeaseId::default()).await;
        let outcome = settlement
            .outcomes
            .first()
            .copied()
            .unwrap_or(Err(StoreError::InvalidReply))?;
        if outcome.decision.is_allow() {
            return Ok(charge.cost.get());
        }
        let remaining = outcome.decision.standing().remaining;
        charge.cost = Cost::new(remaining).unwrap_or(Cost::MAX).min(charge.cost);
    }
    Ok(0)
}

/// The attempts to charge what remains.
const ATTEMPTS: usize = 3;

impl CostCorrection {
    /// Reverses the part of a kept charge above the actual cost. Unlike a refund, it returns units only to the charge of
    /// this receipt: none of one whose window is over.
    ///
    /// # Errors
    /// The store could not be reached; the charge stays.
    pub async fn undo<S: Store>(
        store: &S,
        key: S::Key,
        limit: &Limit,
        receipt: &Receipt,
        actual: Cost,
    ) -> Result<Self, StoreError> {
        let unused = receipt.cost.get().saturating_sub(actual.get());
        if unused == 0 {
            return Ok(Self::default());
        }
        let part = Receipt {
            cost: Cost::new(unused).unwrap_or(Cost::MAX),
            ..*receipt
        };
        store.undo(key, limit, &part).await?;
        Ok(Self {
            refunded: unused,
            ..Self::default()
        })
    }

    /// The sum of both.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            refunded: self.refunded.saturating_add(other.refunded),
            charged: self.charged.saturating_add(other.charged),
            overrun: self.overrun.saturating_add(other.overrun),
        }
    }
}
