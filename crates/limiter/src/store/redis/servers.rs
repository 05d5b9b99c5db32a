//! Where the servers of a store are, as its URL says, and how one of them is reached.

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError, TlsCertificates};
use std::fmt;
use std::time::Duration;

/// Where the servers are.
#[derive(Clone)]
pub(super) enum Servers {
    /// There is one.
    One(Access),
    /// The one that sentinels name.
    Sentinel {
        /// Where the sentinels are.
        sentinels: Vec<Host>,
        /// How a sentinel is reached.
        access: Access,
        /// What they call the primary.
        name: String,
        /// How the primary is reached.
        primary: Access,
    },
    /// Several, each with some of the slots.
    Cluster {
        /// Some of them.
        seeds: Vec<Host>,
        /// How each of them is reached.
        access: Access,
    },
}

/// A server by name or address, and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// How a server is reached: who we are, and over what.
#[derive(Clone)]
pub(super) struct Access {
    settings: Box<ConnectionInfo>,
    papers: Option<TlsCertificates>,
}

impl Servers {
    /// What a URL says. Nothing if it names no server.
    pub(super) fn read(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let Some((scheme, topology @ ("sentinel" | "cluster"))) = scheme.split_once('+') else {
            return Some(Self::One(Access::read(url)?));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let list: Vec<&str> = hosts.split(',').map(str::trim).collect();
        let reach = |user: &str, host: &str, db: &str| Access::read(&format!("{scheme}://{user}{host}/{db}"));
        let host = |host: &&str| reach("", host, "").and_then(|access| access.host());
        let hosts: Vec<Host> = list.iter().map(host).collect::<Option<_>>()?;
        let first = list.first()?;
        if topology == "cluster" {
            return path.is_empty().then_some(Self::Cluster {
                seeds: hosts,
                access: reach(&user, first, "")?,
            });
        }
        let (name, db) = path.split_once('/').unwrap_or((path, ""));
        (!name.is_empty()).then_some(Self::Sentinel {
            sentinels: hosts,
            access: reach("", first, "")?,
            name: name.to_owned(),
            primary: reach(&user, first, db)?,
        })
    }

    /// The same with each way of reaching one of them changed.
    pub(super) fn map_access<E>(self, mut change: impl FnMut(Access) -> Result<Access, E>) -> Result<Self, E> {
        Ok(match self {
            Self::One(access) => Self::One(change(access)?),
            Self::Sentinel {
                sentinels,
                access,
                name,
                primary,
            } => Self::Sentinel {
                sentinels,
                access: change(access)?,
                name,
                primary: change(primary)?,
            },
            Self::Cluster { seeds, access } => Self::Cluster {
                seeds,
                access: change(access)?,
            },
        })
    }
}

impl Host {
    /// A server as others name it: name and port. One that has no name is found where whoever names it is.
    pub(super) fn read(text: &str, named_by: Option<&Self>) -> Option<Self> {
        let (name, port) = text.rsplit_once(':')?;
        let name = match name {
            "" => named_by?.name.as_str(),
            // A server that is to be known by a name it has not been given.
            "?" => return None,
            name => name,
        };
        Some(Self {
            name: name.to_owned(),
            port: port.parse().ok().filter(|port| *port > 0)?,
        })
    }
}

impl Access {
    fn read(url: &str) -> Option<Self> {
        let settings = url.into_connection_info().ok()?;
        let tcp = TcpSettings::default().set_nodelay(true);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(Duration::from_secs(2));
        // The third version tells at once when the server closes the connection.
        let redis = settings.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let redis = redis.set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        let access = Self {
            settings: Box::new(settings.set_tcp_settings(tcp).set_redis_settings(redis)),
            papers: None,
        };
        if access.is_tls() {
            // Without one the library could not begin. Whoever has chosen another keeps it.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        access.client().ok().map(|_| access)
    }

    /// With certificates.
    pub(super) fn with_papers(self, papers: TlsCertificates) -> Result<Self, RedisError> {
        let access = Self {
            papers: Some(papers),
            ..self
        };
        access.client().map(|_| access)
    }

    /// With another password, for nobody in particular.
    pub(super) fn with_password(self, password: &str) -> Self {
        let redis = self.settings.redis_settings().clone().set_password(password);
        Self {
            settings: Box::new(self.settings.set_redis_settings(redis)),
            ..self
        }
    }

    /// With another version of the protocol.
    pub(super) fn with_protocol(self, protocol: ProtocolVersion) -> Self {
        let redis = self.settings.redis_settings().clone().set_protocol(protocol);
        Self {
            settings: Box::new(self.settings.set_redis_settings(redis)),
            ..self
        }
    }

    /// Whether it is over TLS.
    pub(super) fn is_tls(&self) -> bool {
        matches!(self.settings.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// The password, so that nobody is told.
    pub(super) fn password(&self) -> Option<&str> {
        self.settings.redis_settings().password()
    }

    /// Whom it leads to. Nothing if that is a socket.
    pub(super) fn host(&self) -> Option<Host> {
        let (name, port) = match self.settings.addr() {
            ConnectionAddr::Tcp(name, port) => (name, port),
            ConnectionAddr::TcpTls { host, port, .. } => (host, port),
            _ => return None,
        };
        Some(Host {
            name: name.clone(),
            port: *port,
        })
    }

    /// The same to another server.
    pub(super) fn to(&self, host: &Host) -> Self {
        let addr = match self.settings.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host: host.name.clone(),
                port: host.port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host.name.clone(), host.port),
        };
        Self {
            settings: Box::new(ConnectionInfo::clone(&self.settings).set_addr(addr)),
            papers: self.papers.clone(),
        }
    }

    /// For connecting.
    pub(super) fn client(&self) -> Result<redis::Client, RedisError> {
        match &self.papers {
            Some(papers) => redis::Client::build_with_tls(*self.settings.clone(), papers.clone()),
            None => redis::Client::open(*self.settings.clone()),
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("host", &self.host())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(hosts: &[Host]) -> String {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        hosts.join(" ")
    }

    #[test]
    fn a_url_names_one_server_sentinels_or_a_cluster() {
        let Some(Servers::Sentinel {
            sentinels,
            access,
            name,
            primary,
        }) = Servers::read("redis+sentinel://user:hush@h1:26379,h2:26380/mymaster/3")
        else {
            panic!("sentinels");
        };
        assert_eq!(
            (hosts(&sentinels).as_str(), name.as_str()),
            ("h1:26379 h2:26380", "mymaster")
        );
        assert_eq!((access.password(), primary.password()), (None, Some("hush")));
        assert_eq!(primary.settings.redis_settings().db(), 3);
        let Some(Servers::Cluster { seeds, access }) = Servers::read("rediss+cluster://:hush@h1:7000,[::1]:7001")
        else {
            panic!("a cluster");
        };
        assert_eq!(
            (hosts(&seeds).as_str(), access.password()),
            ("h1:7000 ::1:7001", Some("hush"))
        );
        assert!(access.is_tls() && access.to(&seeds[1]).is_tls());
        assert!(matches!(Servers::read("redis://h:1/2"), Some(Servers::One(_))));
        assert!(matches!(
            Servers::read("redis+unix:///run/redis.sock"),
            Some(Servers::One(_))
        ));
    }

    #[test]
    fn a_server_is_known_by_what_others_call_it() {
        let here = Host {
            name: "here".to_owned(),
            port: 1,
        };
        let read = |text| Host::read(text, Some(&here)).map(|host| host.to_string());
        assert_eq!(read("127.0.0.1:7000").as_deref(), Some("127.0.0.1:7000"));
        assert_eq!(read("::1:7000").as_deref(), Some("::1:7000"));
        assert_eq!(read(":7000").as_deref(), Some("here:7000"));
        assert_eq!(Host::read(":7000", None), None);
        for nobody in ["?:7000", "h:0", "h:x", "h"] {
            assert_eq!(read(nobody), None, "{nobody}");
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
            assert!(Servers::read(url).is_none(), "{url}");
        }
    }
}
