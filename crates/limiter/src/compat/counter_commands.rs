//! Commands on single keys, in one write to each server.
//!
//! They go at once and not in turns: nothing of one can be decided by another. A command without an answer is never sent
//! again, and one whose slot is elsewhere goes there once.

use crate::store::redis::connection::Failure;
use crate::store::redis::node::Node;
use crate::store::redis::node::request::Deadline;
use crate::store::redis::topology::Topology;
use crate::store::redis::topology::cluster::Cluster;
use crate::store::redis::topology::slots;
use crate::store::{RedisErrorCode, StoreError};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use std::sync::Arc;

/// What to do to one key.
#[derive(Clone, Debug)]
pub(crate) struct CounterRequest {
    pub(crate) key: Vec<u8>,
    pub(crate) command: CounterCommand,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum CounterCommand {
    /// Adds so much, and lets the key live for so many seconds.
    Increment { by: i64, lifetime: u64 },
    /// Says what is in it.
    Get,
    /// Clears it, and says whether there was anything.
    Delete,
    /// It is not asked for.
    Skip,
}

impl CounterRequest {
    /// The commands, the first of which is answered with what is wanted.
    fn commands(&self) -> Vec<Cmd> {
        let command = |name: &str| {
            let mut command = redis::cmd(name);
            command.arg(self.key.as_slice());
            command
        };
        match self.command {
            CounterCommand::Increment { by, lifetime } => {
                let (mut add, mut expire) = (command("INCRBY"), command("EXPIRE"));
                add.arg(by);
                expire.arg(lifetime);
                vec![add, expire]
            }
            CounterCommand::Get => vec![command("GET")],
            CounterCommand::Delete => vec![command("DEL")],
            CounterCommand::Skip => Vec::new(),
        }
    }
}

impl Node {
    /// Does all of it on this server. `is_asking`: it is only about to have their slots.
    async fn execute(
        &self,
        requests: &[&CounterRequest],
        is_asking: bool,
        deadline: Deadline,
    ) -> Vec<Result<i64, Failure>> {
        let commands = requests.iter().map(|request| request.commands());
        let commands: Vec<Vec<Cmd>> = match is_asking {
            false => commands.collect(),
            // It is heeded for one command only.
            true => commands
                .map(|pair| pair.into_iter().flat_map(|pair| [redis::cmd("ASKING"), pair]).collect())
                .collect(),
        };
        let all: Vec<&Cmd> = commands.iter().flatten().collect();
        let mut replies = self.send_all(&all, deadline).await.into_iter();
        let counts = commands.iter().map(|its_commands| {
            let replies: Vec<Result<Value, Failure>> = replies.by_ref().take(its_commands.len()).collect();
            let first = replies.into_iter().nth(usize::from(is_asking));
            count(first.unwrap_or_else(|| Err(StoreError::InvalidReply.into()))?)
        });
        counts.collect()
    }
}

/// A number as it is answered, or as it is held.
fn count(reply: Value) -> Result<i64, Failure> {
    let number = match reply {
        Value::Int(count) => Some(count),
        Value::Nil => Some(0),
        Value::BulkString(text) => {
            let text = std::str::from_utf8(&text).ok();
            // What is no number was put there by somebody else.
            return text
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| StoreError::ForeignValue.into());
        }
        _ => None,
    };
    number.ok_or_else(|| StoreError::InvalidReply.into())
}

impl Topology {
    /// Does all of it, each on the server that has its key.
    pub(crate) async fn execute(
        &self,
        requests: &[CounterRequest],
        deadline: Deadline,
    ) -> Vec<Result<i64, StoreError>> {
        let results = match self {
            Self::One(node) => {
                let requests: Vec<&CounterRequest> = requests.iter().collect();
                node.execute(&requests, false, deadline).await
            }
            Self::Cluster(cluster) => cluster.execute(requests, deadline).await,
        };
        results
            .into_iter()
            .map(|result| result.map_err(|failure| failure.error))
            .collect()
    }
}

impl Cluster {
    async fn execute(&self, requests: &[CounterRequest], deadline: Deadline) -> Vec<Result<i64, Failure>> {
        let mut results: Vec<Result<i64, Failure>> = vec![Err(StoreError::Unavailable.into()); requests.len()];
        let mut groups: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let Some(node) = self.slot_owner(slots::key_slot(&request.key), deadline).await else {
                continue;
            };
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
                Some((_, indexes)) => indexes.push(index),
                None => groups.push((node, vec![index])),
            }
        }
        let sent = groups.iter().map(|(node, indexes)| async move {
            let group: Vec<&CounterRequest> = indexes.iter().filter_map(|index| requests.get(*index)).collect();
            node.execute(&group, false, deadline).await
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
            .map(|(request, result)| self.follow_counter_redirects(request, result, deadline));
        join_all(redirected).await
    }

    /// Goes where a server says that the slot is, or is about to be: each is heeded once. Neither has done anything.
    async fn follow_counter_redirects(
        &self,
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
                    (self.record_slot_moved(slots::key_slot(&request.key), endpoint), false)
                }
                (StoreError::Server(RedisErrorCode::Ask), Some(endpoint)) if !ask_followed => {
                    ask_followed = true;
                    (self.node_for_endpoint(endpoint), true)
                }
                _ => {
                    self.invalidate_on(failure.error);
                    return Err(failure);
                }
            };
            self.context().metrics.redirects.add(1);
            let retried = node.execute(&[request], is_asking, deadline).await;
            result = retried
                .into_iter()
                .next()
                .unwrap_or_else(|| Err(StoreError::InvalidReply.into()));
        }
    }
}
