//! A sketch of the subjects of one rule, with the names of the frequent ones.

use super::NumberHasher;
use crate::server::telemetry::watch::series::RuleName;
use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// A rule as sketches know it.
#[derive(Clone, Debug)]
pub(super) struct SketchRule {
    pub(super) number: u64,
    pub(super) name: RuleName,
}

/// Counts of fingerprints, and names beside them.
pub(super) struct NamedSketch {
    pub(super) rule: RuleName,
    /// None only if the size of its table were not a power of two.
    sketch: Option<FrequentItemsSketch<u64>>,
    /// Subjects that may be frequent.
    names: HashMap<u64, Box<str>, BuildHasherDefault<NumberHasher>>,
    name_bytes: usize,
    /// The weight at which names are dropped next, if there is no room for another one.
    prune_at: u64,
    /// The greatest weight of one denial.
    every: u32,
}

/// One subject of a sketch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SketchRow {
    pub(super) subject: Box<str>,
    pub(super) lower: u64,
    pub(super) upper: u64,
}

impl NamedSketch {
    pub(super) fn new(rule: &SketchRule) -> Self {
        Self {
            rule: rule.name.clone(),
            sketch: FrequentItemsSketch::new(MAP_SIZE).ok(),
            names: HashMap::default(),
            name_bytes: 0,
            prune_at: 0,
            every: 1,
        }
    }

    /// Counts denials of a subject.
    #[inline]
    pub(super) fn add(&mut self, fingerprint: u64, weight: u32, name: impl FnOnce() -> Box<str>) {
        self.every = self.every.max(weight);
        let Some(sketch) = &mut self.sketch else { return };
        sketch.update_with_count(fingerprint, weight.into());
        if !self.names.contains_key(&fingerprint) && is_frequent(sketch, fingerprint) {
            self.add_name(fingerprint, name);
        }
    }

    #[cold]
    fn add_name(&mut self, fingerprint: u64, name: impl FnOnce() -> Box<str>) {
        let Some(sketch) = &self.sketch else { return };
        let is_full = |names: usize, bytes: usize| names >= NAMES_MAX || bytes >= NAME_BYTES_MAX;
        if is_full(self.names.len(), self.name_bytes) {
            let weight = sketch.total_weight();
            if weight < self.prune_at {
                return;
            }
            // An eighth more has to come before it is tried again.
            self.prune_at = weight + weight / 8;
            self.names.retain(|known, _| is_frequent(sketch, *known));
            self.name_bytes = self.names.values().map(|name| name.len()).sum();
            if is_full(self.names.len(), self.name_bytes) {
                return;
            }
        }
        let name = name();
        self.name_bytes += name.len();
        self.names.insert(fingerprint, name);
    }

    /// Adds the counts of another sketch of the same rule.
    pub(super) fn merge(&mut self, other: Self) {
        self.every = self.every.max(other.every);
        if let (Some(sketch), Some(other)) = (&mut self.sketch, &other.sketch) {
            sketch.merge(other);
        }
        for (fingerprint, name) in other.names {
            let is_new = !self.names.contains_key(&fingerprint);
            if is_new
                && self
                    .sketch
                    .as_ref()
                    .is_some_and(|sketch| is_frequent(sketch, fingerprint))
            {
                self.add_name(fingerprint, || name);
            }
        }
    }

    /// All denials, as far as they were taken.
    pub(super) fn total(&self) -> u64 {
        self.sketch.as_ref().map_or(0, FrequentItemsSketch::total_weight)
    }

    /// The most frequent subjects, and the most that any other subject can have.
    pub(super) fn rows(&self, rows_max: usize) -> (Vec<SketchRow>, u64) {
        let Some(sketch) = &self.sketch else {
            return (Vec::new(), 0);
        };
        let mut rows = Vec::new();
        let mut unlisted = sketch.maximum_error();
        for row in sketch.frequent_items_with_threshold(ErrorType::NoFalseNegatives, 0) {
            match self.names.get(row.item()) {
                Some(name) if rows.len() < rows_max => rows.push(SketchRow {
                    subject: name.clone(),
                    lower: row.lower_bound() - self.slack(row.lower_bound()).min(row.lower_bound()),
                    upper: row.upper_bound() + self.slack(row.upper_bound()),
                }),
                _ => unlisted = unlisted.max(row.upper_bound()),
            }
        }
        (rows, unlisted + self.slack(unlisted))
    }

    /// The error of a count of sampled denials: four standard deviations of a binomial, and the grain. None if all were taken.
    fn slack(&self, count: u64) -> u64 {
        let rest = u64::from(self.every - 1);
        4 * (count.saturating_mul(rest)).isqrt() + 16 * rest
    }
}

/// True if a subject has so many denials that it may be listed.
fn is_frequent(sketch: &FrequentItemsSketch<u64>, fingerprint: u64) -> bool {
    sketch.estimate(&fingerprint).saturating_mul(NAMED_SHARE) >= sketch.total_weight()
}

/// Entries of the table: an item with 3.5/512 of the weight is always there.
const MAP_SIZE: usize = 512;
/// A subject with one in this many denials has its name kept.
const NAMED_SHARE: u64 = 160;
const NAMES_MAX: usize = 192;
const NAME_BYTES_MAX: usize = 8 << 10;
