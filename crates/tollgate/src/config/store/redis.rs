//! Settings of the shared store.

use super::super::reader::SettingsReader;
use super::RatelimitCounterSettings;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_limiter::core::problem::ValueError;
use tollgate_limiter::core::yaml::{Fields, Node};
use tollgate_limiter::core::{Micros, quantity};
use tollgate_limiter::store::StoreMode;
use tollgate_limiter::store::fallback;
use tollgate_limiter::store::redis::{BreakerConfig, ClockSource, Functions, OpenFor, ReadFrom, Redis, RedisOptions};

/// Settings of a store on Redis or Valkey.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The URL, which may hold a password.
    url: String,
    /// The timeout of a call.
    pub deadline: Duration,
    /// The longest wait for the store at start.
    pub start_wait: Duration,
    /// The clock that decisions use.
    pub clock: ClockSource,
    /// Calling the script as a function.
    pub functions: Functions,
    /// The prefix of all keys.
    pub prefix: String,
    /// The number of hash tags that keys are spread over.
    pub tags: u16,
    /// The near cache: denies what the store would certainly deny, without a call.
    pub near_cache: bool,
    /// The server for peeks.
    pub read_from: ReadFrom,
    /// The circuit breaker.
    pub breaker: BreakerConfig,
    /// The fallback while the store is unavailable.
    pub fallback: fallback::FallbackOptions,
    /// Certificates for TLS.
    pub tls: Option<StoreTls>,
    /// The password of the servers, if it is not in the URL.
    password: Option<String>,
    sentinel_password: Option<String>,
    /// The secret that keys are hashed with.
    key_secret: Option<String>,
    /// The counters of `ratelimit`, if there are any.
    pub ratelimit_counters: Option<RatelimitCounterSettings>,
}

/// Certificate files for a `rediss://` server, all PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// The authority of the server's certificate; none: the system's.
    pub authority: Option<PathBuf>,
    /// The client certificate and its key, if any.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl RedisSettings {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            deadline: Duration::from_millis(10),
            start_wait: Duration::from_secs(1),
            clock: ClockSource::Server,
            functions: Functions::Auto,
            prefix: "tg".to_owned(),
            tags: 64,
            near_cache: true,
            read_from: ReadFrom::Primary,
            breaker: BreakerConfig::default(),
            fallback: fallback::FallbackOptions::default(),
            tls: None,
            password: None,
            sentinel_password: None,
            key_secret: None,
            ratelimit_counters: None,
        }
    }

    pub(crate) fn with_ratelimit_counters(self, counters: RatelimitCounterSettings) -> Self {
        Self {
            ratelimit_counters: Some(counters),
            ..self
        }
    }

    pub(in super::super) fn with_key_secret(self, key_secret: Option<String>) -> Self {
        Self { key_secret, ..self }
    }

    /// True if the secret that keys are hashed with is the same.
    pub fn has_same_key_secret(&self, other: &Self) -> bool {
        self.key_secret == other.key_secret
    }

    /// True if the settings under `store` differ at most in `mode`.
    pub fn differs_only_in_mode(&self, other: &Self) -> bool {
        let mut same = other.clone();
        same.fallback.mode = self.fallback.mode;
        // These have settings of their own.
        same.key_secret.clone_from(&self.key_secret);
        same.ratelimit_counters.clone_from(&self.ratelimit_counters);
        same == *self
    }

    /// The options for opening the store. Reads the certificates.
    ///
    /// # Errors
    /// Certificates that cannot be read, or an invalid URL, which validation rejects already.
    pub fn options(&self) -> Result<RedisOptions, String> {
        let options = Redis::options(&self.url).map_err(|error| error.to_string())?;
        let options = match &self.tls {
            Some(tls) => tls.apply(options)?,
            None => options,
        };
        let options = match &self.password {
            Some(password) => options.password(password),
            None => options,
        };
        let options = match &self.sentinel_password {
            Some(password) => options.sentinel_password(password),
            None => options,
        };
        let options = options
            .deadline(self.deadline)
            .clock_source(self.clock)
            .functions(self.functions)
            .prefix(&self.prefix)
            .tags(self.tags)
            .near_cache(self.near_cache)
            .breaker(self.breaker)
            .read_from(self.read_from);
        let options = match &self.ratelimit_counters {
            Some(counters) => options.ratelimit_counters(counters.options()?),
            None => options,
        };
        Ok(match &self.key_secret {
            Some(secret) => options.key_secret(secret.as_bytes()),
            None => options,
        })
    }
}

