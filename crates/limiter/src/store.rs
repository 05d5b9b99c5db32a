//! The store traits: a store keeps what the core decides, all charges of a request at one instant.

mod cost_correction;
mod error;
#[cfg(feature = "redis")]
pub mod fallback;
mod hits;
mod keyspace;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod status;

pub use self::cost_correction::CostCorrection;
pub(crate) use self::cost_correction::correct_charge;
pub use self::error::StoreError;
pub use self::hits::{CounterStore, Hit, HitOp};
pub use self::keyspace::{Key, Keyspace};
#[cfg(feature = "redis")]
pub use self::redis::RedisErrorCode;
pub use self::status::{
    BreakerState, BreakerStatus, CALL_BOUNDS_US, CALL_BUCKETS, CallMetrics, FallbackStatus, InstanceCount, LastError,
    RoundTripStatus, ServerStatus, StoreKind, StoreStatus,
};

use std::future::Future;
use tollgate_core::{Charge, Cost, Decision, LeaseId, Limit, Micros, Policy, Receipt, Timestamp};
pub use tollgate_core::{Outcome, Source, StoreMode};

/// Keeps counters, and owns the clock they run on.
///
/// Every call takes place at one instant of the store's clock. [`crate::conformance`] tests an implementation.
pub trait Store: Keyspace + Send + Sync {
    /// The source of its decisions.
    const SOURCE: Source = Source::Memory;

    /// True if every call returns at once: its futures are ready when they are first polled.
    const IS_IMMEDIATE: bool = false;

    /// Settles one charge at once, without memory for a settlement. None if this store may have to wait.
    #[inline]
    fn settle_now(&self, charge: &Charge<Self::Key>) -> Option<Decision> {
        let _ = charge;
        None
    }

    /// True if every node these charges need is known to be down, so the round trip can be skipped.
    fn is_unavailable(&self, charges: &[Charge<Self::Key>]) -> bool {
        let _ = charges;
        false
    }

    /// Settles the charges of one request: keeps all of them or none, as their policies say. `lease` names the slots it
    /// takes of concurrency limits.
    fn settle(&self, charges: &[Charge<Self::Key>], lease: LeaseId) -> impl Future<Output = Settlement> + Send;

