//! The servers of a store: one, or those of a cluster.

use super::breaker::BreakerState;
use super::cluster::Cluster;
use super::key::RedisKey;
use super::node::Node;
use super::work::{Deadline, Reply, Shared, Work};
use crate::store::StoreError;
use std::sync::Arc;
use tollgate_core::{Charge, Timestamp};

/// The servers of a store.
#[derive(Debug)]
pub(super) enum Nodes {
    /// One that has all keys.
    One(Arc<Node>),
    /// Several, each with some of the slots.
    Cluster(Arc<Cluster>),
}

impl Nodes {
    pub(super) fn shared(&self) -> &Arc<Shared> {
        match self {
            Self::One(node) => &node.shared,
            Self::Cluster(cluster) => cluster.shared(),
        }
    }

    /// Does one thing within the usual time.
    pub(super) async fn ask_one(&self, work: Work) -> Result<Reply, StoreError> {
        let deadline = self.shared().deadline();
        let mut done = self.ask(vec![work], deadline).await;
        done.pop().unwrap_or(Err(StoreError::Nonsense))
    }

    /// Does works of one mode, each where its keys are.
    pub(super) async fn ask(&self, works: Vec<Work>, deadline: Deadline) -> Vec<Result<Reply, StoreError>> {
        match self {
            Self::One(node) => {
                let done = node.ask_or_look(works, deadline).await.into_iter();
                done.map(|done| {
                    done.map_err(|failure| {
                        node.shared.count(failure.error);
                        failure.error
                    })
                })
                .collect()
            }
            Self::Cluster(cluster) => cluster.ask(&works, deadline).await,
        }
    }

    /// Whether charges may lie on several servers.
    pub(super) fn are_apart(&self, charges: &[Charge<RedisKey>]) -> bool {
        let tags = || charges.iter().map(|charge| charge.key.tag());
        matches!(self, Self::Cluster(_)) && tags().zip(tags().skip(1)).any(|(one, next)| one != next)
    }

    /// Whether all servers that these charges need are left alone just now.
    pub(super) fn is_shut(&self, charges: &[Charge<RedisKey>], now: Timestamp) -> bool {
        match self {
            Self::One(node) => node.breaker.is_shut(now),
            Self::Cluster(cluster) => cluster.is_shut(charges.iter().map(|charge| charge.key.tag()), now),
        }
    }

    /// The breaker that lets least through, and how often any has opened or closed, those of servers that have left a
    /// cluster included: it is a number that only grows.
    pub(super) fn breaker(&self) -> (BreakerState, u64) {
        let of = |node: &Node| (node.breaker.state(), node.breaker.changes());
        match self {
            Self::One(node) => of(node),
            Self::Cluster(cluster) => cluster.nodes().iter().map(|(_, node)| of(node)).fold(
                (BreakerState::Closed, cluster.left_changes()),
                |(worst, sum), (state, changes)| (worst.max(state), sum + changes),
            ),
        }
    }

    /// Why one of them cannot be reached, if one cannot.
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Self::One(node) => node.fault(),
            Self::Cluster(cluster) => cluster.fault(),
        }
    }
}
