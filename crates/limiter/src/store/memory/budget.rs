//! The cap on memory: what the tables have taken, and whether they may take more.

use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    taken: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            taken: AtomicUsize::new(0),
        }
    }

    /// Takes `bytes` if they are there.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let within = |taken: usize| taken.checked_add(bytes).filter(|&sum| sum <= self.most);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Takes `bytes` in any case: for keys that are there already, which are never turned away.
    pub(crate) fn take(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether more is taken than should be.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.taken() > self.most
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}
