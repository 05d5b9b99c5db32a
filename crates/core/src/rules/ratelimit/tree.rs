//! Which limit a descriptor meets: a walk down a tree, one entry a level.

use super::file::{NativeLimit, Pattern, Unit};
use super::options::RatelimitOptions;
use super::stat_path::{PathLevel, StatPath};
use crate::problem::Location;
use crate::rules::attempt::Attribute;
use std::collections::HashMap;

/// The descriptors of all domains.
#[derive(Debug, Default)]
pub struct Descriptors {
    pub(super) domains: HashMap<Box<str>, DescriptorLevel>,
    /// How they are meant.
    pub options: RatelimitOptions,
}

/// What stands below a domain or an entry.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    /// In the order they are written.
    pub(super) nodes: Vec<DescriptorNode>,
    /// By name: a node's key, and its value if it has one, joined by an underscore.
    pub(super) by_name: HashMap<Box<str>, usize>,
}

/// One descriptor as it is written.
#[derive(Debug)]
pub(super) struct DescriptorNode {
    pub(super) key: Box<str>,
    pub(super) name: Box<str>,
    pub(super) has_value: bool,
    /// Its name, if there is a star in it.
    pub(super) pattern: Option<Pattern>,
    /// Values that fit the pattern are counted together.
    pub(super) is_shared: bool,
    /// Statistics name the value that came instead of the pattern or the key.
    pub(super) value_to_metric: bool,
    pub(super) limit: Option<DescriptorLimit>,
    pub(super) children: DescriptorLevel,
    pub(super) location: Location,
}

/// What a descriptor is held to.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// How much passes in a window. None: as much as comes, or what `exact` says.
    pub rate: Option<(u32, Unit)>,
    /// A limit of our own in its place.
    pub native: Option<NativeLimit>,
    /// Its name, by which others replace it; empty if it has none.
    pub name: Box<str>,
    /// The names of the limits that do not hold where this one does.
    pub replaces: Box<[Box<str>]>,
    /// It decides and counts, but never refuses.
    pub shadow: bool,
    /// It refuses only together with all others of its kind.
    pub quota: bool,
    /// Statistics name every value that came.
    pub detailed: bool,
    /// What stands under `metadata`, as it is written.
    pub metadata: Option<crate::yaml::Node>,
    /// Where it is written.
    pub location: Location,
    /// The rule that was made of it, by its place in its set.
    pub(in crate::rules) rule: u32,
}

/// The limit that a descriptor meets, and the way there.
#[derive(Debug)]
pub struct DescriptorMatch<'d> {
    /// The limit.
    pub limit: &'d DescriptorLimit,
    /// One node for each entry.
    path: Vec<&'d DescriptorNode>,
}

impl Descriptors {
    /// Whether there is no domain at all.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Whether there is such a domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The limit of a descriptor: that of the node its last entry leads to. At each level the node of exactly this key and
    /// value is taken, else the first whose pattern fits, else that of the key alone; there is no way back to another.
    pub fn find(&self, domain: &str, entries: &[Attribute<'_>]) -> Option<DescriptorMatch<'_>> {
        let mut level = self.domains.get(domain)?;
        let mut path = Vec::with_capacity(entries.len());
        for entry in entries {
            let node = level.node(entry)?;
            path.push(node);
            level = &node.children;
        }
        let limit = path.last()?.limit.as_ref()?;
        Some(DescriptorMatch { limit, path })
    }

    /// Makes quotas of all limits: they refuse only all together.
    pub fn make_quotas(&mut self) {
        self.domains.values_mut().for_each(DescriptorLevel::make_quotas);
    }

    /// A file of rules of our own that come nearest to them, with comments on what is different.
    pub fn as_rules(&self) -> String {
        super::import::render_rules(self)
    }

    /// Every limit there is, under the names of the nodes that lead to it joined by dots, the domain's first. Sorted.
    pub fn limits(&self) -> Vec<(String, &DescriptorLimit)> {
        let mut limits = Vec::new();
        for (domain, level) in &self.domains {
            level.limits(domain, &mut limits);
        }
        limits.sort_by(|(one, _), (other, _)| one.cmp(other));
        limits
    }
}

impl DescriptorLevel {
    fn node(&self, entry: &Attribute<'_>) -> Option<&DescriptorNode> {
        let composite_key = composite_key(entry);
        let exact = self.by_name.get(&*composite_key);
        let index = exact.copied().or_else(|| {
            let fits = |node: &DescriptorNode| {
                node.pattern
                    .as_ref()
                    .is_some_and(|pattern| pattern.matches(&composite_key))
            };
            self.nodes.iter().position(fits)
        });
        let index = index.or_else(|| self.by_name.get(entry.name).copied());
        self.nodes.get(index?)
    }

    fn make_quotas(&mut self) {
        for node in &mut self.nodes {
            if let Some(limit) = &mut node.limit {
                limit.quota = true;
            }
            node.children.make_quotas();
        }
    }

    fn limits<'d>(&'d self, above: &str, limits: &mut Vec<(String, &'d DescriptorLimit)>) {
        for node in &self.nodes {
            let path = format!("{above}.{}", node.name);
            if let Some(limit) = &node.limit {
                limits.push((path.clone(), limit));
            }
            node.children.limits(&path, limits);
        }
    }
}

fn composite_key(entry: &Attribute<'_>) -> String {
    format!("{}_{}", entry.name, String::from_utf8_lossy(entry.value))
}

impl DescriptorMatch<'_> {
    /// For each entry the value it is counted by: its own, or the pattern where all that fit are counted together.
    pub fn counted_values<'a>(&'a self, entries: &'a [Attribute<'a>]) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let each = self.path.iter().zip(entries);
        each.map(|(node, entry)| (entry.name, node.counted_value(entry)))
    }

    /// Whether all values of a pattern on the way are counted together.
    pub(super) fn is_shared(&self) -> bool {
        self.path.iter().any(|node| node.is_shared)
    }

    /// The name of its statistics.
    pub fn path(&self, domain: &str, entries: &[Attribute<'_>]) -> String {
        let mut name = String::new();
        let levels: Vec<PathLevel> = self.path.iter().map(|node| PathLevel::new(node)).collect();
        StatPath::new(domain, &levels, self.limit.detailed).write(domain, entries, &mut name);
        name
    }
}

impl DescriptorNode {
    /// What an entry that leads here is counted by: its value, or the pattern where all that fit it are counted together. Of
    /// that the key is no part, unless there is a star in it: then the key that came is another than the one that is written.
    fn counted_value<'a>(&'a self, entry: &Attribute<'a>) -> &'a [u8] {
        if !self.is_shared {
            return entry.value;
        }
        let after_key = self.name.strip_prefix(entry.name);
        let value = after_key.and_then(|rest| rest.strip_prefix('_'));
        value.unwrap_or(&self.name).as_bytes()
    }

    /// Whether all that lead here are counted as one.
    pub(super) fn is_for_all(&self) -> bool {
        self.is_shared && !self.key.contains('*')
    }

    /// The value that is written, if one is.
    pub(super) fn value(&self) -> Option<&str> {
        self.name.get(self.key.len() + 1..).filter(|_| self.has_value)
    }

    /// Whether statistics name the value that came: a value that is written stands in the name anyway.
    pub(super) const fn names_request_value(&self) -> bool {
        self.value_to_metric && (!self.has_value || self.pattern.is_some())
    }
}
