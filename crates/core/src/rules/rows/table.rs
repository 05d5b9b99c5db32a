//! A copy-on-write table: a copy shares everything with the original until it is changed, and a change copies a small part.
//!
//! With a hundred thousand entries every look-up waits for memory, so it touches few cache lines on few pages: a word with the
//! tags of eight entries, which lies close to those of all others, and the one entry that has the key. A key is hashed once, for the
//! group, the bucket and the tag. A look-up can start before its result is needed: see [`Table::probe`].

use super::table_key::TableKey;
use crate::rules::plan::Prefetch;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Values by a number of at most 40 bits and a byte string. Cheap to clone.
#[derive(Clone)]
pub(in crate::rules) struct Table<V> {
    /// Empty, or as many as [`GROUPS`].
    groups: Arc<[Arc<Group<V>>]>,
    /// The key of the hash, drawn at random: subjects may be named by callers.
    seeds: [u64; 2],
    length: usize,
}

/// Some entries, in buckets. An entry is in the bucket of its hash, or in the next one that had a free slot.
#[derive(Clone)]
struct Group<V> {
    /// Eight tags for each bucket, those of its slots; zero is that of a free one.
    tags: Vec<u64>,
    /// The slots of [`CHUNK_BUCKETS`] buckets each.
    chunks: Vec<Arc<Chunk<V>>>,
    length: usize,
}

type Chunk<V> = [Option<Entry<V>>; CHUNK_SLOTS];

/// One cache line, for values of up to 40 bytes.
#[derive(Clone)]
#[repr(align(64))]
struct Entry<V> {
    key: TableKey,
    value: V,
}

/// The parts of a key's hash.
#[derive(Clone, Copy)]
struct KeyHash {
    group: usize,
    /// Selects the bucket.
    bucket: u32,
    /// A byte of the hash, never zero, eight times.
    tags: u64,
}

/// A look-up that was started: what is known before the entry itself is read.
pub(in crate::rules) struct Probe<'t, V> {
    /// The first slot with the tag of the key.
    slot: Option<&'t Option<Entry<V>>>,
    /// True if no other slot can have the key.
    is_only: bool,
}

/// The number of groups. At 100,000 entries a change copies the tags of one group, which are 4 KiB, and one of its forty chunks.
const GROUPS: usize = 1 << GROUP_BITS;
const GROUP_BITS: u32 = 5;
/// The number of slots in a bucket: as many as a word has bytes.
const BUCKET_SLOTS: usize = 8;
/// The number of buckets whose slots are copied together.
const CHUNK_BUCKETS: usize = 16;
const CHUNK_SLOTS: usize = CHUNK_BUCKETS * BUCKET_SLOTS;
/// The bytes of a word, each of value one, and the highest bit of each.
const ONES: u64 = u64::from_le_bytes([1; BUCKET_SLOTS]);
const HIGH_BITS: u64 = ONES << 7;

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
        let hash = hash(self.seeds, prefix, key);
        let group = self.groups.get(hash.group)?;
        let entry = group.slot(group.find(hash, prefix, key)?)?.as_ref()?;
        Some((entry.key.bytes(), &entry.value))
    }

    /// Starts a look-up: asks memory for the entry and does not wait for it.
    #[inline]
    pub(in crate::rules) fn probe(&self, prefix: u64, key: &[u8], memory: &impl Prefetch) -> Probe<'_, V> {
        let hash = hash(self.seeds, prefix, key);
        match self.groups.get(hash.group) {
            Some(group) => group.probe(hash, memory),
            None => Probe {
                slot: None,
                is_only: true,
            },
        }
    }

    /// Ends a look-up of the same key.
    #[inline]
    pub(in crate::rules) fn resolve<'t>(
        &'t self,
        probe: &Probe<'t, V>,
        prefix: u64,
        key: &[u8],
    ) -> Option<(&'t [u8], &'t V)> {
        match probe.slot {
            Some(Some(entry)) if entry.key.is(prefix, key) => Some((entry.key.bytes(), &entry.value)),
            _ if probe.is_only => None,
            _ => self.find(prefix, key),
        }
    }
}

