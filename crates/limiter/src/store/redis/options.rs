//! How a shared store is to be.

use super::Redis;
use super::breaker::Breaking;
use super::cluster::Cluster;
use super::envoy::{RedisCounters, RedisCountersOptions};
use super::figures::Figures;
use super::key::Keys;
use super::link::{Finder, Link};
use super::near::Near;
use super::node::{Node, Span};
use super::nodes::Nodes;
use super::replicas::Replicas;
use super::sentinel::Sentinels;
use super::servers::Servers;
use super::work::Shared;
use crate::clock::Clock;
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
pub struct Options {
    servers: Servers,
    last_primary: Option<String>,
    deadline: Duration,
    time: Time,
    functions: Functions,
    prefix: String,
    tags: u16,
    secret: Option<Vec<u8>>,
    near_cache: bool,
    breaking: Breaking,
    read_from: ReadFrom,
    envoy: Option<RedisCountersOptions>,
}

/// Whose clock decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The server's.
    Server,
    /// That of the machine that asks. One that is further than this from the server's is not believed: then the server's
    /// decides.
    Client {
        /// How far it may be off.
        skew_tolerance: Micros,
    },
}

/// Whether the script is called as a function of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Functions {
    /// Where the server has functions and lets us load one.
    Auto,
    /// Always; a server without them is as good as none.
    On,
    /// Never.
    Off,
}

/// Who is asked for what keeps nothing: [peeks](crate::store::Store::peek) and whatever is made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Whoever has the counters: what is told is how they stand.
    Primary,
    /// A replica, where there is one that answers in half the time; it may be behind. Else the primary.
    Replica,
}

/// Why certificates are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsError {
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

