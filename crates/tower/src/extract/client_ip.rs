//! The address of the client as a key.

use super::client_address::client_address;
use super::{KeyExtractor, RequestKey};
use http::header::HeaderName;
use http::request::Parts;
use std::borrow::Cow;
use std::net::IpAddr;
use tollgate_limiter::core::network::Networks;

/// Extracts the address of the client.
#[derive(Clone, Debug)]
pub struct ClientIp {
    trusted: Networks,
    header: HeaderName,
    ipv6_prefix_bits: u8,
}

/// Extracts the address of the client: the peer's, unless the peer is one of the trusted proxies. Then it is the rightmost
/// address of `X-Forwarded-For` that belongs to no trusted proxy. IPv6 addresses of one /64 network are one key.
///
/// With [`Networks::default`] no proxy is trusted, and no header is read. The layer learns the peer's address by
/// [`RateLimitLayer::peer`](crate::RateLimitLayer::peer); without it there is no key.
pub const fn client_ip(trusted: Networks) -> ClientIp {
    ClientIp {
        trusted,
        header: HeaderName::from_static("x-forwarded-for"),
        ipv6_prefix_bits: 64,
    }
}

impl ClientIp {
    /// Reads another header of the trusted proxies, such as `x-real-ip`.
    pub fn header(self, header: HeaderName) -> Self {
        Self { header, ..self }
    }

    /// The bits of an IPv6 address that are the key; 64 by default, since a client has a network of its own.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self {
            ipv6_prefix_bits: bits,
            ..self
        }
    }

    /// The address of the client of a request.
    #[inline]
    pub fn address(&self, head: &Parts, peer: IpAddr) -> IpAddr {
        let lines = head.headers.get_all(&self.header);
        client_address(peer, lines.iter().map(|value| value.as_bytes()), &self.trusted)
    }
}

impl KeyExtractor for ClientIp {
    fn key<'h>(&self, head: &'h Parts, peer: Option<IpAddr>) -> Option<RequestKey<'h>> {
        let address = self.address(head, peer?);
        Some(RequestKey::from_address(address, self.ipv6_prefix_bits))
    }

    /// The whole address as text: rules choose networks themselves.
    fn attribute<'h>(&self, head: &'h Parts, peer: Option<IpAddr>) -> Option<Cow<'h, [u8]>> {
        Some(Cow::Owned(self.address(head, peer?).to_string().into_bytes()))
    }
}
