//! The cap on memory: what the tables have taken, and whether they may take more.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Budget {
    max: usize,
    reserved: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            reserved: AtomicUsize::new(0),
        }
    }

    /// Takes `bytes` if they are there.
    pub(crate) fn try_reserve(&self, bytes: usize) -> bool {
        let within = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= self.max);
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Takes `bytes` in any case: for keys that are there already, which are never turned away.
    pub(crate) fn take(&self, bytes: usize) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether more is taken than should be.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.reserved() > self.max
    }

    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }
}
