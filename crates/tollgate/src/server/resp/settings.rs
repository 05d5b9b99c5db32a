//! What can be set about the front end for the Redis protocol. The defaults are those of the documentation.

use crate::server::auth::tokens::Keyring;
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// Everything that can be set about the front end for the Redis protocol.
#[derive(Clone, Debug)]
pub struct RespSettings {
    /// The password that `AUTH` takes.
    pub password: Option<Arc<Keyring>>,
    /// Tokens that `AUTH` takes as passwords, each with its rights. Without these and a password everybody may do
    /// everything.
    pub tokens: Option<Arc<Keyring>>,
    /// Certificates; none: without TLS.
    pub tls: Option<Arc<Tls>>,
    /// Connections at a time. Further ones wait to be accepted until one ends.
    pub connections: usize,
    /// Of them, those from one address; further ones are closed. This machine has no such bound. An IPv6 network of 64 bits is one
    /// address.
    pub connections_per_address: usize,
    /// How long a command may take from its first byte to its last, a TLS handshake, and a client to show who it is.
    pub command_timeout: Duration,
    /// How long a client may leave its replies unread.
    pub unread_timeout: Duration,
    /// How long a connection may do nothing.
    pub idle_timeout: Duration,
    /// How long commands in flight may take when the server stops.
    pub drain: Duration,
}

impl RespSettings {
    /// Whether a client must show who it is.
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
