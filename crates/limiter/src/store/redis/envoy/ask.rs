//! Commands on single keys, in one write to each server.
//!
//! They go at once and not in turns: nothing of one can be decided by another. A command without an answer is never sent
//! again, and one whose slot is elsewhere goes there once.

use super::super::cluster::Cluster;
use super::super::line::Failure;
use super::super::node::Node;
use super::super::nodes::Nodes;
use super::super::slots;
use super::super::work::Deadline;
use crate::store::{Refusal, StoreError};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use std::sync::Arc;

/// What to do to one key.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) key: Vec<u8>,
    pub(super) deed: Deed,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// Adds so much, and lets the key live for so many seconds.
    Add { by: i64, lifetime: u64 },
    /// Says what is in it.
    Look,
    /// Clears it, and says whether there was anything.
    Clear,
    /// It is not asked for.
    Nothing,
}

impl Ask {
    /// The commands, the first of which is answered with what is wanted.
    fn commands(&self) -> Vec<Cmd> {
        let command = |name: &str| {
            let mut command = redis::cmd(name);
            command.arg(self.key.as_slice());
            command
        };
        match self.deed {
            Deed::Add { by, lifetime } => {
                let (mut add, mut expire) = (command("INCRBY"), command("EXPIRE"));
                add.arg(by);
                expire.arg(lifetime);
                vec![add, expire]
            }
            Deed::Look => vec![command("GET")],
            Deed::Clear => vec![command("DEL")],
            Deed::Nothing => Vec::new(),
        }
    }
}

impl Node {
    /// Does all of it on this server. `is_asking`: it is only about to have their slots.
    async fn do_all(&self, asks: &[&Ask], is_asking: bool, deadline: Deadline) -> Vec<Result<i64, Failure>> {
        let commands = asks.iter().map(|ask| ask.commands());
        let commands: Vec<Vec<Cmd>> = match is_asking {
            false => commands.collect(),
            // It is heeded for one command only.
            true => commands
                .map(|own| own.into_iter().flat_map(|own| [redis::cmd("ASKING"), own]).collect())
                .collect(),
        };
        let all: Vec<&Cmd> = commands.iter().flatten().collect();
        let mut answers = self.send_all(&all, deadline).await.into_iter();
        let counted = commands.iter().map(|own| {
            let answers: Vec<Result<Value, Failure>> = answers.by_ref().take(own.len()).collect();
            let first = answers.into_iter().nth(usize::from(is_asking));
            count(first.unwrap_or_else(|| Err(StoreError::Nonsense.into()))?)
        });
        counted.collect()
    }
}

/// A number as it is answered, or as it is held.
fn count(answer: Value) -> Result<i64, Failure> {
    let held = match answer {
        Value::Int(count) => Some(count),
        Value::Nil => Some(0),
        Value::BulkString(text) => {
            let text = std::str::from_utf8(&text).ok();
            // What is no number was put there by somebody else.
            return text
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| StoreError::Foreign.into());
        }
        _ => None,
    };
    held.ok_or_else(|| StoreError::Nonsense.into())
}

impl Nodes {
    /// Does all of it, each on the server that has its key.
    pub(super) async fn do_all(&self, asks: &[Ask], deadline: Deadline) -> Vec<Result<i64, StoreError>> {
        let done = match self {
            Self::One(node) => {
                let asks: Vec<&Ask> = asks.iter().collect();
                node.do_all(&asks, false, deadline).await
            }
            Self::Cluster(cluster) => cluster.do_all(asks, deadline).await,
        };
        done.into_iter()
            .map(|done| done.map_err(|failure| failure.error))
            .collect()
    }
}

impl Cluster {
    async fn do_all(&self, asks: &[Ask], deadline: Deadline) -> Vec<Result<i64, Failure>> {
        let mut done: Vec<Result<i64, Failure>> = vec![Err(StoreError::Unavailable.into()); asks.len()];
        let mut groups: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        for (place, ask) in asks.iter().enumerate() {
            let Some(node) = self.owner_of(slots::of_key(&ask.key), deadline).await else {
                continue;
            };
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
                Some((_, places)) => places.push(place),
                None => groups.push((node, vec![place])),
            }
        }
        let asked = groups.iter().map(|(node, places)| async move {
            let its: Vec<&Ask> = places.iter().filter_map(|place| asks.get(*place)).collect();
            node.do_all(&its, false, deadline).await
        });
        for ((_, places), answers) in groups.iter().zip(join_all(asked).await) {
            for (place, answer) in places.iter().zip(answers) {
                if let Some(done) = done.get_mut(*place) {
                    *done = answer;
                }
            }
        }
        let followed = asks
            .iter()
            .zip(done)
            .map(|(ask, done)| self.follow_one(ask, done, deadline));
        join_all(followed).await
    }

    /// Goes where a server says that the slot is, or is about to be: each is heeded once. Neither has done anything.
    async fn follow_one(&self, ask: &Ask, mut done: Result<i64, Failure>, deadline: Deadline) -> Result<i64, Failure> {
        let (mut moved, mut asked) = (false, false);
        loop {
            let failure = match done {
                Ok(count) => return Ok(count),
                Err(failure) => failure,
            };
            let (node, is_asking) = match (failure.error, &failure.elsewhere) {
                (StoreError::Refused(Refusal::Moved), Some(host)) if !moved => {
                    moved = true;
                    (self.slot_moved(slots::of_key(&ask.key), host), false)
                }
                (StoreError::Refused(Refusal::Ask), Some(host)) if !asked => {
                    asked = true;
                    (self.server_at(host), true)
                }
                _ => {
                    self.doubt_if(failure.error);
                    return Err(failure);
                }
            };
            self.shared().figures.redirects.add(1);
            let again = node.do_all(&[ask], is_asking, deadline).await;
            done = again
                .into_iter()
                .next()
                .unwrap_or_else(|| Err(StoreError::Nonsense.into()));
        }
    }
}