impl StoreTls {
    fn apply(&self, options: RedisOptions) -> Result<RedisOptions, String> {
        let read = |path: &PathBuf| {
            let read = std::fs::read(path);
            read.map_err(|error| format!("cannot read {} of `store.tls`: {error}", path.display()))
        };
        let authority = self.authority.as_ref().map(read).transpose()?;
        let client = match &self.client {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        let client = client.as_ref().map(|(certificate, key)| (&**certificate, &**key));
        let options = options.tls(authority.as_deref(), client);
        options.map_err(|error| format!("`store.tls`: {error}"))
    }
}

impl SettingsReader<'_> {
    fn store_tls(&mut self, node: &Node) -> Option<StoreTls> {
        let fields = node.fields("`tls` of the store", &["ca", "cert", "key"], &mut self.problems)?;
        let find = |key| fields.value(key);
        let authority = find("ca").and_then(|node| self.path(node, "a file"));
        let client = match (find("cert"), find("key")) {
            (Some(certificate), Some(key)) => self.path(certificate, "a file").zip(self.path(key, "a file")),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                self.problems
                    .error_with(&node.location, "`cert` and `key` must both be set", "set both, or none");
                None
            }
        };
        Some(StoreTls { authority, client })
    }

    pub(super) fn redis(&mut self, url: String, fields: &Fields<'_>) -> RedisSettings {
        let mut redis = RedisSettings::new(url);
        let find = |key| fields.value(key);
        if let Some(deadline) = find("deadline").and_then(|node| self.duration(node, DEADLINE_MAX)) {
            redis.deadline = deadline;
        }
        if let Some(start_wait) = find("start_wait").and_then(|node| self.duration(node, START_WAIT_MAX)) {
            redis.start_wait = start_wait;
        }
        let tolerance = find("skew_tolerance").and_then(|node| self.duration(node, DEADLINE_MAX));
        let skew_tolerance = Micros::from(tolerance.unwrap_or(SKEW_TOLERANCE));
        if let Some((password, location)) = self.secret_or_file(fields, "password", "a password") {
            if Redis::options(&redis.url).is_ok_and(|options| options.has_password()) {
                self.problems.error_with(
                    &location,
                    "the password is set twice: in `url` and here",
                    "remove it from `url`; the user stays: `redis://user@host:6379/0`",
                );
            }
            redis.password = Some(password);
        }
        let sentinel_password = self.secret_or_file(fields, "sentinel_password", "a password");
        redis.sentinel_password = sentinel_password.map(|(password, _)| password);
        redis.tls = find("tls").and_then(|node| self.store_tls(node));
        let problems = &mut self.problems;
        let clocks = [
            ("server", ClockSource::Server),
            ("client", ClockSource::Client { skew_tolerance }),
        ];
        if let Some(time) = find("clock").and_then(|node| node.keyword("a clock", &clocks, problems)) {
            redis.clock = time;
        }
        if let Some(functions) =
            find("functions").and_then(|node| node.keyword("a value of `functions`", &FUNCTION_MODES, problems))
        {
            redis.functions = functions;
        }
        if let Some(prefix) = find("prefix").and_then(|node| node.read("a prefix of keys", prefix, problems)) {
            redis.prefix = prefix;
        }
        if let Some(tags) = find("tags").and_then(|node| node.integer("a number of tags", 1..=16_384, problems)) {
            redis.tags = u16::try_from(tags).unwrap_or(redis.tags);
        }
        if let Some(near_cache) = find("near_cache").and_then(|node| node.flag(problems)) {
            redis.near_cache = near_cache;
        }
        if let Some(read_from) =
            find("read_from").and_then(|node| node.keyword("a server to read from", &READ_FROM, problems))
        {
            redis.read_from = read_from;
        }
        self.failure(&mut redis, fields);
        redis
    }

    /// Settings for the time while the store is unavailable.
    fn failure(&mut self, redis: &mut RedisSettings, fields: &Fields<'_>) {
        let find = |key| fields.value(key);
        redis.fallback.compensation_timeout = EXTRA_DECISION_TIME;
        if let Some(node) = find("decision_deadline")
            && let Some(deadline) = self.duration(node, DEADLINE_MAX)
        {
            match deadline.checked_sub(redis.deadline) {
                Some(extra) => redis.fallback.compensation_timeout = extra,
                None => self.problems.error_with(
                    &node.location,
                    "`decision_deadline` is below `deadline`",
                    "write no less than `deadline`",
                ),
            }
        }
        let problems = &mut self.problems;
        if let Some(mode) = find("mode").and_then(|node| node.keyword("a value of `mode`", &StoreMode::NAMES, problems))
        {
            redis.fallback.mode = mode;
        }
        if let Some(node) = find("instances").filter(|node| node.scalar() != Some("auto")) {
            let count = node.integer("`auto` or a number of instances", 1..=100_000, problems);
            redis.fallback.instances = count.and_then(|count| u32::try_from(count).ok());
        }
        if let Some(share) = find("fallback_share").and_then(|node| node.read("a share", nonzero_share, problems)) {
            redis.fallback.share_millionths = share;
        }
        let known = ["failures", "within", "open_for"];
        let Some(fields) = find("breaker").and_then(|node| node.fields("`breaker`", &known, problems)) else {
            return;
        };
        let setting = |key| fields.value(key);
        if let Some(node) = setting("failures")
            && let Some(failures) = node.integer("a number of failures", 1..=1_000, problems)
        {
            redis.breaker.failures = u32::try_from(failures).unwrap_or(redis.breaker.failures);
        }
        if let Some(node) = setting("within")
            && let Some(within) = node.read("a duration", quantity::parse_duration, problems)
        {
            redis.breaker.within = within;
        }
        if let Some(node) = setting("open_for").filter(|node| node.scalar() != Some("auto"))
            && let Some(long) = node.read("`auto` or a duration", quantity::parse_duration, problems)
        {
            redis.breaker.open_for = OpenFor::Fixed(long);
        }
    }
}

