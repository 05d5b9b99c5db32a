//! The subject of an attempt: the values of a rule's `per` attributes, in the rule's order.

use crate::rules::attempt::Attempt;
use crate::rules::matching::parse_address;
use crate::rules::model::{Dimension, Rule, Variant};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

/// The values an attempt is counted by.
///
/// If every attribute has one value, they are the parts of the key. Otherwise all values of all attributes are,
/// followed by a part with the number of values of each, so that different subjects never have equal parts.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    values: SmallVec<[Value<'a>; 4]>,
    counts: Option<Vec<u8>>,
}

/// One value as counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// The attribute's value.
    Given(&'a [u8]),
    /// The first address of its network, as text: an address within that network, so no other value can be mistaken for
    /// it.
    Network { text: [u8; ADDRESS_TEXT_MAX], length: u8 },
}

/// The maximum length of an address as text.
const ADDRESS_TEXT_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();

impl Rule {
    /// Returns the subject of an attempt; None if a `per` attribute is missing.
    #[inline]
    pub(crate) fn subject<'a>(&self, attempt: &Attempt<'a>) -> Option<Subject<'a>> {
        let mut values = SmallVec::new();
        let mut are_single = true;
        for dimension in self.per.iter() {
            let mut found = attempt.values(&dimension.attribute);
            values.push(dimension.value(found.next()?));
            for value in found {
                values.push(dimension.value(value));
                are_single = false;
            }
        }
        let counts = (!are_single).then(|| self.value_counts(attempt));
        Some(Subject { values, counts })
    }

    /// Hashes the subject of an attempt. Equal subjects of a rule share their counters.
    pub fn hash_subject(&self, attempt: &Attempt<'_>, hasher: &mut impl Hasher) {
        for part in self.subject(attempt).iter().flat_map(Subject::parts) {
            part.hash(hasher);
        }
    }

    /// Calls `visit` with each `per` attribute of an attempt and its value as counted, in the rule's order. False if one is missing.
    #[inline]
    pub fn visit_subject(&self, attempt: &Attempt<'_>, mut visit: impl FnMut(&str, &[u8])) -> bool {
        for dimension in self.per.iter() {
            let mut is_missing = true;
            for value in attempt.values(&dimension.attribute) {
                visit(&dimension.attribute, dimension.value(value).bytes());
                is_missing = false;
            }
            if is_missing {
                return false;
            }
        }
        true
    }

    #[cold]
    fn value_counts(&self, attempt: &Attempt<'_>) -> Vec<u8> {
        let count = |dimension: &Dimension| attempt.values(&dimension.attribute).count() as u64;
        self.per
            .iter()
            .flat_map(|dimension| count(dimension).to_le_bytes())
            .collect()
    }

    /// Returns the variant of its experiment for a subject. It depends only on the rule's id and the subject's parts,
    /// so it is the same on every instance and in every version, and a subject in the experiment stays in it when the
    /// share grows.
    #[inline]
    pub(crate) fn variant_of(&self, parts: &[&[u8]]) -> Variant {
        match &self.experiment {
            Some(experiment) if u64::from(experiment_hash(&self.id, parts)) < experiment.share => Variant::Experiment,
            _ => Variant::Control,
        }
    }
}

impl Subject<'_> {
    /// Returns the parts of its key.
    #[inline]
    pub(crate) fn parts(&self) -> SmallVec<[&[u8]; 4]> {
        let mut parts: SmallVec<[&[u8]; 4]> = self.values.iter().map(Value::bytes).collect();
        if let Some(counts) = &self.counts {
            parts.push(counts);
        }
        parts
    }

    /// Its values as counted.
    pub(crate) fn values(&self) -> &[Value<'_>] {
        &self.values
    }
}

impl Dimension {
    /// A value as counted.
    #[inline]
    pub(crate) fn value<'a>(&self, given: &'a [u8]) -> Value<'a> {
        match self.ipv6_prefix {
            // Without a colon it is no IPv6 address, and an IPv4 address has only one spelling.
            Some(prefix) if given.contains(&b':') => network(given, prefix),
            _ => Value::Given(given),
        }
    }
}

impl Value<'_> {
    /// Its bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Network { text, length } => text.get(..usize::from(*length)).unwrap_or_default(),
        }
    }
}

impl Value<'_> {
    /// True if it is a network of IPv6 addresses.
    pub(crate) fn is_ipv6(&self) -> bool {
        matches!(self, Self::Network { .. }) && self.bytes().contains(&b':')
    }
}

/// Returns the network of an IPv6 address. An IPv4-mapped address is that IPv4 address.
pub(crate) fn network(given: &[u8], prefix: u8) -> Value<'_> {
    let Some(address) = parse_address(given) else {
        return Value::Given(given);
    };
    let first = match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let host_bits = 128_u32.saturating_sub(u32::from(prefix));
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    };
    let mut text = [0; ADDRESS_TEXT_MAX];
    let mut rest = text.as_mut_slice();
    if write!(rest, "{first}").is_err() {
        return Value::Given(given);
    }
    let length = (ADDRESS_TEXT_MAX - rest.len()) as u8;
    Value::Network { text, length }
}

/// Returns 32 well-mixed bits of a rule's id and a subject.
///
/// Not keyed, because all instances must agree. Callers who can choose their name can choose their variant, and gain
/// nothing that the rule does not grant to it.
fn experiment_hash(rule: &str, parts: &[&[u8]]) -> u32 {
    let all = std::iter::once(rule.as_bytes()).chain(parts.iter().copied());
    (subject_hash(all) >> 32) as u32
}

/// Returns 64 bits of these parts, the upper ones well mixed: FNV-1a over each part with its length, then a finalizer.
pub(crate) fn subject_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash
}

#[cfg(test)]
mod tests;
