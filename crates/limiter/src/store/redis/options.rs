//! Options of a shared store, and opening it.

use super::Redis;
use super::connection::connector::{Connector, EndpointSource};
use super::connection::endpoint::{ConnectOptions, StoreUrl};
use super::context::{BreakerConfig, ClockSource, Functions, ReadFrom, StoreContext};
use super::key::RedisKeyspace;
use super::metrics::RedisMetrics;
use super::near_cache::NearCache;
use super::node::Node;
use super::node::call_group::KeyScope;
use super::topology::cluster::Cluster;
use super::topology::sentinel::Sentinels;
use super::topology::{Topology, replicas};
use crate::clock::Clock;
use crate::compat::redis_counters::{RedisCounters, RedisCountersOptions};
use redis::{ClientTlsConfig, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tollgate_core::{Micros, Now, Timestamp};

/// Options of a shared store. Start from [`Redis::options`].
#[derive(Clone)]
pub struct RedisOptions {
    url: StoreUrl,
    last_primary: Option<String>,
    deadline: Duration,
    clock_source: ClockSource,
    functions: Functions,
    prefix: String,
    tags: u16,
    secret: Option<Vec<u8>>,
    near_cache: bool,
    breaker: BreakerConfig,
    read_from: ReadFrom,
    counters: Option<RedisCountersOptions>,
}

/// The reason why certificates cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisTlsError {
    /// The URL does not start with `rediss://`.
    NoTls,
    /// The certificates of the authority cannot be read.
    Authority,
    /// The client certificate or its key cannot be read, or they do not match.
    Client,
}

/// The URL names no server. The error does not repeat it: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlError;

impl RedisOptions {
    pub(crate) fn new(url: &str) -> Result<Self, UrlError> {
        Ok(Self {
            url: StoreUrl::parse(url).ok_or(UrlError)?,
            last_primary: None,
            deadline: Duration::from_millis(10),
            clock_source: ClockSource::Server,
            functions: Functions::Auto,
            prefix: "tg".to_owned(),
            tags: 64,
            secret: None,
            near_cache: true,
            breaker: BreakerConfig::default(),
            read_from: ReadFrom::Primary,
            counters: None,
        })
    }

    /// The deadline of a call: at most an hour. Default: 10 ms.
    pub fn deadline(self, deadline: Duration) -> Self {
        let deadline = deadline.min(Duration::from_secs(3_600));
        Self { deadline, ..self }
    }

