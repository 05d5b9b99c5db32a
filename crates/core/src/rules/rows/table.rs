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
    /// Those of the entries, between [`PADDING`] zeros and as many of the greatest hash, so that a window around any index
    /// exists. Apart from the entries, so that a search touches few cache lines.
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
/// The number of hashes that a look-up compares. Of a hundred entries one in five hundred is farther from its expected index than half of them.
const WINDOW: usize = 32;
const PADDING: usize = WINDOW / 2;

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
        let entry = shard.entries.get(shard.find(hash, prefix, key)?)?;
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
                u64::from_le_bytes(*last)
            }
            None => short_word(key),
        };
        let hash = folded_product(folded_product(hash ^ last, factor), factor);
        let shard = hash >> (u64::BITS - SHARD_BITS);
        (shard as usize, hash as u32)
    }
}

impl<V: Clone> Table<V> {
    /// Sets the value of a key and returns the one before.
    pub(in crate::rules) fn insert(&mut self, prefix: u64, key: &[u8], value: V) -> Option<V> {
        if self.shards.is_empty() {
            // One for all, until the first entry.
            self.shards = std::iter::repeat_n(Arc::default(), SHARDS).collect();
        }
        let (shard, hash) = self.hash(prefix, key);
        let before = self.shard_mut(shard)?.insert(hash, prefix, key, value);
        self.length += usize::from(before.is_none());
        before
    }

    /// Removes a key and returns its value.
    pub(in crate::rules) fn remove(&mut self, prefix: u64, key: &[u8]) -> Option<V> {
        let (index, hash) = self.hash(prefix, key);
        self.shards.get(index)?.find(hash, prefix, key)?;
        let before = self.shard_mut(index)?.remove(hash, prefix, key);
        self.length -= 1;
        if self.length == 0 {
            self.shards = Arc::default();
        }
        before
    }

    /// A shard, copied if it is shared.
    fn shard_mut(&mut self, index: usize) -> Option<&mut Shard<V>> {
        Arc::make_mut(&mut self.shards).get_mut(index).map(Arc::make_mut)
    }
}

impl<V> Shard<V> {
    /// The index of a key.
    ///
    /// Hashes are spread evenly, so that a key's index is near the one that its hash suggests. All hashes around it are compared, without a
    /// branch for each: a search that goes from one to the next takes as long as its branches are mispredicted.
    #[inline]
    fn find(&self, hash: u32, prefix: u64, key: &[u8]) -> Option<usize> {
        let guess = guess(hash, self.entries.len());
        if let Some(window @ [first, .., last]) = self.hashes.get(guess..).and_then(<[u32]>::first_chunk::<WINDOW>)
            && *first < hash
            && hash < *last
        {
            let same = window.iter().zip(0..).fold(0_u32, |same, (at, bit)| {
                let is_same = u32::from(*at == hash);
                same | is_same << bit
            });
            let mut rest = same;
            while rest != 0 {
                let index = (guess + rest.trailing_zeros() as usize).wrapping_sub(PADDING);
                if self.entries.get(index).is_some_and(|entry| entry.key.is(prefix, key)) {
                    return Some(index);
                }
                rest &= rest - 1;
            }
            return None;
        }
        self.search(hash, prefix, key).ok()
    }

    /// The index of a key, or the one to insert it at.
    fn search(&self, hash: u32, prefix: u64, key: &[u8]) -> Result<usize, usize> {
        let length = self.entries.len();
        let hash_at = |index: usize| self.hashes.get(index + PADDING).copied().filter(|_| index < length);
        let mut index = guess(hash, length);
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
        match self.search(hash, prefix, key) {
            Ok(index) => {
                let entry = self.entries.get_mut(index)?;
                Some(std::mem::replace(&mut entry.value, value))
            }
            Err(index) => {
                // Not doubled: there are a thousand shards, and all would have space for twice as many.
                if self.entries.len() == self.entries.capacity() {
                    let more = self.entries.len() / 8 + 4;
                    self.hashes.reserve_exact(more);
                    self.entries.reserve_exact(more);
                }
                self.hashes.insert(index + PADDING, hash);
                let key = TableKey::new(prefix, key);
                self.entries.insert(index, Entry { key, value });
                None
            }
        }
    }

    /// Removes a key and returns its value.
    fn remove(&mut self, hash: u32, prefix: u64, key: &[u8]) -> Option<V> {
        let index = self.search(hash, prefix, key).ok()?;
        self.hashes.remove(index + PADDING);
        Some(self.entries.remove(index).value)
    }
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        let hashes = [0; PADDING].into_iter().chain([u32::MAX; PADDING]);
        Self {
            hashes: hashes.collect(),
            entries: Vec::new(),
        }
    }
}

/// The index that a hash has if all are spread evenly.
#[inline]
const fn guess(hash: u32, length: usize) -> usize {
    ((hash as u64 * length as u64) >> u32::BITS) as usize
}

/// The bytes of a key of less than eight, with its length enough to tell it from others. Read without a copy, whose length would have to be
/// a variable.
#[inline]
fn short_word(key: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) {
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32;
    }
    match *key {
        [one] => one.into(),
        [one, two] => u16::from_le_bytes([one, two]).into(),
        [one, two, three] => u32::from_le_bytes([one, two, three, 0]).into(),
        _ => 0,
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
        let longest = table.shards.iter().map(|shard| shard.entries.len()).max();
        assert!(longest < Some(200), "{longest:?} entries in a shard, of 98 on average");
        let distances = table.shards.iter().flat_map(|shard| {
            let length = shard.entries.len();
            let hashes = shard.hashes.iter().skip(PADDING).take(length);
            hashes
                .enumerate()
                .map(move |(index, hash)| guess(*hash, length).abs_diff(index))
        });
        let total: usize = distances.sum();
        assert!(total < 100_000 * 10, "{total} steps for all");
    }
}