impl<V: Clone> Table<V> {
    /// Sets the value of a key and returns the one before.
    pub(in crate::rules) fn insert(&mut self, prefix: u64, key: &[u8], value: V) -> Option<V> {
        if self.groups.is_empty() {
            // One for all, until the first entry.
            self.groups = std::iter::repeat_n(Arc::default(), GROUPS).collect();
        }
        let (seeds, hash) = (self.seeds, hash(self.seeds, prefix, key));
        let before = self
            .group_mut(hash.group)?
            .insert(seeds, hash, TableKey::new(prefix, key), value);
        self.length += usize::from(before.is_none());
        before
    }

    /// Removes a key and returns its value.
    pub(in crate::rules) fn remove(&mut self, prefix: u64, key: &[u8]) -> Option<V> {
        let (seeds, hash) = (self.seeds, hash(self.seeds, prefix, key));
        let index = self.groups.get(hash.group)?.find(hash, prefix, key)?;
        let before = self.group_mut(hash.group)?.remove(seeds, index);
        self.length -= 1;
        if self.length == 0 {
            self.groups = Arc::default();
        }
        before
    }

    /// A group, copied if it is shared. Its slots are not.
    fn group_mut(&mut self, index: usize) -> Option<&mut Group<V>> {
        Arc::make_mut(&mut self.groups).get_mut(index).map(Arc::make_mut)
    }
}

impl<V> Group<V> {
    /// The index of the slot that has a key.
    #[inline]
    fn find(&self, hash: KeyHash, prefix: u64, key: &[u8]) -> Option<usize> {
        let mut bucket = self.bucket_of(hash);
        loop {
            let tags = *self.tags.get(bucket)?;
            let mut same = zero_bytes(tags ^ hash.tags);
            while same != 0 {
                let index = bucket * BUCKET_SLOTS + first_byte(same);
                if let Some(Some(entry)) = self.slot(index)
                    && entry.key.is(prefix, key)
                {
                    return Some(index);
                }
                same &= same - 1;
            }
            // There is a free slot in some bucket, so this ends.
            if zero_bytes(tags) != 0 {
                return None;
            }
            bucket = self.next(bucket);
        }
    }

    #[inline]
    fn probe(&self, hash: KeyHash, memory: &impl Prefetch) -> Probe<'_, V> {
        let bucket = self.bucket_of(hash);
        let Some(tags) = self.tags.get(bucket).copied() else {
            return Probe {
                slot: None,
                is_only: true,
            };
        };
        let same = zero_bytes(tags ^ hash.tags);
        let is_only = same & same.wrapping_sub(1) == 0 && zero_bytes(tags) != 0;
        if same == 0 {
            return Probe { slot: None, is_only };
        }
        let index = bucket * BUCKET_SLOTS + first_byte(same);
        let chunk = self.chunks.get(index / CHUNK_SLOTS);
        let slot = chunk.and_then(|chunk| {
            memory.prefetch(chunk.as_slice(), index % CHUNK_SLOTS);
            chunk.get(index % CHUNK_SLOTS)
        });
        Probe { slot, is_only }
    }

    /// The bucket that a key is in, unless that had no free slot.
    #[inline]
    fn bucket_of(&self, hash: KeyHash) -> usize {
        ((u64::from(hash.bucket) * self.tags.len() as u64) >> u32::BITS) as usize
    }

    #[inline]
    fn next(&self, bucket: usize) -> usize {
        let next = bucket + 1;
        if next < self.tags.len() { next } else { 0 }
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&Option<Entry<V>>> {
        self.chunks.get(index / CHUNK_SLOTS)?.get(index % CHUNK_SLOTS)
    }

    /// The bucket of a stored entry's hash.
    fn home(&self, seeds: [u64; 2], index: usize) -> Option<(usize, KeyHash)> {
        let entry = self.slot(index)?.as_ref()?;
        let hash = hash(seeds, entry.key.prefix(), entry.key.bytes());
        Some((self.bucket_of(hash), hash))
    }
}

impl<V: Clone> Group<V> {
    /// A slot, its chunk copied if that is shared.
    fn slot_mut(&mut self, index: usize) -> Option<&mut Option<Entry<V>>> {
        let chunk = self.chunks.get_mut(index / CHUNK_SLOTS)?;
        Arc::make_mut(chunk).get_mut(index % CHUNK_SLOTS)
    }

