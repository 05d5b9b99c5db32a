//! Limits that callers bring along with every call, as `CL.THROTTLE` has it.

use crate::store::memory::Memory;
use crate::store::{Keyspace, Outcome, Source, Store, StoreError};
use std::sync::Arc;
use tollgate_core::algorithm::cell::Reply;
use tollgate_core::{Cell, Charge, Cost, Counter, LeaseId, Limit, OnStoreFailure, Policy};

/// Counters over a store whose limits are in the calls. They are apart from those of all rules.
pub struct ThrottleLimiter<S: Store = Memory> {
    store: Arc<S>,
    template: S::Template,
}

impl<S: Store> ThrottleLimiter<S> {
    /// Over a store: all of them over one store share their counters.
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

    /// What a call comes to.
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
    /// Why the store could not.
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

    /// Gives the cost of a call back, never above full.
    ///
    /// # Errors
    /// Why the store could not.
    pub async fn refund(&self, charge: &Charge<S::Key>) -> Result<Reply, StoreError> {
        let (decision, _) = self.store.refund(charge).await?;
        Ok(cell(charge).refund_reply(decision.standing()))
    }
}

impl ThrottleLimiter {
    /// Settles calls each on its own, and tells what came of them in order. Faster than one by one: the places of several
    /// keys are fetched from memory together.
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
        // By a part of the limit: its receipt is not one of the limit's. Where there is no room for a key, there may be none.
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
        f.debug_struct("Throttles").finish_non_exhaustive()
    }
}