impl Options {
    pub(super) fn new(url: &str) -> Result<Self, UrlError> {
        Ok(Self {
            servers: Servers::read(url).ok_or(UrlError)?,
            last_primary: None,
            deadline: Duration::from_millis(10),
            time: Time::Server,
            functions: Functions::Auto,
            prefix: "tg".to_owned(),
            tags: 64,
            secret: None,
            near_cache: true,
            breaking: Breaking::default(),
            read_from: ReadFrom::Primary,
            envoy: None,
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
    pub fn tls(self, authority: Option<&[u8]>, client: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        if authority.is_some_and(|pem| certificates(pem).is_empty()) {
            return Err(TlsError::Authority);
        }
        if let Some((pem, key)) = client {
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::Client)?;
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            CertifiedKey::from_der(certificates(pem), key, &provider).map_err(|_| TlsError::Client)?;
        }
        let papers = TlsCertificates {
            client_tls: client.map(|(pem, key)| ClientTlsConfig {
                client_cert: pem.to_vec(),
                client_key: key.to_vec(),
            }),
            root_cert: authority.map(<[u8]>::to_vec),
        };
        let servers = self.servers.map_access(|access| {
            if !access.is_tls() {
                return Err(TlsError::NoTls);
            }
            access.with_papers(papers.clone()).map_err(|_| TlsError::Authority)
        })?;
        Ok(Self { servers, ..self })
    }

    /// The password of the sentinels, if they have one: it is not the servers'. Without sentinels it means nothing.
    pub fn sentinel_password(self, password: &str) -> Self {
        let servers = match self.servers {
            Servers::Sentinel {
                sentinels,
                access,
                name,
                primary,
            } => Servers::Sentinel {
                sentinels,
                access: access.with_password(password),
                name,
                primary,
            },
            other => other,
        };
        Self { servers, ..self }
    }

    /// Whether sentinels say which server is the primary.
    pub fn has_sentinels(&self) -> bool {
        matches!(self.servers, Servers::Sentinel { .. })
    }

    /// Which primary sentinels had named, as [`Redis::primary`] told it: it is asked while none of them answers. What other
    /// sentinels said, or of another name, and what cannot be read, means nothing.
    pub fn last_primary(self, told: &str) -> Self {
        Self {
            last_primary: Some(told.to_owned()),
            ..self
        }
    }

    /// Whose clock decides. The server's unless said.
    pub fn time(self, time: Time) -> Self {
        Self { time, ..self }
    }

    /// Whether the script is called as a function of a library. Where that can be, unless said.
    pub fn functions(self, functions: Functions) -> Self {
        Self { functions, ..self }
    }

    /// What all keys begin with, cut to 32 bytes and without braces: those stand around the tag. `tg` unless said.
    pub fn prefix(self, prefix: &str) -> Self {
        let mut prefix = prefix.replace(['{', '}'], "");
        prefix.truncate(prefix.floor_char_boundary(Keys::PREFIX_MOST));
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
    pub fn envoy_counters(self, counters: RedisCountersOptions) -> Self {
        Self {
            envoy: Some(counters),
            ..self
        }
    }

    /// When a server is left alone, and for how long. After five failures in a row within ten seconds, until it answers
    /// probes, unless said.
    pub fn breaker(self, breaking: Breaking) -> Self {
        Self { breaking, ..self }
    }

    /// Opens the store: it begins to dial at once.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O.
    pub fn open(self) -> Redis {
        let runtime = Handle::current();
        let figures = Arc::new(Figures::default());
        let keys = Keys::new(&self.prefix, self.tags, self.secret.as_deref());
        let (slack, ahead) = match self.time {
            Time::Server => (Now::SLACK, Micros::ZERO),
            Time::Client { skew_tolerance } => (
                Now::SLACK.max(skew_tolerance),
                Micros::new(skew_tolerance.get().saturating_mul(2)),
            ),
        };
        let clock = Clock::start(Timestamp::EPOCH);
        let shared = Arc::new(Shared {
            near: self.near_cache.then(|| Near::new(ahead, slack)),
            keys,
            figures: Arc::clone(&figures),
            runtime: runtime.clone(),
            clock: clock.clone(),
            time: self.time,
            slack,
            deadline: self.deadline,
            breaking: self.breaking,
            orphans: Default::default(),
        });
        let (functions, read_from) = (self.functions, self.read_from);
        let one = |finder, access, shared| {
            let link = Link::new(finder, functions, self.deadline, clock, figures, runtime);
            let replicas = Replicas::wanted(read_from, &access, functions);
            Nodes::One(Node::new(link, shared, Span::All, replicas))
        };
        let nodes = match self.servers {
            Servers::One(access) => one(Finder::Fixed(access.clone()), access, Arc::clone(&shared)),
            Servers::Sentinel {
                sentinels,
                access,
                name,
                primary,
            } => {
                let kept = self.last_primary.as_deref();
                let sentinels = Sentinels::new(sentinels, access, name, primary.clone(), kept);
                one(Finder::Sentinel(Arc::new(sentinels)), primary, Arc::clone(&shared))
            }
            Servers::Cluster { seeds, access } => {
                Nodes::Cluster(Cluster::new(seeds, access, functions, read_from, Arc::clone(&shared)))
            }
        };
        Redis {
            warnings: Mutex::default(),
            shared,
            nodes: Arc::new(nodes),
            envoy: self.envoy.map(|counters| Box::new(RedisCounters::open(counters))),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("deadline", &self.deadline)
            .field("time", &self.time)
            .field("functions", &self.functions)
            .field("prefix", &self.prefix)
            .field("tags", &self.tags)
            .field("near_cache", &self.near_cache)
            .field("breaking", &self.breaking)
            .field("read_from", &self.read_from)
            .field("envoy", &self.envoy)
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

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTls => "certificates are for a server at rediss://; this URL begins with something else",
            Self::Authority => "the authority's certificates cannot be read; they must be PEM",
            Self::Client => "our certificate and its key cannot be read or do not belong together; they must be PEM",
        })
    }
}

impl std::error::Error for TlsError {}

/// The certificates in a PEM file; none if one of them cannot be read.
fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .unwrap_or_default()
}
