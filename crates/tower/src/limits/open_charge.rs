//! The charges of an admitted request that can still change.

use super::collect::{AppliedLimit, cost_of};
use super::{SetInner, SetLimitKind};
use crate::admission::OpenCharge;
use crate::admission::actual_cost::CostTotals;
use crate::admission::background::run;
use crate::rules::is_shaping;
use std::sync::Arc;
use tollgate_limiter::core::{Cost, Limit, Receipt};
use tollgate_limiter::store::{CostCorrection, Store};

/// The charges of one request on the limits of a set.
pub(super) struct SetCharge<S: Store> {
    set: Arc<SetInner<S>>,
    /// The limits, each with the receipt of its charge.
    applied: Vec<(AppliedLimit, Option<Receipt>)>,
    is_predicted: bool,
}

impl<S: Store + 'static> SetCharge<S> {
    pub(super) const fn new(
        set: Arc<SetInner<S>>,
        applied: Vec<(AppliedLimit, Option<Receipt>)>,
        is_predicted: bool,
    ) -> Self {
        Self {
            set,
            applied,
            is_predicted,
        }
    }

    /// Corrects the charges of the limits that `corrects` selects, and adds the sums to `totals`.
    async fn correct(self, actual: Cost, totals: Option<CostTotals>, selects: impl Fn(&Limit, bool) -> bool) {
        for (applied, receipt) in &self.applied {
            let Some(limit) = self.set.limits.get(applied.index) else {
                continue;
            };
            let SetLimitKind::Charged(named) = &limit.kind else {
                continue;
            };
            if !selects(named.limit(), limit.cost.is_some()) {
                continue;
            }
            let key = applied.key.as_bytes();
            let limiter = &self.set.limiter;
            let corrected = match receipt {
                // What was charged to a window that is over is not returned to the next.
                Some(receipt) if actual < applied.cost => {
                    let store = limiter.store();
                    let (key, limit) = (named.key(store, &[key]), named.limit());
                    CostCorrection::undo(store, key, limit, receipt, actual).await
                }
                _ => limiter.settle_correction(named, key, applied.cost, actual).await,
            };
            // Without a reply the charge stays as it was predicted.
            if let (Ok(correction), Some(totals)) = (corrected, &totals) {
                totals.add(correction);
            }
        }
    }
}

impl<S: Store + 'static> OpenCharge for SetCharge<S> {
    fn is_predicted(&self) -> bool {
        self.is_predicted
    }

    fn settle(self: Box<Self>, actual: u64, totals: CostTotals) {
        let correct = self.correct(cost_of(actual), Some(totals), |_, is_predicted| is_predicted);
        run::<S>(correct);
    }

    fn cancel(self: Box<Self>) {
        run::<S>(self.correct(Cost::ZERO, None, |limit, _| !is_shaping(limit)));
    }
}
