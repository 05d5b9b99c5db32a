//! What is asked of servers, and what all of a store's servers know.

use super::breaker::Breaking;
use super::call::{Mode, Told};
use super::key::{Keys, RedisKey};
use super::line::Failure;
use super::near::Near;
use super::{Figures, Time};
use crate::clock::Clock;
use crate::store::{Settled, StoreError};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollgate_core::{Charge, Cost, LeaseId, Micros, Receipt, Timestamp};

/// One thing to do.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) mode: Mode,
    pub(super) manner: Manner,
    /// The charges of a request. In other modes there is one, and of a counter to clear only its key counts.
    pub(super) charges: Vec<Charge<RedisKey>>,
    /// Of a request only its lease.
    pub(super) receipt: Receipt,
}

/// How something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// In one call with others.
    Together,
    /// In a call of its own. While a slot is on its way to another server, neither has all keys that others ask for.
    Alone,
    /// The same, of a server that is only about to have the slot.
    Asking,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Reply {
    /// What the store told of each charge.
    Told(Timestamp, Vec<Told>),
    /// A refusal that needed no asking.
    Near(Settled),
}

/// What becomes of work.
pub(super) type Done = Result<Reply, Failure>;

/// When whoever asked gives up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// On our clock.
    pub(super) ours: Timestamp,
    /// For waiting.
    pub(super) until: Instant,
}

impl Deadline {
    /// As much earlier, so that somebody else can be asked in time.
    pub(super) fn earlier_by(self, time: Duration) -> Self {
        Self {
            ours: self.ours - Micros::from(time),
            until: self.until - time,
        }
    }
}

/// What all servers of a store have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) near: Option<Near>,
    pub(super) keys: Keys,
    pub(super) figures: Arc<Figures>,
    pub(super) runtime: Handle,
    pub(super) clock: Clock,
    pub(super) time: Time,
    pub(super) slack: Micros,
    pub(super) deadline: Duration,
    pub(super) breaking: Breaking,
    /// How many leases are being given back that were asked for and not answered.
    pub(super) orphans: AtomicUsize,
}

impl Work {
    /// Of one counter.
    pub(super) fn of_one(mode: Mode, charge: Charge<RedisKey>, receipt: Receipt) -> Self {
        Self {
            mode,
            manner: Manner::Together,
            charges: vec![charge],
            receipt,
        }
    }

    /// A request.
    pub(super) fn request(mode: Mode, charges: Vec<Charge<RedisKey>>, lease: LeaseId) -> Self {
        Self {
            mode,
            manner: Manner::Together,
            charges,
            receipt: receipt(Cost::ZERO, lease),
        }
    }

    /// Of what tag its keys are, which on a cluster is the same for all.
    pub(super) fn tag(&self) -> u16 {
        self.charges.first().map_or(0, |charge| charge.key.tag())
    }
}

/// The receipt of a charge that is told by its cost or its lease, not by where it stands.
pub(super) fn receipt(cost: Cost, lease: LeaseId) -> Receipt {
    Receipt {
        cost,
        mark: Default::default(),
        lease,
    }
}

impl Shared {
    /// When somebody who asks now gives up.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline {
            ours: self.clock.now() + Micros::from(self.deadline),
            until: Instant::now() + self.deadline,
        }
    }

    /// Counts an error that a request met.
    pub(super) fn count(&self, error: StoreError) {
        self.figures.count(error, self.clock.now());
    }

    /// Forgets what is known of a key: something was given back.
    pub(super) fn forget(&self, key: RedisKey) {
        if let Some(near) = &self.near {
            near.drop(key);
        }
    }
}
