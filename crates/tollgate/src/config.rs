//! Settings: from a file, the environment and flags, validated.
//!
//! [`Sources::read`] merges the layers into [`RawSettings`]; [`Config::read`] validates them and reports every problem at
//! once, each with the file and line, the variable or the flag it comes from.

mod admin;
mod alerts;
mod attributes;
mod auth;
mod control;
mod derive;
mod forward;
mod layers;
pub(crate) mod reader;
mod schema;
mod server;
pub(crate) mod store;
mod telemetry;

pub use admin::{AdminSettings, AdminToken, AnonymousAccess, ExternalUrl, SubjectDisplay};
pub(crate) use admin::{PRINCIPAL_NAMES, is_principal_name};
pub use alerts::AlertSettings;
pub use control::ControlSettings;
pub use layers::{ConfigFile, DEFAULT_FILE, RawSettings, Sources, read_text, variables};
pub use schema::schema;
pub use store::{MemorySettings, RatelimitCounterSettings, RedisSettings, SnapshotPath, StoreSettings, StoreTls};

pub(crate) use self::reader::without_snippet;

use self::attributes::AttributeSettings;
use self::reader::SettingsReader;
use self::server::ServerSettings;
use crate::compat::ratelimit::files::RatelimitRules;
use crate::compat::ratelimit::{self, CompatModes};
use crate::server::auth::tokens::{Rights, Tokens};
use crate::server::http::{Dialects, Forward, HttpLimits, RequestField, RetryAfter};
use crate::server::net::listen::Address;
use crate::server::net::tls::TlsFiles;
use crate::server::telemetry::otlp::OtlpSettings;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::core::problem::{Problem, Problems};
use tollgate_limiter::core::rules::{Coverage, DerivedAttribute, KnownAttributes};
use tollgate_limiter::core::yaml::{Node, NodeKind};

/// All settings, validated, without the rules: those change while a server runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address of the HTTP front end; none: it is disabled.
    pub http: Option<Address>,
    /// The address of the gRPC front end; none: it is disabled.
    pub grpc: Option<Address>,
    /// The address of the debug port; none: it is disabled, or there are no files of `ratelimit`.
    pub debug: Option<Address>,
    /// The address of the front end for the Redis protocol; none: it is disabled.
    pub resp: Option<Address>,
    /// The address of the admin API; none: it is disabled.
    pub admin: Option<Address>,
    /// True if that address is configured, false if it is the default: then another program may have it.
    pub admin_is_configured: bool,
    /// The password of the Redis protocol, if it has one.
    pub resp_password: Option<Tokens>,
    /// The idle timeout of its connections; none: the default.
    pub resp_idle_timeout: Option<Duration>,
    /// Certificates; none: without TLS.
    pub tls: Option<TlsFiles>,
    /// The listeners with TLS; none: all of them.
    pub tls_only: Option<Vec<&'static str>>,
    /// The listeners that other machines reach without authentication, as `ratelimit` allows.
    pub exposed_as_ratelimit: Vec<&'static str>,
    /// Limits on connections and requests.
    pub limits: HttpLimits,
    /// The store of the counters.
    pub store: StoreSettings,
    /// The data directory.
    pub data_dir: DataDir,
    /// The longest time for requests in flight to finish when the server stops.
    pub drain: Duration,
    /// The dialects of rate limit headers in responses.
    pub headers: Dialects,
    /// The form of `Retry-After`.
    pub retry_after: RetryAfter,
    /// Callers' tokens and their rights; none: no authentication.
    pub tokens: Option<Tokens>,
    /// Forward-auth, and the attributes it extracts; none: disabled.
    pub forward: Option<Forward>,
    /// The control plane.
    pub control: ControlSettings,
    /// The admin API.
    pub admin_settings: AdminSettings,
    /// Alerts.
    pub alerts: AlertSettings,
    /// The collector that metrics are sent to; none: nowhere.
    pub otlp: Option<OtlpSettings>,
    /// The attributes that a table of subjects adds to attempts.
    pub derive: Arc<[DerivedAttribute]>,
    /// The attributes that callers are known to provide.
    pub known_attributes: KnownAttributes,
    /// The level of the log.
    pub log: tracing::level_filters::LevelFilter,
    /// The format of the log.
    pub log_format: LogFormat,
    /// The leading bits of an IPv6 address that identify one caller.
    pub ipv6_prefix: u8,
    /// The modes for descriptors of `ratelimit`'s files.
    pub ratelimit_modes: CompatModes,
}

