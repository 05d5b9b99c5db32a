//! The key of a limit, without memory of its own where that is possible.

use std::borrow::Cow;
use std::net::IpAddr;

/// The key of a limit: arbitrary bytes.
#[derive(Clone, Debug)]
pub struct RequestKey<'h>(KeyBytes<'h>);

#[derive(Clone, Debug)]
enum KeyBytes<'h> {
    Borrowed(&'h [u8]),
    Owned(Vec<u8>),
    /// An address, or the network of one.
    Address([u8; 16], u8),
}

impl RequestKey<'_> {
    /// Its bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::Borrowed(bytes) => bytes,
            KeyBytes::Owned(bytes) => bytes,
            KeyBytes::Address(bytes, length) => bytes.get(..usize::from(*length)).unwrap_or(bytes),
        }
    }

    /// The same key, independent of the request.
    pub fn into_owned(self) -> RequestKey<'static> {
        RequestKey(match self.0 {
            KeyBytes::Borrowed(bytes) => KeyBytes::Owned(bytes.to_vec()),
            KeyBytes::Owned(bytes) => KeyBytes::Owned(bytes),
            KeyBytes::Address(bytes, length) => KeyBytes::Address(bytes, length),
        })
    }

    /// An IPv4 address; of an IPv6 address, the network of this many bits. An IPv4-mapped address is the IPv4 address.
    pub fn from_address(address: IpAddr, ipv6_prefix_bits: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let mut bytes = [0; 16];
                for (byte, octet) in bytes.iter_mut().zip(address.octets()) {
                    *byte = octet;
                }
                Self(KeyBytes::Address(bytes, 4))
            }
            IpAddr::V6(address) => {
                let host_bits = 128 - u32::from(ipv6_prefix_bits.min(128));
                let network = u128::from(address).checked_shr(host_bits).unwrap_or(0);
                let network = network.checked_shl(host_bits).unwrap_or(0);
                Self(KeyBytes::Address(network.to_be_bytes(), 16))
            }
        }
    }
}

impl<'h> RequestKey<'h> {
    pub(crate) fn into_bytes(self) -> Cow<'h, [u8]> {
        match self.0 {
            KeyBytes::Borrowed(bytes) => Cow::Borrowed(bytes),
            KeyBytes::Owned(bytes) => Cow::Owned(bytes),
            KeyBytes::Address(..) => Cow::Owned(self.as_bytes().to_vec()),
        }
    }
}

impl<'h> From<&'h [u8]> for RequestKey<'h> {
    fn from(bytes: &'h [u8]) -> Self {
        Self(KeyBytes::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for RequestKey<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(KeyBytes::Owned(bytes))
    }
}

impl<'h> From<Cow<'h, [u8]>> for RequestKey<'h> {
    fn from(bytes: Cow<'h, [u8]>) -> Self {
        Self(match bytes {
            Cow::Borrowed(bytes) => KeyBytes::Borrowed(bytes),
            Cow::Owned(bytes) => KeyBytes::Owned(bytes),
        })
    }
}
