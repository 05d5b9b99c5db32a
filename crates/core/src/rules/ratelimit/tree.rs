//! Matching of descriptors: a walk down a tree, one entry per level.

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
    /// Their settings.
    pub options: RatelimitOptions,
}

/// The descriptors below a domain or an entry.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    /// In file order.
    pub(super) nodes: Vec<DescriptorNode>,
    /// By name: a node's key, and its value if it has one, joined by an underscore.
    pub(super) by_name: HashMap<Box<str>, usize>,
}

/// One descriptor of a file.
#[derive(Debug)]
pub(super) struct DescriptorNode {
    pub(super) key: Box<str>,
    pub(super) name: Box<str>,
    pub(super) has_value: bool,
    /// The composite key as a pattern, if it contains a star.
    pub(super) pattern: Option<Pattern>,
    /// Values that match the pattern share a counter.
    pub(super) is_shared: bool,
    /// Statistics report the request's value instead of the pattern or the key.
    pub(super) value_to_metric: bool,
    pub(super) limit: Option<DescriptorLimit>,
    pub(super) children: DescriptorLevel,
    pub(super) location: Location,
}

/// The limit of a descriptor.
#[derive(Debug)]
pub struct DescriptorLimit {
    /// The capacity and length of a window. None: unlimited, or `native`.
    pub rate: Option<(u32, Unit)>,
    /// A limit of our own that replaces the window.
    pub native: Option<NativeLimit>,
    /// Its name, by which others replace it; empty if it has none.
    pub name: Box<str>,
    /// The names of the limits that it replaces.
    pub replaces: Box<[Box<str>]>,
    /// It decides and counts, but never denies.
    pub shadow: bool,
    /// It denies only if all quotas of a request deny.
    pub quota: bool,
    /// Statistics report every value of the request.
    pub detailed: bool,
    /// The contents of `metadata`.
    pub metadata: Option<crate::yaml::Node>,
    /// Its location.
    pub location: Location,
    /// The index of the rule compiled from it.
    pub(in crate::rules) rule: u32,
}

/// The limit that a descriptor matches, and the path to it.
#[derive(Debug)]
pub struct DescriptorMatch<'d> {
    /// The limit.
    pub limit: &'d DescriptorLimit,
    /// One node for each entry.
    path: Vec<&'d DescriptorNode>,
}

impl Descriptors {
    /// True if there is no domain.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// True if the domain exists.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns the limit of a descriptor: that of the node its last entry leads to. Each level prefers the node of
    /// exactly this key and value, then the first matching pattern, then the bare key; there is no backtracking.
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

    /// Turns all limits into quotas, which deny only together.
    pub fn make_quotas(&mut self) {
        self.domains.values_mut().for_each(DescriptorLevel::make_quotas);
    }

    /// Renders the closest rules of our own, with comments on the differences.
    pub fn as_rules(&self) -> String {
        super::import::render_rules(self)
    }

    /// All limits, sorted, under the names of their nodes joined by dots, starting with the domain.
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
    /// Returns for each entry the value it is counted by: its own, or the pattern whose values share a counter.
    pub fn counted_values<'a>(&'a self, entries: &'a [Attribute<'a>]) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let each = self.path.iter().zip(entries);
        each.map(|(node, entry)| (entry.name, node.counted_value(entry)))
    }

    /// True if a pattern on the path shares a counter between its values.
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
    /// Returns the value an entry is counted by: its own, or the pattern whose values share a counter. The key is not
    /// part of the pattern unless it contains a star: then the request's key differs from the one in the file.
    fn counted_value<'a>(&'a self, entry: &Attribute<'a>) -> &'a [u8] {
        if !self.is_shared {
            return entry.value;
        }
        let after_key = self.name.strip_prefix(entry.name);
        let value = after_key.and_then(|rest| rest.strip_prefix('_'));
        value.unwrap_or(&self.name).as_bytes()
    }

    /// True if all requests that reach this node share a counter.
    pub(super) fn is_for_all(&self) -> bool {
        self.is_shared && !self.key.contains('*')
    }

    /// The value in the file, if there is one.
    pub(super) fn value(&self) -> Option<&str> {
        self.name.get(self.key.len() + 1..).filter(|_| self.has_value)
    }

    /// True if statistics report the request's value: a value in the file is part of the name anyway.
    pub(super) const fn names_request_value(&self) -> bool {
        self.value_to_metric && (!self.has_value || self.pattern.is_some())
    }
}
