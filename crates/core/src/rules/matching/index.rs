//! The rule index: finds the rules an attempt may match without testing all of them.
//!
//! Each rule is stored under the postings of one of its requirements, which an attempt must have to match: the exact
//! values of a condition, the prefix of a glob, or the presence of an attribute. Of all its requirements the index uses
//! the one whose postings the fewest rules share, so few candidates fail the full test that follows.

use crate::rules::attempt::Attempt;
use crate::rules::model::SmallBytes;
use crate::rules::model::{Mode, Rule, Test};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// The active rules, by domain. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Sorted by name.
    domains: Arc<[(Box<str>, Domain)]>,
}

/// The rules of one domain.
#[derive(Debug, Default)]
struct Domain {
    /// Rules without any requirement.
    always: Vec<Candidate>,
    /// Postings by attribute, sorted by name.
    attributes: Vec<(Box<str>, Postings)>,
    /// The key bits of all attributes.
    key_bits: u64,
}

/// The rules stored under one attribute. The maps have a random hash key: callers choose the values.
#[derive(Debug, Default)]
struct Postings {
    /// Rules that require its presence.
    present: Vec<Candidate>,
    /// Rules that require an exact value.
    exact: CandidatesByBytes,
    /// Rules that require a prefix, by the length of the prefix.
    prefixes: Vec<(usize, CandidatesByBytes)>,
    /// One bit if rules are stored here because `per` names the attribute: an attempt without it lacks their key. Zero
    /// otherwise, and beyond the first 64 such attributes of a domain.
    key_bit: u64,
}

/// Rules by value, or by prefix of one length. Most endpoints have two, a ceiling and a limit per subject: they are
/// stored inline, as short values are.
type CandidatesByBytes = HashMap<SmallBytes, SmallVec<[Candidate; 2]>>;

/// One requirement of a rule that an attempt can be looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Posting<'r> {
    Exact(&'r str, &'r [u8]),
    Prefix(&'r str, &'r [u8]),
    Present(&'r str),
}

/// A rule that an attempt may match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// Its index in the list of all rules.
    pub(crate) rule: u32,
    /// The index of the condition that the posting proves, or [`Candidate::UNPROVEN`]. With thousands of rules, testing
    /// it again would mostly wait for memory.
    pub(crate) proven: u32,
}

impl Candidate {
    /// Every condition has to be tested.
    pub(crate) const UNPROVEN: u32 = u32::MAX;
}

/// The candidates of an attempt. Few attempts have more.
pub(crate) type Candidates = SmallVec<[Candidate; 16]>;

/// The rules that an attempt may match.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// In rule order. A rule found through several postings is repeated.
    pub(crate) candidates: Candidates,
    /// True if rules were left out because `per` names an attribute that the attempt lacks.
    pub(crate) lacks_key: bool,
}

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let active = || {
            rules
                .iter()
                .zip(0_u32..)
                .filter(|(rule, _)| rule.mode != Mode::Disabled && rule.descriptor.is_none())
        };
        let mut posting_sizes: HashMap<(&str, Posting<'_>), usize> = HashMap::new();
        for (rule, _) in active() {
            for (posting, _) in posting_sets(rule).into_iter().flatten() {
                *posting_sizes.entry((&rule.domain, posting)).or_default() += 1;
            }
        }
        let mut domains: HashMap<&str, (Vec<Candidate>, HashMap<&str, Postings>)> = HashMap::new();
        for (rule, index) in active() {
            let (always, attributes) = domains.entry(&rule.domain).or_default();
            let selectivity = |postings: &PostingSet<'_>| {
                let sizes = postings
                    .iter()
                    .map(|(posting, _)| posting_sizes.get(&(&*rule.domain, *posting)).copied());
                (sizes.max(), postings.iter().map(|(posting, _)| posting.breadth()).max())
            };
            match posting_sets(rule).into_iter().min_by_key(selectivity) {
                None => always.push(Candidate {
                    rule: index,
                    proven: Candidate::UNPROVEN,
                }),
                Some(postings) => {
                    for (posting, proven) in postings {
                        let candidate = Candidate { rule: index, proven };
                        let of_attribute = attributes.entry(posting.attribute()).or_default();
                        of_attribute.insert(posting, candidate);
                        if rule.is_keyed_by(posting) {
                            of_attribute.key_bit = 1;
                        }
                    }
                }
            }
        }
        let mut domains: Vec<(Box<str>, Domain)> = domains
            .into_iter()
            .map(|(name, (always, attributes))| (name.into(), Domain::new(always, attributes)))
            .collect();
        domains.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Self {
            domains: domains.into(),
        }
    }

    pub(crate) fn has_domain(&self, domain: &str) -> bool {
        sorted_find(&self.domains, domain).is_some()
    }

    /// Returns all rules that `attempt` could match, and few others.
    #[inline]
    pub(crate) fn lookup(&self, attempt: &Attempt<'_>) -> Lookup {
        let mut candidates = Candidates::new();
        let Some(domain) = sorted_find(&self.domains, attempt.domain) else {
            return Lookup::default();
        };
        candidates.extend(domain.always.iter().copied());
        let mut key_bits = 0;
        for attribute in attempt.attributes {
            if let Some(postings) = sorted_find(&domain.attributes, attribute.name) {
                key_bits |= postings.key_bit;
                postings.probe(attribute.value, &mut candidates);
            }
        }
        candidates.sort_unstable();
        Lookup {
            candidates,
            lacks_key: key_bits != domain.key_bits,
        }
    }

    /// Returns the rules that [`Index::lookup`] leaves out because the attempt lacks the attribute they are stored under.
    pub(crate) fn keyless<'i>(&'i self, attempt: &'i Attempt<'_>) -> impl Iterator<Item = u32> + 'i {
        let attributes = sorted_find(&self.domains, attempt.domain).into_iter();
        let attributes = attributes.flat_map(|domain| &domain.attributes);
        let lacking = attributes.filter(|(name, postings)| postings.key_bit != 0 && attempt.value(name).is_none());
        lacking.flat_map(|(_, postings)| postings.present.iter().map(|candidate| candidate.rule))
    }
}

