//! The client address behind proxies.

use std::net::{IpAddr, Ipv6Addr};
use tollgate_limiter::core::network::Networks;

/// The address of the client: the peer's, unless the peer is a trusted proxy. Then it is the rightmost address of the header
/// that belongs to no trusted proxy: each proxy appends to what it received, so anything left of the first untrusted address
/// may be forged.
///
/// `lines` are the lines of the gateway's client header, read as one list. If all addresses are of trusted proxies, it is the
/// leftmost. At an element that is no address the search ends with the peer's address.
pub fn client_address<'h, L>(peer: IpAddr, lines: L, trusted: &Networks) -> IpAddr
where
    L: DoubleEndedIterator<Item = &'h [u8]>,
{
    let peer = peer.to_canonical();
    if !trusted.contains(peer) {
        return peer;
    }
    let hops = lines
        .rev()
        .flat_map(|line| line.rsplit(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        // Empty elements of a list are ignored (RFC 9110, 5.6.1).
        .filter(|hop| !hop.is_empty());
    let mut last = peer;
    for hop in hops {
        match address(hop) {
            None => return peer,
            Some(address) if trusted.contains(address) => last = address,
            Some(address) => return address,
        }
    }
    last
}

/// Parses an address as proxies write it: with or without port, brackets and zone. An IPv4-mapped IPv6 address is the IPv4
/// address.
fn address(hop: &[u8]) -> Option<IpAddr> {
    // Longer than any address with zone and port.
    if hop.len() > HOP_BYTES_MAX {
        return None;
    }
    let hop = std::str::from_utf8(hop).ok()?;
    let address = match hop.strip_prefix('[') {
        Some(rest) => {
            let (inner, port) = rest.split_once(']')?;
            if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
                return None;
            }
            IpAddr::V6(ipv6(inner)?)
        }
        None => match hop.split_once(':') {
            // One colon precedes a port; more are an IPv6 address.
            Some((host, port)) if !port.contains(':') => {
                if !is_port(port) {
                    return None;
                }
                IpAddr::V4(host.parse().ok()?)
            }
            Some(_) => IpAddr::V6(ipv6(hop)?),
            None => IpAddr::V4(hop.parse().ok()?),
        },
    };
    Some(address.to_canonical())
}

/// Parses an IPv6 address and drops its zone, which only means something on the proxy's machine.
fn ipv6(text: &str) -> Option<Ipv6Addr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse().ok()
}

fn is_zone(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

const HOP_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests;
