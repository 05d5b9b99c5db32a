//! The window that a hit is counted in, and the outcome of a count.

use crate::store::{Hit, Outcome, Source};
use tollgate_core::{Cost, Decision, LeaseId, Micros, Receipt, Standing, Timestamp};

impl<K> Hit<'_, K> {
    /// The length of its window in seconds.
    pub(crate) fn unit(&self) -> u64 {
        let period = self.charge.limit.window().unwrap_or(SECOND);
        (period.get() / SECOND.get()).max(1)
    }

    /// The start of the window at `now`, in seconds since 1970.
    pub(crate) fn window_start(&self, now: Timestamp) -> u64 {
        let seconds = now.as_micros() / SECOND.get();
        seconds - seconds % self.unit()
    }

    /// The outcome of a count in its window.
    pub(crate) fn outcome(&self, used: u64, now: Timestamp, source: Source) -> Outcome {
        let limit = self.charge.limit.capacity();
        let end = Timestamp::EPOCH + Micros::from_secs(self.window_start(now) + self.unit());
        Outcome {
            decision: Decision::Allow {
                standing: Standing {
                    limit,
                    remaining: limit.saturating_sub(used),
                    reset_after: end.since(now),
                },
                delay: Micros::ZERO,
            },
            receipt: Receipt {
                cost: self.charge.cost,
                mark: Default::default(),
                lease: LeaseId::default(),
            },
            source,
        }
    }

    /// The same if the hit was not counted.
    pub(crate) fn uncounted(&self, used: u64, now: Timestamp, source: Source) -> Outcome {
        let outcome = self.outcome(used, now, source);
        Outcome {
            receipt: Receipt {
                cost: Cost::ZERO,
                ..outcome.receipt
            },
            ..outcome
        }
    }
}

const SECOND: Micros = Micros::from_secs(1);
