//! A copy-on-write table: a copy shares everything with the original until it is changed, and a change copies one shard.

use crate::rules::model::SmallBytes;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Values by byte strings. Cheap to clone.
#[derive(Clone)]
pub(in crate::rules) struct Table<V> {
    /// Empty, or as many as [`SHARDS`].
    shards: Arc<[Arc<Shard<V>>]>,
    /// Keyed at random, as the maps in the shards are: subjects may be named by callers.
    hashers: RandomState,
    length: usize,
}

type Shard<V> = HashMap<SmallBytes, V>;

/// The number of shards: at 100,000 entries a change copies about a hundred of them.
const SHARDS: usize = 1_024;

impl<V> Table<V> {
    /// The number of entries.
    #[inline]
    pub(in crate::rules) const fn len(&self) -> usize {
        self.length
    }

    /// True if there are none.
    #[inline]
    pub(in crate::rules) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the value of a key, with the key as it is stored.
    #[inline]
    pub(in crate::rules) fn find(&self, key: &[u8]) -> Option<(&[u8], &V)> {
        let shard = self.shards.get(self.shard(key))?;
        let (key, value) = shard.get_key_value(key)?;
        Some((key, value))
    }

    /// The index of a key's shard.
    #[inline]
    fn shard(&self, key: &[u8]) -> usize {
        (self.hashers.hash_one(key) >> 32) as usize % SHARDS
    }
}

impl<V: Clone> Table<V> {
    /// Sets the value of a key and returns the one before.
    pub(in crate::rules) fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        if self.shards.is_empty() {
            let shard = || Arc::new(Shard::default());
            self.shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        }
        let before = self.shard_mut(key)?.insert(key.into(), value);
        self.length += usize::from(before.is_none());
        before
    }

    /// Removes a key and returns its value.
    pub(in crate::rules) fn remove(&mut self, key: &[u8]) -> Option<V> {
        self.find(key)?;
        let before = self.shard_mut(key)?.remove(key);
        self.length -= usize::from(before.is_some());
        if self.length == 0 {
            self.shards = Arc::default();
        }
        before
    }

    /// The shard of a key, copied if it is shared.
    fn shard_mut(&mut self, key: &[u8]) -> Option<&mut Shard<V>> {
        let index = self.shard(key);
        Arc::make_mut(&mut self.shards).get_mut(index).map(Arc::make_mut)
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            shards: Arc::from([]),
            hashers: RandomState::new(),
            length: 0,
        }
    }
}

impl<V> fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_the_original_loses() {
        let mut table = Table::default();
        for number in 0..5_000_u32 {
            assert_eq!(table.insert(&number.to_le_bytes(), number), None);
        }
        let copy = table.clone();
        assert_eq!(table.insert(&7_u32.to_le_bytes(), 70), Some(7));
        assert_eq!(table.remove(&8_u32.to_le_bytes()), Some(8));
        assert_eq!(table.remove(b"unknown"), None);
        let value = |table: &Table<u32>, number: u32| table.find(&number.to_le_bytes()).map(|(_, value)| *value);
        assert_eq!(
            (value(&table, 7), value(&table, 8), table.len()),
            (Some(70), None, 4_999)
        );
        assert_eq!(
            (value(&copy, 7), value(&copy, 8), copy.len()),
            (Some(7), Some(8), 5_000)
        );
        let shared = table.shards.iter().zip(copy.shards.iter());
        let copied = shared.filter(|(one, other)| !Arc::ptr_eq(one, other)).count();
        assert!((1..=2).contains(&copied), "{copied} shards copied");
    }

    #[test]
    fn an_empty_table_is_empty_again() {
        let mut table = Table::default();
        table.insert(b"a", ());
        table.remove(b"a");
        assert!(table.is_empty() && table.shards.is_empty());
        assert!(table.find(b"a").is_none());
    }
}
