//! The tables of one algorithm, sharded by lock so that threads seldom contend.

use super::table::{Entry, Table};
use crate::fingerprint::Fingerprint;
use crate::sync::{Guard, Lock};
use std::sync::OnceLock;

/// Shards of tables, created with the first key: an unused algorithm takes no memory.
#[derive(Debug)]
pub(crate) struct Shards<E> {
    count: usize,
    shards: OnceLock<Box<[Shard<E>]>>,
}

/// One shard on a cache line of its own, against false sharing of the locks.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Shard<E>(Lock<Table<E>>);

impl<E: Entry> Shards<E> {
    /// No shards yet. `count` must be a power of two.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            count,
            shards: OnceLock::new(),
        }
    }

    /// The shard of a fingerprint, from the low bits of the half whose high bits choose the slot: so the slot is known,
    /// and being fetched, while the other half is still computed.
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

    /// The number of shards: zero before the first key.
    pub(crate) fn created(&self) -> usize {
        self.shards.get().map_or(0, |shards| shards.len())
    }
}
