//! What new keys meet when there is no room for them: never somebody else's eviction.

use super::super::{Outcome, Source};
use crate::fingerprint::Fingerprint;
use crate::sync::{Guard, Lock};
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::{Change, Charge, Cost, Decision, LeaseId, Limit, Mark, Now, Policy, Receipt, Retry, Standing};
use tollgate_core::{Micros, State, Step, Timestamp};

/// What a new key meets when the store is full. Keys that are there keep their counters in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// All new keys of a limit share one counter: coarse, and never more than the limit in all.
    #[default]
    Share,
    /// New keys are refused until there is room.
    Deny,
}

/// The shared counters, one for each limit.
#[derive(Debug)]
pub(crate) struct Spill {
    policy: Overflow,
    shared: Lock<Shared>,
    count: AtomicU64,
}

/// Counters by limit. Few: as many as there are different limits, and no more than [`MOST`].
#[derive(Debug, Default)]
pub(crate) struct Shared {
    deny: bool,
    counters: Vec<(Limit, Option<State>)>,
}

/// The most limits with a shared counter; of further ones new keys are refused.
const MOST: usize = 1_024;

impl Spill {
    pub(crate) fn new(policy: Overflow) -> Self {
        Self {
            policy,
            shared: Lock::default(),
            count: AtomicU64::new(0),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> Guard<'_, Shared> {
        let mut shared = self.shared.lock();
        shared.deny = self.policy == Overflow::Deny;
        shared
    }

    pub(crate) fn settle(&self, charge: &Charge<Fingerprint>, now: Now, lease: LeaseId) -> Outcome {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut shared = self.lock();
        let step = shared.decide(&charge.limit, charge.cost, now);
        let is_kept = step.decision.is_allow() || charge.policy == Policy::Count;
        if let Some(change) = if is_kept {
            step.next.or(step.repair)
        } else {
            step.repair
        } {
            shared.keep(&charge.limit, change, lease);
        }
        Outcome {
            decision: step.decision,
            receipt: Receipt {
                cost: charge.cost,
                mark: step.mark,
                lease,
            },
            source: Source::Overflow,
        }
    }
}

impl Shared {
    pub(crate) fn decide(&self, limit: &Limit, cost: Cost, now: Now) -> Step<Change> {
        let found = self.counters.iter().find(|(known, _)| known == limit);
        if self.deny || (found.is_none() && self.counters.len() >= MOST) {
            return refused(limit, now);
        }
        limit.decide(found.and_then(|(_, state)| state.as_ref()), cost, now)
    }

    pub(crate) fn keep(&mut self, limit: &Limit, change: Change, lease: LeaseId) {
        let index = self
            .counters
            .iter()
            .position(|(known, _)| known == limit)
            .unwrap_or_else(|| {
                self.counters.push((*limit, None));
                self.counters.len() - 1
            });
        if let Some((limit, state)) = self.counters.get_mut(index) {
            limit.keep(state, change, lease);
        }
    }
}

/// A refusal for want of room: when there will be some, nobody can say.
fn refused(limit: &Limit, now: Now) -> Step<Change> {
    let fresh = limit.decide(None, Cost::ZERO, now).decision;
    let standing = Standing {
        remaining: 0,
        reset_after: Micros::ZERO,
        ..*fresh.standing()
    };
    Step {
        decision: Decision::Deny {
            standing,
            retry: Retry::Unknown,
        },
        next: None,
        repair: None,
        fresh_at: Timestamp::EPOCH,
        mark: Mark::default(),
    }
}
