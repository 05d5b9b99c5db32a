//! Whom a rule counts an attempt for: the values of its `per` attributes, in the rule's order.

use crate::rules::attempt::Attempt;
use crate::rules::few::Few;
use crate::rules::matching::parse_address;
use crate::rules::model::{Dimension, Rule, Variant};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

/// The values an attempt is counted by.
///
/// Where every attribute has one value these are the parts of the key. Otherwise all values of all attributes are, and
/// one part more that says how many there are of each: so no two subjects are alike, whatever the values.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    values: Few<Value<'a>, 4>,
    counts: Option<Vec<u8>>,
}

/// One value as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// As it came.
    Given(&'a [u8]),
    /// The first address of its network, as text: an address of that network itself, so nothing else can be taken for it.
    Network { text: [u8; ADDRESS_TEXT_MAX], length: u8 },
}

/// The longest address as text.
const ADDRESS_TEXT_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();

impl Rule {
    /// The subject of an attempt, or nothing if it lacks an attribute that subjects are told apart by.
    #[inline]
    pub(crate) fn subject<'a>(&self, attempt: &Attempt<'a>) -> Option<Subject<'a>> {
        let mut values = Few::new();
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

    #[cold]
    fn value_counts(&self, attempt: &Attempt<'_>) -> Vec<u8> {
        let count = |dimension: &Dimension| attempt.values(&dimension.attribute).count() as u64;
        self.per
            .iter()
            .flat_map(|dimension| count(dimension).to_le_bytes())
            .collect()
    }

    /// The side of its experiment that a subject is on. It depends on nothing but the rule's id and the subject's parts,
    /// so it is the same on every instance and in every version; and a subject that is on trial stays so when the share
    /// grows.
    #[inline]
    pub(crate) fn variant_of(&self, parts: &[&[u8]]) -> Variant {
        match &self.experiment {
            Some(experiment) if u64::from(experiment_hash(&self.id, parts)) < experiment.share => Variant::Experiment,
            _ => Variant::Control,
        }
    }
}

impl Subject<'_> {
    /// Hands the parts of its key on.
    #[inline]
    pub(crate) fn parts(&self) -> Few<&[u8], 4> {
        let mut parts = Few::new();
        for value in self.values.as_slice() {
            parts.push(value.bytes());
        }
        if let Some(counts) = &self.counts {
            parts.push(counts);
        }
        parts
    }

    /// Its values, as they are counted.
    pub(crate) fn values(&self) -> &[Value<'_>] {
        self.values.as_slice()
    }
}

impl Dimension {
    /// A value as it is counted.
    #[inline]
    pub(crate) fn value<'a>(&self, given: &'a [u8]) -> Value<'a> {
        match self.ipv6_prefix {
            // Without a colon it is no IPv6 address, and an IPv4 address has one spelling only.
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
    /// Whether it stands for a network of IPv6 addresses.
    pub(crate) fn is_ipv6(&self) -> bool {
        matches!(self, Self::Network { .. }) && self.bytes().contains(&b':')
    }
}

impl Default for Value<'_> {
    fn default() -> Self {
        Self::Given(&[])
    }
}

/// The network an IPv6 address counts for. One that stands for an IPv4 address is that address.
fn network(given: &[u8], prefix: u8) -> Value<'_> {
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

/// 32 well-mixed bits of a rule's id and a subject.
///
/// Not keyed, because all instances must agree and a store may be shared: a caller who is free to choose his name can
/// choose his side, and gains nothing by it that the rule does not grant to that side.
fn experiment_hash(rule: &str, parts: &[&[u8]]) -> u32 {
    let all = std::iter::once(rule.as_bytes()).chain(parts.iter().copied());
    (subject_hash(all) >> 32) as u32
}

/// 64 bits of these parts, the upper ones well mixed: FNV-1a over each behind its length, stirred at the end.
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
