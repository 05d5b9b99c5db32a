//! `store`: the store of the counters.

mod redis;

pub use self::redis::{RedisSettings, StoreTls};
#[cfg(test)]
#[cfg(test)]
pub(super) use crate::compat::ratelimit::COUNTERS;
pub use crate::compat::ratelimit::RatelimitCounterSettings;

use super::reader::{SettingsReader, without_snippet};
use std::path::PathBuf;
use tollgate_limiter::core::problem::Location;
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{Fields, Node, NodeKind};
use tollgate_limiter::store::memory::Overflow;
use tollgate_limiter::store::redis::Redis;

/// The store of the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a server has one of them")]
pub enum StoreSettings {
    /// In this process.
    Memory(MemorySettings),
    /// On a Redis or Valkey server, shared by all instances.
    Redis(RedisSettings),
}

/// Settings of the memory store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The most bytes for keys and states, allocator overhead included.
    pub max_memory: usize,
    /// The treatment of new keys when memory is full.
    pub overflow: Overflow,
    /// The file that keeps counters over a restart; none: they are lost.
    pub snapshot: Option<SnapshotPath>,
}

/// The path of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPath {
    /// In `data_dir`, under this name.
    InDataDir(PathBuf),
    /// At this path.
    At(PathBuf),
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self::Memory(MemorySettings::default())
    }
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self {
            max_memory: 1 << 30,
            overflow: Overflow::Share,
            snapshot: None,
        }
    }
}

impl SettingsReader<'_> {
    pub(crate) fn store(&mut self, node: Option<&Node>) -> StoreSettings {
        let default = StoreSettings::default();
        let Some(node) = node else { return default };
        let NodeKind::Map(_) = node.kind else {
            let url = node.text("a store", &mut self.problems);
            let kind = url.and_then(|url| self.store_kind(url, &node.location));
            return match kind {
                Some(StoreKind::Redis(url)) => StoreSettings::Redis(RedisSettings::new(url)),
                Some(StoreKind::Memory) | None => default,
            };
        };
        let known: Vec<&str> = COMMON_KEYS
            .iter()
            .chain(&MEMORY_KEYS)
            .chain(&REDIS_KEYS)
            .copied()
            .collect();
        let Some(fields) = node.fields("`store`", &known, &mut self.problems) else {
            return default;
        };
        let kind = match fields.value("url") {
            None => Some(StoreKind::Memory),
            Some(node) => match node.text("a store", &mut self.problems) {
                Some(url) => self.store_kind(url, &node.location),
                None => None,
            },
        };
        let memory = self.memory(&fields);
        let url = match &kind {
            Some(StoreKind::Redis(url)) => url.clone(),
            _ => String::new(),
        };
        let redis = self.redis(url, &fields);
        let (foreign_keys, other): (&[&str], _) = match kind {
            Some(StoreKind::Memory) => (&REDIS_KEYS, "a Redis store"),
            Some(StoreKind::Redis(_)) => (&MEMORY_KEYS, "the memory store"),
            None => (&[], ""),
        };
        for key in foreign_keys {
            if let Some((key, _)) = fields.entry(key) {
                let text = format!("`{}` is a setting of {other}", key.text);
                self.problems
                    .error_with(&key.location, text, "remove it, or name that store in `url`");
            }
        }
        match kind {
            Some(StoreKind::Redis(_)) => StoreSettings::Redis(redis),
            Some(StoreKind::Memory) | None => StoreSettings::Memory(memory),
        }
    }

    /// The kind of store of a URL.
    fn store_kind(&mut self, url: &str, location: &Location) -> Option<StoreKind> {
        if url == "memory" {
            return Some(StoreKind::Memory);
        }
        // It may hold a password.
        let location = without_snippet(location);
        match url.split_once("://") {
            Some((scheme, rest)) if SCHEMES.contains(&scheme) && !rest.is_empty() => {
                if Redis::options(url).is_err() {
                    self.problems.error_with(
                        &location,
                        "not the URL of a Redis server",
                        "write `redis://user:password@host:6379/0`, `rediss://…` for TLS, `redis+unix:///path`, \
                         `redis+sentinel://host:26379,host:26379/name` or `redis+cluster://host:7000,host:7001`",
                    );
                }
                Some(StoreKind::Redis(url.to_owned()))
            }
            _ => {
                let schemes: Vec<String> = SCHEMES.iter().map(|scheme| format!("`{scheme}://…`")).collect();
                let hint = format!("write `memory`, or one of {}", schemes.join(", "));
                self.problems.error_with(&location, "unknown store", hint);
                None
            }
        }
    }

    fn memory(&mut self, fields: &Fields<'_>) -> MemorySettings {
        let mut memory = MemorySettings::default();
        let find = |key| fields.value(key);
        if let Some(node) = find("max_memory")
            && let Some(bytes) = node.read("a number of bytes", quantity::parse_size, &mut self.problems)
        {
            match usize::try_from(bytes) {
                Ok(bytes) if bytes >= MEMORY_MIN => memory.max_memory = bytes,
                _ => self.problems.error_with(
                    &node.location,
                    "out of range",
                    "write at least `1MiB`, such as `512MiB`",
                ),
            }
        }
        if let Some(node) = find("overflow")
            && let Some(overflow) = node.keyword(
                "a treatment of new keys when memory is full",
                &OVERFLOWS,
                &mut self.problems,
            )
        {
            memory.overflow = overflow;
        }
        if let Some(node) = find("snapshot") {
            memory.snapshot = self.snapshot(node);
        }
        memory
    }

    /// A bare name is a file in `data_dir`; a path stands for itself.
    fn snapshot(&mut self, node: &Node) -> Option<SnapshotPath> {
        let path = self.path(node, "a file")?;
        let name = PathBuf::from(node.scalar()?);
        match name.components().collect::<Vec<_>>().as_slice() {
            [std::path::Component::Normal(only)] if *only == name.as_os_str() => Some(SnapshotPath::InDataDir(name)),
            _ => Some(SnapshotPath::At(path)),
        }
    }
}

enum StoreKind {
    Memory,
    /// At this URL.
    Redis(String),
}

pub(super) const COMMON_KEYS: [&str; 1] = ["url"];
pub(super) const MEMORY_KEYS: [&str; 3] = ["max_memory", "snapshot", "overflow"];
pub(super) const REDIS_KEYS: [&str; 19] = [
    "tls",
    "password",
    "password_file",
    "sentinel_password",
    "sentinel_password_file",
    "deadline",
    "start_wait",
    "decision_deadline",
    "clock",
    "skew_tolerance",
    "functions",
    "prefix",
    "tags",
    "instances",
    "fallback_share",
    "near_cache",
    "read_from",
    "breaker",
    "mode",
];
const SCHEMES: [&str; 7] = [
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
];
const OVERFLOWS: [(&str, Overflow); 2] = [("share", Overflow::Share), ("deny", Overflow::Deny)];

/// Below that, the first pages of the tables take all of it.
const MEMORY_MIN: usize = 1 << 20;
