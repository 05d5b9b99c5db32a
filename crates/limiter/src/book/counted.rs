//! Charges that the store counts as envoyproxy/ratelimit does, beside those that it settles.

use super::RuleBook;
use crate::store::{HitOp, Hit, Settled, Store, StoreError};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use tollgate_core::rules::envoy::{CounterTarget, Descriptor};
use tollgate_core::rules::{Attempt, Plan};
use tollgate_core::{Charge, LeaseId};

/// A charge that is counted: its place among all, and how.
pub(super) type Counted = (usize, CounterTarget);

impl<S: Store> RuleBook<S> {
    /// The charge of a plan that is to be counted, if there is one: an attempt meets one descriptor at most. `first` is the
    /// place of the plan's first charge.
    #[inline]
    pub(super) fn counted(&self, attempt: &Attempt<'_>, plan: &Plan<'_, S::Key>, first: usize) -> Option<Counted> {
        if !self.store.takes_hits() {
            return None;
        }
        let mut limited = plan.lines.iter().filter(|line| line.window.is_some());
        let place = limited.position(|line| line.rule.descriptor().is_some_and(Descriptor::counts_denied))?;
        Some((first + place, self.rules.counter_target(attempt)?))
    }

    /// Settles charges, and counts those that are counted. Neither waits for the other: what is counted is so in any case.
    #[inline]
    pub(super) async fn settle(&self, charges: &[Charge<S::Key>], counted: &[Counted], lease: LeaseId) -> Settled {
        match counted {
            [] => self.store.settle(charges, lease).await,
            // In a box: most stores never come here, and need not have room for it.
            _ => {
                Box::pin(self.beside(charges, counted, HitOp::Increment, async |own| {
                    self.store.settle(own, lease).await
                }))
                .await
            }
        }
    }

    /// The same, but keeps nothing.
    pub(super) async fn peek(&self, charges: &[Charge<S::Key>], counted: &[Counted]) -> Settled {
        match counted {
            [] => self.store.peek(charges).await,
            _ => Box::pin(self.beside(charges, counted, HitOp::Get, async |own| self.store.peek(own).await)).await,
        }
    }

    /// Does something with the charges that are not counted, and at the same time with those that are.
    async fn beside(
        &self,
        charges: &[Charge<S::Key>],
        counted: &[Counted],
        act: HitOp,
        others: impl AsyncFnOnce(&[Charge<S::Key>]) -> Settled,
    ) -> Settled {
        let (own, hits) = apart(charges, counted);
        let hitting = self.store.hit(&hits, act);
        if own.is_empty() {
            return hitting.await;
        }
        let (settled, hit) = both(others(&own), hitting).await;
        joined(settled, hit, counted)
    }
}

/// How the charge at a place is counted, if it is.
pub(super) fn counting(counted: &[Counted], place: usize) -> Option<&CounterTarget> {
    counted
        .iter()
        .find(|(of, _)| *of == place)
        .map(|(_, counting)| counting)
}

/// Those that are counted, with how they are.
pub(super) fn hits<'a, K>(charges: &'a [Charge<K>], counted: &'a [Counted]) -> impl Iterator<Item = Hit<'a, K>> {
    counted.iter().filter_map(|(place, counting)| {
        let charge = charges.get(*place)?;
        Some(Hit { charge, counting })
    })
}

/// Those that are settled, and those that are counted.
fn apart<'a, K: Copy>(charges: &'a [Charge<K>], counted: &'a [Counted]) -> (Vec<Charge<K>>, Vec<Hit<'a, K>>) {
    let places = charges.iter().enumerate();
    let own = places.filter(|(place, _)| counting(counted, *place).is_none());
    (
        own.map(|(_, charge)| *charge).collect(),
        hits(charges, counted).collect(),
    )
}

/// One answer of two, with the outcomes in the order of the charges.
fn joined(settled: Settled, hit: Settled, counted: &[Counted]) -> Settled {
    let total = settled.outcomes.len() + hit.outcomes.len();
    let (mut own, mut hits) = (settled.outcomes.into_iter(), hit.outcomes.into_iter());
    let outcomes = (0..total).map(|place| {
        let next = match counting(counted, place) {
            Some(_) => hits.next(),
            None => own.next(),
        };
        next.unwrap_or(Err(StoreError::Nonsense))
    });
    Settled {
        passes: settled.passes && hit.passes,
        now: settled.now,
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
