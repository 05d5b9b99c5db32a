//! The servers of a store: one, or those of a cluster.

pub(crate) mod cluster;
mod cluster_nodes;
mod cross_slot;
pub(crate) mod replicas;
pub(crate) mod sentinel;
pub(crate) mod slots;

use crate::store::BreakerState;
use crate::store::StoreError;
use crate::store::redis::key::RedisKey;
use crate::store::redis::node::Node;
use crate::store::redis::node::request::{Deadline, NodeReply, NodeRequest, StoreContext};
use crate::store::redis::topology::cluster::Cluster;
use std::sync::Arc;
use tollgate_core::{Charge, Timestamp};

/// The servers of a store.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One that has all keys.
    One(Arc<Node>),
    /// Several, each with some of the slots.
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(crate) fn context(&self) -> &Arc<StoreContext> {
        match self {
            Self::One(node) => &node.context,
            Self::Cluster(cluster) => cluster.context(),
        }
    }

    /// Does one thing within the usual time.
    pub(crate) async fn send_one(&self, request: NodeRequest) -> Result<NodeReply, StoreError> {
        let deadline = self.context().deadline();
        let mut results = self.send(vec![request], deadline).await;
        results.pop().unwrap_or(Err(StoreError::InvalidReply))
    }

    /// Does works of one mode, each where its keys are.
    pub(crate) async fn send(
        &self,
        requests: Vec<NodeRequest>,
        deadline: Deadline,
    ) -> Vec<Result<NodeReply, StoreError>> {
        match self {
            Self::One(node) => {
                let results = node.read(requests, deadline).await.into_iter();
                results
                    .map(|result| {
                        result.map_err(|failure| {
                            node.context.count_error(failure.error);
                            failure.error
                        })
                    })
                    .collect()
            }
            Self::Cluster(cluster) => cluster.send(&requests, deadline).await,
        }
    }

    /// Whether charges may lie on several servers.
    pub(crate) fn is_cross_slot(&self, charges: &[Charge<RedisKey>]) -> bool {
        let tags = || charges.iter().map(|charge| charge.key.tag());
        matches!(self, Self::Cluster(_)) && tags().zip(tags().skip(1)).any(|(one, next)| one != next)
    }

    /// Whether all servers that these charges need are left alone just now.
    pub(crate) fn is_unavailable(&self, charges: &[Charge<RedisKey>], now: Timestamp) -> bool {
        match self {
            Self::One(node) => node.breaker.is_open(now),
            Self::Cluster(cluster) => cluster.is_unavailable(charges.iter().map(|charge| charge.key.tag()), now),
        }
    }

    /// The breaker that lets least through, and how often any has opened or closed, those of servers that have left a
    /// cluster included: it is a number that only grows.
    pub(crate) fn breaker(&self) -> (BreakerState, u64) {
        let breaker_status = |node: &Node| (node.breaker.state(), node.breaker.changes());
        match self {
            Self::One(node) => breaker_status(node),
            Self::Cluster(cluster) => cluster.nodes().iter().map(|(_, node)| breaker_status(node)).fold(
                (BreakerState::Closed, cluster.retired_transitions()),
                |(worst, sum), (state, changes)| (worst.max(state), sum + changes),
            ),
        }
    }

    /// Why one of them cannot be reached, if one cannot.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::One(node) => node.error(),
            Self::Cluster(cluster) => cluster.error(),
        }
    }
}
