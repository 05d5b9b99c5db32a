//! Override rows: limits of single subjects that change without compiling the rules again.
//!
//! A row replaces the limit of one rule for one subject, before `overrides`, `by` and `limit`. Of several rows that match
//! an attempt the one with more attributes applies, then the first by the names of its attributes.
//!
//! `rows/table.rs` is the copy-on-write table, `rows/sets.rs` the attribute sets of a rule, `rows/terms.rs` parses the
//! terms, `rows/limit_pool.rs` shares equal limits, `rows/amend.rs` applies edits.

mod amend;
mod limit_pool;
mod sets;
mod table;
mod table_key;
mod terms;

pub(in crate::rules) use table::Table;

use self::limit_pool::LimitPool;
use self::sets::RuleRowsTable;
use self::table::Probe;
use self::terms::RowTerms;
use super::attempt::Attempt;
use super::matching::Candidate;
use super::model::{CounterId, CounterSpec, Dimension, LimitOrigin, Rule, RuleSet, Terms, Variant};
use super::plan::Prefetch;
use smallvec::SmallVec;

/// An edit of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowEdit {
    /// The domain of its rule.
    pub domain: Box<str>,
    /// The id of its rule.
    pub rule: Box<str>,
    /// The subject: attributes and their values, sorted by attribute.
    pub subject: Box<[(Box<str>, Box<str>)]>,
    /// A limit as rules write it: `20000/min burst 500`, `[10/s, 100/min]`, `unlimited`, `0/min`. None: the row is
    /// deleted.
    pub terms: Option<Box<str>>,
}

impl RowEdit {
    /// An edit that sets a row, or deletes it where there are no terms.
    pub fn new<'s>(
        domain: &str,
        rule: &str,
        subject: impl IntoIterator<Item = (&'s str, &'s str)>,
        terms: Option<&str>,
    ) -> Self {
        let subject = subject.into_iter();
        Self {
            domain: domain.into(),
            rule: rule.into(),
            subject: subject.map(|(name, value)| (name.into(), value.into())).collect(),
            terms: terms.map(Into::into),
        }
    }
}

/// The reason for which an edit of a row or of a subject attribute was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowProblem {
    /// The index of the edit.
    pub index: usize,
    /// The message.
    pub text: String,
    /// The way to fix it.
    pub hint: String,
}

/// The edits that were not applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditProblems {
    /// Those of rows.
    pub rows: Vec<RowProblem>,
    /// Those of subject attributes.
    pub attributes: Vec<RowProblem>,
}

/// The identity of a row within its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSubject<'r> {
    attributes: &'r [Dimension],
    /// The values, as [`push_value`] writes them.
    values: &'r [u8],
}

/// All rows of a rule set.
#[derive(Clone, Debug, Default)]
pub(in crate::rules) struct Rows {
    /// By rule, attribute set and values. None: the rule of the row does not exist.
    table: Table<Option<RowTerms>>,
    /// The attribute sets of each rule that has rows.
    rules: RuleRowsTable,
    limits: LimitPool,
    orphans: usize,
}

/// The rows of a rule, as far as they are known before it is evaluated.
pub(in crate::rules) enum RowProbe<'r> {
    /// Nothing.
    Unknown,
    /// It has none.
    NoRows,
    /// All of them name the one attribute that it counts by, and the look-up of the attempt's value was started.
    Started {
        prefix: u64,
        attributes: &'r [Dimension],
        probe: Probe<'r, Option<RowTerms>>,
    },
}

/// The rows of the first candidates of an attempt, likewise.
pub(in crate::rules) type RowProbes<'r> = [RowProbe<'r>; PROBES_MAX];

/// The values in the key of a row, after the prefix of its rule and attribute set.
type RowKey = SmallVec<[u8; 64]>;

