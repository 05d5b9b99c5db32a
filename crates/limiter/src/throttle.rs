//! Calls that carry their limit, as `CL.THROTTLE` has it.

use crate::store::memory::Memory;
use crate::store::{Keyspace, Outcome, Source, Store, StoreError};
use std::sync::Arc;
use tollgate_core::algorithm::cell::Reply;
use tollgate_core::{Cell, Charge, Cost, Counter, LeaseId, Limit, OnStoreFailure, Policy};

/// A limiter for calls that carry their limit. Its counters are distinct from those of all rules.
pub struct ThrottleLimiter<S: Store = Memory> {
    store: Arc<S>,
    template: S::Template,
}

impl<S: Store> ThrottleLimiter<S> {
    /// A limiter over this store. All limiters of one store share their counters.
    pub fn new(store: Arc<S>) -> Self {
        let any = Cell::new(0, 1, 1).expect("one in a second can be made");
        let counter = Counter {
            domain: "CL.THROTTLE",
            // No rule's id is empty, and no rule is a cell.
            rule: "",
            variant: "",
            limit: &Limit::Cell(any),
            per: &[],
        };
        let template = store.template(&counter);
        Self { store, template }
    }

    /// The charge of a call.
    #[inline]
    pub fn charge(&self, key: &[u8], cell: Cell, cost: Cost) -> Charge<S::Key> {
        Charge {
            key: self.store.key(&self.template, &[key]),
            limit: Limit::Cell(cell),
            cost,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        }
    }

    /// Settles one call.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn settle(&self, charge: &Charge<S::Key>) -> Result<(Reply, Source), StoreError> {
        let settlement = self
            .store
            .settle(std::slice::from_ref(charge), LeaseId::default())
            .await;
        let outcome = settlement
            .outcomes
            .into_iter()
            .next()
            .unwrap_or(Err(StoreError::InvalidReply));
        outcome.map(|outcome| throttle_reply(charge, &outcome))
    }

    /// Refunds the cost of a call, never above the capacity.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn refund(&self, charge: &Charge<S::Key>) -> Result<Reply, StoreError> {
        let (decision, _) = self.store.refund(charge).await?;
        if cell(charge).is_exact(decision.standing()) {
            return Ok(cell(charge).refund_reply(decision.standing()));
        }
        // More seconds than a decision can tell: a peek gives them all.
        let peek = Charge {
            cost: Cost::ZERO,
            ..*charge
        };
        Ok(self.settle(&peek).await?.0)
    }
}

impl ThrottleLimiter {
    /// Settles calls independently, and reports the replies in order. Faster than single calls: the slots of several keys
    /// are prefetched at once.
    pub fn settle_each(
        &self,
        charges: &[Charge<<Memory as Keyspace>::Key>],
        mut on_reply: impl FnMut(&Charge<<Memory as Keyspace>::Key>, Reply, Source),
    ) {
        let mut each = charges.iter();
        self.store.settle_independent(charges, |outcome| {
            if let Some(charge) = each.next() {
                let (reply, source) = throttle_reply(charge, &outcome);
                on_reply(charge, reply, source);
            }
        });
    }
}

#[inline]
fn throttle_reply<K>(charge: &Charge<K>, outcome: &Outcome) -> (Reply, Source) {
    let reply = match outcome.source {
        // Decided by a share of the limit, or by an overflow counter: the receipt's mark is not one of this limit.
        Source::Local | Source::Open | Source::Overflow => Cell::reply_from_decision(&outcome.decision),
        _ => cell(charge).reply(&outcome.decision, &outcome.receipt.mark, charge.cost),
    };
    (reply, outcome.source)
}

#[inline]
fn cell<K>(charge: &Charge<K>) -> &Cell {
    match &charge.limit {
        Limit::Cell(cell) => cell,
        _ => unreachable!("a call is held against a cell"),
    }
}

impl<S: Store> std::fmt::Debug for ThrottleLimiter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThrottleLimiter").finish_non_exhaustive()
    }
}
