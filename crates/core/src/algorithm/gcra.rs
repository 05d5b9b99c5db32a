//! GCRA: one time per key, the theoretical arrival time of the next request; early by more than the burst is denied.

use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision};
use crate::state::debt::{self, Debt, TimeFraction};
use crate::state::meter::Meter;
use crate::units::rate::{LimitError, Rate};
use crate::units::time::{Now, Timestamp};

/// The generic cell rate algorithm.
///
/// Admits what a token bucket of the same numbers does. They differ when the numbers change: GCRA keeps its debt in
/// time, so a caller who had to wait ten seconds still waits ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    rate: Rate,
    meter: Meter,
    fraction: TimeFraction,
}

/// The theoretical arrival time of the next request.
pub type State = Debt<TimeFraction>;

impl Gcra {
    /// One unit every `period / units`, and one period's worth at once.
    pub fn new(rate: Rate) -> Self {
        let meter = Meter::new(rate, rate.units()).expect("one period's worth takes one period");
        Self {
            rate,
            meter,
            fraction: TimeFraction::new(meter.pace),
        }
    }

    /// The same rate with at most `burst` units at once.
    ///
    /// # Errors
    /// A burst outside 1 to 10^9, or one that takes longer than 2^52 µs to come back.
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        Meter::new(self.rate, burst).map(|meter| Self { meter, ..self })
    }

    /// The sustained rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most units at once.
    pub const fn burst(&self) -> u64 {
        self.meter.burst
    }

    pub(crate) const fn numbers(&self) -> [u64; 4] {
        self.meter.numbers()
    }

    fn meter(&self) -> (&Meter, TimeFraction) {
        (&self.meter, self.fraction)
    }
}

impl Algorithm for Gcra {
    const NAME: &'static str = "gcra";
    type State = State;
    type Change = State;

    #[inline(always)]
    fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<State> {
        Debt::decide(state, self.meter(), cost, now).step
    }

    fn refund(&self, state: &State, cost: Cost, now: Now) -> Option<State> {
        debt::refund_time(state, &self.meter, cost, now)
    }

    fn undo(&self, state: &State, receipt: &Receipt, now: Now) -> Option<State> {
        state.undo(self.meter(), receipt, now)
    }

    #[inline]
    fn start(&self, change: State, _: LeaseId) -> State {
        change
    }

    #[inline]
    fn edit(&self, state: &mut State, change: State, _: LeaseId) {
        *state = change;
    }

    #[inline(always)]
    fn take_one(&self, state: &mut State, now: Now) -> Option<(Decision, Mark)> {
        state.take_one(self.meter(), now)
    }

    #[inline]
    fn fresh_at(&self, state: &State) -> Timestamp {
        state.fresh_at()
    }
}
