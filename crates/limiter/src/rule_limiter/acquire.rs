//! Attempts whose slots a permit holds, and whose cost is corrected once it is known.

use super::{CheckResult, RuleLimiter, plan_lease, poll_once, takes_lease};
use crate::lease::{HeldSlot, Permit};
use crate::store::{CostCorrection, CounterStore, StoreError, correct_charge};
use tollgate_core::rules::{Attempt, Attribute, Counting, Line, Plan};
use tollgate_core::{Charge, Cost, LeaseId, Limit};

/// A cost that was predicted, and the actual one.
#[derive(Clone, Copy, Debug)]
pub struct ActualUse<'a> {
    /// The attribute with the cost. Only rules whose cost came from it are corrected.
    pub attribute: &'a str,
    /// The actual value of the attribute.
    pub actual: u64,
    /// The ids of rules that did not charge the attempt: shadows that would have denied it, and rules that the store could
    /// not decide.
    pub uncharged_rules: &'a [Box<str>],
}

impl<S: CounterStore> RuleLimiter<S> {
    /// Checks an attempt as [`RuleLimiter::check`] does. The permit holds its slots of concurrency limits, if there are any,
    /// so the result has no lease. A caller that leaves before the reply holds none.
    pub async fn acquire(&self, attempt: &Attempt<'_>) -> (CheckResult<'_>, Option<Permit<S>>) {
        let mut plan = self.plan(attempt);
        let lease = plan_lease(&plan);
        let now = self.settle(&mut plan, lease.unwrap_or_default()).await;
        let permit = lease.and_then(|lease| self.permit(&plan, lease));
        (self.check_result(plan, None, now), permit)
    }

    /// The permit for the slots that a settled plan took. None if its attempt is denied.
    fn permit(&self, plan: &Plan<'_, S::Key>, lease: LeaseId) -> Option<Permit<S>> {
        if !plan.is_allowed() {
            return None;
        }
        let taken = plan.charges().filter(|planned| takes_lease(&planned.charge));
        let held = taken.filter(|planned| planned.decided().is_some_and(|outcome| outcome.decision.is_allow()));
        let slots = held.map(|planned| HeldSlot {
            key: planned.charge.key,
            limit: planned.charge.limit,
        });
        Permit::new(&self.store, lease, slots)
    }

    /// Corrects the charges of an admitted attempt once its actual cost is known: rules whose cost came from the attribute are
    /// refunded the difference, or charged it up to what remains. Others stay as they are.
    ///
    /// # Errors
    /// The store could not be reached. The charges of some rules may be corrected.
    pub async fn correct_cost(
        &self,
        attempt: &Attempt<'_>,
        actual_use: &ActualUse<'_>,
    ) -> Result<CostCorrection, StoreError> {
        let value = actual_use.actual.to_string();
        let others = attempt
            .attributes
            .iter()
            .filter(|entry| entry.name != actual_use.attribute);
        let mut attributes: Vec<Attribute<'_>> = others.copied().collect();
        attributes.push(Attribute {
            name: actual_use.attribute,
            value: value.as_bytes(),
        });
        let charged = self.plan(attempt);
        let actual = self.plan(&Attempt {
            attributes: &attributes,
            ..*attempt
        });
        let mut sum = CostCorrection::default();
        for line in &charged.lines {
            if let Some(charge) = correctable(line, attempt, actual_use)
                && let Some(cost) = actual.charges().find(|planned| planned.charge.key == charge.key)
            {
                let correction = correct_charge(&*self.store, charge, cost.charge.cost).await?;
                sum = sum.plus(correction);
            }
        }
        Ok(sum)
    }

    /// Reverses the charges of an admitted attempt that left while it was delayed. Its position in the queue of a shaping
    /// limit stays taken, as the delays that others were promised stand; leases are released by their permit.
    ///
    /// # Errors
    /// The store could not be reached. The charges of some rules may be reversed.
    pub async fn cancel_held(&self, attempt: &Attempt<'_>, uncharged_rules: &[Box<str>]) -> Result<(), StoreError> {
        let plan = self.plan(attempt);
        for line in &plan.lines {
            let Some(planned) = &line.charge else { continue };
            let charge = &planned.charge;
            let is_shaping = matches!(&charge.limit, Limit::LeakyBucket(bucket) if bucket.is_shaping());
            let is_counted = matches!(line.rule.counting(), Counting::Always { .. });
            let is_uncharged = uncharged_rules.iter().any(|id| **id == *line.rule.id());
            if !is_shaping && !is_counted && !is_uncharged && !takes_lease(charge) && charge.cost > Cost::ZERO {
                self.store.refund(charge).await?;
            }
        }
        Ok(())
    }
}

/// The charge of a line whose cost came from the attribute, and that was charged.
fn correctable<'p, K>(
    line: &'p Line<'_, K>,
    attempt: &Attempt<'_>,
    actual_use: &ActualUse<'_>,
) -> Option<&'p Charge<K>> {
    let charge = &line.charge.as_ref()?.charge;
    let is_counted = matches!(line.rule.counting(), Counting::Always { .. });
    let is_uncharged = actual_use.uncharged_rules.iter().any(|id| **id == *line.rule.id());
    let is_of_attribute = line.rule.cost_attribute(attempt) == Some(actual_use.attribute);
    (is_of_attribute && !takes_lease(charge) && !is_counted && !is_uncharged).then_some(charge)
}

impl RuleLimiter {
    /// Does the same as [`RuleLimiter::acquire`] without async: the memory store never waits.
    pub fn acquire_now(&self, attempt: &Attempt<'_>) -> (CheckResult<'_>, Option<Permit>) {
        poll_once(self.acquire(attempt))
    }
}
