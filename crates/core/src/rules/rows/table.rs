//! A copy-on-write table: a copy shares everything with the original until it is changed, and a change copies one shard.
//!
//! With a hundred thousand entries every look-up waits for memory, so it touches few cache lines: the shard, a part of its
//! sorted hashes, and the one entry that has the key. A `HashMap` in each shard would hash twice and touch twice as many.

use super::table_key::TableKey;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Values by a number of at most 40 bits and a byte string. Cheap to clone.
#[derive(Clone)]
pub(in crate::rules) struct Table<V> {
    /// Empty, or as many as [`SHARDS`].
    shards: Arc<[Arc<Shard<V>>]>,
    /// The key of the hash, drawn at random: subjects may be named by callers.
    seeds: [u64; 2],
    length: usize,
}

/// Some entries, sorted by their hash.
#[derive(Clone)]
struct Shard<V> {
    /// Apart from the entries, so that a search touches few cache lines.
    hashes: Vec<u32>,
    entries: Vec<Entry<V>>,
}

/// One cache line, for values of up to 40 bytes.
#[derive(Clone)]
#[repr(align(64))]
struct Entry<V> {
    key: TableKey,
    value: V,
}

/// The number of shards: at 100,000 entries a change copies about a hundred of them.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 10;

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

    /// Returns the value of a key, with the bytes of the key as they are stored.
    #[inline]
    pub(in crate::rules) fn find(&self, prefix: u64, key: &[u8]) -> Option<(&[u8], &V)> {
        let (shard, hash) = self.hash(prefix, key);
        let shard = self.shards.get(shard)?;
        let entry = shard.entries.get(shard.find(hash, prefix, key).ok()?)?;
        Some((entry.key.bytes(), &entry.value))
    }

    /// The index of a key's shard, and the key's hash within it.
    #[inline]
    fn hash(&self, prefix: u64, key: &[u8]) -> (usize, u32) {
        let [start, factor] = self.seeds;
        let mut hash = start ^ prefix ^ (key.len() as u64).rotate_left(40);
        let last = match key.last_chunk() {
            // With some of the bytes before it, which does no harm.
            Some(last) => {
                for word in key.as_chunks().0 {
                    hash = folded_product(hash ^ u64::from_le_bytes(*word), factor);
                }
                *last
            }
            None => {
                let mut last = [0; 8];
                if let Some(bytes) = last.get_mut(..key.len()) {
                    bytes.copy_from_slice(key);
                }
                last
            }
        };
        let hash = folded_product(folded_product(hash ^ u64::from_le_bytes(last), factor), factor);
        let shard = hash >> (u64::BITS - SHARD_BITS);
        (shard as usize, hash as u32)
    }
}

impl<V: Clone> Table<V> {
    /// Sets the value of a key and returns the one before.
    pub(in crate::rules) fn insert(&mut self, prefix: u64, key: &[u8], value: V) -> Option<V> {
        if self.shards.is_empty() {
            let empty = || {
                Arc::new(Shard {
                    hashes: Vec::new(),
                    entries: Vec::new(),
                })
            };
            self.shards = std::iter::repeat_with(empty).take(SHARDS).collect();
        }
        let (shard, hash) = self.hash(prefix, key);
        let before = self.shard_mut(shard)?.insert(hash, prefix, key, value);
        self.length += usize::from(before.is_none());
        before
    }

    /// Removes a key and returns its value.
    pub(in crate::rules) fn remove(&mut self, prefix: u64, key: &[u8]) -> Option<V> {
        let (shard, hash) = self.hash(prefix, key);
        let index = self.shards.get(shard)?.find(hash, prefix, key).ok()?;
        let shard = self.shard_mut(shard)?;
        shard.hashes.remove(index);
        let before = shard.entries.remove(index).value;
        self.length -= 1;
        if self.length == 0 {
            self.shards = Arc::default();
        }
        Some(before)
    }

    /// A shard, copied if it is shared.
    fn shard_mut(&mut self, index: usize) -> Option<&mut Shard<V>> {
        Arc::make_mut(&mut self.shards).get_mut(index).map(Arc::make_mut)
    }
}

impl<V> Shard<V> {
    /// The index of a key, or the one to insert it at.
    #[inline]
    fn find(&self, hash: u32, prefix: u64, key: &[u8]) -> Result<usize, usize> {
        let hash_at = |index: usize| self.hashes.get(index).copied();
        // Hashes are spread evenly, so that it is near.
        let guess = (u64::from(hash) * self.hashes.len() as u64) >> u32::BITS;
        let mut index = guess as usize;
        while index > 0 && hash_at(index - 1).is_some_and(|before| before >= hash) {
            index -= 1;
        }
        while hash_at(index).is_some_and(|at| at < hash) {
            index += 1;
        }
        while hash_at(index) == Some(hash) {
            if self.entries.get(index).is_some_and(|entry| entry.key.is(prefix, key)) {
                return Ok(index);
            }
            index += 1;
        }
        Err(index)
    }

