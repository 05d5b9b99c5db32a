//! Settings of the HTTP front end. The defaults are those of the documentation.

use super::forward::Forward;
use crate::server::auth::tokens::{Keyring, Rights};
use crate::server::headers::{Dialects, RetryAfter};
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// The settings of the HTTP front end.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The rate limit headers of responses.
    pub headers: Dialects,
    /// The form of `Retry-After`.
    pub retry_after: RetryAfter,
    /// Limits on what clients may use.
    pub limits: HttpLimits,
    /// Certificates; none: plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Tokens and their rights; none: every caller has the anonymous rights.
    pub tokens: Option<Arc<Keyring>>,
    /// The rights of every caller where there are no tokens.
    pub anonymous_rights: Rights,
    /// Forward-auth; none: it is disabled.
    pub forward: Option<Forward>,
    /// The time requests in flight may take when the server stops.
    pub drain: Duration,
}

/// Limits on connections, memory and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time. Further ones wait in the backlog until one ends.
    pub connections: usize,
    /// Connections at a time from one address; further ones are closed. Loopback has no such limit. An IPv6 /64 network is
    /// one address.
    pub connections_per_address: usize,
    /// Header fields of one request; more are answered with 431.
    pub headers: usize,
    /// Bytes of a request's line and header fields; more are answered with 431. At least 8 KiB.
    pub header_bytes: usize,
    /// The time for a request's line and header fields from their first byte, and for a TLS handshake.
    pub header_timeout: Duration,
    /// The time a connection may be idle between requests, or not read its response.
    pub idle_timeout: Duration,
    /// Bytes of one body; more are answered with 413.
    pub body_bytes: usize,
    /// Bytes of the body of a batch.
    pub batch_bytes: usize,
    /// The time for a body to arrive; then the response is 408.
    pub body_timeout: Duration,
    /// Requests at a time on one HTTP/2 connection.
    pub streams: u32,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            headers: Dialects::default(),
            retry_after: RetryAfter::default(),
            limits: HttpLimits::default(),
            tls: None,
            tokens: None,
            anonymous_rights: Rights::ALL,
            forward: None,
            drain: Duration::from_secs(10),
        }
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_address: 1_000,
            headers: 100,
            header_bytes: 16 * 1024,
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(75),
            body_bytes: 64 * 1024,
            batch_bytes: 1024 * 1024,
            body_timeout: Duration::from_secs(10),
            streams: 128,
        }
    }
}
