//! What can be set about the HTTP front end. The defaults are those of the documentation.

use super::forward::Forward;
use crate::server::auth::tokens::{Keyring, Rights};
use crate::server::headers::Dialects;
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// Everything that can be set about the HTTP front end.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Which rate limit headers answers carry.
    pub headers: Dialects,
    /// How `Retry-After` is written.
    pub retry_after: RetryAfter,
    /// What one client may use up.
    pub limits: HttpLimits,
    /// Certificates; none: plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Who may do what; none: everybody may do what strangers may.
    pub tokens: Option<Arc<Keyring>>,
    /// What everybody may do where there are no tokens.
    pub anonymous_rights: Rights,
    /// How requests are read that a gateway asks about; none: no gateway may ask.
    pub forward: Option<Forward>,
    /// How long requests in flight may take when the server stops.
    pub drain: Duration,
}

/// How `Retry-After` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    /// By how much of the wait it is stretched at most, in millionths, so that the denied do not come back all at once.
    pub jitter_ppm: u32,
    /// Seconds, a date, or no such header.
    pub format: RetryAfterFormat,
}

/// The forms of `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterFormat {
    /// `Retry-After: 17`: needs no agreement about the time.
    Seconds,
    /// `Retry-After: Sun, 15 Nov 2026 22:34:22 GMT`.
    Date,
    /// Not sent.
    None,
}

/// What one client, or all together, may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time. Further ones wait to be accepted until one ends.
    pub connections: usize,
    /// Of them, those from one address; further ones are closed. This machine has no such bound. An IPv6 network of 64 bits is one
    /// address.
    pub connections_per_address: usize,
    /// Header fields of one request; more are answered with 431.
    pub headers: usize,
    /// Bytes of a request's line and header fields; more are answered with 431. At least 8 KiB.
    pub header_bytes: usize,
    /// How long a request's line and header fields may take from their first byte, and a TLS handshake.
    pub header_timeout: Duration,
    /// How long a connection may do nothing between requests, or not read its answer.
    pub idle_timeout: Duration,
    /// Bytes of one body; more are answered with 413.
    pub body_bytes: usize,
    /// Bytes of the body of a batch.
    pub batch_bytes: usize,
    /// How long a body may take to arrive; longer is answered with 408.
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

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            jitter_ppm: 100_000,
            format: RetryAfterFormat::Seconds,
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
