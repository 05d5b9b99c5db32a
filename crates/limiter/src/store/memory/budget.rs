//! The memory cap: bytes reserved by the tables, and whether they may reserve more.

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

    /// Reserves `bytes` if they fit below the cap.
    pub(crate) fn try_reserve(&self, bytes: usize) -> bool {
        let within = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= self.max);
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Reserves `bytes` in any case: for existing keys, which are never dropped.
    pub(crate) fn reserve(&self, bytes: usize) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// True if more is reserved than the cap allows.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.reserved() > self.max
    }

    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }
}
