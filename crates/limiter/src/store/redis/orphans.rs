//! Leases that nobody knows of: asked for, and the answer never came. They are given back, or their slots would be missing
//! until they end by themselves. Every request has a lease of its own, so nobody else's is given back.

use super::call::Mode;
use super::key::RedisKey;
use super::nodes::Nodes;
use super::work::{Reply, Work, receipt};
use crate::store::StoreError;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Policy};

/// How often giving back is tried, and the pause between two attempts.
const ATTEMPTS: usize = 60;
const PAUSE: Duration = Duration::from_secs(1);

/// The most that are given back at a time. Others end by themselves.
const MOST: usize = 4_096;

/// The leases that a request asks for. Unless an answer is [known](Asked::answered) when it is dropped, also because whoever
/// asked left, they are given back.
pub(super) struct Asked<'n> {
    nodes: &'n Arc<Nodes>,
    charges: Vec<Charge<RedisKey>>,
    lease: LeaseId,
}

impl<'n> Asked<'n> {
    pub(super) fn new(nodes: &'n Arc<Nodes>, charges: &[Charge<RedisKey>], lease: LeaseId) -> Self {
        let leased = |charge: &&Charge<RedisKey>| matches!(charge.limit, Limit::Concurrency(_));
        Self {
            nodes,
            charges: charges.iter().filter(leased).copied().collect(),
            lease,
        }
    }

    /// What came of the request.
    pub(super) fn answered(&mut self, reply: &Result<Reply, StoreError>) {
        let may_be_held = reply.as_ref().is_err_and(|error| !error.is_certain());
        if !may_be_held {
            self.forget();
        }
    }

    /// There is nothing to give back.
    pub(super) fn forget(&mut self) {
        self.charges.clear();
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let shared = self.nodes.shared();
        if self.charges.is_empty() || shared.orphans.load(Ordering::Relaxed) >= MOST {
            return;
        }
        shared.orphans.fetch_add(1, Ordering::Relaxed);
        let orphan = Orphan {
            nodes: Arc::downgrade(self.nodes),
            charges: std::mem::take(&mut self.charges),
            lease: self.lease,
        };
        shared.runtime.spawn(orphan.give_back(shared.deadline));
    }
}

struct Orphan {
    nodes: Weak<Nodes>,
    charges: Vec<Charge<RedisKey>>,
    lease: LeaseId,
}

impl Orphan {
    /// Gives back as soon as the request cannot begin any more: before, it could take what was just given back.
    async fn give_back(mut self, deadline: Duration) {
        sleep(deadline).await;
        for _ in 0..ATTEMPTS {
            let Some(nodes) = self.nodes.upgrade() else { return };
            let mut left = Vec::new();
            for charge in self.charges.drain(..) {
                let charge = Charge {
                    policy: Policy::Enforce,
                    ..charge
                };
                let released = nodes
                    .ask_one(Work::of_one(Mode::Release, charge, receipt(Cost::ZERO, self.lease)))
                    .await;
                if released.is_err() {
                    left.push(charge);
                }
            }
            if left.is_empty() {
                return;
            }
            self.charges = left;
            drop(nodes);
            sleep(PAUSE).await;
        }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(nodes) = self.nodes.upgrade() {
            nodes.shared().orphans.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
