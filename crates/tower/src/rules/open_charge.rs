//! The charges of an admitted request that can still change.

use super::{ActiveRules, OwnedAttempt, RulesInner};
use crate::admission::OpenCharge;
use crate::admission::actual_cost::CostTotals;
use crate::admission::background::run;
use std::sync::Arc;
use tollgate_limiter::ActualUse;
use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::Attempt;
use tollgate_limiter::store::CounterStore;

/// The charges of one request by the rules that admitted it.
pub(super) struct RuleCharge<S: CounterStore> {
    rules: Arc<RulesInner<S>>,
    /// As they were then: a reload changes no charge.
    active: Arc<ActiveRules<S>>,
    attempt: OwnedAttempt,
    uncharged: Vec<Box<str>>,
}

impl<S: CounterStore + 'static> RuleCharge<S> {
    pub(super) const fn new(
        rules: Arc<RulesInner<S>>,
        active: Arc<ActiveRules<S>>,
        attempt: OwnedAttempt,
        uncharged: Vec<Box<str>>,
    ) -> Self {
        Self {
            rules,
            active,
            attempt,
            uncharged,
        }
    }

    async fn correct(self, actual: u64, totals: CostTotals) {
        let Some(attribute) = &self.rules.options.cost else {
            return;
        };
        let attributes = self.attempt.attributes();
        let attempt = Attempt {
            domain: &self.rules.options.domain,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        let actual_use = ActualUse {
            attribute,
            actual,
            uncharged_rules: &self.uncharged,
        };
        // Without a reply the charges stay as they were predicted.
        if let Ok(correction) = self.active.limiter.correct_cost(&attempt, &actual_use).await {
            totals.add(correction);
        }
    }

    async fn reverse(self) {
        let attributes = self.attempt.attributes();
        let attempt = Attempt {
            domain: &self.rules.options.domain,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        // Without a reply the charges stay.
        let _ = self.active.limiter.cancel_held(&attempt, &self.uncharged).await;
    }
}

impl<S: CounterStore + 'static> OpenCharge for RuleCharge<S> {
    fn is_predicted(&self) -> bool {
        self.rules.options.cost.is_some()
    }

    fn settle(self: Box<Self>, actual: u64, totals: CostTotals) {
        run::<S>(self.correct(actual, totals));
    }

    fn cancel(self: Box<Self>) {
        run::<S>(self.reverse());
    }
}