    /// Sets the value of a key and returns the one before.
    fn insert(&mut self, seeds: [u64; 2], hash: KeyHash, key: TableKey, value: V) -> Option<V> {
        if let Some(index) = self.find(hash, key.prefix(), key.bytes()) {
            let entry = self.slot_mut(index)?.as_mut()?;
            return Some(std::mem::replace(&mut entry.value, value));
        }
        // Not more than three of four slots, so that most look-ups read one bucket.
        if (self.length + 1) * 4 > self.tags.len() * BUCKET_SLOTS * 3 {
            self.rebuild(seeds, self.length + 1);
        }
        self.add(hash, Entry { key, value });
        None
    }

    /// Adds an entry that is not there. A slot is free.
    fn add(&mut self, hash: KeyHash, entry: Entry<V>) {
        let mut bucket = self.bucket_of(hash);
        while let Some(tags) = self.tags.get_mut(bucket) {
            let free = zero_bytes(*tags);
            if free != 0 {
                let slot = first_byte(free);
                *tags |= tag_at(hash.tags, slot);
                if let Some(free) = self.slot_mut(bucket * BUCKET_SLOTS + slot) {
                    *free = Some(entry);
                    self.length += 1;
                }
                return;
            }
            bucket = self.next(bucket);
        }
    }

    /// Empties a slot and returns its value.
    fn remove(&mut self, seeds: [u64; 2], index: usize) -> Option<V> {
        let removed = self.slot_mut(index)?.take()?;
        self.length -= 1;
        self.close_gap(seeds, index);
        // A group that has lost most of its entries gives their memory back.
        if self.tags.len() > CHUNK_BUCKETS && self.length * 4 < self.tags.len() * BUCKET_SLOTS {
            self.rebuild(seeds, self.length);
        }
        Some(removed.value)
    }

    /// Marks an emptied slot as free. Behind the free slot of a bucket that was full, entries are not found in the next bucket: one of
    /// those that belong before it takes the slot, and leaves another one.
    fn close_gap(&mut self, seeds: [u64; 2], emptied: usize) {
        let (mut gap, mut bucket) = (emptied, emptied / BUCKET_SLOTS);
        let mut was_full = self.clear_tag(gap);
        for _ in 1..self.tags.len() {
            if !was_full {
                return;
            }
            bucket = self.next(bucket);
            let distance = |from: usize| (bucket + self.tags.len() - from) % self.tags.len();
            let to_gap = distance(gap / BUCKET_SLOTS);
            let mut slots = bucket * BUCKET_SLOTS..(bucket + 1) * BUCKET_SLOTS;
            let moved = slots.find_map(|index| {
                let (home, hash) = self.home(seeds, index)?;
                (distance(home) >= to_gap).then_some((index, hash))
            });
            was_full = self.tags.get(bucket).is_some_and(|tags| zero_bytes(*tags) == 0);
            if let Some((index, hash)) = moved {
                let entry = self.slot_mut(index).and_then(Option::take);
                if let Some(tags) = self.tags.get_mut(gap / BUCKET_SLOTS) {
                    *tags |= tag_at(hash.tags, gap % BUCKET_SLOTS);
                }
                if let Some(slot) = self.slot_mut(gap) {
                    *slot = entry;
                }
                self.clear_tag(index);
                gap = index;
            }
        }
    }

    /// Marks a slot as free. True if its bucket was full.
    fn clear_tag(&mut self, index: usize) -> bool {
        let Some(tags) = self.tags.get_mut(index / BUCKET_SLOTS) else {
            return false;
        };
        let was_full = zero_bytes(*tags) == 0;
        *tags &= !tag_at(u64::MAX, index % BUCKET_SLOTS);
        was_full
    }

    /// Makes as many buckets as a number of entries needs. Not twice as many: that would be space for twice as much.
    fn rebuild(&mut self, seeds: [u64; 2], length: usize) {
        let buckets = (length * 5).div_ceil(BUCKET_SLOTS * 3).max(1);
        let empty = || Arc::new([const { None }; CHUNK_SLOTS]);
        let next = Self {
            tags: vec![0; buckets],
            chunks: std::iter::repeat_with(empty)
                .take(buckets.div_ceil(CHUNK_BUCKETS))
                .collect(),
            length: 0,
        };
        for chunk in std::mem::replace(self, next).chunks {
            for entry in Arc::unwrap_or_clone(chunk).into_iter().flatten() {
                let hash = hash(seeds, entry.key.prefix(), entry.key.bytes());
                self.add(hash, entry);
            }
        }
    }
}

