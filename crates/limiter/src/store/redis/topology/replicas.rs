//! Discovery of replicas: which ones a primary has, and whether they are connected to it.
//!
//! A replica lags behind its primary, so nothing is decided there: it answers peeks only, and only if the store was opened
//! to [read from replicas](crate::store::redis::ReadFrom). A replica that fails within half the deadline leaves the other
//! half to the primary. Without a connection to it, or without its link to the primary, it is not used.

use crate::store::redis::connection::connector::{Connector, EndpointSource};
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::connection::handshake::{check_replica_link, role_command};
use crate::store::redis::connection::value_text;
use crate::store::redis::node::Node;
use crate::store::redis::node::call_group::KeyScope;
use crate::store::redis::node::replica_set::ReplicaSet;
use crate::store::redis::supervise::spawn_supervised;
use futures_util::future::join_all;
use redis::Value;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The interval at which replicas are listed and their links checked, and the timeout of both.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_millis(300);

/// Keeps the replicas of a primary current until it is dropped, if peeks go to replicas.
pub(crate) fn watch(primary: &Arc<Node>, options: &ConnectOptions) {
    if primary.replicas().is_none() {
        return;
    }
    let (weak, options) = (Arc::downgrade(primary), options.clone());
    let watch = move || {
        let (weak, options) = (Weak::clone(&weak), options.clone());
        async move {
            while let Some(primary) = weak.upgrade() {
                if let Some(replicas) = primary.replicas() {
                    refresh(&primary, &options).await;
                    check_links(replicas).await;
                }
                drop(primary);
                sleep(REFRESH_INTERVAL).await;
            }
        }
    };
    let context = primary.context();
    spawn_supervised(&context.runtime, Arc::clone(&context.metrics), watch);
}

/// Lists the replicas by the primary's `ROLE`. In a cluster they are in its topology, with the names that certificates need.
async fn refresh(primary: &Arc<Node>, options: &ConnectOptions) {
    if primary.scope() == KeyScope::OneTag {
        return;
    }
    if let Ok(mut connection) = timeout(REFRESH_INTERVAL, primary.connector().connection()).await
        && let Ok(Ok(role)) = timeout(TIMEOUT, connection.query(&role_command())).await
    {
        set(primary, options, replicas_in_role(&role));
    }
}

/// Replaces the replicas of a primary.
pub(crate) fn set(primary: &Node, options: &ConnectOptions, endpoints: Vec<Endpoint>) {
    let Some(replicas) = primary.replicas() else { return };
    replicas.set(endpoints, |endpoint| {
        let options = options.to(endpoint);
        let source = match primary.scope() {
            KeyScope::All => EndpointSource::Replica(options),
            KeyScope::OneTag => EndpointSource::ClusterReplica(options),
        };
        let connector = Connector::new(source, primary.context());
        Node::replica(connector, Arc::clone(primary.context()), primary.scope())
    });
}

/// Closes connections to replicas whose link to the primary is down. The connector reconnects once it is up again.
async fn check_links(replicas: &ReplicaSet<Node>) {
    let checks = replicas.all().into_iter().map(|(_, node)| async move {
        let Some(mut connection) = node.connector().current() else {
            return;
        };
        let role = timeout(TIMEOUT, connection.query(&role_command())).await;
        let is_healthy = matches!(&role, Ok(Ok(role)) if check_replica_link(role).is_ok());
        if !is_healthy {
            let reason = "the replica is not connected to its primary";
            node.connector().disconnect(connection.id(), reason);
        }
    });
    join_all(checks).await;
}

/// The reason why no replica can answer, if none can.
pub(crate) fn error(replicas: &ReplicaSet<Node>) -> Option<String> {
    let all = replicas.all();
    if all.iter().any(|(_, node)| node.connector().is_connected()) {
        return None;
    }
    let first = all.first().map(|(endpoint, node)| {
        let reason = node.connector().error().unwrap_or_default();
        format!("{endpoint}: {reason}")
    });
    Some(first.unwrap_or_else(|| "the primary lists none".to_owned()))
}

/// The replicas in a primary's `ROLE`: its name, its replication offset, and for each replica its address and port.
pub(crate) fn replicas_in_role(role: &Value) -> Vec<Endpoint> {
    let (name, replicas) = match role {
        Value::Array(fields) => match &**fields {
            [name, _, Value::Array(replicas)] => (value_text(name), &**replicas),
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
    match name.as_str() {
        "master" => replicas.iter().filter_map(parse_replica).collect(),
        _ => Vec::new(),
    }
}
