//! The servers of a store: one, or those of a cluster.

pub(crate) mod cluster;
mod cluster_nodes;
mod cross_slot;
mod pipeline;
pub(crate) mod replicas;
pub(crate) mod sentinel;
pub(crate) mod slots;

use self::cluster::Cluster;
use self::sentinel::Sentinels;
use super::context::{Deadline, StoreContext};
use super::key::RedisKey;
use super::lease_reaper::LeaseServers;
use super::node::Node;
use super::node::replica_set::ReplicaSet;
use super::node::request::{NodeReply, NodeRequest, NodeResult};
use crate::store::{BreakerState, RoundTripStatus, ServerStatus, StoreError};
use std::sync::Arc;
use tollgate_core::{Charge, Timestamp};

/// The servers of a store.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server with all keys, and the sentinels that name it, if there are any.
    Single(Arc<Node>, Option<Arc<Sentinels>>),
    /// Several servers, each with some of the slots.
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(crate) fn context(&self) -> &Arc<StoreContext> {
        match self {
            Self::Single(node, _) => node.context(),
            Self::Cluster(cluster) => cluster.context(),
        }
    }

    /// Sends one request, with the deadline of one call.
    pub(crate) async fn send_one(&self, request: NodeRequest) -> Result<NodeReply, StoreError> {
        let deadline = self.context().deadline();
        let mut results = self.send(vec![request], deadline).await;
        results.pop().unwrap_or(Err(StoreError::InvalidReply))
    }

    /// Sends requests of one operation, each to the server of its keys.
    pub(crate) async fn send(
        &self,
        requests: Vec<NodeRequest>,
        deadline: Deadline,
    ) -> Vec<Result<NodeReply, StoreError>> {
        match self {
            Self::Single(node, _) => self.count_errors(node.read(requests, deadline).await),
            Self::Cluster(cluster) => cluster.send(requests, deadline).await,
        }
    }

    /// Counts the errors of results.
    fn count_errors(&self, results: Vec<NodeResult>) -> Vec<Result<NodeReply, StoreError>> {
        let counted = results.into_iter().map(|result| {
            result.map_err(|failure| {
                self.context().count_error(failure.error);
                failure.error
            })
        });
        counted.collect()
    }

    /// True if charges may be in several slots.
    pub(crate) fn is_cross_slot(&self, charges: &[Charge<RedisKey>]) -> bool {
        let tags = || charges.iter().map(|charge| charge.key.tag());
        matches!(self, Self::Cluster(_)) && tags().zip(tags().skip(1)).any(|(one, next)| one != next)
    }

    /// True if the circuit breaker of every server that these charges need is open.
    pub(crate) fn is_unavailable(&self, charges: &[Charge<RedisKey>], now: Timestamp) -> bool {
        match self {
            Self::Single(node, _) => node.breaker().is_open(now),
            Self::Cluster(cluster) => cluster.is_unavailable(charges.iter().map(|charge| charge.key.tag()), now),
        }
    }

    /// The worst state of any circuit breaker, and the number of state changes of all, including those of servers that have
    /// left the cluster, so that it only grows.
    pub(crate) fn breaker(&self) -> (BreakerState, u64) {
        let breaker_status = |node: &Node| (node.breaker().state(), node.breaker().changes());
        match self {
            Self::Single(node, _) => breaker_status(node),
            Self::Cluster(cluster) => cluster.nodes().iter().map(|(_, node)| breaker_status(node)).fold(
                (BreakerState::Closed, cluster.retired_transitions()),
                |(worst, sum), (state, changes)| (worst.max(state), sum + changes),
            ),
        }
    }

    /// The longest round trip to a server, if any is known.
    pub(crate) fn round_trip(&self) -> Option<RoundTripStatus> {
        let status = |node: &Node| node.connector().round_trips().status();
        match self {
            Self::Single(node, _) => status(node),
            Self::Cluster(cluster) => {
                let nodes = cluster.nodes();
                let known = nodes.iter().filter_map(|(_, node)| status(node));
                known.max_by_key(|status| (status.deadline_needed.is_some(), status.median))
            }
        }
    }

    /// Every server, primaries before their replicas.
    pub(crate) fn servers(&self) -> Vec<ServerStatus> {
        let primaries = match self {
            Self::Single(node, _) => vec![Arc::clone(node)],
            Self::Cluster(cluster) => cluster.nodes().into_iter().map(|(_, node)| node).collect(),
        };
        let with_replicas = primaries.into_iter().flat_map(|node| {
            let replicas = node.replicas().map_or_else(Vec::new, ReplicaSet::all);
            let replicas = replicas.into_iter().map(|(_, replica)| replica);
            std::iter::once(node).chain(replicas).collect::<Vec<_>>()
        });
        with_replicas.map(|node| node.status()).collect()
    }

    /// The reason why a server is unreachable, if one is.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Single(node, _) => node.error(),
            Self::Cluster(cluster) => cluster.error(),
        }
    }
}

impl LeaseServers for Topology {
    fn context(&self) -> &Arc<StoreContext> {
        self.context()
    }

    async fn send_one(&self, request: NodeRequest) -> Result<NodeReply, StoreError> {
        self.send_one(request).await
    }
}