    /// The authorities a `rediss://` server is trusted by, and the client certificate with its key, as PEM. Default:
    /// the authorities of the system, and no client certificate.
    ///
    /// # Errors
    /// A certificate cannot be read, or the URL does not use TLS.
    pub fn tls(self, authority: Option<&[u8]>, client: Option<(&[u8], &[u8])>) -> Result<Self, RedisTlsError> {
        if authority.is_some_and(|pem| certificates(pem).is_empty()) {
            return Err(RedisTlsError::Authority);
        }
        if let Some((pem, key)) = client {
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| RedisTlsError::Client)?;
            let provider = rustls::crypto::ring::default_provider();
            CertifiedKey::from_der(certificates(pem), key, &provider).map_err(|_| RedisTlsError::Client)?;
        }
        let tls_certificates = TlsCertificates {
            client_tls: client.map(|(pem, key)| ClientTlsConfig {
                client_cert: pem.to_vec(),
                client_key: key.to_vec(),
            }),
            root_cert: authority.map(<[u8]>::to_vec),
        };
        let url = self.url.map_connect_options(|connect_options| {
            if !connect_options.is_tls() {
                return Err(RedisTlsError::NoTls);
            }
            connect_options
                .with_tls_certificates(tls_certificates.clone())
                .map_err(|_| RedisTlsError::Authority)
        })?;
        Ok(Self { url, ..self })
    }

    /// The password of the servers, instead of one in the URL; the user of the URL stays. Sentinels have their own.
    pub fn password(self, password: &str) -> Self {
        let url = match self.url {
            StoreUrl::One(connect_options) => StoreUrl::One(connect_options.with_password(password)),
            StoreUrl::Sentinel {
                sentinels,
                connect_options,
                name,
                primary,
            } => StoreUrl::Sentinel {
                sentinels,
                connect_options,
                name,
                primary: primary.with_password(password),
            },
            StoreUrl::Cluster { seeds, connect_options } => StoreUrl::Cluster {
                seeds,
                connect_options: connect_options.with_password(password),
            },
        };
        Self { url, ..self }
    }

    /// True if the servers get a password.
    pub fn has_password(&self) -> bool {
        self.server_options().password().is_some()
    }

    /// The options to connect to a server, at whatever endpoint.
    pub(crate) const fn server_options(&self) -> &ConnectOptions {
        match &self.url {
            StoreUrl::One(connect_options) | StoreUrl::Cluster { connect_options, .. } => connect_options,
            StoreUrl::Sentinel { primary, .. } => primary,
        }
    }

    /// The prefix of all keys.
    pub(crate) fn key_prefix(&self) -> &str {
        &self.prefix
    }

    /// False if the script is never called as a function.
    pub(crate) fn may_use_functions(&self) -> bool {
        self.functions != Functions::Off
    }

    /// The same servers for calls that are no decisions: without counters, near cache and replicas.
    pub(crate) fn for_config_cache(self, deadline: Duration) -> Self {
        Self {
            deadline,
            tags: 1,
            near_cache: false,
            read_from: ReadFrom::Primary,
            counters: None,
            ..self
        }
    }

    /// The password of the sentinels, which is not that of the servers. Ignored without sentinels.
    pub fn sentinel_password(self, password: &str) -> Self {
        let url = match self.url {
            StoreUrl::Sentinel {
                sentinels,
                connect_options,
                name,
                primary,
            } => StoreUrl::Sentinel {
                sentinels,
                connect_options: connect_options.with_password(password),
                name,
                primary,
            },
            other => other,
        };
        Self { url, ..self }
    }

    /// True if sentinels name the primary.
    pub fn has_sentinels(&self) -> bool {
        matches!(self.url, StoreUrl::Sentinel { .. })
    }

    /// The primary that sentinels named before, as [`Redis::primary`] returned it: used while none of them answers.
    /// Ignored if it is of other sentinels or another name, or cannot be read.
    pub fn last_primary(self, report: &str) -> Self {
        Self {
            last_primary: Some(report.to_owned()),
            ..self
        }
    }

    /// The clock that decides. Default: the server's.
    pub fn clock_source(self, clock_source: ClockSource) -> Self {
        Self { clock_source, ..self }
    }

    /// The use of a function library. Default: where the server allows it.
    pub fn functions(self, functions: Functions) -> Self {
        Self { functions, ..self }
    }

    /// The prefix of all keys, without braces and cut to 32 bytes. Default: `tg`.
    pub fn prefix(self, prefix: &str) -> Self {
        let mut prefix = prefix.replace(['{', '}'], "");
        prefix.truncate(prefix.floor_char_boundary(RedisKeyspace::PREFIX_MAX));
        Self { prefix, ..self }
    }

    /// The number of tags that keys are spread over, which in a cluster is the most slots they use. Another number
    /// means other keys. Default: 64.
    pub fn tags(self, tags: u16) -> Self {
        Self { tags, ..self }
    }

    /// A secret that all instances share. Without it the key of a subject cannot be computed. Default: none.
    pub fn key_secret(self, secret: &[u8]) -> Self {
        Self {
            secret: Some(secret.to_vec()),
            ..self
        }
    }

    /// Denies without a call what the store would certainly deny. Default: true.
    pub fn near_cache(self, near_cache: bool) -> Self {
        Self { near_cache, ..self }
    }

    /// The server that answers peeks. Default: the primary.
    pub fn read_from(self, read_from: ReadFrom) -> Self {
        Self { read_from, ..self }
    }

    /// Keeps the counters of `ratelimit` in its own keys. Default: they are limits like all others.
    pub fn ratelimit_counters(self, counters: RedisCountersOptions) -> Self {
        Self {
            counters: Some(counters),
            ..self
        }
    }

    /// The thresholds of the circuit breaker. Default: five consecutive failures within ten seconds open it, until
    /// probes succeed.
    pub fn breaker(self, breaker: BreakerConfig) -> Self {
        Self { breaker, ..self }
    }

    /// Opens the store, which starts to connect at once.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O.
    pub fn open(self) -> Redis {
        let (slack, clock_ahead) = match self.clock_source {
            ClockSource::Server => (Now::SLACK, Micros::ZERO),
            ClockSource::Client { skew_tolerance } => (
                Now::SLACK.max(skew_tolerance),
                Micros::new(skew_tolerance.get().saturating_mul(2)),
            ),
        };
        let context = Arc::new(StoreContext {
            near_cache: self.near_cache.then(|| NearCache::new(clock_ahead, slack)),
            keyspace: RedisKeyspace::new(&self.prefix, self.tags, self.secret.as_deref()),
            metrics: Arc::new(RedisMetrics::default()),
            runtime: Handle::current(),
            clock: Clock::start(Timestamp::EPOCH),
            clock_source: self.clock_source,
            functions: self.functions,
            read_from: self.read_from,
            slack,
            deadline: self.deadline,
            breaker_config: self.breaker,
            orphaned_leases: Default::default(),
        });
        let topology = match self.url {
            StoreUrl::One(options) => {
                let connector = Connector::new(EndpointSource::Fixed(options.clone()), &context);
                Topology::Single(single_node(connector, &context, &options), None)
            }
            StoreUrl::Sentinel {
                sentinels,
                connect_options,
                name,
                primary,
            } => {
                let last_known = self.last_primary.as_deref();
                let sentinels = Sentinels::new(sentinels, connect_options, name, primary.clone(), last_known);
                let sentinels = Arc::new(sentinels);
                let source = EndpointSource::Located(Arc::<Sentinels>::clone(&sentinels));
                let connector = Connector::new(source, &context);
                sentinels.subscribe_all(&connector, &context);
                Topology::Single(single_node(connector, &context, &primary), Some(sentinels))
            }
            StoreUrl::Cluster { seeds, connect_options } => {
                Topology::Cluster(Cluster::new(seeds, connect_options, Arc::clone(&context)))
            }
        };
        Redis {
            warnings: Mutex::default(),
            context,
            topology: Arc::new(topology),
            counters: self.counters.map(|counters| Box::new(RedisCounters::open(counters))),
        }
    }
}

fn single_node(connector: Arc<Connector>, context: &Arc<StoreContext>, options: &ConnectOptions) -> Arc<Node> {
    let node = Node::new(connector, Arc::clone(context), KeyScope::All);
    replicas::watch(&node, options);
    node
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("deadline", &self.deadline)
            .field("clock_source", &self.clock_source)
            .field("functions", &self.functions)
            .field("prefix", &self.prefix)
            .field("tags", &self.tags)
            .field("near_cache", &self.near_cache)
            .field("breaker", &self.breaker)
            .field("read_from", &self.read_from)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not the URL of a server; write redis://host:6379/0, rediss://host:6379/0, \
             redis+unix:///path, redis+sentinel://host:26379,…/name or redis+cluster://host:7000,…",
        )
    }
}

impl std::error::Error for UrlError {}

impl fmt::Display for RedisTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTls => "certificates need a rediss:// URL",
            Self::Authority => "the CA certificates cannot be read; they must be PEM",
            Self::Client => "the client certificate and its key cannot be read or do not match; they must be PEM",
        })
    }
}

impl std::error::Error for RedisTlsError {}

/// The certificates in a PEM file; none if one of them cannot be read.
fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .unwrap_or_default()
}