    /// Settles several requests, each on its own and in order, as if one were settled after the other. A shared store sends
    /// them as one pipeline instead of one round trip each.
    ///
    /// Returns one settlement per request, in order.
    fn settle_each(&self, requests: &[SettleRequest<'_, Self::Key>]) -> impl Future<Output = Vec<Settlement>> + Send {
        async move {
            let mut settlements = Vec::with_capacity(requests.len());
            for request in requests {
                settlements.push(self.settle(request.charges, request.lease).await);
            }
            settlements
        }
    }

    /// Decides as [`Store::settle`] does, and keeps nothing.
    fn peek(&self, charges: &[Charge<Self::Key>]) -> impl Future<Output = Settlement> + Send;

    /// Reverses one kept charge.
    fn undo(
        &self,
        key: Self::Key,
        limit: &Limit,
        receipt: &Receipt,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reverses the kept charges of a request that does not pass although none of them denies it: others could not be
    /// decided. Their outcomes then show the standing after the reversal.
    fn compensate(
        &self,
        charges: &[Charge<Self::Key>],
        settlement: &mut Settlement,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let kept: Vec<usize> = settlement.kept_charges(charges).collect();
            for &index in kept.iter().rev() {
                if let (Some(charge), Some(Ok(outcome))) = (charges.get(index), settlement.outcomes.get(index))
                    && charge.cost > Cost::ZERO
                {
                    // A failed undo costs its key the units until they refill.
                    let _ = self.undo(charge.key, &charge.limit, &outcome.receipt).await;
                }
            }
            for index in kept {
                let Some(charge) = charges.get(index) else { continue };
                let peeked = self.peek(&[charge.as_peek()]).await;
                if let Some(Ok(peeked)) = peeked.outcomes.first() {
                    settlement.update_standing(index, peeked.decision);
                }
            }
        }
    }

    /// Returns the cost of a charge to its key, never above the capacity. Yields the standing after it, and its source.
    fn refund(&self, charge: &Charge<Self::Key>)
    -> impl Future<Output = Result<(Decision, Source), StoreError>> + Send;

    /// Releases a lease. False if it is not held any more.
    fn release(
        &self,
        key: Self::Key,
        limit: &Limit,
        lease: LeaseId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Releases a lease without waiting for the reply, for a caller that cannot wait: one that drops a value. A shared
    /// store releases it in the background.
    fn release_later(&self, key: Self::Key, limit: &Limit, lease: LeaseId);

    /// Renews a lease for a whole term from now, and yields that term. `None` if it is not held any more.
    fn renew(
        &self,
        key: Self::Key,
        limit: &Limit,
        lease: LeaseId,
    ) -> impl Future<Output = Result<Option<Micros>, StoreError>> + Send;

    /// Clears a counter. False if there was nothing to clear.
    fn forget(&self, key: Self::Key, limit: &Limit) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns the number of instances that share the limits, as far as the store knows.
    fn instance_count(&self) -> u32 {
        1
    }

    /// Returns its health and counts, for metrics, `/readyz` and the log.
    fn status(&self) -> StoreStatus;
}

/// A store that many instances share, so that its replies take time: the methods of a limiter over it are async.
#[cfg(feature = "redis")]
pub trait SharedStore: CounterStore {
    /// The runtime it was opened on, which drives its connections.
    fn runtime(&self) -> &tokio::runtime::Handle;
}

/// The charges of one of several requests that are settled in one call.
#[derive(Clone, Copy, Debug)]
pub struct SettleRequest<'a, K> {
    /// The charges: all kept, or none, as their policies say.
    pub charges: &'a [Charge<K>],
    /// The lease it takes of concurrency limits.
    pub lease: LeaseId,
}

/// The result of settling the charges of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// True if the request passes.
    pub allowed: bool,
    /// The instant of the settlement, on the store's clock.
    pub now: Timestamp,
    /// The outcome of each charge, in order. A store of several nodes may lack some of them; unless a charge denies the
    /// request, the others are kept all the same.
    pub outcomes: Vec<Result<Outcome, StoreError>>,
}

impl Settlement {
    /// A settlement in which every charge met this error. It keeps nothing, and `now` is the caller's own time.
    pub(crate) fn failed(now: Timestamp, charges: usize, error: StoreError) -> Self {
        Self {
            allowed: false,
            now,
            outcomes: vec![Err(error); charges],
        }
    }

    /// True if a charge denies the request. Otherwise the charges that could be decided were kept.
    pub fn is_denied<K>(&self, charges: &[Charge<K>]) -> bool {
        let denies = |(charge, outcome): (&Charge<K>, &Result<Outcome, StoreError>)| {
            charge.policy != Policy::Shadow && outcome.is_ok_and(|outcome| !outcome.decision.is_allow())
        };
        charges.iter().zip(&self.outcomes).any(denies)
    }

    /// The indexes of the charges that were kept because the request passes as far as it could be decided. Charges that
    /// are kept in any case are not among them.
    fn kept_charges<K>(&self, charges: &[Charge<K>]) -> impl Iterator<Item = usize> {
        let is_kept = |(charge, outcome): (&Charge<K>, &Result<Outcome, StoreError>)| {
            charge.policy != Policy::Count && outcome.is_ok_and(|outcome| outcome.decision.is_allow())
        };
        let each = charges.iter().zip(&self.outcomes).map(is_kept).enumerate();
        each.filter(|(_, is_kept)| *is_kept).map(|(index, _)| index)
    }

    /// Replaces the standing of an allowed charge by that of `decision`.
    fn update_standing(&mut self, index: usize, decision: Decision) {
        if let Some(Ok(outcome)) = self.outcomes.get_mut(index)
            && let Decision::Allow { standing, .. } = &mut outcome.decision
        {
            *standing = *decision.standing();
        }
    }
}
