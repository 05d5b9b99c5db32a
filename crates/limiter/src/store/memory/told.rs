//! What is told of one settled charge.

use crate::store::{Outcome, Source};
use tollgate_core::{Decision, Now, Receipt, Timestamp};

/// What is told of one settled charge: as much as is asked for, since copying the rest costs as much as deciding.
pub(crate) trait Told: Copy {
    fn tell(decision: Decision, receipt: Receipt, source: Source, now: Now) -> Self;
}

impl Told for Decision {
    #[inline(always)]
    fn tell(decision: Decision, _: Receipt, _: Source, _: Now) -> Self {
        decision
    }
}

impl Told for Outcome {
    #[inline(always)]
    fn tell(decision: Decision, receipt: Receipt, source: Source, _: Now) -> Self {
        Self {
            decision,
            receipt,
            source,
        }
    }
}

/// With the moment it was settled at.
impl Told for (Outcome, Timestamp) {
    #[inline(always)]
    fn tell(decision: Decision, receipt: Receipt, source: Source, now: Now) -> Self {
        (Outcome::tell(decision, receipt, source, now), now.at())
    }
}
