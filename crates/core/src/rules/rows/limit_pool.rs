//! The different limits of all rows: many rows have equal ones, however they came about.

use crate::limit::Limit;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Limits that rows share. All copies of a rule set have the same pool; only edits use it.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitPool {
    limits: Arc<Mutex<Limits>>,
}

#[derive(Debug, Default)]
struct Limits {
    known: HashSet<Arc<Limit>>,
    /// The number of limits at which those that no row has any more are removed.
    purge_at: usize,
}

/// The number of limits below which none is removed.
const PURGE_AT_MIN: usize = 1_024;

impl LimitPool {
    /// The shared one of equal limits.
    pub(super) fn share(&self, limit: Limit) -> Arc<Limit> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = limits.known.get(&limit) {
            return Arc::clone(known);
        }
        if limits.known.len() >= limits.purge_at {
            limits.known.retain(|known| Arc::strong_count(known) > 1);
            limits.purge_at = limits.known.len().saturating_mul(2).max(PURGE_AT_MIN);
        }
        let shared = Arc::new(limit);
        limits.known.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::limits::rate;
    use crate::{Micros, TokenBucket};

    #[test]
    fn equal_limits_are_shared_and_unused_ones_removed() {
        let limit = |units: u64| Limit::from(TokenBucket::new(rate(units, Micros::new(1_000_000))));
        let pool = LimitPool::default();
        let kept = pool.share(limit(1));
        assert!(Arc::ptr_eq(&kept, &pool.clone().share(limit(1))));
        for units in 2..10_000 {
            pool.share(limit(units));
        }
        assert!(pool.limits.lock().expect("no test panics with it").known.len() <= PURGE_AT_MIN);
        assert!(Arc::ptr_eq(&kept, &pool.share(limit(1))));
    }
}
