//! Leases that nobody knows of: asked for, and the answer never came. They are given back, or their slots would be missing
//! until they end by themselves. Every request has a lease of its own, so nobody else's is given back.

use crate::store::StoreError;
use crate::store::redis::key::RedisKey;
use crate::store::redis::node::request::{NodeReply, NodeRequest, receipt};
use crate::store::redis::script::call::ScriptOp;
use crate::store::redis::topology::Topology;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Policy};

/// How often giving back is tried, and the pause between two attempts.
const ATTEMPTS: usize = 60;
const BACKOFF: Duration = Duration::from_secs(1);

/// The most that are given back at a time. Others end by themselves.
const ORPHANS_MAX: usize = 4_096;

/// The leases that a request asks for. Unless an answer is [known](Asked::answered) when it is dropped, also because whoever
/// asked left, they are given back.
pub(crate) struct PendingLease<'n> {
    topology: &'n Arc<Topology>,
    charges: Vec<Charge<RedisKey>>,
    lease: LeaseId,
}

impl<'n> PendingLease<'n> {
    pub(crate) fn new(topology: &'n Arc<Topology>, charges: &[Charge<RedisKey>], lease: LeaseId) -> Self {
        let is_lease = |charge: &&Charge<RedisKey>| matches!(charge.limit, Limit::Concurrency(_));
        Self {
            topology,
            charges: charges.iter().filter(is_lease).copied().collect(),
            lease,
        }
    }

    /// What came of the request.
    pub(crate) fn resolve(&mut self, reply: &Result<NodeReply, StoreError>) {
        let may_hold_lease = reply.as_ref().is_err_and(|error| !error.is_definite());
        if !may_hold_lease {
            self.disarm();
        }
    }

    /// There is nothing to give back.
    pub(crate) fn disarm(&mut self) {
        self.charges.clear();
    }
}

impl Drop for PendingLease<'_> {
    fn drop(&mut self) {
        let context = self.topology.context();
        if self.charges.is_empty() || context.orphaned_leases.load(Ordering::Relaxed) >= ORPHANS_MAX {
            return;
        }
        context.orphaned_leases.fetch_add(1, Ordering::Relaxed);
        let orphan = OrphanedLease {
            topology: Arc::downgrade(self.topology),
            charges: std::mem::take(&mut self.charges),
            lease: self.lease,
        };
        context.runtime.spawn(orphan.release(context.deadline));
    }
}

struct OrphanedLease {
    topology: Weak<Topology>,
    charges: Vec<Charge<RedisKey>>,
    lease: LeaseId,
}

impl OrphanedLease {
    /// Gives back as soon as the request cannot begin any more: before, it could take what was just given back.
    async fn release(mut self, deadline: Duration) {
        sleep(deadline).await;
        for _ in 0..ATTEMPTS {
            let Some(topology) = self.topology.upgrade() else {
                return;
            };
            let mut remaining = Vec::new();
            for charge in self.charges.drain(..) {
                let charge = Charge {
                    policy: Policy::Enforce,
                    ..charge
                };
                let released = topology
                    .send_one(NodeRequest::single(
                        ScriptOp::Release,
                        charge,
                        receipt(Cost::ZERO, self.lease),
                    ))
                    .await;
                if released.is_err() {
                    remaining.push(charge);
                }
            }
            if remaining.is_empty() {
                return;
            }
            self.charges = remaining;
            drop(topology);
            sleep(BACKOFF).await;
        }
    }
}

impl Drop for OrphanedLease {
    fn drop(&mut self) {
        if let Some(topology) = self.topology.upgrade() {
            topology.context().orphaned_leases.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