/// The maximum number of rows.
pub(in crate::rules) const ROWS_MAX: usize = 1_000_000;
/// The maximum number of value combinations that rows with several attributes are looked up for.
const COMBINATIONS_MAX: usize = 256;
/// The number of rules whose rows are looked up in advance. Few attempts match more.
const PROBES_MAX: usize = 4;
/// The rule in the key of a row whose rule does not exist. There are never so many rules.
const ORPHAN_RULE: u32 = u32::MAX;

impl RuleSet {
    /// The number of rows, orphans included.
    pub fn row_count(&self) -> usize {
        self.rows.table.len()
    }

    /// The number of rows whose rule does not exist. They have no effect, and apply in a set that has the rule.
    pub const fn orphan_rows(&self) -> usize {
        self.rows.orphans
    }

    /// All counters that rules and rows use.
    pub(in crate::rules) fn counters_in_use(&self) -> impl Iterator<Item = (CounterId, &CounterSpec)> {
        let ids = (0..).map(CounterId);
        let own = ids.clone().zip(self.counters.iter());
        let added = ids.skip(self.counters.len()).zip(self.added_counters.iter());
        own.chain(added.filter(|(id, spec)| self.rows.rules.find(spec.rule).is_some_and(|rows| rows.is_used(*id))))
    }