/// A share above zero, in millionths.
fn nonzero_share(text: &str) -> Result<u32, ValueError> {
    match quantity::parse_share(text)?.millionths() {
        0 => Err(ValueError::new(
            "a share of 0 denies everything",
            "write more than 0, such as `0.8`; to deny, use `on_store_failure: closed` in the rules",
        )),
        millionths => Ok(millionths),
    }
}

fn prefix(text: &str) -> Result<String, ValueError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    if (1..=32).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(
        "invalid prefix of keys",
        "write up to 32 letters, digits, `_`, `-`, `.` or `:`",
    ))
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("deadline", &self.deadline)
            .field("start_wait", &self.start_wait)
            .field("clock", &self.clock)
            .field("functions", &self.functions)
            .field("prefix", &self.prefix)
            .field("tags", &self.tags)
            .field("near_cache", &self.near_cache)
            .field("breaker", &self.breaker)
            .field("local", &self.fallback)
            .field("read_from", &self.read_from)
            .field("ratelimit_counters", &self.ratelimit_counters)
            .finish_non_exhaustive()
    }
}

const DEADLINE_MAX: Duration = Duration::from_secs(60);
const START_WAIT_MAX: Duration = Duration::from_secs(600);
/// The default of `decision_deadline` beyond `deadline`.
const EXTRA_DECISION_TIME: Duration = Duration::from_millis(5);
const SKEW_TOLERANCE: Duration = Duration::from_millis(100);
const READ_FROM: [(&str, ReadFrom); 2] = [("primary", ReadFrom::Primary), ("replica", ReadFrom::Replica)];
const FUNCTION_MODES: [(&str, Functions); 3] = [
    ("auto", Functions::Auto),
    ("on", Functions::On),
    ("off", Functions::Off),
];
