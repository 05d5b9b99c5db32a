//! Calls of the cache: to the owner of its slot, within a deadline, and with errors that name what is missing.

use super::{CALL_DEADLINE, CacheError, CacheState};
use crate::store::redis::connection::ScriptConnection;
use crate::store::redis::connection::connector::Connector;
use crate::store::redis::connection::endpoint::Endpoint;
use crate::store::redis::topology::Topology;
use crate::store::redis::topology::slots::key_slot;
use crate::store::{RedisErrorCode, StoreError};
use redis::{Cmd, Pipeline, ServerError, ToRedisArgs, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// The interval at which an owner that cannot be reached is looked up again: it may have changed.
const LOOK_UP_INTERVAL: Duration = Duration::from_millis(200);

/// The time before a call is sent again to a server that could not answer it yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The most redirects of one call.
const REDIRECTS_MAX: u32 = 8;

/// A command, and the rights it needs.
#[derive(Clone, Debug)]
pub(super) struct CacheCall {
    command: Cmd,
    rights: String,
}

/// The way calls are sent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// They see one state, and are sent again if no reply comes.
    Read,
    /// A single call that is never sent twice.
    Write,
    /// All or none take effect, and they are never sent twice.
    Transaction,
}

/// The servers that calls go to.
pub(super) struct CallServers<'s> {
    topology: &'s Topology,
    slot: u16,
    /// The prefix of all keys.
    prefix: &'s str,
}

/// The server that a call goes to next.
struct Target {
    connector: Arc<Connector>,
    /// True if it imports the slot.
    is_asking: bool,
}

/// The reason why a call is not finished.
enum Attempt {
    /// The server has done nothing: the call may go elsewhere.
    Redirected(RedisErrorCode, Option<Endpoint>, String),
    /// No reply came.
    Lost(String),
}

impl CacheCall {
    pub(super) fn new(name: &'static str, key: Vec<u8>) -> Self {
        let mut command = redis::cmd(name);
        command.arg(key);
        Self {
            command,
            rights: format!("+{}", name.to_ascii_lowercase()),
        }
    }

    /// A script with one key.
    pub(super) fn script(text: &'static str, key: Vec<u8>, rights: &str) -> Self {
        let mut command = redis::cmd("EVAL");
        command.arg(text).arg(1).arg(key);
        Self {
            command,
            rights: rights.to_owned(),
        }
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }
}

impl<'s> CallServers<'s> {
    pub(super) fn of(state: &'s CacheState) -> Self {
        Self {
            topology: &state.servers().topology,
            slot: key_slot(state.prefix.as_bytes()),
            prefix: state.options.key_prefix(),
        }
    }

    /// The connection to the owner of the slot.
    pub(super) async fn primary(&self, deadline: Instant) -> Result<ScriptConnection, CacheError> {
        let (_, connection) = self.connection(None, deadline).await?;
        Ok(connection)
    }

    /// The endpoint of the owner of the slot; `None` for a Unix socket.
    pub(super) async fn endpoint(&self, deadline: Instant) -> Result<Option<Endpoint>, CacheError> {
        Ok(self.primary(deadline).await?.endpoint().cloned())
    }

    /// The same without waiting: `None` if there is no connection to it.
    pub(super) fn connected_endpoint(&self) -> Option<Option<Endpoint>> {
        let connection = match self.topology {
            Topology::Single(node, _) => node.connector().current(),
            Topology::Cluster(cluster) => cluster.known_slot_owner(self.slot)?.connector().current(),
        };
        connection.map(|connection| connection.endpoint().cloned())
    }

