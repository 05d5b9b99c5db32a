//! Charges that are counted as envoyproxy/ratelimit does: a number in a key of one window, whatever is refused.

use super::{Outcome, Source};
use tollgate_core::rules::envoy::Counting;
use tollgate_core::{Charge, Decision, LeaseId, Micros, Receipt, Standing, Timestamp};

/// One charge, and how it is counted.
#[derive(Debug)]
pub struct Hit<'a, K> {
    /// The charge: of a window, with the key that it has where it is settled.
    pub charge: &'a Charge<K>,
    /// The name of its counter, and how much passes.
    pub counting: &'a Counting,
}

impl<K> Clone for Hit<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Hit<'_, K> {}

/// What is done with hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// They are counted.
    Add,
    /// Nothing: it is told what would be counted.
    Look,
    /// They are taken off, and nothing goes below zero.
    GiveBack,
}

impl<K> Hit<'_, K> {
    /// The length of its window in seconds.
    pub(crate) fn unit(&self) -> u64 {
        let period = self.charge.limit.window().unwrap_or(SECOND);
        (period.get() / SECOND.get()).max(1)
    }

    /// When the window began that `now` is in, in seconds since 1970.
    pub(crate) fn window_start(&self, now: Timestamp) -> u64 {
        let seconds = now.as_micros() / SECOND.get();
        seconds - seconds % self.unit()
    }

    /// What it comes to if so much is counted in its window.
    pub(crate) fn outcome(&self, used: u64, now: Timestamp, source: Source) -> Outcome {
        let limit = self.charge.limit.capacity();
        let end = Timestamp::EPOCH + Micros::from_secs(self.window_start(now) + self.unit());
        Outcome {
            decision: Decision::Allow {
                standing: Standing {
                    limit,
                    remaining: limit.saturating_sub(used),
                    reset_after: end.since(now),
                },
                delay: Micros::ZERO,
            },
            receipt: Receipt {
                cost: self.charge.cost,
                mark: Default::default(),
                lease: LeaseId::default(),
            },
            source,
        }
    }
}

const SECOND: Micros = Micros::from_secs(1);
