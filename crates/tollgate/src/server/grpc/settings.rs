//! What can be set about the gRPC front end. The defaults are those of the documentation.

use crate::server::auth::tokens::Keyring;
use crate::server::headers::Dialects;
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// Everything that can be set about the gRPC front end.
#[derive(Clone, Debug)]
pub struct GrpcSettings {
    /// Which rate limit headers a proxy is told to add, beside its own.
    pub headers: Dialects,
    /// Certificates; none: plain HTTP/2.
    pub tls: Option<Arc<Tls>>,
    /// Who may ask; none: everybody may.
    pub tokens: Option<Arc<Keyring>>,
    /// Connections at a time. Further ones wait to be accepted until one ends.
    pub connections: usize,
    /// Of them, those from one address; further ones are closed. This machine has no such bound. An IPv6 network of 64 bits is one
    /// address.
    pub connections_per_address: usize,
    /// Calls at a time on one connection.
    pub streams: u32,
    /// Bytes of the header fields of one call.
    pub header_bytes: usize,
    /// How long a TLS handshake may take, and then the first call.
    pub header_timeout: Duration,
    /// How long a connection may be without a new call.
    pub idle_timeout: Duration,
    /// How long a call may take that names no time of its own.
    pub call_timeout: Duration,
    /// How old a connection becomes before its client is told to take another: so clients find new instances.
    pub connection_age: Duration,
    /// How long calls in flight may take when the server stops.
    pub drain: Duration,
}

impl Default for GrpcSettings {
    fn default() -> Self {
        Self {
            headers: Dialects::default(),
            tls: None,
            tokens: None,
            connections: 10_000,
            connections_per_address: 1_000,
            streams: 128,
            header_bytes: 16 * 1024,
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(300),
            call_timeout: Duration::from_secs(10),
            connection_age: Duration::from_secs(3_600),
            drain: Duration::from_secs(10),
        }
    }
}
