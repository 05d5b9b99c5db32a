//! Whose request it is that a proxy hands on.

use std::net::{IpAddr, Ipv6Addr};
use tollgate_limiter::core::network::Networks;

/// The address of the client: the peer's own, unless the peer is a proxy that is trusted. Then it is the last address of
/// the header that no trusted proxy has: read from the right, because each proxy writes behind what it was sent, and what
/// stands before the first that is not trusted anybody may have written.
///
/// `lines` are the lines of the one header that the gateway names its client in; together they are one list. If they name
/// trusted proxies only, it is the first of these. What is no address on the way there tells nothing, and the peer's own
/// address stands.
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
        // An empty element of a list says nothing (RFC 9110, 5.6.1).
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

/// An address as proxies write it: with a port or without, an IPv6 one in brackets or not, with a zone or without. An IPv4
/// address written as an IPv6 one is the IPv4 address.
fn address(hop: &[u8]) -> Option<IpAddr> {
    // More than any address with its zone and port; what is longer is not looked at.
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
            // One colon stands before a port; more are an IPv6 address.
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

/// An IPv6 address, without the zone that may follow it: that means something on the proxy's machine only.
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
