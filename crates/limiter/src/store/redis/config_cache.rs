//! The cache of the control plane in the shared store: keys, a stream of changes, an index of instances and a channel.
//!
//! All keys have the tag `{cfg}`, so that in a cluster they share a slot, and every key has a TTL. The cache has
//! connections of its own, never those of decisions, and finds its servers the way the store does.

mod calls;
mod preload;
mod replies;
mod subscription;

use self::calls::{CacheCall, CallKind, CallServers};
pub use self::preload::PreloadReport;
use super::{Redis, RedisOptions};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::broadcast;

/// The largest value of a key or of a change, in bytes. A larger one is never written, and never read as a whole.
pub const CACHE_VALUE_MAX: usize = 512 * 1024;

/// The deadline of a call, whatever the servers do.
const CALL_DEADLINE: Duration = Duration::from_secs(2);

/// The deadline of the store's own calls, from which it derives the timeout of connecting: fifty times that.
const STORE_DEADLINE: Duration = Duration::from_millis(40);

/// The most names of one read or writes of one transaction, and the longest name.
const NAMES_MAX: usize = 256;
const NAME_LENGTH_MAX: usize = 256;

/// The most bytes of changes in one reply, beyond which the rest is left for the next call.
const LOG_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The most changes that one call returns.
const LOG_COUNT_MAX: usize = 10_000;

/// The most instances that one call returns.
const INSTANCES_MAX: usize = 4_096;

/// The longest message of the channel, and the most that wait for a receiver.
const MESSAGE_MAX: usize = 1_024;
const MESSAGES_WAITING_MAX: usize = 256;

/// Replaces a value if it is the expected one.
const REPLACE: &str = include_str!("config_cache/replace.lua");

/// Returns changes behind an id, or the last one: the id, and the value unless it is too large. The bytes of a reply are
/// bounded here, because a client has allocated a reply before it can judge it.
const LOG: &str = include_str!("config_cache/log.lua");

/// Returns the instances that were seen since a time, and removes the others.
const INSTANCES: &str = include_str!("config_cache/instances.lua");

/// The cache of the control plane in the shared store. Cheap to clone.
///
/// It connects at the first call, and follows Sentinel and a cluster as the store does. Every call has a deadline of two
/// seconds.
#[derive(Clone)]
pub struct ConfigCache {
    shared: Arc<CacheState>,
}

/// State that all clones share.
struct CacheState {
    options: RedisOptions,
    /// Prefix and tag of every key.
    prefix: String,
    /// The servers, opened at the first call.
    servers: OnceLock<Redis>,
    messages: OnceLock<broadcast::Sender<String>>,
    /// The reason why there is no subscription.
    subscription_error: Mutex<Option<String>>,
    preload: preload::Preload,
}

/// A write of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum CacheWrite<'a> {
    /// Sets a key.
    Set {
        /// The name of the key, behind the prefix and the tag.
        name: &'a str,
        /// The value, not empty and at most [`CACHE_VALUE_MAX`] bytes.
        value: &'a [u8],
        /// The time to live.
        ttl: Duration,
    },
    /// Sets a key that does not exist.
    SetAbsent {
        /// The name of the key.
        name: &'a str,
        /// The value.
        value: &'a [u8],
        /// The time to live.
        ttl: Duration,
    },
    /// Renews the time to live of a key. No effect if it does not exist.
    Touch {
        /// The name of the key.
        name: &'a str,
        /// The time to live.
        ttl: Duration,
    },
    /// Deletes a key.
    Delete {
        /// The name of the key.
        name: &'a str,
    },
    /// Appends a change to the stream `log`. No effect if its id is not above the last.
    Append {
        /// The id.
        id: LogId,
        /// The change.
        value: &'a [u8],
        /// The number of changes that are kept, about.
        length_max: usize,
        /// The time to live of the whole stream.
        ttl: Duration,
    },
    /// Adds an instance to the index `instances`, or renews when it was seen.
    Index {
        /// The instance.
        member: &'a str,
        /// The time it was seen, in milliseconds since 1970.
        seen_ms: u64,
        /// The time to live of the whole index.
        ttl: Duration,
    },
    /// Removes an instance from the index.
    Unindex {
        /// The instance.
        member: &'a str,
    },
}

/// The id of a change in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// The epoch.
    pub epoch: u64,
    /// The revision.
    pub revision: u64,
}

/// A change in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its id.
    pub id: LogId,
    /// The change, as it was appended.
    pub value: Vec<u8>,
}

/// The reason why a call of the cache failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheError {
    /// No server could be asked, or it did not answer in time. A write may have taken effect.
    Unavailable(String),
    /// A key holds a value that no instance writes, or a value may not be written.
    Invalid(String),
    /// The user lacks a right, which is named.
    Denied(String),
}

