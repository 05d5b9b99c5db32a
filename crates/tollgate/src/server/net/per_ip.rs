//! Counts the connections of each address, so that no single one takes them all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections by the address they come from.
#[derive(Debug)]
pub(in crate::server) struct ConnectionsPerIp {
    max: usize,
    /// Only addresses with open connections, so that it never has more entries than there are connections.
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// The place of one connection among those of its address, free again when this is dropped.
#[derive(Debug)]
pub(in crate::server) struct IpPermit(Option<(Arc<ConnectionsPerIp>, IpAddr)>);

impl ConnectionsPerIp {
    /// Allows at most `max` connections per address.
    pub(in crate::server) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            open: Mutex::default(),
        })
    }

    /// A permit for a connection; none if its address is at the limit. A connection without a limited address always gets one.
    pub(in crate::server) fn acquire(self: &Arc<Self>, address: Option<IpAddr>) -> Option<IpPermit> {
        let Some(address) = address else {
            return Some(IpPermit(None));
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(IpPermit(Some((Arc::clone(self), address))))
    }
}

impl Drop for IpPermit {
    fn drop(&mut self) {
        let Some((per_ip, address)) = &self.0 else { return };
        let mut open = per_ip.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                open.remove(address);
            }
        }
    }
}

/// The address that a connection counts for. Loopback counts for none: a gateway on this machine, or a mesh whose sidecar
/// forwards all connections, is not one client. For IPv6 it is the /64 network, whose addresses one client can use at will.
pub(in crate::server) fn limited_address(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V6(address) => {
            let network = u128::from(address) & (u128::MAX << HOST_BITS);
            Some(IpAddr::V6(Ipv6Addr::from(network)))
        }
        address => Some(address),
    }
}

/// The bits of an IPv6 address that a client can choose.
const HOST_BITS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_places_and_those_that_end_are_free_again() {
        let per_ip = ConnectionsPerIp::new(2);
        let acquire = |text: &str| per_ip.acquire(limited_address(text.parse().unwrap()));
        let held = [acquire("10.0.0.1"), acquire("::ffff:10.0.0.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(acquire("10.0.0.1").is_none());
        assert!(acquire("10.0.0.2").is_some());
        drop(held);
        assert!(acquire("10.0.0.1").is_some());
        assert!(per_ip.open.lock().unwrap().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_this_machine_is_none() {
        let address = |text: &str| limited_address(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(address(text), None, "{text}");
        }
        let per_ip = ConnectionsPerIp::new(1);
        let held: Vec<_> = (0..9).map(|_| per_ip.acquire(address("::1"))).collect();
        assert!(held.iter().all(Option::is_some));
    }
}
