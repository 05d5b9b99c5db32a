//! The tables of one algorithm, spread over locks so that threads seldom meet.

use super::table::{Entry, Table};
use crate::fingerprint::Fingerprint;
use crate::sync::{Guard, Lock};
use std::sync::OnceLock;

/// Made when the first key comes: an algorithm that is not used takes no memory.
#[derive(Debug)]
pub(crate) struct Shards<E> {
    count: usize,
    shards: OnceLock<Box<[Shard<E>]>>,
}

/// A line of the cache to itself: else neighbours would wait for each other's locks.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard<E>(Lock<Table<E>>);

impl<E: Entry> Shards<E> {
    /// `count` must be a power of two.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            count,
            shards: OnceLock::new(),
        }
    }

    /// Which shard a fingerprint is in. Taken from the end of the half whose beginning chooses the place inside it: so
    /// the place is known, and on its way from memory, while the other half is still worked out.
    #[inline]
    pub(crate) fn index_of(&self, print: Fingerprint) -> usize {
        print.high as usize & (self.count - 1)
    }

    #[inline]
    pub(crate) fn lock(&self, index: usize) -> Guard<'_, Table<E>> {
        let shards = self.shards.get_or_init(|| {
            (0..self.count)
                .map(|number| Shard(Lock::new(Table::new(number))))
                .collect()
        });
        let Shard(lock) = shards.get(index).expect("an index is below the number of shards");
        lock.lock()
    }

    /// How many shards there are: none before the first key.
    pub(crate) fn created(&self) -> usize {
        self.shards.get().map_or(0, |shards| shards.len())
    }
}