/// The format of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text.
    #[default]
    Text,
    /// A JSON object with `@timestamp`, `@message`, `level` and the fields of the event.
    Json,
}

/// The data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    /// Its path.
    pub path: PathBuf,
    /// True if it is configured, false if it is the default.
    pub is_configured: bool,
}

impl Config {
    /// True if a listener has TLS.
    pub fn has_tls(&self, listener: &str) -> bool {
        let has_listener = |only: &Vec<&str>| only.contains(&listener);
        self.tls.is_some() && self.tls_only.as_ref().is_none_or(has_listener)
    }

    /// The rights of a caller without a token at a listener, if no tokens are configured: all of them, and on an exposed
    /// listener only what `ratelimit` allows.
    pub fn anonymous_rights(&self, listener: &str) -> Rights {
        match self.exposed_as_ratelimit.contains(&listener) {
            true => Rights::CHECK | Rights::METRICS,
            false => Rights::ALL,
        }
    }

    /// Validates the settings. Returns them with the warnings.
    ///
    /// # Errors
    /// Every problem of the settings.
    pub fn read(raw: &RawSettings) -> Result<(Self, Vec<Problem>), Vec<Problem>> {
        let mut reader = SettingsReader::new(raw);
        let config = reader.config();
        let failed = reader.problems.has_errors();
        let problems = reader.problems.sorted();
        match config {
            Some(config) if !failed => Ok((config, problems)),
            _ => Err(problems),
        }
    }
}

impl SettingsReader<'_> {
    fn config(&mut self) -> Option<Config> {
        let fields = self.raw.root.fields("the settings", &KEYS, &mut self.problems)?;
        let find = |key| fields.value(key);
        let server = self.server(find("server"), find(ratelimit::SETTING).is_some());
        let store = self.store(find("store"));
        let data_dir = match find("data_dir").and_then(|node| self.path(node, "a folder")) {
            Some(path) => DataDir {
                path,
                is_configured: true,
            },
            None => DataDir {
                path: self.base_dir().join("tollgate-data"),
                is_configured: false,
            },
        };
        let drain = find("drain").and_then(|node| self.duration(node, DRAIN_MAX));
        let headers = find("headers").and_then(|node| self.headers(node));
        let retry_after = find("retry_after").and_then(|node| self.retry_after(node));
        let tokens = find("auth").and_then(|node| self.auth(node));
        let resp_password = find("auth").and_then(|node| self.resp_password(node));
        let attributes = match find("attributes") {
            Some(node) => self.attributes(node),
            None => Some(AttributeSettings::default()),
        };
        let derive = find("derive").and_then(|node| self.derive(node)).unwrap_or_default();
        let from_callers = attributes.as_ref().map(|attributes| attributes.from_callers.clone());
        let forward = self.forward(&fields, attributes);
        let mut known_attributes = known_attributes(forward.as_ref(), from_callers.unwrap_or_default(), &server);
        known_attributes
            .names
            .extend(derive.iter().map(|derived| derived.name.clone()));
        let log = find("log").and_then(|node| node.keyword("a log level", &LEVELS, &mut self.problems));
        let log_format = find("log_format").and_then(|node| node.keyword("a log format", &FORMATS, &mut self.problems));
        let ipv6_prefix = find("ipv6_prefix")
            .and_then(|node| node.integer("a number of leading bits", 1..=128, &mut self.problems))
            .and_then(|bits| u8::try_from(bits).ok());
        let key_secret = self.secret_or_file(&fields, "key_secret", "a secret");
        let store = match store {
            StoreSettings::Redis(redis) => {
                StoreSettings::Redis(redis.with_key_secret(key_secret.map(|(secret, _)| secret)))
            }
            // Fingerprints in memory are keyed anyway, by a random secret of the process.
            memory @ StoreSettings::Memory(_) => memory,
        };
        let store = self.with_ratelimit_counters(store, find(ratelimit::SETTING));
        let control = self.control(find("control"));
        let admin_settings = self.admin(find("admin"));
        let alerts = self.alerts(find("alerts"));
        let otlp = self.telemetry(find("telemetry"));
        let exposed_as_ratelimit = self.check_exposure(&server, tokens.is_some(), resp_password.is_some());
        Some(Config {
            http: server.http.map(|(address, _)| address),
            grpc: server.grpc.map(|(address, _)| address),
            debug: server.debug.map(|(address, _)| address),
            resp: server.resp.map(|(address, _)| address),
            admin_is_configured: matches!(server.admin, Some((_, Some(_)))),
            admin: server.admin.map(|(address, _)| address),
            resp_password,
            resp_idle_timeout: server.resp_idle_timeout,
            tls: server.tls,
            tls_only: server.tls_only,
            exposed_as_ratelimit,
            limits: server.limits,
            store,
            data_dir,
            drain: drain.unwrap_or(DRAIN),
            headers: headers.unwrap_or_default(),
            retry_after: retry_after.unwrap_or_default(),
            tokens,
            forward,
            control,
            admin_settings,
            alerts,
            otlp,
            derive,
            known_attributes,
            log: log.unwrap_or(tracing::level_filters::LevelFilter::INFO),
            log_format: log_format.unwrap_or_default(),
            ipv6_prefix: ipv6_prefix.unwrap_or(IPV6_PREFIX),
            // Its problems are reported where its files are read.
            ratelimit_modes: RatelimitRules::read(self.raw, &mut Problems::new()).modes,
        })
    }
}

