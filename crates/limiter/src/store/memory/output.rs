//! The output of one settled charge.

use crate::store::{Outcome, Source};
use tollgate_core::{Decision, Now, Receipt, Timestamp};

/// The output of one settled charge: as much as the caller needs, since copying the rest costs as much as deciding.
pub(crate) trait SettleOutput: Copy {
    fn from_parts(decision: Decision, receipt: Receipt, source: Source, now: Now) -> Self;
}

impl SettleOutput for Decision {
    #[inline(always)]
    fn from_parts(decision: Decision, _: Receipt, _: Source, _: Now) -> Self {
        decision
    }
}

impl SettleOutput for Outcome {
    #[inline(always)]
    fn from_parts(decision: Decision, receipt: Receipt, source: Source, _: Now) -> Self {
        Self {
            decision,
            receipt,
            source,
        }
    }
}

/// With the instant of the settlement.
impl SettleOutput for (Outcome, Timestamp) {
    #[inline(always)]
    fn from_parts(decision: Decision, receipt: Receipt, source: Source, now: Now) -> Self {
        (Outcome::from_parts(decision, receipt, source, now), now.at())
    }
}
