//! Hits: charges counted as envoyproxy/ratelimit does, as a number in the key of one window, whatever is denied.

use super::{Settlement, Store, StoreError};
use std::future::Future;
use tollgate_core::rules::ratelimit::CounterTarget;
use tollgate_core::{Charge, Timestamp};

/// A store that can count hits in envoyproxy/ratelimit's own keys.
///
/// By default it cannot: such charges are then settled as any other.
pub trait CounterStore: Store {
    /// True if it counts hits. Charges that are counted so are then sent to [`CounterStore::hit`], and not settled.
    fn counts_hits(&self) -> bool {
        false
    }

    /// Counts the hits of one request. No outcome denies; each shows the count.
    fn hit(&self, hits: &[Hit<'_, Self::Key>], op: HitOp) -> impl Future<Output = Settlement> + Send {
        let failed = Settlement::failed(Timestamp::EPOCH, hits.len(), StoreError::Unavailable);
        let _ = op;
        async move { failed }
    }

    /// Clears the count of the current window. False if there was nothing to clear.
    fn forget_hits(&self, hit: &Hit<'_, Self::Key>) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = hit;
        async { Err(StoreError::Unavailable) }
    }

    /// Returns the key of a hit as text, for looking it up in the store.
    fn hit_key_text(&self, hit: &Hit<'_, Self::Key>) -> String {
        self.key_text(&hit.charge.key)
    }
}

/// A charge, and how it is counted.
#[derive(Debug)]
pub struct Hit<'a, K> {
    /// The charge: of a window, with the key it has where it is settled.
    pub charge: &'a Charge<K>,
    /// The name of its counter, and its allowance.
    pub counting: &'a CounterTarget,
}

impl<K> Clone for Hit<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Hit<'_, K> {}

/// The operation on the counters of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitOp {
    /// Adds the hits.
    Increment,
    /// Changes nothing, and shows the counts as if the hits were added.
    Get,
    /// Subtracts the hits, never below zero.
    Decrement,
}
