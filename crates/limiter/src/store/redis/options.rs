//! How a shared store is to be.

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

/// How a shared store is to be. Start from [`Redis::options`].
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

/// Why certificates are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisTlsError {
    /// The URL does not begin with `rediss://`.
    NoTls,
    /// The authority's certificates cannot be read.
    Authority,
    /// Our certificate or its key cannot be read, or they do not belong together.
    Client,
}

/// Why a URL names no server. Says nothing of what it holds: there may be a password in it.
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

    /// How long a call may take, from asking to the answer: at most an hour, and 10 ms unless said.
    pub fn deadline(self, deadline: Duration) -> Self {
        let deadline = deadline.min(Duration::from_secs(3_600));
        Self { deadline, ..self }
    }

    /// Whom a `rediss://` server is trusted by, and who we are: certificates and a key as PEM. Unless said, whom the system
    /// trusts, and nobody.
    ///
    /// # Errors
    /// What cannot be read, or a URL that says nothing of TLS.
    pub fn tls(self, authority: Option<&[u8]>, client: Option<(&[u8], &[u8])>) -> Result<Self, RedisTlsError> {
        if authority.is_some_and(|pem| certificates(pem).is_empty()) {
            return Err(RedisTlsError::Authority);
        }
        if let Some((pem, key)) = client {
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| RedisTlsError::Client)?;
            let provider = rustls::crypto::aws_lc_rs::default_provider();
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

    /// The password of the sentinels, if they have one: it is not the servers'. Without sentinels it means nothing.
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

    /// Whether sentinels say which server is the primary.
    pub fn has_sentinels(&self) -> bool {
        matches!(self.url, StoreUrl::Sentinel { .. })
    }

    /// Which primary sentinels had named, as [`Redis::primary`] told it: it is asked while none of them answers. What other
    /// sentinels said, or of another name, and what cannot be read, means nothing.
    pub fn last_primary(self, report: &str) -> Self {
        Self {
            last_primary: Some(report.to_owned()),
            ..self
        }
    }

    /// Whose clock decides. The server's unless said.
    pub fn clock_source(self, clock_source: ClockSource) -> Self {
        Self { clock_source, ..self }
    }

    /// Whether the script is called as a function of a library. Where that can be, unless said.
    pub fn functions(self, functions: Functions) -> Self {
        Self { functions, ..self }
    }

    /// What all keys begin with, cut to 32 bytes and without braces: those stand around the tag. `tg` unless said.
    pub fn prefix(self, prefix: &str) -> Self {
        let mut prefix = prefix.replace(['{', '}'], "");
        prefix.truncate(prefix.floor_char_boundary(RedisKeyspace::PREFIX_MAX));
        Self { prefix, ..self }
    }

    /// Over how many tags the keys are spread: in a cluster, over as many slots at most. 64 unless said. Another number
    /// is other keys.
    pub fn tags(self, tags: u16) -> Self {
        Self { tags, ..self }
    }

    /// A secret that all instances share, without which nobody can work out the key of a subject. None unless said.
    pub fn key_secret(self, secret: &[u8]) -> Self {
        Self {
            secret: Some(secret.to_vec()),
            ..self
        }
    }

    /// Whether what the store would certainly refuse is refused without asking it. Yes unless said.
    pub fn near_cache(self, near_cache: bool) -> Self {
        Self { near_cache, ..self }
    }

    /// Who is asked for what keeps nothing. The primary unless said.
    pub fn read_from(self, read_from: ReadFrom) -> Self {
        Self { read_from, ..self }
    }

    /// That what envoyproxy/ratelimit counts is counted in its keys, as it does. Unless said, it is a limit like all others,
    /// in keys of our own.
    pub fn ratelimit_counters(self, counters: RedisCountersOptions) -> Self {
        Self {
            counters: Some(counters),
            ..self
        }
    }

    /// When a server is left alone, and for how long. After five failures in a row within ten seconds, until it answers
    /// probes, unless said.
    pub fn breaker(self, breaker: BreakerConfig) -> Self {
        Self { breaker, ..self }
    }

    /// Opens the store: it begins to dial at once.
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
        f.debug_struct("Options")
            .field("deadline", &self.deadline)
            .field("time", &self.clock_source)
            .field("functions", &self.functions)
            .field("prefix", &self.prefix)
            .field("tags", &self.tags)
            .field("near_cache", &self.near_cache)
            .field("breaking", &self.breaker)
            .field("read_from", &self.read_from)
            .field("envoy", &self.counters)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this is not the URL of a server; write redis://host:6379/0, rediss://host:6379/0, \
             redis+unix:///path, redis+sentinel://host:26379,…/name or redis+cluster://host:7000,…",
        )
    }
}

impl std::error::Error for UrlError {}

impl fmt::Display for RedisTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTls => "certificates are for a server at rediss://; this URL begins with something else",
            Self::Authority => "the authority's certificates cannot be read; they must be PEM",
            Self::Client => "our certificate and its key cannot be read or do not belong together; they must be PEM",
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
