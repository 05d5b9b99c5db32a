//! Parts of limits, worked out once for each thread: doing so takes longer than deciding.

use std::cell::RefCell;
use std::num::NonZeroU64;
use tollgate_core::Limit;

/// How much of each limit this instance may let pass: so many of so many parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortionRatio {
    pub(super) numerator: NonZeroU64,
    pub(super) denominator: NonZeroU64,
}

/// How many limits a thread keeps the parts of.
const ENTRIES: usize = 64;

struct CachedPortion {
    limit: Limit,
    ratio: PortionRatio,
    portion: Limit,
}

thread_local! {
    static PORTIONS: RefCell<[Option<CachedPortion>; ENTRIES]> = const { RefCell::new([const { None }; ENTRIES]) };
}

impl PortionRatio {
    /// A share of each limit, spread over so many instances.
    pub(super) fn new(share_millionths: u64, instances: u32) -> Self {
        let at_least_one = |number| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        Self {
            numerator: at_least_one(share_millionths),
            denominator: at_least_one(1_000_000 * u64::from(instances)),
        }
    }

    /// This part of a limit.
    #[inline]
    pub(super) fn apply(self, limit: &Limit) -> Limit {
        let period = limit.rate().map_or(0, |rate| rate.period().get());
        let spread = (limit.capacity() ^ period.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (spread >> 58) as usize % ENTRIES;
        PORTIONS.with_borrow_mut(|portions| match portions.get_mut(index) {
            Some(Some(cached)) if cached.ratio == self && cached.limit == *limit => cached.portion,
            entry => {
                let portion = limit.portion(self.numerator, self.denominator);
                if let Some(entry) = entry {
                    *entry = Some(CachedPortion {
                        limit: *limit,
                        ratio: self,
                        portion,
                    });
                }
                portion
            }
        })
    }
}
