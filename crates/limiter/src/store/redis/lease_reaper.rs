//! The lease reaper: releases leases that were requested and whose reply never arrived, and those of permits.
//!
//! Otherwise their slots would be missing until the leases expire. Every request has a lease id of its own, so no other
//! lease is released.

use super::context::StoreContext;
use super::key::RedisKey;
use super::node::request::{NodeReply, NodeRequest, unmarked_receipt};
use super::script::call::ScriptOp;
use crate::store::StoreError;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Policy};

/// The attempts to release a lease, and the backoff between them.
const ATTEMPTS: usize = 60;
const BACKOFF: Duration = Duration::from_secs(1);

/// The most leases that are released at a time. Others expire.
const ORPHANS_MAX: usize = 4_096;

/// Sends requests to the servers that hold leases.
pub(crate) trait LeaseServers: Send + Sync + 'static {
    fn context(&self) -> &Arc<StoreContext>;

    fn send_one(&self, request: NodeRequest) -> impl Future<Output = Result<NodeReply, StoreError>> + Send;
}

/// The leases that a request asks for. If it is dropped without a [known](Self::resolve) reply, also because the caller
/// left, they are released.
pub(crate) struct PendingLease<'s, S: LeaseServers> {
    servers: &'s Arc<S>,
    charges: Vec<Charge<RedisKey>>,
    lease: LeaseId,
    /// The request does not start later than this after its caller has left.
    deadline: Duration,
}

impl<'s, S: LeaseServers> PendingLease<'s, S> {
    pub(crate) fn new(servers: &'s Arc<S>, charges: &[Charge<RedisKey>], lease: LeaseId, deadline: Duration) -> Self {
        // A peek takes no lease: the one it names may be held.
        let is_lease =
            |charge: &&Charge<RedisKey>| matches!(charge.limit, Limit::Concurrency(_)) && charge.cost > Cost::ZERO;
        Self {
            servers,
            charges: charges.iter().filter(is_lease).copied().collect(),
            lease,
            deadline,
        }
    }

    /// Records the result of the request. An error that leaves open whether the lease was granted changes nothing.
    pub(crate) fn resolve(&mut self, result: &Result<NodeReply, StoreError>) {
        let may_hold_lease = result.as_ref().is_err_and(|error| !error.is_definite());
        if !may_hold_lease {
            self.disarm();
        }
    }

    /// Leaves nothing to release.
    pub(crate) fn disarm(&mut self) {
        self.charges.clear();
    }
}

impl<S: LeaseServers> Drop for PendingLease<'_, S> {
    fn drop(&mut self) {
        if let Some(orphan) = OrphanedLease::new(self.servers, std::mem::take(&mut self.charges), self.lease) {
            self.servers.context().runtime.spawn(orphan.release(self.deadline));
        }
    }
}

/// Releases the lease of this charge in the background. The connection is kept until then, also if the caller drops the
/// store.
pub(crate) fn release_later<S: LeaseServers>(servers: &Arc<S>, charge: Charge<RedisKey>, lease: LeaseId) {
    if let Some(orphan) = OrphanedLease::new(servers, vec![charge], lease) {
        let servers = Arc::clone(servers);
        let runtime = servers.context().runtime.clone();
        runtime.spawn(async move {
            orphan.release(Duration::ZERO).await;
            drop(servers);
        });
    }
}

struct OrphanedLease<S: LeaseServers> {
    servers: Weak<S>,
    charges: Vec<Charge<RedisKey>>,
    lease: LeaseId,
}

impl<S: LeaseServers> OrphanedLease<S> {
    /// `None` if there is nothing to release, or if too many are being released: then the lease expires.
    fn new(servers: &Arc<S>, charges: Vec<Charge<RedisKey>>, lease: LeaseId) -> Option<Self> {
        let orphaned = &servers.context().orphaned_leases;
        if charges.is_empty() {
            return None;
        }
        if orphaned.fetch_add(1, Ordering::Relaxed) >= ORPHANS_MAX {
            orphaned.fetch_sub(1, Ordering::Relaxed);
            servers.context().metrics.unreleased_leases.add(1);
            return None;
        }
        Some(Self {
            servers: Arc::downgrade(servers),
            charges,
            lease,
        })
    }

    /// Releases the lease after the deadline: before it, the request could still start and take the lease again.
    async fn release(mut self, deadline: Duration) {
        sleep(deadline).await;
        for _ in 0..ATTEMPTS {
            let Some(servers) = self.servers.upgrade() else { return };
            let mut remaining = Vec::new();
            for charge in self.charges.drain(..) {
                let charge = Charge {
                    policy: Policy::Enforce,
                    ..charge
                };
                let receipt = unmarked_receipt(Cost::ZERO, self.lease);
                let request = NodeRequest::single(ScriptOp::Release, charge, receipt);
                if servers.send_one(request).await.is_err() {
                    remaining.push(charge);
                }
            }
            if remaining.is_empty() {
                return;
            }
            self.charges = remaining;
            drop(servers);
            sleep(BACKOFF).await;
        }
    }
}

impl<S: LeaseServers> Drop for OrphanedLease<S> {
    fn drop(&mut self) {
        if let Some(servers) = self.servers.upgrade() {
            servers.context().orphaned_leases.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
