//! The settlement of a request, as an admission.

use super::collect::{AppliedLimit, Collected};
use super::open_charge::SetCharge;
use super::{SetInner, SetLimit, SetLimitKind};
use crate::admission::answer::{Answer, DenialAnswer, HEADERS};
use crate::admission::denial::DenialKind;
use crate::admission::{Admission, Grant, OpenCharge};
use crate::headers::{HeaderPolicy, QueueDenial};
use std::cmp::Reverse;
use std::num::NonZeroU64;
use std::sync::Arc;
use tollgate_limiter::core::rules::DenialReason;
use tollgate_limiter::core::{Cost, Decision, Limit, Micros, Outcome, Receipt, Retry, Source};
use tollgate_limiter::store::{Settlement, Store, StoreError};
use tollgate_limiter::{LimitCheck, SlotCheck};

impl<S: Store + 'static> SetInner<S> {
    /// Settles the limits that apply to a request.
    pub(super) async fn settle(self: Arc<Self>, collected: Collected) -> Admission {
        if collected.applied.is_empty() {
            return Admission::Admit(Grant::default());
        }
        let (settlement, permit) = {
            let (checks, slots) = self.checks(&collected);
            self.limiter.settle_with_slots(&checks, &slots).await
        };
        let answer = self.answer(&collected, &settlement);
        if !settlement.allowed {
            let denial = self.denial(&collected, &settlement);
            return Admission::Deny(Box::new(answer.deny(&self.settings, denial)));
        }
        for applied in &collected.applied {
            if let Some(limit) = self.limits.get(applied.index)
                && let Some(queue) = &limit.queue
            {
                self.queues.count_in(queue, limit.limit(), applied.cost);
            }
        }
        if let (Some(renewer), Some(permit)) = (&self.renewer, &permit) {
            renewer.keep(permit);
        }
        let headers = answer.headers(self.settings.dialects, HEADERS);
        let delay = delay(&settlement);
        let is_predicted = self.limits.iter().any(|limit| limit.cost.is_some());
        let charge = (is_predicted || delay > Micros::ZERO).then(|| {
            let receipts = settlement
                .outcomes
                .iter()
                .map(|outcome| kept_receipt(outcome.as_ref().ok()?));
            let kept = collected.applied.into_iter().zip(receipts).collect();
            let charge = SetCharge::new(Arc::clone(&self), kept, is_predicted);
            Box::new(charge) as Box<dyn OpenCharge>
        });
        let grant = Grant {
            headers,
            permit: permit.map(Into::into),
            charge,
        };
        match delay {
            Micros::ZERO => Admission::Admit(grant),
            delay => Admission::Delay(delay.into(), grant),
        }
    }

    fn checks<'a>(&'a self, collected: &'a Collected) -> (Vec<LimitCheck<'a, S>>, Vec<SlotCheck<'a, S>>) {
        let mut checks = Vec::with_capacity(collected.charged);
        let mut slots = Vec::new();
        for applied in &collected.applied {
            let subject = applied.key.as_bytes();
            match self.limits.get(applied.index).map(|limit| &limit.kind) {
                Some(SetLimitKind::Charged(limit)) => checks.push(LimitCheck {
                    limit,
                    subject,
                    cost: applied.cost,
                }),
                Some(SetLimitKind::Held(limit)) => slots.push(SlotCheck { limit, subject }),
                None => {}
            }
        }
        (checks, slots)
    }

    fn answer<'a>(&'a self, collected: &Collected, settlement: &Settlement) -> Answer<'a> {
        let each = collected.applied.iter().zip(&settlement.outcomes);
        let policy = |(applied, outcome): (&AppliedLimit, &Result<Outcome, StoreError>)| {
            let limit: &'a SetLimit<S> = self.limits.get(applied.index)?;
            let outcome = outcome.as_ref().ok()?;
            let next_unit_after = limit.limit().next_unit_after(outcome);
            Some(HeaderPolicy::new(
                limit.name(),
                Some(limit.limit()),
                &outcome.decision,
                next_unit_after,
            ))
        };
        let policies: Vec<HeaderPolicy<'a>> = each.filter_map(policy).collect();
        let nearest = match settlement.allowed {
            true => policies.iter().min_by_key(|policy| policy.standing.remaining),
            // The first of the longest.
            false => {
                let denied = policies.iter().filter(|policy| policy.retry.is_some());
                denied.min_by_key(|policy| Reverse(policy.retry))
            }
        };
        Answer {
            nearest: nearest.copied(),
            policies,
            cost: collected.applied.first().map_or(Cost::ONE, |applied| applied.cost),
            now: settlement.now,
        }
    }

    fn denial<'a>(&'a self, collected: &Collected, settlement: &Settlement) -> DenialAnswer<'a> {
        let denies = |outcome: &Result<Outcome, StoreError>| match outcome {
            Ok(outcome) => !outcome.decision.is_allow(),
            Err(_) => true,
        };
        let violated: Vec<_> = collected
            .applied
            .iter()
            .zip(&settlement.outcomes)
            .filter(|(_, outcome)| denies(outcome))
            .filter_map(|(applied, outcome)| Some((self.limits.get(applied.index)?, applied, outcome)))
            .collect();
        let decided = violated.iter().filter_map(|(limit, applied, outcome)| {
            let decision = outcome.as_ref().ok()?.decision;
            Some((*limit, *applied, decision, decision.retry()?))
        });
        // A limit without a known wait does not shorten that of another.
        let longest = decided.min_by_key(|(.., retry)| match retry {
            Retry::Never => (0, Reverse(Micros::ZERO)),
            Retry::After(wait) => (1, Reverse(*wait)),
            Retry::Unknown => (2, Reverse(Micros::ZERO)),
        });
        let policies = violated.iter().map(|(limit, ..)| limit.name().into()).collect();
        match longest {
            Some((limit, applied, decision, retry)) => DenialAnswer {
                reason: Some((
                    HeaderPolicy::new(limit.name(), Some(limit.limit()), &decision, None),
                    denial_reason(limit.limit(), retry),
                )),
                retry,
                extra: self.extra(limit, applied, &decision, collected.caller),
                kind: DenialKind::Limited,
                reserved: false,
                policies,
            },
            // The store could not decide, and nothing is allowed without a count.
            None => DenialAnswer {
                reason: None,
                retry: Retry::Unknown,
                extra: Micros::ZERO,
                kind: DenialKind::Reduced,
                reserved: false,
                policies,
            },
        }
    }

    /// The extra wait of a denied caller of a shared limit.
    fn extra(&self, limit: &SetLimit<S>, applied: &AppliedLimit, decision: &Decision, caller: Option<u64>) -> Micros {
        let settings = self.settings.retry_after;
        let (Some(queue), Some(caller)) = (limit.queue.as_ref().filter(|_| settings.spread), caller) else {
            return Micros::ZERO;
        };
        let instances = u64::from(self.limiter.store().instance_count());
        self.queues.extra_in(&QueueDenial {
            queue,
            limit: limit.limit(),
            retry: decision.retry(),
            cost: applied.cost,
            counter: self.queues.hash(limit.name()),
            caller,
            instances: NonZeroU64::new(instances).unwrap_or(NonZeroU64::MIN),
            extra_max: settings.spread_max,
        })
    }
}

/// The receipt of a charge of the store. None if this instance decided without it, and keeps no receipts for it.
const fn kept_receipt(outcome: &Outcome) -> Option<Receipt> {
    match outcome.source {
        Source::Memory | Source::Shared => Some(outcome.receipt),
        _ => None,
    }
}

/// The longest delay of the shaping limits.
fn delay(settlement: &Settlement) -> Micros {
    let delays = settlement.outcomes.iter().filter_map(|outcome| match outcome {
        Ok(Outcome {
            decision: Decision::Allow { delay, .. },
            ..
        }) => Some(*delay),
        _ => None,
    });
    delays.max().unwrap_or(Micros::ZERO)
}

/// The reason of a denial, as far as limits in code tell it.
const fn denial_reason(limit: &Limit, retry: Retry) -> DenialReason {
    match (limit, retry) {
        (Limit::Concurrency(_), _) => DenialReason::Limit,
        (_, Retry::Unknown) => DenialReason::NoMemory,
        _ => DenialReason::Limit,
    }
}