impl Domain {
    fn new(always: Vec<Candidate>, attributes: HashMap<&str, Postings>) -> Self {
        let mut attributes: Vec<(Box<str>, Postings)> = attributes
            .into_iter()
            .map(|(name, postings)| (name.into(), postings))
            .collect();
        attributes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let keyed = attributes.iter_mut().filter(|(_, postings)| postings.key_bit != 0);
        let mut key_bits = 0;
        for ((_, postings), number) in keyed.zip(0_u32..) {
            postings.key_bit = 1_u64.checked_shl(number).unwrap_or(0);
            key_bits |= postings.key_bit;
        }
        Self {
            always,
            attributes,
            key_bits,
        }
    }
}

impl Rule {
    /// True for a posting that an attempt lacks only together with a `per` attribute.
    fn is_keyed_by(&self, posting: Posting<'_>) -> bool {
        let is_key = |name: &str| self.per.iter().any(|dimension| *dimension.attribute == *name);
        matches!(posting, Posting::Present(name) if is_key(name))
    }
}

impl Postings {
    fn insert(&mut self, posting: Posting<'_>, candidate: Candidate) {
        let list = match posting {
            Posting::Present(_) => {
                self.present.push(candidate);
                return;
            }
            Posting::Exact(_, value) => self.exact.entry(value.into()).or_default(),
            Posting::Prefix(_, prefix) => {
                let index = self.prefixes.iter().position(|(length, _)| *length == prefix.len());
                let index = index.unwrap_or_else(|| {
                    self.prefixes.push((prefix.len(), HashMap::new()));
                    self.prefixes.len() - 1
                });
                let (_, by_prefix) = self.prefixes.get_mut(index).expect("its length was found or added");
                by_prefix.entry(prefix.into()).or_default()
            }
        };
        list.push(candidate);
    }

    #[inline]
    fn probe(&self, value: &[u8], found: &mut Candidates) {
        found.extend(self.present.iter().copied());
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(value)
        {
            found.extend(rules.iter().copied());
        }
        for (length, by_prefix) in &self.prefixes {
            if let Some(rules) = value.get(..*length).and_then(|prefix| by_prefix.get(prefix)) {
                found.extend(rules.iter().copied());
            }
        }
    }
}

impl<'r> Posting<'r> {
    const fn attribute(&self) -> &'r str {
        match self {
            Self::Exact(name, _) | Self::Prefix(name, _) | Self::Present(name) => name,
        }
    }

    /// The rank by number of matching values: between postings shared by equally many rules, the narrower one is
    /// better.
    const fn breadth(&self) -> u8 {
        match self {
            Self::Exact(..) => 0,
            Self::Prefix(..) => 1,
            Self::Present(_) => 2,
        }
    }
}

/// The postings of one requirement: an attempt that meets it has one of them. Each comes with the condition it proves,
/// if any.
type PostingSet<'r> = Vec<(Posting<'r>, u32)>;

/// Returns all requirements of a rule that can be indexed.
fn posting_sets(rule: &Rule) -> Vec<PostingSet<'_>> {
    let conditions = rule.when.iter().zip(0..).filter_map(|(condition, index)| {
        let mut set = Vec::new();
        postings_of(&condition.attribute, &condition.test, index, &mut set).then_some(set)
    });
    let dimensions = rule
        .per
        .iter()
        .map(|dimension| vec![(Posting::Present(&dimension.attribute), Candidate::UNPROVEN)]);
    conditions.chain(dimensions).collect()
}

/// Adds the postings of one test of the condition at `index`. False if a missing attribute passes the test.
fn postings_of<'r>(attribute: &'r str, test: &'r Test, index: u32, set: &mut PostingSet<'r>) -> bool {
    match test {
        Test::OneOf(values) => {
            set.extend(
                values
                    .iter()
                    .map(|value| (Posting::Exact(attribute, value.as_bytes()), index)),
            );
        }
        Test::Glob(parts) => set.push(match &**parts {
            [prefix, rest @ ..] if !prefix.is_empty() => {
                let is_all = matches!(rest, [end] if end.is_empty());
                let proven = if is_all { index } else { Candidate::UNPROVEN };
                (Posting::Prefix(attribute, prefix.as_bytes()), proven)
            }
            _ => (Posting::Present(attribute), Candidate::UNPROVEN),
        }),
        Test::Any(tests) => return tests.iter().all(|test| postings_of(attribute, test, index, set)),
        Test::Present(true) => set.push((Posting::Present(attribute), index)),
        Test::Regex(_) | Test::Cidr(_) => set.push((Posting::Present(attribute), Candidate::UNPROVEN)),
        Test::Present(false) => return false,
    }
    true
}

/// Finds a name. Names come from rules, not from callers, and are few, so a sorted list is faster than a hash map.
#[inline]
fn sorted_find<'i, T>(sorted: &'i [(Box<str>, T)], name: &str) -> Option<&'i T> {
    let index = sorted.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
    sorted.get(index).map(|(_, found)| found)
}

#[cfg(test)]
mod tests;
