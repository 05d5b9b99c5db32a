//! Settings of the front end for the Redis protocol. The defaults are those of the documentation.

use crate::server::auth::tokens::Keyring;
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// The settings of the front end for the Redis protocol.
#[derive(Clone, Debug)]
pub struct RespSettings {
    /// The password for `AUTH`.
    pub password: Option<Arc<Keyring>>,
    /// Tokens that `AUTH` accepts as passwords, each with its rights. Without tokens and a password every client has all
    /// rights.
    pub tokens: Option<Arc<Keyring>>,
    /// Certificates; none: without TLS.
    pub tls: Option<Arc<Tls>>,
    /// Connections at a time. Further ones wait in the backlog until one ends.
    pub connections: usize,
    /// Connections at a time from one address; further ones are closed. Loopback has no such limit. An IPv6 /64 network is
    /// one address.
    pub connections_per_address: usize,
    /// The time for a command from its first byte to its last, for a TLS handshake, and for `AUTH`.
    pub command_timeout: Duration,
    /// The time a client may leave replies unread.
    pub unread_timeout: Duration,
    /// The time a connection may be idle.
    pub idle_timeout: Duration,
    /// The time commands in flight may take when the server stops.
    pub drain: Duration,
}

impl RespSettings {
    /// True if a client must authenticate.
    pub(super) fn requires_auth(&self) -> bool {
        self.password.is_some() || self.tokens.is_some()
    }
}

impl Default for RespSettings {
    fn default() -> Self {
        Self {
            password: None,
            tokens: None,
            tls: None,
            connections: 10_000,
            connections_per_address: 1_000,
            command_timeout: Duration::from_secs(5),
            unread_timeout: Duration::from_secs(75),
            idle_timeout: Duration::from_secs(3_600),
            drain: Duration::from_secs(10),
        }
    }
}
