//! How envoyproxy/ratelimit counts an attempt.

use super::compile::Descriptor;
use crate::rules::attempt::Attempt;
use crate::rules::rule::RuleSet;

/// Under which name an attempt is counted, and how much passes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// The name of the counter, up to the number that says when its window begins: the domain, and key and value of every
    /// entry in the order they came, with an underscore behind each. Where all values of a pattern are counted together,
    /// the pattern stands for the value.
    pub name: Vec<u8>,
    /// How much passes in a window.
    pub most: u32,
}

impl RuleSet {
    /// How an attempt is counted where counters are those of envoyproxy/ratelimit. Nothing if it meets no descriptor, or
    /// one that counts nothing it refuses.
    pub fn counting(&self, attempt: &Attempt<'_>) -> Option<Counting> {
        let found = self.descriptors.find(attempt.domain, attempt.attributes)?;
        let rule = self.rules.get(found.limit.rule as usize)?;
        let most = rule.descriptor()?.counts?;
        let name = name(attempt.domain, found.counted(attempt.attributes));
        Some(Counting { name, most })
    }
}

impl Counting {
    /// How an attempt is counted that brings its limit along: by every value that came.
    pub fn brought(attempt: &Attempt<'_>, most: u32) -> Self {
        let entries = attempt.attributes.iter().map(|entry| (entry.name, entry.value));
        Self {
            name: name(attempt.domain, entries),
            most,
        }
    }
}

fn name<'a>(domain: &str, entries: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut name = Vec::with_capacity(NAME_USUAL);
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
    pub const fn is_counting(&self) -> bool {
        self.counts.is_some()
    }
}

/// Room for most names.
const NAME_USUAL: usize = 96;
