//! How envoyproxy/ratelimit counts an attempt: what it names a counter by is what counters are told apart by in any store.

use super::compile::Descriptor;
use super::tree::DescriptorMatch;
use crate::rules::attempt::Attempt;
use crate::rules::model::{Rule, RuleSet};

/// Under which name an attempt is counted, and how much passes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterTarget {
    /// The name of the counter, up to the number that says when its window begins: the domain, and key and value of every
    /// entry in the order they came, with an underscore behind each. Where all values of a pattern are counted together,
    /// the pattern stands for the value.
    pub name: Vec<u8>,
    /// How much passes in a window.
    pub limit: u32,
}

impl RuleSet {
    /// How an attempt is counted where counters are those of envoyproxy/ratelimit. Nothing if it meets no descriptor, or
    /// one that counts nothing it refuses.
    pub fn counter_target(&self, attempt: &Attempt<'_>) -> Option<CounterTarget> {
        let (rule, found) = self.match_descriptor(attempt)?;
        let limit = rule.descriptor()?.counts?;
        let name = found.counter_name(attempt);
        Some(CounterTarget { name, limit })
    }

    /// The rule that was made of an attempt's limit, whose attributes are the entries of a descriptor, and the way to it.
    pub(in crate::rules) fn match_descriptor(&self, attempt: &Attempt<'_>) -> Option<(&Rule, DescriptorMatch<'_>)> {
        if self.descriptors.is_empty() {
            return None;
        }
        let found = self.descriptors.find(attempt.domain, attempt.attributes)?;
        let rule = self.rules.get(found.limit.rule as usize)?;
        Some((rule, found))
    }
}

impl DescriptorMatch<'_> {
    /// The name of its counter, up to the number that says when its window begins.
    pub(in crate::rules) fn counter_name(&self, attempt: &Attempt<'_>) -> Vec<u8> {
        counter_name(attempt.domain, self.counted_values(attempt.attributes))
    }

    /// The parts of its key where it is counted by a store of ours: its name, cut behind the first entry, because what has
    /// the first part in common lies together in a cluster.
    pub(in crate::rules) fn key_parts<'a>(&self, attempt: &Attempt<'_>, name: &'a [u8]) -> [&'a [u8]; 2] {
        let first = self.counted_values(attempt.attributes).next();
        let entry = first.map_or(0, |(key, value)| key.len() + value.len() + "__".len());
        let (first, rest) = name
            .split_at_checked(attempt.domain.len() + "_".len() + entry)
            .unwrap_or((name, &[]));
        [first, rest]
    }
}

impl CounterTarget {
    /// How an attempt is counted that brings its limit along: by every value that came.
    pub fn for_override(attempt: &Attempt<'_>, limit: u32) -> Self {
        let entries = attempt.attributes.iter().map(|entry| (entry.name, entry.value));
        Self {
            name: counter_name(attempt.domain, entries),
            limit,
        }
    }
}

fn counter_name<'a>(domain: &str, entries: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut name = Vec::with_capacity(NAME_CAPACITY);
    let mut add = |part: &[u8]| {
        name.extend_from_slice(part);
        name.push(b'_');
    };
    add(domain.as_bytes());
    for (key, value) in entries {
        add(key.as_bytes());
        add(value);
    }
    name
}

impl Descriptor {
    /// Whether what it refuses is counted too.
    pub const fn counts_denied(&self) -> bool {
        self.counts.is_some()
    }
}

/// Room for most names.
const NAME_CAPACITY: usize = 96;