impl ConfigCache {
    /// A cache on the servers that these options name. Connects to nothing yet.
    pub fn new(options: RedisOptions) -> Self {
        let options = options.for_config_cache(STORE_DEADLINE);
        Self {
            shared: Arc::new(CacheState {
                prefix: format!("{}:{{cfg}}:", options.key_prefix()),
                options,
                servers: OnceLock::new(),
                messages: OnceLock::new(),
                subscription_error: Mutex::default(),
                preload: preload::Preload::default(),
            }),
        }
    }

    /// The prefix of every key, with the tag: instances with another one are of another fleet.
    pub fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// The values of keys, in this order, as they were at one instant. `None` for one that does not exist.
    ///
    /// # Errors
    /// [`CacheError::Invalid`] if one holds another type, or more than [`CACHE_VALUE_MAX`] bytes.
    pub async fn read(&self, names: &[&str]) -> Result<Vec<Option<Vec<u8>>>, CacheError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        check_count(names.len())?;
        let read = |name: &&str| {
            // One byte more than may be there: no reply is larger, and a value that is shows.
            let call = CacheCall::new("GETRANGE", self.key(name)?);
            Ok(call.arg(0).arg(CACHE_VALUE_MAX))
        };
        let calls: Vec<CacheCall> = names.iter().map(read).collect::<Result<_, CacheError>>()?;
        let replies = self.call(&calls, CallKind::Read).await?;
        let values = names
            .iter()
            .zip(replies)
            .map(|(name, reply)| replies::value(name, reply?));
        values.collect()
    }

    /// Applies writes in one transaction, all or none of them. True for each that took effect.
    ///
    /// # Errors
    /// [`CacheError::Invalid`] if a key holds another type; the other writes took effect then.
    pub async fn write(&self, writes: &[CacheWrite<'_>]) -> Result<Vec<bool>, CacheError> {
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        check_count(writes.len())?;
        let calls: Vec<Vec<CacheCall>> = writes
            .iter()
            .map(|write| self.commands(write))
            .collect::<Result<_, _>>()?;
        let all: Vec<CacheCall> = calls.iter().flatten().cloned().collect();
        let mut replies = self.call(&all, CallKind::Transaction).await?.into_iter();
        let effects = calls.iter().map(|calls| {
            let first = replies.next();
            // The TTL that follows: it fails only if the key is not there, which the first reply shows.
            replies.by_ref().take(calls.len() - 1).for_each(drop);
            replies::effect(first)
        });
        effects.collect()
    }

    /// Replaces a value if it is the expected one, `None` meaning absent. True if it was.
    ///
    /// # Errors
    /// The servers cannot be asked, or the key holds another type.
    pub async fn replace(
        &self,
        name: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        check_value(value)?;
        let call = CacheCall::script(REPLACE, self.key(name)?, "+eval +exists +get +set");
        let call = call
            .arg(i32::from(expected.is_some()))
            .arg(expected.unwrap_or_default());
        let replies = self.call(&[call.arg(value).arg(millis(ttl))], CallKind::Write).await?;
        replies::effect(replies.into_iter().next())
    }

    /// The changes behind an id, in order: at most `count`, and fewer where they are large.
    ///
    /// # Errors
    /// [`CacheError::Invalid`] if the next entry is not one of ours, or has more than [`CACHE_VALUE_MAX`] bytes.
    pub async fn log_after(&self, id: LogId, count: usize) -> Result<Vec<LogEntry>, CacheError> {
        if (id.epoch, id.revision) == (u64::MAX, u64::MAX) {
            // The server takes no interval behind it.
            return Ok(Vec::new());
        }
        self.log(&format!("({id}"), count.clamp(1, LOG_COUNT_MAX)).await
    }

    /// The last change.
    ///
    /// # Errors
    /// As [`log_after`](Self::log_after).
    pub async fn log_last(&self) -> Result<Option<LogEntry>, CacheError> {
        Ok(self.log("last", 1).await?.pop())
    }

    async fn log(&self, from: &str, count: usize) -> Result<Vec<LogEntry>, CacheError> {
        let call = CacheCall::script(LOG, self.key("log")?, "+eval +xrange +xrevrange");
        let call = call.arg(from).arg(count).arg(CACHE_VALUE_MAX).arg(LOG_BYTES_MAX);
        let replies = self.call(&[call], CallKind::Read).await?;
        replies::log(replies.into_iter().next())
    }

    /// The instances of the index that were seen since a time, in milliseconds since 1970. Older ones are removed.
    ///
    /// # Errors
    /// The servers cannot be asked, or the index holds another type.
    pub async fn instances(&self, not_before_ms: u64) -> Result<Vec<String>, CacheError> {
        let call = CacheCall::script(INSTANCES, self.key("instances")?, "+eval +zrange +zrem");
        let call = call.arg(not_before_ms).arg(INSTANCES_MAX).arg(NAME_LENGTH_MAX);
        let replies = self.call(&[call], CallKind::Read).await?;
        replies::members(replies.into_iter().next())
    }

    /// Publishes a message on the channel `invalidate`.
    ///
    /// # Errors
    /// The servers cannot be asked, or the message has more than 1,024 bytes.
    pub async fn publish(&self, message: &str) -> Result<(), CacheError> {
        if message.len() > MESSAGE_MAX {
            return Err(CacheError::Invalid(format!(
                "a message has at most {MESSAGE_MAX} bytes"
            )));
        }
        let call = CacheCall::new("PUBLISH", self.shared.channel().into_bytes()).arg(message);
        let replies = self.call(&[call], CallKind::Write).await?;
        replies.into_iter().next().unwrap_or_else(replies::missing).map(drop)
    }

    /// Messages of the channel from now on: hints, which may be lost. A lost connection is opened again.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O.
    pub fn messages(&self) -> broadcast::Receiver<String> {
        let sender = self.shared.messages.get_or_init(|| {
            let (sender, _) = broadcast::channel(MESSAGES_WAITING_MAX);
            subscription::spawn(&self.shared, &sender);
            sender
        });
        sender.subscribe()
    }

    /// The reason why messages cannot be received, if they cannot.
    pub fn subscription_error(&self) -> Option<String> {
        let error = self.shared.subscription_error.lock();
        error.unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The commands of a write; the first reply shows its effect.
    fn commands(&self, write: &CacheWrite<'_>) -> Result<Vec<CacheCall>, CacheError> {
        let expire = |name: &str, ttl: Duration| Ok(CacheCall::new("PEXPIRE", self.key(name)?).arg(millis(ttl)));
        Ok(match *write {
            CacheWrite::Set { name, value, ttl } => {
                check_value(value)?;
                let call = CacheCall::new("SET", self.key(name)?).arg(value);
                vec![call.arg("PX").arg(millis(ttl))]
            }
            CacheWrite::SetAbsent { name, value, ttl } => {
                check_value(value)?;
                let call = CacheCall::new("SET", self.key(name)?).arg(value);
                vec![call.arg("PX").arg(millis(ttl)).arg("NX")]
            }
            CacheWrite::Touch { name, ttl } => vec![expire(name, ttl)?],
            CacheWrite::Delete { name } => vec![CacheCall::new("UNLINK", self.key(name)?)],
            CacheWrite::Append {
                id,
                value,
                length_max,
                ttl,
            } => {
                check_value(value)?;
                let call = CacheCall::new("XADD", self.key("log")?).arg("MAXLEN").arg("~");
                let call = call.arg(length_max).arg(id.to_string()).arg("c").arg(value);
                vec![call, expire("log", ttl)?]
            }
            CacheWrite::Index { member, seen_ms, ttl } => {
                check_name(member)?;
                let call = CacheCall::new("ZADD", self.key("instances")?);
                vec![call.arg(seen_ms).arg(member), expire("instances", ttl)?]
            }
            CacheWrite::Unindex { member } => vec![CacheCall::new("ZREM", self.key("instances")?).arg(member)],
        })
    }

    async fn call(
        &self,
        calls: &[CacheCall],
        kind: CallKind,
    ) -> Result<Vec<Result<redis::Value, CacheError>>, CacheError> {
        CallServers::of(&self.shared).call(calls, kind).await
    }

    fn key(&self, name: &str) -> Result<Vec<u8>, CacheError> {
        check_name(name)?;
        Ok(format!("{}{name}", self.shared.prefix).into_bytes())
    }
}

impl CacheState {
    /// The servers, from now on with connections.
    fn servers(&self) -> &Redis {
        self.servers.get_or_init(|| self.options.clone().open())
    }

    fn channel(&self) -> String {
        format!("{}invalidate", self.prefix)
    }
}

fn check_name(name: &str) -> Result<(), CacheError> {
    match name.is_empty() || name.len() > NAME_LENGTH_MAX {
        true => Err(CacheError::Invalid(format!("a name has 1 to {NAME_LENGTH_MAX} bytes"))),
        false => Ok(()),
    }
}

fn check_value(value: &[u8]) -> Result<(), CacheError> {
    match value.is_empty() || value.len() > CACHE_VALUE_MAX {
        true => Err(CacheError::Invalid(format!("a value has 1 to {CACHE_VALUE_MAX} bytes"))),
        false => Ok(()),
    }
}

fn check_count(count: usize) -> Result<(), CacheError> {
    match count > NAMES_MAX {
        true => Err(CacheError::Invalid(format!("one call has at most {NAMES_MAX} keys"))),
        false => Ok(()),
    }
}

/// A TTL as the server takes it, never zero, which would delete the key.
fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 2).max(1)
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.revision)
    }
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(text) | Self::Invalid(text) | Self::Denied(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for CacheError {}

impl fmt::Debug for ConfigCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigCache")
            .field("prefix", &self.shared.prefix)
            .finish_non_exhaustive()
    }
}
