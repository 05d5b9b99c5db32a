//! Shares of limits, computed once per thread: computing one takes longer than deciding by it.

use std::cell::RefCell;
use tollgate_core::{Limit, PortionRatio};

/// Limits whose shares a thread keeps.
const ENTRIES: usize = 64;

struct CachedPortion {
    limit: Limit,
    ratio: PortionRatio,
    portion: Limit,
}

thread_local! {
    static PORTIONS: RefCell<[Option<CachedPortion>; ENTRIES]> = const { RefCell::new([const { None }; ENTRIES]) };
}

/// Returns this share of a limit.
#[inline]
pub(super) fn cached_portion(ratio: PortionRatio, limit: &Limit) -> Limit {
    let period = limit.rate().map_or(0, |rate| rate.period().get());
    let hash = (limit.capacity() ^ period.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let index = (hash >> 58) as usize % ENTRIES;
    PORTIONS.with_borrow_mut(|portions| match portions.get_mut(index) {
        Some(Some(cached)) if cached.ratio == ratio && cached.limit == *limit => cached.portion,
        entry => {
            let portion = ratio.apply(limit);
            if let Some(entry) = entry {
                *entry = Some(CachedPortion {
                    limit: *limit,
                    ratio,
                    portion,
                });
            }
            portion
        }
    })
}
