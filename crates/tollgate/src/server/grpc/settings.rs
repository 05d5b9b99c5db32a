//! Settings of the gRPC front end. The defaults are those of the documentation.

use crate::server::auth::tokens::Keyring;
use crate::server::headers::Dialects;
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// The settings of the gRPC front end.
#[derive(Clone, Debug)]
pub struct GrpcSettings {
    /// The rate limit headers that a proxy is asked to add to its own.
    pub headers: Dialects,
    /// Certificates; none: plain HTTP/2.
    pub tls: Option<Arc<Tls>>,
    /// Tokens and their rights; none: calls need no token.
    pub tokens: Option<Arc<Keyring>>,
    /// Connections at a time. Further ones wait in the backlog until one ends.
    pub connections: usize,
    /// Connections at a time from one address; further ones are closed. Loopback has no such limit. An IPv6 /64 network is
    /// one address.
    pub connections_per_address: usize,
    /// Calls at a time on one connection.
    pub streams: u32,
    /// Bytes of the header fields of one call.
    pub header_bytes: usize,
    /// The time for a TLS handshake, and then for the first call.
    pub header_timeout: Duration,
    /// The time a connection may be without a new call.
    pub idle_timeout: Duration,
    /// The time for a call without a `grpc-timeout`.
    pub call_timeout: Duration,
    /// The age at which a connection gets GOAWAY, so that clients reconnect and find new instances.
    pub connection_age: Duration,
    /// The time calls in flight may take when the server stops.
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