    /// Sends calls and returns their replies. Redirects are followed, and a server that cannot answer yet is asked again, both
    /// within the deadline.
    ///
    /// # Errors
    /// No reply came, or none of the calls took effect.
    pub(super) async fn call(
        &self,
        calls: &[CacheCall],
        kind: CallKind,
    ) -> Result<Vec<Result<Value, CacheError>>, CacheError> {
        let deadline = Instant::now() + CALL_DEADLINE;
        let (mut redirects, mut next) = (0, None);
        loop {
            let (target, connection) = self.connection(next.take(), deadline).await?;
            let attempt = self.send(&connection, calls, kind, target.is_asking, deadline).await;
            let reason = match attempt {
                Ok(replies) => return Ok(replies),
                Err(Attempt::Lost(reason)) => {
                    target.connector.disconnect(connection.id(), &reason);
                    self.look_up_again(StoreError::ConnectionLost);
                    if kind != CallKind::Read {
                        return Err(CacheError::Unavailable(reason));
                    }
                    reason
                }
                Err(Attempt::Redirected(code, endpoint, reason)) => {
                    self.look_up_again(StoreError::Server(code));
                    if code == RedisErrorCode::ReadOnly {
                        target.connector.disconnect(connection.id(), &reason);
                    }
                    redirects += 1;
                    if redirects <= REDIRECTS_MAX
                        && let Some(endpoint) = endpoint
                        && let Some(target) = self.redirected(code, &endpoint)
                    {
                        next = Some(target);
                        continue;
                    }
                    reason
                }
            };
            if Instant::now() + RETRY_INTERVAL >= deadline {
                return Err(CacheError::Unavailable(reason));
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// The connection to a server, by default the owner of the slot.
    async fn connection(
        &self,
        next: Option<Target>,
        deadline: Instant,
    ) -> Result<(Target, ScriptConnection), CacheError> {
        let mut next = next;
        let mut reason;
        loop {
            let target = match next.take() {
                Some(target) => Some(target),
                None => self.owner(deadline).await,
            };
            if let Some(target) = target {
                let until = deadline.min(Instant::now() + LOOK_UP_INTERVAL);
                if let Ok(connection) = timeout_at(until, target.connector.connection()).await {
                    return Ok((target, connection));
                }
                reason = target.connector.error();
                self.look_up_again(StoreError::Unavailable);
            } else {
                reason = self.topology.error();
                sleep(RETRY_INTERVAL).await;
            }
            if Instant::now() >= deadline {
                let reason = reason.unwrap_or_else(|| "the server does not answer".to_owned());
                return Err(CacheError::Unavailable(reason));
            }
        }
    }

    async fn owner(&self, deadline: Instant) -> Option<Target> {
        let node = match self.topology {
            Topology::Single(node, _) => Arc::clone(node),
            Topology::Cluster(cluster) => {
                cluster
                    .wait_for_map(deadline.saturating_duration_since(Instant::now()))
                    .await;
                cluster.slot_owner(self.slot, cluster.context().deadline()).await?
            }
        };
        Some(Target {
            connector: Arc::clone(node.connector()),
            is_asking: false,
        })
    }

    fn redirected(&self, code: RedisErrorCode, endpoint: &Endpoint) -> Option<Target> {
        let Topology::Cluster(cluster) = self.topology else {
            return None;
        };
        let (node, is_asking) = match code {
            RedisErrorCode::Moved => (cluster.record_slot_moved(self.slot, endpoint), false),
            RedisErrorCode::Ask => (cluster.node_for_endpoint(endpoint), true),
            _ => return None,
        };
        Some(Target {
            connector: Arc::clone(node.connector()),
            is_asking,
        })
    }

    fn look_up_again(&self, error: StoreError) {
        if let Topology::Cluster(cluster) = self.topology {
            cluster.invalidate_on(error);
        }
    }

    /// Sends calls in one write on one connection.
    async fn send(
        &self,
        connection: &ScriptConnection,
        calls: &[CacheCall],
        kind: CallKind,
        is_asking: bool,
        deadline: Instant,
    ) -> Result<Vec<Result<Value, CacheError>>, Attempt> {
        let is_atomic = kind == CallKind::Transaction || calls.len() > 1;
        let mut pipe = Pipeline::with_capacity(calls.len() + 3);
        let mut rights: Vec<&str> = Vec::with_capacity(calls.len() + 3);
        let (before, behind) = match is_atomic {
            true => (Some("MULTI"), Some("EXEC")),
            false => (None, None),
        };
        // Before a transaction it lasts until its end.
        let asking = is_asking.then_some("ASKING");
        for name in asking.into_iter().chain(before) {
            pipe.cmd(name);
            rights.push(if name == "MULTI" { "+multi" } else { "+asking" });
        }
        for call in calls {
            pipe.add_command(call.command.clone());
            rights.push(&call.rights);
        }
        if let Some(name) = behind {
            pipe.cmd(name);
            rights.push("+exec");
        }
        let mut multiplexed = connection.multiplexed();
        let replies = multiplexed.send_packed_commands(&pipe, 0, rights.len());
        let mut replies = match timeout_at(deadline, replies).await {
            Err(_) => return Err(Attempt::Lost("the server did not answer in time".to_owned())),
            Ok(Err(error)) => return Err(Attempt::Lost(error.to_string())),
            Ok(Ok(replies)) => replies,
        };
        if replies.len() != rights.len() {
            return Err(Attempt::Lost("the server sent too few replies".to_owned()));
        }
        for (reply, rights) in replies.iter().zip(&rights) {
            if let Value::ServerError(error) = reply
                && let Some(attempt) = redirect(error, connection.endpoint())
            {
                return Err(attempt);
            }
            if is_atomic && let Value::ServerError(error) = reply {
                // Nothing took effect, and this is the first reason.
                return Ok(vec![Err(refusal(error, rights, self.prefix)); calls.len()]);
            }
        }
        let rights: Vec<&str> = calls.iter().map(|call| call.rights.as_str()).collect();
        let replies = match is_atomic {
            false => replies.split_off(replies.len() - calls.len()),
            true => match replies.pop() {
                Some(Value::Array(replies)) if replies.len() == calls.len() => replies,
                _ => return Err(Attempt::Lost("the server sent a reply of another command".to_owned())),
            },
        };
        for reply in &replies {
            // In a transaction each command is checked again.
            if let Value::ServerError(error) = reply
                && let Some(attempt) = redirect(error, connection.endpoint())
            {
                return Err(attempt);
            }
        }
        let replies = replies.into_iter().zip(rights).map(|(reply, rights)| match reply {
            Value::ServerError(error) => Err(refusal(&error, rights, self.prefix)),
            reply => Ok(reply),
        });
        Ok(replies.collect())
    }
}

/// The redirect or the delay in an error, if it is one: the server has done nothing.
fn redirect(error: &ServerError, from: Option<&Endpoint>) -> Option<Attempt> {
    let details = error.details().unwrap_or_default();
    let code = RedisErrorCode::from_error(error.code(), details);
    let endpoint = match code {
        RedisErrorCode::Moved | RedisErrorCode::Ask => {
            let endpoint = details.split_once(' ').map(|(_, endpoint)| endpoint);
            endpoint.and_then(|endpoint| Endpoint::parse(endpoint, from))
        }
        RedisErrorCode::TryAgain
        | RedisErrorCode::ClusterDown
        | RedisErrorCode::MasterDown
        | RedisErrorCode::Loading
        | RedisErrorCode::ReadOnly => None,
        _ => return None,
    };
    Some(Attempt::Redirected(code, endpoint, error_text(error)))
}

/// The error of a refused command, with the right that is missing.
fn refusal(error: &ServerError, rights: &str, prefix: &str) -> CacheError {
    let details = error.details().unwrap_or_default();
    let code = match error.code() {
        // `EXEC` itself is refused: the reason is behind it.
        "EXECABORT" if details.contains("no permissions") => RedisErrorCode::NoPerm,
        code => RedisErrorCode::from_error(code, details),
    };
    match code {
        RedisErrorCode::NoPerm => {
            let missing = missing_right(details, prefix).unwrap_or_else(|| rights.to_owned());
            CacheError::Denied(format!(
                "the user lacks {missing}; allow what docs/redis.md lists for the control plane"
            ))
        }
        RedisErrorCode::WrongType | RedisErrorCode::Other => CacheError::Invalid(error_text(error)),
        _ => CacheError::Unavailable(error_text(error)),
    }
}

/// The right that an error of the server names: a command in quotation marks, a key or a channel.
fn missing_right(details: &str, prefix: &str) -> Option<String> {
    let mut quoted = details.split('\'');
    if let (Some(before), Some(command)) = (quoted.next(), quoted.next())
        && before.ends_with("run the ")
    {
        return Some(format!("+{}", command.to_ascii_lowercase()));
    }
    let has = |word: &str| details.contains(word);
    match () {
        () if has("channel") => Some(format!("&{prefix}:*")),
        () if has("access a key") || has("of the keys") => Some(format!("~{prefix}:*")),
        () => None,
    }
}

fn error_text(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}
