//! Parts of limits, worked out once for each thread: doing so takes longer than deciding.

use std::cell::RefCell;
use std::num::NonZeroU64;
use tollgate_core::Limit;

/// How much of each limit this instance may let pass: so many of so many parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) part: NonZeroU64,
    pub(super) whole: NonZeroU64,
}

/// How many limits a thread keeps the parts of.
const KEPT: usize = 64;

struct Kept {
    limit: Limit,
    part: Part,
    portion: Limit,
}

thread_local! {
    static PORTIONS: RefCell<[Option<Kept>; KEPT]> = const { RefCell::new([const { None }; KEPT]) };
}

impl Part {
    /// A share of each limit, spread over so many instances.
    pub(super) fn new(share_millionths: u64, instances: u32) -> Self {
        let at_least_one = |number| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        Self {
            part: at_least_one(share_millionths),
            whole: at_least_one(1_000_000 * u64::from(instances)),
        }
    }

    /// This part of a limit.
    #[inline]
    pub(super) fn of(self, limit: &Limit) -> Limit {
        let period = limit.rate().map_or(0, |rate| rate.period().get());
        let spread = (limit.capacity() ^ period.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (spread >> 58) as usize % KEPT;
        PORTIONS.with_borrow_mut(|portions| match portions.get_mut(place) {
            Some(Some(kept)) if kept.part == self && kept.limit == *limit => kept.portion,
            place => {
                let portion = limit.portion(self.part, self.whole);
                if let Some(place) = place {
                    *place = Some(Kept {
                        limit: *limit,
                        part: self,
                        portion,
                    });
                }
                portion
            }
        })
    }
}
