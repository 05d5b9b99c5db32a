//! Several attempts, each decided on its own and in order: batches.
//!
//! Attempts that follow each other are settled in one call, which a shared store sends as one pipeline. The results are
//! those of checking one after the other at one instant, except for charges that are compensated.

use super::{CheckResult, RuleLimiter, plan_lease};
use crate::store::{CounterStore, SettleRequest};
use tollgate_core::rules::{Attempt, Plan};
use tollgate_core::{Charge, LeaseId};

/// A planned attempt that waits for its settlement.
struct PendingCheck<'r, K> {
    plan: Plan<'r, K>,
    charges: Vec<Charge<K>>,
    lease: Option<LeaseId>,
}

impl<S: CounterStore> RuleLimiter<S> {
    /// Checks attempts one after the other and returns their results in order.
    ///
    /// Charges of a denied attempt that are compensated because a rule is closed stay visible to the attempts after it in
    /// the same call.
    pub async fn check_each(&self, attempts: &[Attempt<'_>]) -> Vec<CheckResult<'_>> {
        let mut results = Vec::with_capacity(attempts.len());
        let mut pending: Vec<PendingCheck<'_, S::Key>> = Vec::new();
        for attempt in attempts {
            let plan = self.plan(attempt);
            if plan.is_banned() || self.hits(&plan).next().is_some() {
                // Its peek or its hits see the charges of the attempts before it.
                self.settle_pending(&mut pending, &mut results).await;
                results.push(self.check_plan(plan).await);
                continue;
            }
            pending.push(PendingCheck {
                charges: self.settled_charges(&plan),
                lease: plan_lease(&plan),
                plan,
            });
        }
        self.settle_pending(&mut pending, &mut results).await;
        results
    }

    /// Settles all pending checks in one call and appends their results.
    async fn settle_pending<'r>(
        &self,
        pending: &mut Vec<PendingCheck<'r, S::Key>>,
        results: &mut Vec<CheckResult<'r>>,
    ) {
        let requests: Vec<SettleRequest<'_, S::Key>> = pending
            .iter()
            .filter(|check| !check.charges.is_empty())
            .map(|check| SettleRequest {
                charges: &check.charges,
                lease: check.lease.unwrap_or_default(),
            })
            .collect();
        let settlements = match requests.is_empty() {
            true => Vec::new(),
            false => self.store.settle_each(&requests).await,
        };
        let mut settlements = settlements.into_iter();
        for mut check in pending.drain(..) {
            let settlement = match check.charges.is_empty() {
                true => None,
                false => settlements.next(),
            };
            let now = match settlement {
                Some(settlement) => {
                    let recorded = self.record_settlement(&mut check.plan, settlement);
                    Some(recorded.await)
                }
                None => None,
            };
            results.push(self.check_result(check.plan, check.lease, now));
        }
    }
}
