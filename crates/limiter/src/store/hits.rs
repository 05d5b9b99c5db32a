//! Charges that are counted as envoyproxy/ratelimit does: a number in a key of one window, whatever is refused.

use tollgate_core::Charge;
use tollgate_core::rules::ratelimit::CounterTarget;

/// One charge, and how it is counted.
#[derive(Debug)]
pub struct Hit<'a, K> {
    /// The charge: of a window, with the key that it has where it is settled.
    pub charge: &'a Charge<K>,
    /// The name of its counter, and how much passes.
    pub counting: &'a CounterTarget,
}

impl<K> Clone for Hit<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Hit<'_, K> {}

/// What is done with hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitOp {
    /// They are counted.
    Increment,
    /// Nothing: it is told what would be counted.
    Get,
    /// They are taken off, and nothing goes below zero.
    Decrement,
}
