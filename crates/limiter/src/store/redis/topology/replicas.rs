//! Replicas: who may be looked at in a primary's place.
//!
//! A replica is behind its primary, so nothing is decided there: it is asked for what keeps nothing, and only if whoever
//! opened the store wants that. One that does not answer well in half the time leaves the other half to the primary; while
//! there is no connection to it, or it does not hear its primary, it is not asked.

use crate::store::redis::connection::connector::{Connector, EndpointSource, check_replica_link, role_command};
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::connection::value_text;
use crate::store::redis::node::request::{Deadline, NodeRequest, NodeResult, Routing};
use crate::store::redis::node::{KeyScope, Node};
use crate::store::redis::script::call::ScriptOp;
use crate::store::redis::supervise::spawn_supervised;
use crate::store::redis::{Functions, ReadFrom};
use futures_util::future::join_all;
use redis::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate_core::Timestamp;

/// The replicas of one primary.
#[derive(Debug)]
pub(crate) struct Replicas {
    connect_options: ConnectOptions,
    functions: Functions,
    nodes: RwLock<Vec<(Endpoint, Arc<Node>)>>,
    /// Whose turn it is.
    next: AtomicUsize,
}

/// How often it is looked whether there are others, and whether each hears its primary; and how long that may take.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_millis(300);

/// The most that are connected to.
const REPLICAS_MAX: usize = 16;

impl Replicas {
    /// None yet, if any are wanted.
    pub(crate) fn new(read_from: ReadFrom, connect_options: &ConnectOptions, functions: Functions) -> Option<Self> {
        match read_from {
            ReadFrom::Primary => None,
            ReadFrom::Replica => Some(Self {
                connect_options: connect_options.clone(),
                functions,
                nodes: RwLock::default(),
                next: AtomicUsize::new(0),
            }),
        }
    }

    /// Looks after the replicas of a server, if they are wanted, for as long as anybody asks that.
    pub(crate) fn watch(primary: &Arc<Node>) {
        if primary.replicas.is_none() {
            return;
        }
        let weak = Arc::downgrade(primary);
        let watch = move || {
            let weak = Weak::clone(&weak);
            async move {
                while let Some(primary) = weak.upgrade() {
                    if let Some(replicas) = &primary.replicas {
                        replicas.refresh(&primary).await;
                        replicas.check_links().await;
                    }
                    drop(primary);
                    sleep(REFRESH_INTERVAL).await;
                }
            }
        };
        spawn_supervised(&primary.context.runtime, Arc::clone(&primary.context.metrics), watch);
    }

    /// Asks the primary who follows it. In a cluster that is drawn on the map, by the names that certificates want.
    async fn refresh(&self, primary: &Arc<Node>) {
        if primary.scope == KeyScope::OneTag {
            return;
        }
        if let Ok(mut connection) = timeout(REFRESH_INTERVAL, primary.connector.connection()).await
            && let Ok(Ok(role)) = timeout(TIMEOUT, connection.query(&role_command())).await
        {
            self.set(replicas_in_role(&role), primary);
        }
    }

    /// Learns who they are. Those that stay keep their connections.
    pub(crate) fn set(&self, mut endpoints: Vec<Endpoint>, primary: &Node) {
        endpoints.truncate(REPLICAS_MAX);
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|(endpoint, _)| endpoints.contains(endpoint));
        for endpoint in endpoints {
            if !nodes.iter().any(|(known, _)| *known == endpoint) {
                let context = &primary.context;
                let connector = Connector::new(
                    EndpointSource::Replica(self.connect_options.to(&endpoint), primary.scope),
                    self.functions,
                    context.deadline,
                    context.clock.clone(),
                    Arc::clone(&context.metrics),
                    context.runtime.clone(),
                );
                nodes.push((endpoint, Node::new(connector, Arc::clone(context), primary.scope, None)));
            }
        }
    }

    /// Leaves those that do not hear their primary any more. They are dialled until they do.
    async fn check_links(&self) {
        let checks = self.all().into_iter().map(|(_, node)| async move {
            let Some(mut connection) = node.connector.current() else {
                return;
            };
            let role = timeout(TIMEOUT, connection.query(&role_command())).await;
            let is_healthy = matches!(&role, Ok(Ok(role)) if check_replica_link(role).is_ok());
            if !is_healthy {
                node.connector
                    .disconnect(connection.id(), "the replica does not hear its primary");
            }
        });
        join_all(checks).await;
    }

    /// One that can be asked. They take turns.
    fn pick(&self, now: Timestamp) -> Option<Arc<Node>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let first = self.next.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1);
        let round_robin = nodes.iter().skip(first).chain(nodes.iter().take(first));
        let is_healthy = |node: &&Arc<Node>| node.connector.is_connected() && !node.breaker.is_open(now);
        round_robin.map(|(_, node)| node).find(is_healthy).cloned()
    }

    /// Why none of them can be asked, if so.
    pub(crate) fn error(&self) -> Option<String> {
        let all = self.all();
        if all.iter().any(|(_, node)| node.connector.is_connected()) {
            return None;
        }
        let first = all.first().map(|(endpoint, node)| {
            let reason = node.connector.error().unwrap_or_default();
            format!("{endpoint}: {reason}")
        });
        Some(first.unwrap_or_else(|| "the primary tells of none".to_owned()))
    }

    fn all(&self) -> Vec<(Endpoint, Arc<Node>)> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Node {
    /// Does works of one mode here, or looks at a replica, where that is enough and wanted.
    pub(crate) async fn read(self: &Arc<Self>, requests: Vec<NodeRequest>, deadline: Deadline) -> Vec<NodeResult> {
        let is_peek = |request: &NodeRequest| request.op == ScriptOp::Peek && request.routing == Routing::Batched;
        let replica = self.replicas.as_ref().filter(|_| requests.iter().all(is_peek));
        let Some(replica) = replica.and_then(|replicas| replicas.pick(self.context.clock.now())) else {
            return self.send(requests, deadline).await;
        };
        let half = deadline.earlier_by(self.context.deadline / 2);
        let mut results = replica.send(requests.clone(), half).await;
        let failed = requests.into_iter().zip(&results).filter(|(_, result)| result.is_err());
        let failed: Vec<NodeRequest> = failed.map(|(request, _)| request).collect();
        let metrics = &self.context.metrics;
        metrics.replica_reads.add((results.len() - failed.len()) as u64);
        if !failed.is_empty() {
            metrics.replica_misses.add(failed.len() as u64);
            let replies = self.send(failed, deadline).await;
            for (result, reply) in results.iter_mut().filter(|result| result.is_err()).zip(replies) {
                *result = reply;
            }
        }
        results
    }
}

/// Who follows a primary, as its `ROLE` says: its name, how much it has written, and for each its address and port.
fn replicas_in_role(role: &Value) -> Vec<Endpoint> {
    let (role_name, replicas) = match role {
        Value::Array(fields) => match &**fields {
            [role_name, _, Value::Array(replicas)] => (value_text(role_name), &**replicas),
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    let parse_replica = |replica: &Value| match replica {
        Value::Array(fields) => match &**fields {
            [address, port, ..] => Endpoint::parse(&format!("{}:{}", value_text(address), value_text(port)), None),
            _ => None,
        },
        _ => None,
    };
    match role_name.as_str() {
        "master" => replicas.iter().filter_map(parse_replica).collect(),
        _ => Vec::new(),
    }
}
