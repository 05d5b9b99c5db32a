//! Values that were replaced, until they are not used any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Replaced values. The last request that uses one must not end with freeing it: with many rules that takes longer than
/// thousands of decisions.
pub(super) struct Retired<T>(Mutex<Vec<Arc<T>>>);

impl<T> Retired<T> {
    /// Keeps a value that was replaced, and frees those that are not used any more.
    pub(super) fn retire(&self, replaced: Arc<T>) {
        self.values().push(replaced);
        self.free_unused();
    }

    /// Frees the values that are not used any more, on this thread.
    pub(super) fn free_unused(&self) {
        let mut values = self.values();
        // A value that is nowhere else cannot be used again.
        let unused: Vec<Arc<T>> = values.extract_if(.., |value| Arc::strong_count(value) == 1).collect();
        drop(values);
        drop(unused);
    }

    fn values(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Retired<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