impl<V> Default for Group<V> {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            chunks: Vec::new(),
            length: 0,
        }
    }
}

/// The hash of a key.
#[inline]
fn hash([start, factor]: [u64; 2], prefix: u64, key: &[u8]) -> KeyHash {
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
    KeyHash {
        group: (hash >> (u64::BITS - GROUP_BITS)) as usize,
        bucket: hash as u32,
        tags: u64::from(((hash >> u32::BITS) as u8).max(1)) * ONES,
    }
}

/// The highest bit of each byte that is zero. Above such a byte, it may be set for one of value one, too.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH_BITS
}

/// One byte of a word; the others are zero.
#[inline]
const fn tag_at(tags: u64, slot: usize) -> u64 {
    tags & 0xff << (slot * BUCKET_SLOTS)
}

/// The index of the lowest byte with a bit.
#[inline]
const fn first_byte(bits: u64) -> usize {
    (bits.trailing_zeros() / u8::BITS) as usize
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
            groups: Arc::from([]),
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
        let chunks = |table: &Table<u32>| {
            let chunks = table.groups.iter().flat_map(|group| group.chunks.clone());
            chunks.collect::<Vec<_>>()
        };
        let (one, other) = (chunks(&table), chunks(&copy));
        let copied = one.iter().zip(&other).filter(|(one, other)| !Arc::ptr_eq(one, other));
        let copied = copied.count();
        assert!((1..=4).contains(&copied), "{copied} of {} chunks copied", one.len());
    }

    #[test]
    fn an_entry_is_a_cache_line() {
        assert_eq!(size_of::<Option<Entry<Option<super::super::terms::RowTerms>>>>(), 64);
    }

    #[test]
    fn an_empty_table_is_empty_again() {
        let mut table = Table::default();
        table.insert(0, b"a", ());
        table.remove(0, b"a");
        assert!(table.is_empty() && table.groups.is_empty());
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
                let probe = table.probe(prefix, &key, &());
                let probed = table.resolve(&probe, prefix, &key).map(|(_, value)| value);
                assert_eq!(probed, map.get(&pair), "step {step}");
                assert_eq!(table.len(), map.len());
            }
            for ((prefix, key), value) in &map {
                assert_eq!(table.find(*prefix, key), Some((&**key, value)));
            }
        }
    }

    #[test]
    fn keys_are_spread_over_groups_and_buckets() {
        let mut table = Table::default();
        for number in 0..100_000 {
            table.insert(1, format!("merchant_{number}").as_bytes(), ());
        }
        let longest = table.groups.iter().map(|group| group.length).max();
        assert!(
            longest < Some(3_700),
            "{longest:?} entries in a group, of 3,125 on average"
        );
        let slots: usize = table.groups.iter().map(|group| group.chunks.len() * CHUNK_SLOTS).sum();
        assert!(slots < 100_000 * 7 / 4, "{slots} slots");
        let distances = table.groups.iter().flat_map(|group| {
            let buckets = group.tags.len();
            let slots = 0..buckets * BUCKET_SLOTS;
            let seeds = table.seeds;
            slots.filter_map(move |index| {
                let (home, _) = group.home(seeds, index)?;
                Some((index / BUCKET_SLOTS + buckets - home) % buckets)
            })
        });
        let total: usize = distances.sum();
        assert!(total < 100_000 / 4, "{total} buckets too far for all");
    }

    #[test]
    fn a_group_that_loses_its_entries_gives_their_memory_back() {
        let mut table = Table::default();
        for number in 0..50_000_u32 {
            table.insert(1, &number.to_le_bytes(), ());
        }
        for number in 100..50_000_u32 {
            table.remove(1, &number.to_le_bytes());
        }
        let chunks: usize = table.groups.iter().map(|group| group.chunks.len()).sum();
        assert!(chunks <= GROUPS * 2, "{chunks} chunks");
        assert!((0..100_u32).all(|number| table.find(1, &number.to_le_bytes()).is_some()));
    }
}
