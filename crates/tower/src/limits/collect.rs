//! The limits that apply to a request, with their keys.

use super::{SetInner, SetLimitKind};
use crate::extract::RequestKey;
use http::request::Parts;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use tollgate_limiter::core::Cost;
use tollgate_limiter::store::Store;

/// The input of the settlement of a request, independent of the request.
#[derive(Debug)]
pub(super) struct Collected {
    /// The limits with a charge, then those with a slot.
    pub(super) applied: Vec<AppliedLimit>,
    /// The number of limits with a charge.
    pub(super) charged: usize,
    /// The caller, as a keyed hash. None if it is not known.
    pub(super) caller: Option<u64>,
}

/// A limit that applies to a request.
#[derive(Clone, Debug)]
pub(super) struct AppliedLimit {
    /// Its index in the set.
    pub(super) index: usize,
    pub(super) key: RequestKey<'static>,
    pub(super) cost: Cost,
}

impl<S: Store> SetInner<S> {
    /// Finds the limits that apply. A limit whose key is missing does not, and is counted.
    pub(super) fn collect(&self, head: &Parts, peer: Option<IpAddr>) -> Collected {
        let mut applied = Vec::with_capacity(self.limits.len());
        let mut slots = Vec::new();
        for (index, limit) in self.limits.iter().enumerate() {
            let key = match &limit.key {
                None => RequestKey::from(Vec::new()),
                Some(extractor) => match extractor.key(head, peer) {
                    Some(key) => key.into_owned(),
                    None => {
                        limit.missing.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                },
            };
            // A cost of zero passes a limit that is used up, and often the caller writes what is predicted.
            let predicted = limit.cost.as_ref().map(|cost| cost_of(cost(head)));
            let cost = predicted.map_or(Cost::ONE, |cost| cost.max(Cost::ONE));
            match limit.kind {
                SetLimitKind::Charged(_) => applied.push(AppliedLimit { index, key, cost }),
                SetLimitKind::Held(_) => slots.push(AppliedLimit {
                    index,
                    key,
                    cost: Cost::ONE,
                }),
            }
        }
        let charged = applied.len();
        applied.append(&mut slots);
        Collected {
            applied,
            charged,
            caller: self.caller_hash(head, peer),
        }
    }

    fn caller_hash(&self, head: &Parts, peer: Option<IpAddr>) -> Option<u64> {
        match &self.caller {
            None => peer.map(|peer| self.queues.address_hash(peer)),
            Some(caller) => {
                let key = caller.key(head, peer)?;
                Some(self.queues.hash(key.as_bytes()))
            }
        }
    }
}

/// A cost, at most the largest there is.
pub(super) fn cost_of(units: u64) -> Cost {
    Cost::new(units).unwrap_or(Cost::MAX)
}
