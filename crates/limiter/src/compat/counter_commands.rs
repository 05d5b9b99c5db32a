//! Commands on single counter keys, in one write to each server.
//!
//! They bypass the batcher: no command depends on another. A command without a reply is never sent again, and one whose slot
//! has moved follows the redirect once.

use crate::store::redis::connection::Failure;
use crate::store::redis::context::Deadline;
use crate::store::redis::node::Node;
use crate::store::redis::topology::Topology;
use crate::store::redis::topology::cluster::Cluster;
use crate::store::redis::topology::slots::key_slot;
use crate::store::{RedisErrorCode, StoreError};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use std::sync::Arc;

/// A command on one key.
#[derive(Clone, Debug)]
pub(super) struct CounterRequest {
    pub(super) key: Vec<u8>,
    pub(super) command: CounterCommand,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CounterCommand {
    /// Adds `by`, and sets the lifetime in seconds.
    Increment { by: i64, lifetime: u64 },
    /// Reads the count.
    Get,
    /// Deletes the key; the count is 1 if it existed.
    Delete,
    /// Sends nothing.
    Skip,
}

impl CounterRequest {
    /// The commands; the first reply is the count.
    fn commands(&self) -> Vec<Cmd> {
        let command = |name: &str| {
            let mut command = redis::cmd(name);
            command.arg(self.key.as_slice());
            command
        };
        match self.command {
            CounterCommand::Increment { by, lifetime } => {
                let (mut increment, mut expire) = (command("INCRBY"), command("EXPIRE"));
                increment.arg(by);
                expire.arg(lifetime);
                vec![increment, expire]
            }
            CounterCommand::Get => vec![command("GET")],
            CounterCommand::Delete => vec![command("DEL")],
            CounterCommand::Skip => Vec::new(),
        }
    }
}

/// Executes all requests, each on the server of its key, and returns the counts.
pub(super) async fn execute(
    topology: &Topology,
    requests: &[CounterRequest],
    deadline: Deadline,
) -> Vec<Result<i64, StoreError>> {
    let results = match topology {
        Topology::Single(node, _) => {
            let requests: Vec<&CounterRequest> = requests.iter().collect();
            execute_on(node, &requests, false, deadline).await
        }
        Topology::Cluster(cluster) => execute_on_cluster(cluster, requests, deadline).await,
    };
    results
        .into_iter()
        .map(|result| result.map_err(|failure| failure.error))
        .collect()
}

/// Executes all requests on one server. `is_asking`: it imports their slots.
async fn execute_on(
    node: &Node,
    requests: &[&CounterRequest],
    is_asking: bool,
    deadline: Deadline,
) -> Vec<Result<i64, Failure>> {
    let commands = requests.iter().map(|request| request.commands());
    let commands: Vec<Vec<Cmd>> = match is_asking {
        false => commands.collect(),
        // It applies to one command.
        true => commands
            .map(|commands| {
                let with_asking = |command| [redis::cmd("ASKING"), command];
                commands.into_iter().flat_map(with_asking).collect()
            })
            .collect(),
    };
    let all: Vec<&Cmd> = commands.iter().flatten().collect();
    let mut replies = node.send_commands(&all, deadline).await.into_iter();
    let counts = commands.iter().map(|commands| {
        let replies: Vec<Result<Value, Failure>> = replies.by_ref().take(commands.len()).collect();
        let first = replies.into_iter().nth(usize::from(is_asking));
        count(first.unwrap_or_else(|| Err(StoreError::InvalidReply.into()))?)
    });
    counts.collect()
}

/// The count in a reply: a number, or a stored number as text.
fn count(reply: Value) -> Result<i64, Failure> {
    match reply {
        Value::Int(count) => Ok(count),
        Value::Nil => Ok(0),
        Value::BulkString(text) => {
            let text = std::str::from_utf8(&text).ok();
            let count = text.and_then(|text| text.parse().ok());
            count.ok_or_else(|| StoreError::ForeignValue.into())
        }
        _ => Err(StoreError::InvalidReply.into()),
    }
}

async fn execute_on_cluster(
    cluster: &Cluster,
    requests: &[CounterRequest],
    deadline: Deadline,
) -> Vec<Result<i64, Failure>> {
    let mut results: Vec<Result<i64, Failure>> = vec![Err(StoreError::Unavailable.into()); requests.len()];
    let mut groups: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let Some(node) = cluster.slot_owner(key_slot(&request.key), deadline).await else {
            continue;
        };
        match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
            Some((_, indexes)) => indexes.push(index),
            None => groups.push((node, vec![index])),
        }
    }
    let sent = groups.iter().map(|(node, indexes)| async move {
        let group: Vec<&CounterRequest> = indexes.iter().filter_map(|index| requests.get(*index)).collect();
        execute_on(node, &group, false, deadline).await
    });
    for ((_, indexes), replies) in groups.iter().zip(join_all(sent).await) {
        for (index, reply) in indexes.iter().zip(replies) {
            if let Some(result) = results.get_mut(*index) {
                *result = reply;
            }
        }
    }
    let redirected = requests
        .iter()
        .zip(results)
        .map(|(request, result)| follow_redirects(cluster, request, result, deadline));
    join_all(redirected).await
}

/// Follows `MOVED` and `ASK`, each once. A server that redirects has done nothing.
async fn follow_redirects(
    cluster: &Cluster,
    request: &CounterRequest,
    mut result: Result<i64, Failure>,
    deadline: Deadline,
) -> Result<i64, Failure> {
    let (mut moved_followed, mut ask_followed) = (false, false);
    loop {
        let failure = match result {
            Ok(count) => return Ok(count),
            Err(failure) => failure,
        };
        let (node, is_asking) = match (failure.error, &failure.redirect) {
            (StoreError::Server(RedisErrorCode::Moved), Some(endpoint)) if !moved_followed => {
                moved_followed = true;
                (cluster.record_slot_moved(key_slot(&request.key), endpoint), false)
            }
            (StoreError::Server(RedisErrorCode::Ask), Some(endpoint)) if !ask_followed => {
                ask_followed = true;
                (cluster.node_for_endpoint(endpoint), true)
            }
            _ => {
                cluster.invalidate_on(failure.error);
                return Err(failure);
            }
        };
        cluster.context().metrics.redirects.add(1);
        let retried = execute_on(&node, &[request], is_asking, deadline).await;
        let first = retried.into_iter().next();
        result = first.unwrap_or_else(|| Err(StoreError::InvalidReply.into()));
    }
}
