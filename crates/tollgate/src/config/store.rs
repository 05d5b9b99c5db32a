//! `store`: where counters are kept.

use super::reading::{Reading, without_text};
use std::path::PathBuf;
use std::time::Duration;
use tollgate_limiter::core::problem::{Place, Refusal};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{Fields, Kind, Node};
use tollgate_limiter::store::memory::Overflow;

/// Where counters are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSettings {
    /// In this program's memory.
    Memory(MemorySettings),
}

/// How the embedded store is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The most bytes of keys and states.
    pub max_memory: usize,
    /// What a new key meets when there is no room for it.
    pub overflow: Overflow,
    /// Where counters outlast a restart; none: they do not.
    pub snapshot: Option<Snapshot>,
}

/// Where a snapshot is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// In `data_dir`, under this name.
    Inside(PathBuf),
    /// Wherever it was wanted.
    At(PathBuf),
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self::Memory(MemorySettings {
            max_memory: 1 << 30,
            overflow: Overflow::Share,
            snapshot: None,
        })
    }
}

impl Reading<'_> {
    pub(super) fn store(&mut self, node: Option<&Node>) -> StoreSettings {
        let default = StoreSettings::default();
        let Some(node) = node else { return default };
        let Kind::Map(_) = node.kind else {
            if let Some(url) = node.text("a store", &mut self.problems) {
                self.kind_of_store(url, &node.place);
            }
            return default;
        };
        let known: Vec<&str> = COMMON.iter().chain(&OF_MEMORY).chain(&OF_REDIS).copied().collect();
        let Some(fields) = node.fields("`store`", &known, &mut self.problems) else {
            return default;
        };
        let kind = match fields.find("url").filter(|node| !node.is_null()) {
            None => Some(StoreKind::Memory),
            Some(node) => match node.text("a store", &mut self.problems) {
                Some(url) => self.kind_of_store(url, &node.place),
                None => None,
            },
        };
        let memory = self.memory(&fields);
        self.redis(&fields);
        let (foreign, other): (&[&str], _) = match kind {
            Some(StoreKind::Memory) => (&OF_REDIS, "a Redis store"),
            Some(StoreKind::Redis) => (&OF_MEMORY, "the memory store"),
            None => (&[], ""),
        };
        for key in foreign {
            if let Some((key, _)) = fields.entry(key) {
                let text = format!("`{}` is a setting of {other}", key.text);
                self.problems
                    .error_with(&key.place, text, "take it out, or name that store in `url`");
            }
        }
        StoreSettings::Memory(memory)
    }

    /// Which kind of store an address is for. One that this version has not is a problem.
    fn kind_of_store(&mut self, url: &str, place: &Place) -> Option<StoreKind> {
        if url == "memory" {
            return Some(StoreKind::Memory);
        }
        // It may hold a password.
        let place = without_text(place);
        let scheme = url.split_once("://");
        match scheme {
            Some((scheme, rest)) if SCHEMES.contains(&scheme) && !rest.is_empty() => {
                self.not_yet(
                    &place,
                    "Redis or Valkey store",
                    "write `store: memory`; counters are then kept in this program",
                );
                Some(StoreKind::Redis)
            }
            _ => {
                let schemes = SCHEMES.map(|scheme| format!("`{scheme}://…`")).join(", ");
                self.problems.error_with(
                    &place,
                    "this is not a store",
                    format!("write `memory`, or one of {schemes}"),
                );
                None
            }
        }
    }

    fn memory(&mut self, fields: &Fields<'_>) -> MemorySettings {
        let StoreSettings::Memory(mut memory) = StoreSettings::default();
        let find = |key| fields.find(key).filter(|node: &&Node| !node.is_null());
        if let Some(node) = find("max_memory")
            && let Some(bytes) = node.read("a number of bytes", quantity::size, &mut self.problems)
        {
            match usize::try_from(bytes) {
                Ok(bytes) if bytes >= MEMORY_MIN => memory.max_memory = bytes,
                _ => self.problems.error_with(
                    &node.place,
                    "this is out of range",
                    "write at least `1MiB`, such as `512MiB`",
                ),
            }
        }
        if let Some(node) = find("overflow")
            && let Some(overflow) = node.word(
                "a way to meet new keys when memory is full",
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

    /// A name alone is a file in `data_dir`; a path is one where it says.
    fn snapshot(&mut self, node: &Node) -> Option<Snapshot> {
        let path = self.path(node, "a file")?;
        let name = PathBuf::from(node.scalar()?);
        match name.components().collect::<Vec<_>>().as_slice() {
            [std::path::Component::Normal(only)] if *only == name.as_os_str() => Some(Snapshot::Inside(name)),
            _ => Some(Snapshot::At(path)),
        }
    }

    /// Checked, so that a file can be written for it today.
    fn redis(&mut self, fields: &Fields<'_>) {
        let find = |key| fields.find(key).filter(|node: &&Node| !node.is_null());
        for key in ["deadline", "skew_tolerance"] {
            if let Some(node) = find(key) {
                self.duration(node, Duration::from_secs(60));
            }
        }
        if let Some(node) = find("sentinel_password") {
            self.secret(node, "a password");
        }
        let problems = &mut self.problems;
        for (key, words) in [
            ("clock", &["server", "client"][..]),
            ("functions", &["auto", "on", "off"]),
            ("mode", &["auto", "shared_only", "local_only"]),
        ] {
            if let Some(node) = find(key) {
                let known: Vec<(&str, ())> = words.iter().map(|word| (*word, ())).collect();
                node.word(&format!("a value of `{key}`"), &known, problems);
            }
        }
        if let Some(node) = find("prefix") {
            node.read("a prefix of keys", prefix, problems);
        }
        if let Some(node) = find("instances")
            && node.scalar() != Some("auto")
        {
            node.whole("`auto` or a number of instances", 1..=100_000, problems);
        }
        if let Some(node) = find("fallback_share") {
            node.read("a share", quantity::share, problems);
        }
        if let Some(node) = find("near_cache") {
            node.flag(problems);
        }
        if let Some(node) = find("breaker")
            && let Some(breaker) = node.fields("`breaker`", &["failures", "within", "open_for"], problems)
        {
            if let Some(node) = breaker.find("failures") {
                node.whole("a number of failures", 1..=1_000, problems);
            }
            for key in ["within", "open_for"] {
                if let Some(node) = breaker.find(key)
                    && !(key == "open_for" && node.scalar() == Some("auto"))
                {
                    node.read("a length of time", quantity::duration, problems);
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum StoreKind {
    Memory,
    Redis,
}

fn prefix(text: &str) -> Result<(), Refusal> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if (1..=32).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(());
    }
    Err(Refusal::new(
        "this cannot be a prefix of keys",
        "write up to 32 letters, digits, `_`, `-`, `.` or `:`",
    ))
}

pub(super) const COMMON: [&str; 1] = ["url"];
pub(super) const OF_MEMORY: [&str; 3] = ["max_memory", "snapshot", "overflow"];
pub(super) const OF_REDIS: [&str; 11] = [
    "sentinel_password",
    "deadline",
    "clock",
    "skew_tolerance",
    "functions",
    "prefix",
    "instances",
    "fallback_share",
    "near_cache",
    "breaker",
    "mode",
];
const SCHEMES: [&str; 5] = ["redis", "rediss", "redis+unix", "redis+sentinel", "redis+cluster"];
const OVERFLOWS: [(&str, Overflow); 2] = [("share", Overflow::Share), ("deny", Overflow::Deny)];

/// Below that the tables' first pages are all there is.
const MEMORY_MIN: usize = 1 << 20;