    fn insert(&mut self, hash: u32, prefix: u64, key: &[u8], value: V) -> Option<V> {
        match self.find(hash, prefix, key) {
            Ok(index) => {
                let entry = self.entries.get_mut(index)?;
                Some(std::mem::replace(&mut entry.value, value))
            }
            Err(index) => {
                // Not doubled: there are a thousand shards, and all would have space for twice as many.
                if self.hashes.len() == self.hashes.capacity() {
                    let more = self.hashes.len() / 8 + 4;
                    self.hashes.reserve_exact(more);
                    self.entries.reserve_exact(more);
                }
                self.hashes.insert(index, hash);
                let key = TableKey::new(prefix, key);
                self.entries.insert(index, Entry { key, value });
                None
            }
        }
    }
}

/// The halves of a product, added without carry: every bit depends on every bit of both factors.
#[inline]
fn folded_product(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product as u64) ^ (product >> 64) as u64
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        let random = RandomState::new();
        Self {
            shards: Arc::from([]),
            // Odd, so that no factor is zero.
            seeds: [random.hash_one(0), random.hash_one(1) | 1],
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
    use crate::testing::random::Random;
    use std::collections::HashMap;

    #[test]
    fn a_copy_keeps_what_the_original_loses() {
        let mut table = Table::default();
        for number in 0..5_000_u32 {
            assert_eq!(table.insert(3, &number.to_le_bytes(), number), None);
        }
        let copy = table.clone();
        assert_eq!(table.insert(3, &7_u32.to_le_bytes(), 70), Some(7));
        assert_eq!(table.remove(3, &8_u32.to_le_bytes()), Some(8));
        assert_eq!(table.remove(3, b"unknown"), None);
        let value = |table: &Table<u32>, number: u32| table.find(3, &number.to_le_bytes()).map(|(_, value)| *value);
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
    fn an_entry_is_a_cache_line() {
        assert_eq!(size_of::<Entry<Option<super::super::terms::RowTerms>>>(), 64);
    }

    #[test]
    fn an_empty_table_is_empty_again() {
        let mut table = Table::default();
        table.insert(0, b"a", ());
        table.remove(0, b"a");
        assert!(table.is_empty() && table.shards.is_empty());
        assert!(table.find(0, b"a").is_none());
    }

    #[test]
    fn it_holds_what_a_map_holds() {
        // With the seed of a table that has few different hashes, too.
        for seeds in [Table::<u64>::default().seeds, [0, 1]] {
            let (mut table, mut map) = (Table::default(), HashMap::new());
            table.seeds = seeds;
            let mut random = Random::new(1);
            for step in 0..20_000 {
                let mut key = vec![b'k'; random.below(40) as usize];
                key.extend_from_slice(&random.below(200).to_le_bytes()[..1]);
                let prefix = random.below(2) << 32;
                let pair = (prefix, key.clone());
                if random.one_in(3) {
                    assert_eq!(table.remove(prefix, &key), map.remove(&pair), "step {step}");
                } else {
                    let before = map.insert(pair.clone(), step);
                    assert_eq!(table.insert(prefix, &key, step), before, "step {step}");
                }
                assert_eq!(table.find(prefix, &key).map(|(_, value)| value), map.get(&pair));
                assert_eq!(table.len(), map.len());
            }
            for ((prefix, key), value) in &map {
                assert_eq!(table.find(*prefix, key), Some((&**key, value)));
            }
        }
    }

    #[test]
    fn keys_are_spread_over_the_shards() {
        let mut table = Table::default();
        for number in 0..100_000 {
            table.insert(1, format!("merchant_{number}").as_bytes(), ());
        }
        let longest = table.shards.iter().map(|shard| shard.hashes.len()).max();
        assert!(longest < Some(200), "{longest:?} entries in a shard, of 98 on average");
        let distances = table.shards.iter().flat_map(|shard| {
            let length = shard.hashes.len() as u64;
            let guess = move |hash: u32| ((u64::from(hash) * length) >> u32::BITS) as usize;
            shard
                .hashes
                .iter()
                .enumerate()
                .map(move |(index, hash)| guess(*hash).abs_diff(index))
        });
        let total: usize = distances.sum();
        assert!(total < 100_000 * 10, "{total} steps for all");
    }
}
