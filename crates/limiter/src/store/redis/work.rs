//! What is asked of servers, and what all of a store's servers know.

use super::breaker::BreakerConfig;
use super::call::{ChargeReply, ScriptOp};
use super::key::{RedisKey, RedisKeyspace};
use super::line::Failure;
use super::near::NearCache;
use super::{ClockSource, RedisMetrics};
use crate::clock::Clock;
use crate::store::{Settlement, StoreError};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollgate_core::{Charge, Cost, LeaseId, Micros, Receipt, Timestamp};

/// One thing to do.
#[derive(Clone, Debug)]
pub(super) struct NodeRequest {
    pub(super) op: ScriptOp,
    pub(super) routing: Routing,
    /// The charges of a request. In other modes there is one, and of a counter to clear only its key counts.
    pub(super) charges: Vec<Charge<RedisKey>>,
    /// Of a request only its lease.
    pub(super) receipt: Receipt,
}

/// How something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routing {
    /// In one call with others.
    Batched,
    /// In a call of its own. While a slot is on its way to another server, neither has all keys that others ask for.
    Solo,
    /// The same, of a server that is only about to have the slot.
    Asking,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum NodeReply {
    /// What the store told of each charge.
    Script(Timestamp, Vec<ChargeReply>),
    /// A refusal that needed no asking.
    NearCache(Settlement),
}

/// What becomes of work.
pub(super) type NodeResult = Result<NodeReply, Failure>;

/// When whoever asked gives up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// On our clock.
    pub(super) local: Timestamp,
    /// For waiting.
    pub(super) instant: Instant,
}

impl Deadline {
    /// As much earlier, so that somebody else can be asked in time.
    pub(super) fn earlier_by(self, duration: Duration) -> Self {
        Self {
            local: self.local - Micros::from(duration),
            instant: self.instant - duration,
        }
    }
}

/// What all servers of a store have in common.
#[derive(Debug)]
pub(super) struct StoreContext {
    pub(super) near_cache: Option<NearCache>,
    pub(super) keyspace: RedisKeyspace,
    pub(super) metrics: Arc<RedisMetrics>,
    pub(super) runtime: Handle,
    pub(super) clock: Clock,
    pub(super) clock_source: ClockSource,
    pub(super) slack: Micros,
    pub(super) deadline: Duration,
    pub(super) breaker_config: BreakerConfig,
    /// How many leases are being given back that were asked for and not answered.
    pub(super) orphaned_leases: AtomicUsize,
}

impl NodeRequest {
    /// Of one counter.
    pub(super) fn single(op: ScriptOp, charge: Charge<RedisKey>, receipt: Receipt) -> Self {
        Self {
            op,
            routing: Routing::Batched,
            charges: vec![charge],
            receipt,
        }
    }

    /// A request.
    pub(super) fn new(op: ScriptOp, charges: Vec<Charge<RedisKey>>, lease: LeaseId) -> Self {
        Self {
            op,
            routing: Routing::Batched,
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

impl StoreContext {
    /// When somebody who asks now gives up.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline {
            local: self.clock.now() + Micros::from(self.deadline),
            instant: Instant::now() + self.deadline,
        }
    }

    /// Counts an error that a request met.
    pub(super) fn count_error(&self, error: StoreError) {
        self.metrics.count(error, self.clock.now());
    }

    /// Forgets what is known of a key: something was given back.
    pub(super) fn invalidate(&self, key: RedisKey) {
        if let Some(near_cache) = &self.near_cache {
            near_cache.drop(key);
        }
    }
}