/// The attributes that rules can count on. Forward-auth extracts its own; callers of the HTTP API send those that the
/// settings say they send. Callers over gRPC and the Redis protocol may send any.
fn known_attributes(
    forward: Option<&Forward>,
    from_callers: Vec<Box<str>>,
    server: &ServerSettings,
) -> KnownAttributes {
    let coverage = match forward {
        None => Coverage::Unknown,
        Some(_) if server.grpc.is_none() && server.resp.is_none() => Coverage::Complete,
        Some(_) => Coverage::Partial,
    };
    let extracted = forward.map(|forward| &*forward.attributes).unwrap_or_default();
    let from_headers = extracted
        .iter()
        .filter(|(_, field)| matches!(field, RequestField::Header(_)));
    KnownAttributes {
        from_headers: from_headers.map(|(name, _)| name.clone()).collect(),
        names: extracted
            .iter()
            .map(|(name, _)| name.clone())
            .chain(from_callers)
            .collect(),
        coverage,
    }
}

/// True if a file is a settings file, not a rule file: it has a key that only settings have.
pub fn is_settings(root: &Node) -> bool {
    let NodeKind::Map(entries) = &root.kind else {
        return false;
    };
    let is_setting = |key: &str| key != "rules" && KEYS.contains(&key);
    entries.iter().any(|(key, _)| is_setting(&key.text))
}

/// Every top-level setting.
const KEYS: [&str; 23] = [
    "server",
    "control",
    "admin",
    "alerts",
    "telemetry",
    "store",
    "data_dir",
    "drain",
    "headers",
    "auth",
    "retry_after",
    "trusted_proxies",
    "forward_auth",
    "attributes",
    "derive",
    "rules",
    "rules_files",
    ratelimit::SETTING,
    "ipv6_prefix",
    "key_secret",
    "key_secret_file",
    "log",
    "log_format",
];

const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

const LEVELS: [(&str, tracing::level_filters::LevelFilter); 5] = {
    use tracing::level_filters::LevelFilter as Level;
    [
        ("off", Level::OFF),
        ("error", Level::ERROR),
        ("warn", Level::WARN),
        ("info", Level::INFO),
        ("debug", Level::DEBUG),
    ]
};

const DRAIN: Duration = Duration::from_secs(10);
const DRAIN_MAX: Duration = Duration::from_secs(3_600);
/// The prefix that a network usually assigns to one customer.
pub(crate) const IPV6_PREFIX: u8 = 64;

#[cfg(test)]
pub(crate) mod tests;
