//! The attribute sets that the rows of each rule name, so that an attempt is looked up once for each of them.

use crate::rules::model::{CounterId, Dimension};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::sync::Arc;

/// The parts that all rows of one rule have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleRows {
    /// In the order of precedence: those with more attributes first, then by their names.
    pub(super) sets: SmallVec<[RowSet; 1]>,
    /// The counters that its rows have added.
    pub(super) counters: Vec<AddedCounter>,
}

/// A counter that rows of a rule have added.
#[derive(Clone, Debug)]
pub(super) struct AddedCounter {
    pub(super) id: CounterId,
    /// The number of windows of rows that use it. One without any is replaced when another is needed.
    uses: u32,
}

/// The attributes that some rows of a rule name.
#[derive(Clone, Debug)]
pub(super) struct RowSet {
    /// Sorted by name. Addresses are normalized as in `per`.
    pub(super) attributes: Arc<[Dimension]>,
    /// Its number in keys, unique in its rule.
    pub(super) number: u8,
    /// True if they are those that the rule counts by.
    pub(super) is_per: bool,
    /// The number of rows with these attributes.
    pub(super) rows: u32,
}

/// The rules that have rows, by their index. Copy-on-write, in chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleRowsTable {
    chunks: Arc<[Option<Chunk>]>,
}

type Chunk = Arc<[RuleRows]>;

/// The number of rules in a chunk.
const CHUNK_RULES: usize = 64;

impl RuleRowsTable {
    /// The rows of a rule.
    #[inline]
    pub(super) fn find(&self, rule: u32) -> Option<&RuleRows> {
        let rule = rule as usize;
        let chunk = self.chunks.get(rule / CHUNK_RULES)?.as_ref()?;
        chunk.get(rule % CHUNK_RULES)
    }

    /// The rows of a rule, to change them. Of `rules` rules in all.
    pub(super) fn find_mut(&mut self, rule: u32, rules: usize) -> Option<&mut RuleRows> {
        if self.chunks.is_empty() {
            self.chunks = std::iter::repeat_n(None, rules.div_ceil(CHUNK_RULES)).collect();
        }
        let rule = rule as usize;
        let chunk = Arc::make_mut(&mut self.chunks).get_mut(rule / CHUNK_RULES)?;
        let empty = || std::iter::repeat_with(RuleRows::default).take(CHUNK_RULES).collect();
        Arc::make_mut(chunk.get_or_insert_with(empty)).get_mut(rule % CHUNK_RULES)
    }
}

impl RuleRows {
    /// The set of these attributes.
    pub(super) fn set(&self, attributes: &[Dimension]) -> Option<&RowSet> {
        self.sets.iter().find(|set| *set.attributes == *attributes)
    }

    /// Counts a row of these attributes and returns the number of their set. None if there are too many sets.
    pub(super) fn add_row(&mut self, attributes: &[Dimension], per: &[Dimension], sets_max: usize) -> Option<u8> {
        if let Some(set) = self.sets.iter_mut().find(|set| *set.attributes == *attributes) {
            set.rows = set.rows.saturating_add(1);
            return Some(set.number);
        }
        if self.sets.len() >= sets_max {
            return None;
        }
        let number = (0..=u8::MAX).find(|number| self.sets.iter().all(|set| set.number != *number))?;
        self.sets.push(RowSet {
            attributes: attributes.into(),
            number,
            is_per: *attributes == *per,
            rows: 1,
        });
        self.sets
            .sort_by(|one, other| one.precedence().cmp(&other.precedence()));
        Some(number)
    }

    /// Removes a row of the set with this number. A set without rows costs no look-up any more.
    pub(super) fn remove_row(&mut self, number: u8) {
        if let Some(set) = self.sets.iter_mut().find(|set| set.number == number) {
            set.rows = set.rows.saturating_sub(1);
        }
        self.sets.retain(|set| set.rows > 0);
    }

    /// Returns the id of a counter to add: that of one without a use, else `next`. None if there are too many.
    pub(super) fn add_counter(&mut self, next: CounterId, counters_max: usize) -> Option<CounterId> {
        if let Some(unused) = self.counters.iter().find(|added| added.uses == 0) {
            return Some(unused.id);
        }
        if self.counters.len() >= counters_max {
            return None;
        }
        self.counters.push(AddedCounter { id: next, uses: 0 });
        Some(next)
    }

    /// True if a row uses an added counter.
    pub(super) fn is_used(&self, counter: CounterId) -> bool {
        let mut added = self.counters.iter();
        added.any(|added| added.id == counter && added.uses > 0)
    }

    /// Adds to the uses of a counter.
    pub(super) fn count_use(&mut self, counter: CounterId, change: i32) {
        if let Some(added) = self.counters.iter_mut().find(|added| added.id == counter) {
            added.uses = added.uses.saturating_add_signed(change);
        }
    }
}

impl RowSet {
    fn precedence(&self) -> (Reverse<usize>, Vec<&str>) {
        let names = self.attributes.iter().map(|dimension| &*dimension.attribute);
        (Reverse(self.attributes.len()), names.collect())
    }
}
