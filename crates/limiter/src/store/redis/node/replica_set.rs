//! Replica routing: the replicas that may answer peeks in place of their primary.

use crate::store::redis::connection::endpoint::Endpoint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The most replicas of one primary that are connected to.
const REPLICAS_MAX: usize = 16;

/// The replicas of one primary, used in rotation.
#[derive(Debug)]
pub(crate) struct ReplicaSet<N> {
    nodes: RwLock<Vec<(Endpoint, Arc<N>)>>,
    next: AtomicUsize,
}

impl<N> Default for ReplicaSet<N> {
    fn default() -> Self {
        Self {
            nodes: RwLock::default(),
            next: AtomicUsize::new(0),
        }
    }
}

impl<N> ReplicaSet<N> {
    /// Replaces the replicas by those at `endpoints`. Replicas that stay keep their connections; `connect` makes new ones.
    pub(crate) fn set(&self, mut endpoints: Vec<Endpoint>, connect: impl Fn(&Endpoint) -> Arc<N>) {
        endpoints.truncate(REPLICAS_MAX);
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|(endpoint, _)| endpoints.contains(endpoint));
        for endpoint in endpoints {
            if !nodes.iter().any(|(known, _)| *known == endpoint) {
                let node = connect(&endpoint);
                nodes.push((endpoint, node));
            }
        }
    }

    /// The next replica in rotation that is healthy.
    pub(crate) fn pick(&self, is_healthy: impl Fn(&N) -> bool) -> Option<Arc<N>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let first = self.next.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1);
        let rotation = nodes.iter().skip(first).chain(nodes.iter().take(first));
        rotation.map(|(_, node)| node).find(|node| is_healthy(node)).cloned()
    }

    /// All of them, with their endpoints.
    pub(crate) fn all(&self) -> Vec<(Endpoint, Arc<N>)> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
