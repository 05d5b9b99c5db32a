//! Charges that the store counts as envoyproxy/ratelimit does, beside those that it settles.

use super::RuleLimiter;
use crate::store::{CounterStore, Hit, HitOp, Settlement, StoreError};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tollgate_core::rules::ratelimit::{CounterTarget, Descriptor};
use tollgate_core::rules::{Attempt, Plan};
use tollgate_core::{Charge, LeaseId};

/// A charge that is counted: its place among all, and how.
pub(super) type HitCharge = (usize, CounterTarget);

impl<S: CounterStore> RuleLimiter<S> {
    /// The charge of a plan that is to be counted, if there is one: an attempt meets one descriptor at most. `first` is the
    /// place of the plan's first charge.
    #[inline]
    pub(super) fn hit_charge(&self, attempt: &Attempt<'_>, plan: &Plan<'_, S::Key>, first: usize) -> Option<HitCharge> {
        if !self.store.counts_hits() {
            return None;
        }
        let mut limited = plan.lines.iter().filter(|line| line.window.is_some());
        let index = limited.position(|line| line.rule.descriptor().is_some_and(Descriptor::counts_denied))?;
        Some((first + index, self.rules.counter_target(attempt)?))
    }

    /// Settles charges, and counts those that are counted. Neither waits for the other: what is counted is so in any case.
    #[inline]
    pub(super) async fn settle(
        &self,
        charges: &[Charge<S::Key>],
        hit_charges: &[HitCharge],
        lease: LeaseId,
    ) -> Settlement {
        match hit_charges {
            [] => self.store.settle(charges, lease).await,
            // In a box: most stores never come here, and need not have room for it.
            _ => {
                Box::pin(
                    self.settle_with_hits(charges, hit_charges, HitOp::Increment, async |rest| {
                        self.store.settle(rest, lease).await
                    }),
                )
                .await
            }
        }
    }

    /// The same, but keeps nothing.
    pub(super) async fn peek(&self, charges: &[Charge<S::Key>], hit_charges: &[HitCharge]) -> Settlement {
        match hit_charges {
            [] => self.store.peek(charges).await,
            _ => {
                Box::pin(self.settle_with_hits(charges, hit_charges, HitOp::Get, async |rest| {
                    self.store.peek(rest).await
                }))
                .await
            }
        }
    }

    /// Does something with the charges that are not counted, and at the same time with those that are.
    async fn settle_with_hits(
        &self,
        charges: &[Charge<S::Key>],
        hit_charges: &[HitCharge],
        op: HitOp,
        settle_rest: impl AsyncFnOnce(&[Charge<S::Key>]) -> Settlement,
    ) -> Settlement {
        let (rest, hits) = split_hits(charges, hit_charges);
        let hitting = self.store.hit(&hits, op);
        if rest.is_empty() {
            return hitting.await;
        }
        let (settlement, hit) = both(settle_rest(&rest), hitting).await;
        merge(settlement, hit, hit_charges)
    }
}

/// How the charge at a place is counted, if it is.
pub(super) fn target_of(hit_charges: &[HitCharge], index: usize) -> Option<&CounterTarget> {
    hit_charges
        .iter()
        .find(|(charge_index, _)| *charge_index == index)
        .map(|(_, target)| target)
}

/// Those that are counted, with how they are.
pub(super) fn hits<'a, K>(charges: &'a [Charge<K>], hit_charges: &'a [HitCharge]) -> impl Iterator<Item = Hit<'a, K>> {
    hit_charges.iter().filter_map(|(index, counting_target)| {
        let charge = charges.get(*index)?;
        Some(Hit {
            charge,
            counting: counting_target,
        })
    })
}

/// Those that are settled, and those that are counted.
fn split_hits<'a, K: Copy>(
    charges: &'a [Charge<K>],
    hit_charges: &'a [HitCharge],
) -> (Vec<Charge<K>>, Vec<Hit<'a, K>>) {
    let indexed = charges.iter().enumerate();
    let rest = indexed.filter(|(index, _)| target_of(hit_charges, *index).is_none());
    (
        rest.map(|(_, charge)| *charge).collect(),
        hits(charges, hit_charges).collect(),
    )
}

/// One answer of two, with the outcomes in the order of the charges.
fn merge(settlement: Settlement, hit: Settlement, hit_charges: &[HitCharge]) -> Settlement {
    let total = settlement.outcomes.len() + hit.outcomes.len();
    let (mut rest, mut hits) = (settlement.outcomes.into_iter(), hit.outcomes.into_iter());
    let outcomes = (0..total).map(|index| {
        let next = match target_of(hit_charges, index) {
            Some(_) => hits.next(),
            None => rest.next(),
        };
        next.unwrap_or(Err(StoreError::InvalidReply))
    });
    Settlement {
        allowed: settlement.allowed && hit.allowed,
        now: settlement.now,
        outcomes: outcomes.collect(),
    }
}

/// Waits for both, at the same time.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(move |context| {
        if first.is_none()
            && let Poll::Ready(done) = one.as_mut().poll(context)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = other.as_mut().poll(context)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (done, other_done) => {
                (first, second) = (done, other_done);
                Poll::Pending
            }
        }
    })
    .await
}
