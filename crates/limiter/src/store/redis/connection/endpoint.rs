//! Endpoints: the servers that a URL names, and the options to connect to one of them.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError, TlsCertificates};
use std::fmt;
use std::time::Duration;

/// The servers of a store, as its URL names them.
#[derive(Clone)]
pub(crate) enum StoreUrl {
    /// One server.
    One(ConnectOptions),
    /// The primary that sentinels name.
    Sentinel {
        /// The endpoints of the sentinels.
        sentinels: Vec<Endpoint>,
        /// The options to connect to a sentinel.
        connect_options: ConnectOptions,
        /// The name of the primary.
        name: String,
        /// The options to connect to the primary.
        primary: ConnectOptions,
    },
    /// A cluster.
    Cluster {
        /// Some of its servers.
        seeds: Vec<Endpoint>,
        /// The options to connect to each of them.
        connect_options: ConnectOptions,
    },
}

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) port: u16,
}

/// The options to connect to a server: credentials and transport.
#[derive(Clone)]
pub(crate) struct ConnectOptions {
    settings: Box<ConnectionInfo>,
    tls_certificates: Option<TlsCertificates>,
}

impl StoreUrl {
    /// Parses a URL. `None` if it names no server.
    pub(crate) fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let Some((scheme, topology @ ("sentinel" | "cluster"))) = scheme.split_once('+') else {
            return Some(Self::One(ConnectOptions::parse(url)?));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, endpoints) = match authority.rsplit_once('@') {
            Some((user, endpoints)) => (format!("{user}@"), endpoints),
            None => (String::new(), authority),
        };
        let list: Vec<&str> = endpoints.split(',').map(str::trim).collect();
        let parse_at =
            |user: &str, endpoint: &str, db: &str| ConnectOptions::parse(&format!("{scheme}://{user}{endpoint}/{db}"));
        let endpoint =
            |endpoint: &&str| parse_at("", endpoint, "").and_then(|connect_options| connect_options.endpoint());
        let endpoints: Vec<Endpoint> = list.iter().map(endpoint).collect::<Option<_>>()?;
        let first = list.first()?;
        if topology == "cluster" {
            return path.is_empty().then_some(Self::Cluster {
                seeds: endpoints,
                connect_options: parse_at(&user, first, "")?,
            });
        }
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        (!name.is_empty()).then_some(Self::Sentinel {
            sentinels: endpoints,
            connect_options: parse_at("", first, "")?,
            name: name.to_owned(),
            primary: parse_at(&user, first, db)?,
        })
    }

    /// Applies a change to all connect options.
    pub(crate) fn map_connect_options<E>(
        self,
        mut change: impl FnMut(ConnectOptions) -> Result<ConnectOptions, E>,
    ) -> Result<Self, E> {
        Ok(match self {
            Self::One(connect_options) => Self::One(change(connect_options)?),
            Self::Sentinel {
                sentinels,
                connect_options,
                name,
                primary,
            } => Self::Sentinel {
                sentinels,
                connect_options: change(connect_options)?,
                name,
                primary: change(primary)?,
            },
            Self::Cluster { seeds, connect_options } => Self::Cluster {
                seeds,
                connect_options: change(connect_options)?,
            },
        })
    }
}

impl Endpoint {
    /// An endpoint as a server reports it, `host:port`. Without a host it is on the host of the reporter.
    pub(crate) fn parse(text: &str, reported_by: Option<&Self>) -> Option<Self> {
        let (name, port) = text.rsplit_once(':')?;
        let name = match name {
            "" => reported_by?.name.as_str(),
            // A server configured to announce a hostname that it was not given.
            "?" => return None,
            name => name,
        };
        Some(Self {
            name: name.to_owned(),
            port: port.parse().ok().filter(|port| *port > 0)?,
        })
    }
}

