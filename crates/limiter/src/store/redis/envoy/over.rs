//! Keys that are known to be over their limit: for the rest of their window nobody need be asked for them.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many bytes of them at most. A key names its window, so none is ever wrong, and the oldest make room.
#[derive(Debug)]
pub(super) struct Over {
    most: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    keys: HashSet<Arc<[u8]>>,
    /// In the order they came. One that was forgotten stands here until it is the oldest.
    order: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

/// What a key takes beside its own bytes: its place in both lists and how often it is held.
const BESIDE: usize = 64;

impl Over {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            known: Mutex::default(),
        }
    }

    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.known().keys.contains(key)
    }

    pub(super) fn add(&self, key: &[u8]) {
        let size = key.len() + BESIDE;
        if size > self.most {
            return;
        }
        let mut known = self.known();
        if known.keys.contains(key) {
            return;
        }
        while known.bytes + size > self.most {
            let Some(oldest) = known.order.pop_front() else { break };
            known.bytes -= oldest.len() + BESIDE;
            known.keys.remove(&oldest);
        }
        let key: Arc<[u8]> = key.into();
        known.bytes += size;
        known.order.push_back(Arc::clone(&key));
        known.keys.insert(key);
    }

    pub(super) fn remove(&self, key: &[u8]) {
        self.known().keys.remove(key);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let over = Over::new(3 * (4 + BESIDE));
        for key in ["k__0", "k__1", "k__2", "k__1", "k__3"] {
            over.add(key.as_bytes());
        }
        let has = |key: &str| over.has(key.as_bytes());
        assert_eq!(["k__0", "k__1", "k__2", "k__3"].map(has), [false, true, true, true]);
        over.remove(b"k__2");
        assert!(!has("k__2"));
        // Again over its limit, it is held as the newest, and the bytes of the old place are still counted.
        over.add(b"k__2");
        assert_eq!(["k__1", "k__2", "k__3"].map(has), [false, true, true]);
        over.add(&[b'x'; 1_000]);
        assert_eq!(["k__2", "k__3"].map(has), [true, true]);
        assert!(over.known().bytes <= over.most);
    }
}
