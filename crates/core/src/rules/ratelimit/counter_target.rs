//! The counter that an attempt's hits are counted in, named as envoyproxy/ratelimit names it.

use super::tree::DescriptorMatch;
use crate::rules::attempt::Attempt;
use crate::rules::model::{Rule, RuleSet};

/// The name of a counter, and the capacity of its windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterTarget {
    /// The name up to the window's start: the domain, then key and value of each entry in the order of the request,
    /// each followed by an underscore. Where all values of a pattern share a counter, the pattern replaces the value.
    pub name: Vec<u8>,
    /// The capacity of a window.
    pub limit: u32,
}

impl RuleSet {
    /// Returns the rule compiled from the descriptor that an attempt matches, and the match.
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
    /// The name of its counter, up to the window's start.
    pub(in crate::rules) fn counter_name(&self, attempt: &Attempt<'_>) -> Vec<u8> {
        counter_name(attempt.domain, self.counted_values(attempt.attributes))
    }

    /// The parts of its key in our own stores: the name, split after the first entry, because keys with the same first
    /// part share a cluster slot.
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
    /// Returns the counter for a limit override: every value of the request is part of its name.
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

/// Initial capacity that fits most names.
const NAME_CAPACITY: usize = 96;