impl ConnectOptions {
    fn parse(url: &str) -> Option<Self> {
        let settings = url.into_connection_info().ok()?;
        let tcp = TcpSettings::default().set_nodelay(true);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(Duration::from_secs(2));
        // RESP3 reports at once when the server closes the connection.
        let redis = settings.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let redis = redis.set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        let connect_options = Self {
            settings: Box::new(settings.set_tcp_settings(tcp).set_redis_settings(redis)),
            tls_certificates: None,
        };
        if connect_options.is_tls() {
            // Without a provider the library cannot start. One that was installed before stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        connect_options.client().ok().map(|_| connect_options)
    }

    /// With certificates.
    pub(crate) fn with_tls_certificates(self, tls_certificates: TlsCertificates) -> Result<Self, RedisError> {
        let connect_options = Self {
            tls_certificates: Some(tls_certificates),
            ..self
        };
        connect_options.client().map(|_| connect_options)
    }

    /// With another password.
    pub(crate) fn with_password(self, password: &str) -> Self {
        let redis = self.settings.redis_settings().clone().set_password(password);
        Self {
            settings: Box::new(self.settings.set_redis_settings(redis)),
            ..self
        }
    }

    /// With another version of the protocol.
    pub(crate) fn with_protocol(self, protocol: ProtocolVersion) -> Self {
        let redis = self.settings.redis_settings().clone().set_protocol(protocol);
        Self {
            settings: Box::new(self.settings.set_redis_settings(redis)),
            ..self
        }
    }

    /// True if it uses TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.settings.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// The password, so that errors can be redacted.
    pub(crate) fn password(&self) -> Option<&str> {
        self.settings.redis_settings().password()
    }

    /// The endpoint. `None` for a Unix socket.
    pub(crate) fn endpoint(&self) -> Option<Endpoint> {
        let (name, port) = match self.settings.addr() {
            ConnectionAddr::Tcp(name, port) => (name, port),
            ConnectionAddr::TcpTls {
                host: endpoint, port, ..
            } => (endpoint, port),
            _ => return None,
        };
        Some(Endpoint {
            name: name.clone(),
            port: *port,
        })
    }

    /// The same options for another endpoint.
    pub(crate) fn to(&self, endpoint: &Endpoint) -> Self {
        let addr = match self.settings.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host: endpoint.name.clone(),
                port: endpoint.port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(endpoint.name.clone(), endpoint.port),
        };
        Self {
            settings: Box::new(ConnectionInfo::clone(&self.settings).set_addr(addr)),
            tls_certificates: self.tls_certificates.clone(),
        }
    }

    /// A client to connect with.
    pub(crate) fn client(&self) -> Result<redis::Client, RedisError> {
        match &self.tls_certificates {
            Some(tls_certificates) => redis::Client::build_with_tls(*self.settings.clone(), tls_certificates.clone()),
            None => redis::Client::open(*self.settings.clone()),
        }
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("host", &self.endpoint())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(endpoints: &[Endpoint]) -> String {
        let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        endpoints.join(" ")
    }

    #[test]
    fn a_url_names_one_server_sentinels_or_a_cluster() {
        let Some(StoreUrl::Sentinel {
            sentinels,
            connect_options,
            name,
            primary,
        }) = StoreUrl::parse("redis+sentinel://user:hush@h1:26379,h2:26380/mymaster/3")
        else {
            panic!("sentinels");
        };
        assert_eq!(
            (endpoints(&sentinels).as_str(), name.as_str()),
            ("h1:26379 h2:26380", "mymaster")
        );
        assert_eq!((connect_options.password(), primary.password()), (None, Some("hush")));
        assert_eq!(primary.settings.redis_settings().db(), 3);
        let Some(StoreUrl::Cluster { seeds, connect_options }) =
            StoreUrl::parse("rediss+cluster://:hush@h1:7000,[::1]:7001")
        else {
            panic!("a cluster");
        };
        assert_eq!(
            (endpoints(&seeds).as_str(), connect_options.password()),
            ("h1:7000 ::1:7001", Some("hush"))
        );
        assert!(connect_options.is_tls() && connect_options.to(&seeds[1]).is_tls());
        assert!(matches!(StoreUrl::parse("redis://h:1/2"), Some(StoreUrl::One(_))));
        assert!(matches!(
            StoreUrl::parse("redis+unix:///run/redis.sock"),
            Some(StoreUrl::One(_))
        ));
    }

    #[test]
    fn a_server_is_known_by_what_others_call_it() {
        let reporter = Endpoint {
            name: "here".to_owned(),
            port: 1,
        };
        let parse = |text| Endpoint::parse(text, Some(&reporter)).map(|endpoint| endpoint.to_string());
        assert_eq!(parse("127.0.0.1:7000").as_deref(), Some("127.0.0.1:7000"));
        assert_eq!(parse("::1:7000").as_deref(), Some("::1:7000"));
        assert_eq!(parse(":7000").as_deref(), Some("here:7000"));
        assert_eq!(Endpoint::parse(":7000", None), None);
        for invalid in ["?:7000", "h:0", "h:x", "h"] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn a_url_that_lacks_something_names_none() {
        for url in [
            "redis+sentinel://h1:26379",
            "redis+sentinel:///mymaster",
            "redis+sentinel://h1:x/mymaster",
            "redis+cluster://",
            "redis+cluster://h1:7000,/",
            "redis+cluster://h1:7000/3",
            "redis+unknown://h1:7000",
            "h1:7000",
        ] {
            assert!(StoreUrl::parse(url).is_none(), "{url}");
        }
    }
}
