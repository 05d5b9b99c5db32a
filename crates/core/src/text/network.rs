//! Networks of IP addresses as people write them.

use crate::text::problem::{Problems, ValueError};
use crate::text::yaml::{Node, excerpt};
use ipnet::{IpNet, Ipv4Net};
use std::fmt;
use std::net::IpAddr;

/// A list of networks. IPv4-mapped IPv6 networks are stored as IPv4.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Box<[IpNet]>);

/// A text that is no network. Its author can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError(String);

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: write an address and how many bits count: `10.0.0.0/8`, `2001:db8::/32`",
            self.0
        )
    }
}

impl std::error::Error for NetworkError {}

impl Networks {
    /// Reads one network or a list of them. None if one of them is invalid.
    pub fn read(node: &Node, problems: &mut Problems) -> Option<Self> {
        let errors = problems.error_count();
        let found: Vec<IpNet> = node
            .one_or_more()
            .iter()
            .filter_map(|item| item.read("a network like 10.0.0.0/8", network, problems))
            .collect();
        (problems.error_count() == errors).then(|| Self(found.into()))
    }

    /// Parses networks, or addresses as networks of one.
    ///
    /// ```
    /// use tollgate_core::network::Networks;
    ///
    /// let trusted = Networks::parse(["10.0.0.0/8", "fd00::/8", "192.0.2.7"])?;
    /// assert!(trusted.contains("10.1.2.3".parse()?));
    /// assert!(Networks::parse(["10.0.0.0/99"]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first text that is no network.
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Result<Self, NetworkError> {
        let parse = |text: &str| network(text).map_err(|error| NetworkError(error.text));
        let parsed: Result<Vec<IpNet>, NetworkError> = networks.into_iter().map(parse).collect();
        parsed.map(|networks| Self(networks.into()))
    }

    /// True if one of the networks contains the address. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let canonical = address.to_canonical();
        self.0.iter().any(|network| network.contains(&canonical))
    }

    /// The networks.
    pub fn iter(&self) -> impl Iterator<Item = &IpNet> {
        self.0.iter()
    }

    /// The number of networks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<T: IntoIterator<Item = IpNet>>(networks: T) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }
}

/// Parses a network, or an address as a network of one.
fn network(text: &str) -> Result<IpNet, ValueError> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map(|network: IpNet| canonical(network.trunc()))
        .map_err(|_| {
            ValueError::new(
                format!("`{}` is not a network", excerpt(text)),
                "write an address and how many bits count: `10.0.0.0/8`, `2001:db8::/32`",
            )
        })
}

/// Converts an IPv4-mapped IPv6 network, `::ffff:10.0.0.0/104`, to the IPv4 network.
fn canonical(network: IpNet) -> IpNet {
    let IpAddr::V4(first) = network.network().to_canonical() else {
        return network;
    };
    match network.prefix_len().checked_sub(MAPPED_PREFIX_BITS) {
        Some(bits) if network.network().is_ipv6() => Ipv4Net::new(first, bits).map_or(network, IpNet::V4),
        _ => network,
    }
}

/// The prefix of an IPv4-mapped IPv6 address.
const MAPPED_PREFIX_BITS: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv4_addresses_is_one_however_it_is_written() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::FFFF:0a01:0203/112", "10.1.0.0/16"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:0:0/95", "::fffe:0:0/95"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("10.1.2.3", "10.1.2.3/32"),
        ] {
            let network = network(text).expect("a network");
            assert_eq!(network.to_string(), expected, "{text}");
        }
    }
}