    /// Returns the terms of a rule for an attempt and their origin. `index` is that of the rule in this set, `parts` are those of the
    /// attempt's subject, and `probe` is what is known about its rows.
    #[inline]
    pub(in crate::rules) fn terms<'r>(
        &'r self,
        (rule, index): (&'r Rule, u32),
        variant: Variant,
        attempt: &Attempt<'_>,
        (parts, probe): (&[&[u8]], &RowProbe<'r>),
    ) -> (&'r Terms, LimitOrigin<'r>) {
        if !self.rows.table.is_empty() {
            let found = match (probe, parts) {
                (RowProbe::NoRows, _) => None,
                // One value, which is the one that was looked up.
                (
                    RowProbe::Started {
                        prefix,
                        attributes,
                        probe,
                    },
                    [value],
                ) => {
                    let found = self.rows.table.resolve(probe, *prefix, value);
                    found.and_then(|(values, terms)| {
                        let terms = terms.as_ref()?.select(variant);
                        Some((terms, RowSubject { attributes, values }))
                    })
                }
                _ => self.rows.find(index, variant, attempt, parts),
            };
            if let Some((terms, subject)) = found {
                return (terms, LimitOrigin::Row(subject));
            }
        }
        rule.selector(variant).terms(attempt)
    }
}

impl Rows {
    /// Starts the look-ups of the rules that an attempt may match, so that memory is asked for all of them before the first rule
    /// is evaluated.
    #[inline]
    pub(in crate::rules) fn probe<'r>(
        &'r self,
        candidates: &[Candidate],
        attempt: &Attempt<'_>,
        memory: &impl Prefetch,
    ) -> RowProbes<'r> {
        let mut probes = [const { RowProbe::Unknown }; PROBES_MAX];
        if !self.table.is_empty() {
            for (probe, candidate) in probes.iter_mut().zip(candidates) {
                *probe = self.probe_rule(candidate.rule, attempt, memory);
            }
        }
        probes
    }

    #[inline]
    fn probe_rule<'r>(&'r self, rule: u32, attempt: &Attempt<'_>, memory: &impl Prefetch) -> RowProbe<'r> {
        let set = match self.rules.find(rule).map(|rows| rows.sets.as_slice()) {
            None | Some([]) => return RowProbe::NoRows,
            Some([set]) if set.is_per => set,
            Some(_) => return RowProbe::Unknown,
        };
        let attributes = &*set.attributes;
        if let [dimension] = attributes
            && dimension.ipv6_prefix.is_none()
            && let Some(value) = attempt.value(&dimension.attribute)
        {
            let prefix = key_prefix(rule, set.number);
            let probe = self.table.probe(prefix, value, memory);
            return RowProbe::Started {
                prefix,
                attributes,
                probe,
            };
        }
        RowProbe::Unknown
    }

    /// Returns the terms of the row that applies to an attempt. One matching value of several is enough.
    #[inline(never)]
    fn find<'r>(
        &'r self,
        rule: u32,
        variant: Variant,
        attempt: &Attempt<'_>,
        parts: &[&[u8]],
    ) -> Option<(&'r Terms, RowSubject<'r>)> {
        let rows = self.rules.find(rule)?;
        rows.sets.iter().find_map(|set| {
            let prefix = key_prefix(rule, set.number);
            let (values, terms) = match (&*set.attributes, parts) {
                // Rows name what the rule counts by, and the attempt has one value of it: it was found for the counter already.
                ([_], [value]) if set.is_per => {
                    let (values, terms) = self.table.find(prefix, value)?;
                    (values, terms.as_ref()?)
                }
                ([dimension], _) => self.find_single(prefix, dimension, attempt)?,
                (attributes, _) => {
                    let (mut key, mut tries) = (RowKey::new(), COMBINATIONS_MAX);
                    self.search(prefix, attributes, &mut key, attempt, &mut tries)?
                }
            };
            let attributes = &set.attributes;
            Some((terms.select(variant), RowSubject { attributes, values }))
        })
    }

    /// Finds the first row for a value of one attribute.
    #[inline]
    fn find_single<'r>(
        &'r self,
        prefix: u64,
        dimension: &Dimension,
        attempt: &Attempt<'_>,
    ) -> Option<(&'r [u8], &'r RowTerms)> {
        let mut values = attempt.values(&dimension.attribute).take(COMBINATIONS_MAX);
        let (values, terms) = values.find_map(|value| match dimension.ipv6_prefix {
            None => self.table.find(prefix, value),
            Some(_) => self.table.find(prefix, dimension.value(value).bytes()),
        })?;
        Some((values, terms.as_ref()?))
    }

    /// Finds the first row for the values of these attributes, of which the key has those before them.
    fn search<'r>(
        &'r self,
        prefix: u64,
        attributes: &[Dimension],
        key: &mut RowKey,
        attempt: &Attempt<'_>,
        tries: &mut usize,
    ) -> Option<(&'r [u8], &'r RowTerms)> {
        let Some((first, rest)) = attributes.split_first() else {
            *tries = tries.saturating_sub(1);
            let (key, terms) = self.table.find(prefix, key)?;
            return Some((key, terms.as_ref()?));
        };
        let length = key.len();
        for value in attempt.values(&first.attribute) {
            if *tries == 0 {
                return None;
            }
            push_value(key, first.value(value).bytes(), rest.is_empty());
            if let Some(found) = self.search(prefix, rest, key, attempt, tries) {
                return Some(found);
            }
            key.truncate(length);
        }
        None
    }
}

impl<'r> RowSubject<'r> {
    /// Its attributes and values, as counted.
    pub fn pairs(self) -> impl Iterator<Item = (&'r str, &'r [u8])> {
        let mut rest = self.values;
        let last = self.attributes.len().saturating_sub(1);
        self.attributes.iter().enumerate().map(move |(index, dimension)| {
            let value = match rest.split_first_chunk() {
                Some((length, after)) if index < last => {
                    let length = u32::from_le_bytes(*length) as usize;
                    let (value, after) = after.split_at_checked(length).unwrap_or((after, &[]));
                    rest = after;
                    value
                }
                _ => rest,
            };
            (&*dimension.attribute, value)
        })
    }
}

/// The prefix of the keys of a rule's attribute set.
#[inline]
fn key_prefix(rule: u32, set: u8) -> u64 {
    u64::from(rule) | u64::from(set) << u32::BITS
}

/// Appends a value to a key. All but the last are prefixed by their length, so that no two lists are equal.
fn push_value(key: &mut RowKey, value: &[u8], is_last: bool) {
    if !is_last {
        key.extend_from_slice(&(value.len() as u32).to_le_bytes());
    }
    key.extend_from_slice(value);
}

#[cfg(test)]
mod tests;
