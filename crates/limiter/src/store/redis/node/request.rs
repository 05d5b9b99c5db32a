//! What is asked of servers, and what all of a store's servers know.

use crate::clock::Clock;
use crate::store::redis::connection::Failure;
use crate::store::redis::key::{RedisKey, RedisKeyspace};
use crate::store::redis::near_cache::NearCache;
use crate::store::redis::node::breaker::BreakerConfig;
use crate::store::redis::script::call::{ChargeReply, ScriptOp};
use crate::store::redis::{ClockSource, RedisMetrics};
use crate::store::{Settlement, StoreError};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tollgate_core::{Charge, Cost, LeaseId, Micros, Receipt, Timestamp};

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) struct NodeRequest {
    pub(crate) op: ScriptOp,
    pub(crate) routing: Routing,
    /// The charges of a request. In other modes there is one, and of a counter to clear only its key counts.
    pub(crate) charges: Vec<Charge<RedisKey>>,
    /// Of a request only its lease.
    pub(crate) receipt: Receipt,
}

/// How something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// In one call with others.
    Batched,
    /// In a call of its own. While a slot is on its way to another server, neither has all keys that others ask for.
    Solo,
    /// The same, of a server that is only about to have the slot.
    Asking,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum NodeReply {
    /// What the store told of each charge.
    Script(Timestamp, Vec<ChargeReply>),
    /// A refusal that needed no asking.
    NearCache(Settlement),
}

/// What becomes of work.
pub(crate) type NodeResult = Result<NodeReply, Failure>;

/// When whoever asked gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// On our clock.
    pub(crate) local: Timestamp,
    /// For waiting.
    pub(crate) instant: Instant,
}

impl Deadline {
    /// As much earlier, so that somebody else can be asked in time.
    pub(crate) fn earlier_by(self, duration: Duration) -> Self {
        Self {
            local: self.local - Micros::from(duration),
            instant: self.instant - duration,
        }
    }
}

/// What all servers of a store have in common.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) near_cache: Option<NearCache>,
    pub(crate) keyspace: RedisKeyspace,
    pub(crate) metrics: Arc<RedisMetrics>,
    pub(crate) runtime: Handle,
    pub(crate) clock: Clock,
    pub(crate) clock_source: ClockSource,
    pub(crate) slack: Micros,
    pub(crate) deadline: Duration,
    pub(crate) breaker_config: BreakerConfig,
    /// How many leases are being given back that were asked for and not answered.
    pub(crate) orphaned_leases: AtomicUsize,
}

impl NodeRequest {
    /// Of one counter.
    pub(crate) fn single(op: ScriptOp, charge: Charge<RedisKey>, receipt: Receipt) -> Self {
        Self {
            op,
            routing: Routing::Batched,
            charges: vec![charge],
            receipt,
        }
    }

    /// A request.
    pub(crate) fn new(op: ScriptOp, charges: Vec<Charge<RedisKey>>, lease: LeaseId) -> Self {
        Self {
            op,
            routing: Routing::Batched,
            charges,
            receipt: receipt(Cost::ZERO, lease),
        }
    }

    /// Of what tag its keys are, which on a cluster is the same for all.
    pub(crate) fn tag(&self) -> u16 {
        self.charges.first().map_or(0, |charge| charge.key.tag())
    }
}

/// The receipt of a charge that is told by its cost or its lease, not by where it stands.
pub(crate) fn receipt(cost: Cost, lease: LeaseId) -> Receipt {
    Receipt {
        cost,
        mark: Default::default(),
        lease,
    }
}

impl StoreContext {
    /// When somebody who asks now gives up.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline {
            local: self.clock.now() + Micros::from(self.deadline),
            instant: Instant::now() + self.deadline,
        }
    }

    /// Counts an error that a request met.
    pub(crate) fn count_error(&self, error: StoreError) {
        self.metrics.count(error, self.clock.now());
    }

    /// Forgets what is known of a key: something was given back.
    pub(crate) fn invalidate(&self, key: RedisKey) {
        if let Some(near_cache) = &self.near_cache {
            near_cache.drop(key);
        }
    }
}
