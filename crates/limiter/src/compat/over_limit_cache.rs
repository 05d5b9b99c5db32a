//! Keys known to be over their limit: for the rest of their window they need no call.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bounded number of bytes of keys. A key names its window, so no entry is ever wrong; the oldest are evicted.
#[derive(Debug)]
pub(crate) struct OverLimitCache {
    bytes_max: usize,
    index: Mutex<CacheIndex>,
}

#[derive(Debug, Default)]
struct CacheIndex {
    keys: HashSet<Arc<[u8]>>,
    /// In insertion order. A removed key stays here until it is the oldest.
    order: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

/// The bytes of an entry besides its key: its slots in both collections and its reference counts.
const ENTRY_OVERHEAD: usize = 64;

impl OverLimitCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            index: Mutex::default(),
        }
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.index().keys.contains(key)
    }

    pub(crate) fn add(&self, key: &[u8]) {
        let size = key.len() + ENTRY_OVERHEAD;
        if size > self.bytes_max {
            return;
        }
        let mut index = self.index();
        if index.keys.contains(key) {
            return;
        }
        while index.bytes + size > self.bytes_max {
            let Some(oldest) = index.order.pop_front() else { break };
            index.bytes -= oldest.len() + ENTRY_OVERHEAD;
            index.keys.remove(&oldest);
        }
        let key: Arc<[u8]> = key.into();
        index.bytes += size;
        index.order.push_back(Arc::clone(&key));
        index.keys.insert(key);
    }

    pub(crate) fn remove(&self, key: &[u8]) {
        self.index().keys.remove(key);
    }

    fn index(&self) -> MutexGuard<'_, CacheIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let cache = OverLimitCache::new(3 * (4 + ENTRY_OVERHEAD));
        for key in ["k__0", "k__1", "k__2", "k__1", "k__3"] {
            cache.add(key.as_bytes());
        }
        let has = |key: &str| cache.has(key.as_bytes());
        assert_eq!(["k__0", "k__1", "k__2", "k__3"].map(has), [false, true, true, true]);
        cache.remove(b"k__2");
        assert!(!has("k__2"));
        // Over its limit again, it is the newest entry, and the bytes of the old one still count.
        cache.add(b"k__2");
        assert_eq!(["k__1", "k__2", "k__3"].map(has), [false, true, true]);
        cache.add(&[b'x'; 1_000]);
        assert_eq!(["k__2", "k__3"].map(has), [true, true]);
        assert!(cache.index().bytes <= cache.bytes_max);
    }
}
