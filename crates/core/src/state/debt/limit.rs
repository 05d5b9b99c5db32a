//! The algorithm that token bucket, GCRA, leaky bucket and `Cell` have in common: they differ in their numbers, and in what
//! becomes of a debt when those change.

use super::{Debt, Fraction};
use crate::algorithm::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision};
use crate::state::meter::{ExactTime, Meter};
use crate::units::time::{Now, Timestamp};

/// A limit whose state is a debt.
#[expect(private_bounds, reason = "a closed list: other crates cannot add fractions")]
pub trait DebtLimit {
    /// The name in rules, keys and replies.
    const NAME: &'static str;
    /// The fraction of its debts.
    type Fraction: Fraction;

    /// Its meter.
    fn meter(&self) -> DebtMeter<'_, Self::Fraction>;

    /// True if it is a queue: an admitted request gets the delay after which everything ahead of it has left. A promised
    /// delay cannot be changed, so there is neither refund nor undo.
    #[inline]
    fn is_queue(&self) -> bool {
        false
    }
}

/// The meter of a limit, and the fraction of a debt at its pace.
#[derive(Clone, Copy, Debug)]
pub struct DebtMeter<'a, G> {
    pub(crate) meter: &'a Meter,
    pub(crate) fraction: G,
}

impl<L: DebtLimit> Algorithm for L {
    const NAME: &'static str = <L as DebtLimit>::NAME;
    type State = Debt<L::Fraction>;
    type Change = Debt<L::Fraction>;

    #[inline(always)]
    fn decide(&self, state: Option<&Self::State>, cost: Cost, now: Now) -> Step<Self::State> {
        let mut step = Debt::decide(state, self.meter(), cost, now);
        // A peek takes no place in the queue and gets no delay.
        if self.is_queue() && cost > Cost::ZERO {
            set_delay(&mut step.decision, &step.mark);
        }
        step
    }

    fn refund(&self, state: &Self::State, cost: Cost, now: Now) -> Option<Self::State> {
        if self.is_queue() {
            return None;
        }
        state.refund(self.meter().meter, cost, now)
    }

    fn undo(&self, state: &Self::State, receipt: &Receipt, now: Now) -> Option<Self::State> {
        if self.is_queue() {
            return None;
        }
        state.undo(self.meter(), receipt, now)
    }

    #[inline]
    fn start(&self, change: Self::State, _: LeaseId) -> Self::State {
        change
    }

    #[inline(always)]
    fn take_one(&self, state: &mut Self::State, now: Now) -> Option<(Decision, Mark)> {
        let mut taken = state.take_one(self.meter(), now);
        if self.is_queue()
            && let Some((decision, mark)) = &mut taken
        {
            set_delay(decision, mark);
        }
        taken
    }

    #[inline]
    fn fresh_at(&self, state: &Self::State) -> Timestamp {
        state.fresh_at()
    }
}

/// Delays a request that is allowed until the work before it is done.
#[inline]
fn set_delay(decision: &mut Decision, mark: &Mark) {
    if let Decision::Allow { delay, .. } = decision {
        *delay = ExactTime::from_mark(mark).ceil().since(mark.taken_at);
    }
}
