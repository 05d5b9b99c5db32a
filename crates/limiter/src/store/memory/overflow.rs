//! What new keys meet when there is no room for them: never somebody else's eviction.

use crate::fingerprint::Fingerprint;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tollgate_core::{Cost, Decision, Limit, Micros, Now, Retry, Standing};

/// What a new key meets when the store is full. Keys that are there keep their counters in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// All new keys of a limit share one counter: coarse, and never more than the limit in all.
    #[default]
    Share,
    /// New keys are refused until there is room.
    Deny,
}

/// The shared counters: ordinary keys, for which there is always room.
#[derive(Debug)]
pub(crate) struct OverflowCounters {
    policy: Overflow,
    /// Shared counters that were begun past the cap. One that was swept since is begun again without counting anew.
    created: Mutex<HashSet<Fingerprint>>,
    charges: AtomicU64,
}

/// The most shared counters begun past the cap; of further limits new keys are refused.
const COUNTERS_MAX: usize = 1_024;

impl OverflowCounters {
    pub(crate) fn new(policy: Overflow) -> Self {
        Self {
            policy,
            created: Mutex::default(),
            charges: AtomicU64::new(0),
        }
    }

    /// Charges that found no room.
    pub(crate) fn charges(&self) -> u64 {
        self.charges.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, charges: usize) {
        self.charges.fetch_add(charges as u64, Ordering::Relaxed);
    }

    /// Whether new keys share a counter.
    pub(crate) fn is_shared(&self) -> bool {
        self.policy == Overflow::Share
    }

    /// Whether this shared counter may be begun although there is no room.
    pub(crate) fn may_create(&self, key: Fingerprint) -> bool {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.contains(&key) || (created.len() < COUNTERS_MAX && created.insert(key))
    }
}

/// A refusal for want of room: when there will be some, nobody can say.
pub(crate) fn denial(limit: &Limit, now: Now) -> Decision {
    let fresh = limit.decide(None, Cost::ZERO, now).decision;
    let standing = Standing {
        remaining: 0,
        reset_after: Micros::ZERO,
        ..*fresh.standing()
    };
    Decision::Deny {
        standing,
        retry: Retry::Unknown,
    }
}
