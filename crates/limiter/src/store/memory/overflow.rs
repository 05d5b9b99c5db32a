//! New keys at the memory cap: they share an overflow counter, and evict no other key.

use crate::fingerprint::Fingerprint;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tollgate_core::{Cost, Decision, Limit, Micros, Now, Retry, Standing};

/// The treatment of new keys at the cap. Existing keys keep their counters in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// All new keys of a limit share one counter, which allows no more than the limit in total.
    #[default]
    Share,
    /// New keys are denied until there is capacity.
    Deny,
}

/// The overflow counters: ordinary keys, for which there is always capacity.
#[derive(Debug)]
pub(crate) struct OverflowCounters {
    policy: Overflow,
    /// Overflow counters created over the cap. One that was swept since is created again without counting twice.
    created: Mutex<HashSet<Fingerprint>>,
    charges: AtomicU64,
}

/// The largest number of overflow counters created over the cap; new keys of further limits are denied.
const COUNTERS_MAX: usize = 1_024;

impl OverflowCounters {
    pub(crate) fn new(policy: Overflow) -> Self {
        Self {
            policy,
            created: Mutex::default(),
            charges: AtomicU64::new(0),
        }
    }

    /// Charges without capacity for their key.
    pub(crate) fn charges(&self) -> u64 {
        self.charges.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, charges: usize) {
        self.charges.fetch_add(charges as u64, Ordering::Relaxed);
    }

    /// True if new keys share a counter.
    pub(crate) fn is_shared(&self) -> bool {
        self.policy == Overflow::Share
    }

    /// True if this overflow counter may be created over the cap.
    pub(crate) fn may_create(&self, key: Fingerprint) -> bool {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.contains(&key) || (created.len() < COUNTERS_MAX && created.insert(key))
    }
}

/// A denial for want of capacity; when there will be some is unknown.
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
