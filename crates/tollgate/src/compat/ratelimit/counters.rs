//! `envoy_rules.counters`: counters in envoyproxy/ratelimit's own keys, on a Redis store.

use crate::config::reader::{SettingsReader, without_snippet};
use crate::config::{RedisSettings, StoreSettings};
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::problem::{Problem, ValueError};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{Fields, Node, NodeKind};
use tollgate_limiter::store::redis::RedisCountersOptions;

/// The settings of those counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatelimitCounterSettings {
    /// The prefix of their keys.
    pub prefix: String,
    /// The bound in seconds on the random time that keys outlive their window.
    pub jitter: u32,
    /// The size in bytes of the local cache of keys over their limit.
    pub local_cache: usize,
    /// True if a request that one limit denies is counted by that limit only.
    pub stop_when_over: bool,
    /// The server for windows of one second, if it is another one.
    pub per_second: Option<Box<RedisSettings>>,
}

impl Default for RatelimitCounterSettings {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            jitter: 300,
            local_cache: 0,
            stop_when_over: false,
            per_second: None,
        }
    }
}

impl RatelimitCounterSettings {
    /// Converts them to options of the store.
    ///
    /// # Errors
    /// Those of the server for windows of a second: see [`RedisSettings::options`].
    pub(crate) fn options(&self) -> Result<RedisCountersOptions, String> {
        let per_second = match &self.per_second {
            Some(second) => Some(Box::new(second.options()?)),
            None => None,
        };
        Ok(RedisCountersOptions {
            prefix: self.prefix.clone().into_bytes(),
            jitter: self.jitter,
            local_cache: self.local_cache,
            stop_when_over: self.stop_when_over,
            per_second,
            ..RedisCountersOptions::default()
        })
    }
}

impl SettingsReader<'_> {
    /// Adds the counters of `envoy_rules`, if there are any, to the store settings.
    pub(crate) fn with_ratelimit_counters(
        &mut self,
        store: StoreSettings,
        envoy_rules: Option<&Node>,
    ) -> StoreSettings {
        let Some(envoy_rules) = envoy_rules else { return store };
        let setting = match &envoy_rules.kind {
            NodeKind::Map(entries) => entries.iter().find(|(key, _)| &*key.text == "counters"),
            _ => None,
        };
        let setting = setting.map(|(_, node)| node).filter(|node| !node.is_null());
        let counters = setting.map(|node| self.ratelimit_counters(node)).unwrap_or_default();
        match store {
            StoreSettings::Redis(redis) => StoreSettings::Redis(redis.with_ratelimit_counters(counters)),
            memory @ StoreSettings::Memory(_) => {
                if let Some(node) = setting.filter(|_| counters != RatelimitCounterSettings::default()) {
                    let unused = Problem::warning(&node.location, "`counters` has no effect with the memory store");
                    self.problems
                        .push(unused.with_hint("take it out, or name a Redis server under `store`"));
                }
                memory
            }
        }
    }

    fn ratelimit_counters(&mut self, node: &Node) -> RatelimitCounterSettings {
        let mut counters = RatelimitCounterSettings::default();
        let Some(fields) = node.fields("`counters` of `envoy_rules`", &COUNTERS, &mut self.problems) else {
            return counters;
        };
        let find = |key| fields.value(key);
        let problems = &mut self.problems;
        if let Some(prefix) = find("prefix").and_then(|node| node.read("a prefix of keys", prefix, problems)) {
            counters.prefix = prefix;
        }
        if let Some(jitter) = find("jitter").and_then(|node| node.read("a length of time", seconds, problems)) {
            counters.jitter = jitter;
        }
        if let Some(bytes) =
            find("local_cache").and_then(|node| node.read("a number of bytes", quantity::parse_size, problems))
        {
            counters.local_cache = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(stops) = find("stop_when_over").and_then(|node| node.flag(problems)) {
            counters.stop_when_over = stops;
        }
        counters.per_second = self.per_second(&fields);
        counters
    }

    fn per_second(&mut self, fields: &Fields<'_>) -> Option<Box<RedisSettings>> {
        let node = fields.value("per_second")?;
        match self.store(Some(node)) {
            StoreSettings::Redis(second) => Some(Box::new(second)),
            StoreSettings::Memory(_) => {
                let hint = "write `redis://host:6379`, or leave it out: then all windows are counted in `store`";
                self.problems
                    .error_with(&without_snippet(&node.location), "this is not a Redis server", hint);
                None
            }
        }
    }
}

fn prefix(text: &str) -> Result<String, ValueError> {
    match text.len() <= PREFIX_MAX {
        true => Ok(text.to_owned()),
        false => Err(ValueError::new(
            "this cannot be a prefix of keys",
            format!("write at most {PREFIX_MAX} bytes"),
        )),
    }
}

/// Parses whole seconds, zero included.
fn seconds(text: &str) -> Result<u32, ValueError> {
    let span = quantity::parse_duration(text)?;
    let second = Micros::from_secs(1).get();
    match u32::try_from(span.get() / second) {
        Ok(seconds) if seconds <= JITTER_MAX && span.get() % second == 0 => Ok(seconds),
        _ => Err(ValueError::new(
            "this is out of range",
            format!("write whole seconds, at most `{JITTER_MAX}s`"),
        )),
    }
}

/// The keys of `counters`.
pub(crate) const COUNTERS: [&str; 5] = ["prefix", "jitter", "local_cache", "stop_when_over", "per_second"];

const PREFIX_MAX: usize = 256;
/// A year.
const JITTER_MAX: u32 = 31_536_000;
