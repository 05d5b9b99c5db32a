//! Fixed window: one counter per window, windows aligned to the epoch or to a calendar.

use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision, Standing};
use crate::units::calendar::Calendar;
use crate::units::rate::{LimitError, Rate};
use crate::units::time::{Micros, Now, Timestamp};

/// A fixed window.
///
/// Admits at most `units` in each aligned window, and so up to twice that around a window boundary: all of one window at
/// its end and all of the next at its start. Where that matters, use a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// Of a calendar the nominal length.
    rate: Rate,
    /// None: aligned to the epoch.
    calendar: Option<&'static Calendar>,
}

/// The units used in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The time at which the window has lasted a whole period. The window ends at the first boundary from then on, which
    /// is later only if the clock was set back.
    pub(crate) due: Timestamp,
    /// The time of the last write.
    pub(crate) at: Timestamp,
    pub(crate) used: u64,
}

impl FixedWindow {
    /// `units` in each window of `period`.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, calendar: None }
    }

    /// `units` in each window of a calendar.
    ///
    /// # Errors
    /// Units out of range.
    pub fn of_calendar(units: u64, calendar: &'static Calendar) -> Result<Self, LimitError> {
        Ok(Self {
            rate: Rate::new(units, calendar.unit().nominal())?,
            calendar: Some(calendar),
        })
    }

    /// The same windows with other units.
    pub(crate) const fn with_rate(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// The calendar it is aligned to. None: the epoch.
    pub const fn calendar(&self) -> Option<&'static Calendar> {
        self.calendar
    }

    /// Units per window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The window at `now`, empty without a state, and the state to write if the clock was set back.
    ///
    /// After a step back the window keeps its remaining time and lasts on to a boundary. If it were cut short, a clock
    /// that steps to and fro over a boundary would admit one window after the other.
    fn reconcile(&self, state: Option<&State>, now: Now) -> (State, Option<State>) {
        let reading = now.reconcile(state.map(|state| state.at));
        let now = reading.now;
        let fresh = State {
            due: self.boundary_from(now + Micros::ONE),
            at: now,
            used: 0,
        };
        let Some(&state) = state else { return (fresh, None) };
        let state = State {
            due: state.due - reading.back,
            at: now,
            ..state
        };
        let repair = (reading.back > Micros::ZERO).then_some(state);
        (
            if self.end(&state) > now && state.used > 0 {
                state
            } else {
                fresh
            },
            repair,
        )
    }

    fn end(&self, window: &State) -> Timestamp {
        match self.calendar {
            None => next_boundary(window.due, self.rate.period()),
            Some(calendar) => calendar.end(window.due),
        }
    }

    fn boundary_from(&self, moment: Timestamp) -> Timestamp {
        match self.calendar {
            None => next_boundary(moment, self.rate.period()),
            Some(calendar) => calendar.boundary_from(moment),
        }
    }
}

impl Algorithm for FixedWindow {
    const NAME: &'static str = "fixed_window";
    type State = State;
    type Change = State;

    #[inline]
    fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<State> {
        let (window, repair) = self.reconcile(state, now);
        let limit = self.rate.units();
        let free = limit.saturating_sub(window.used);
        let allowed = cost.get() <= free || cost == Cost::ZERO;
        let after = State {
            used: window.used + cost.get().min(free),
            ..window
        };
        let held = if allowed { after } else { window };
        let standing = Standing {
            limit,
            remaining: limit.saturating_sub(held.used),
            reset_after: self.fresh_at(&held).since(held.at),
        };
        let wait = || self.end(&window).since(window.at);
        Step {
            decision: Decision::new(standing, allowed, cost.get(), wait),
            next: (after.used > window.used).then_some(after),
            repair,
            fresh_at: self.fresh_at(&held),
            mark: Mark {
                at: window.due,
                frac: 0,
                taken_at: window.at,
            },
        }
    }

    fn refund(&self, state: &State, cost: Cost, now: Now) -> Option<State> {
        let (window, _) = self.reconcile(Some(state), now);
        (window.used > 0).then(|| State {
            used: window.used.saturating_sub(cost.get()),
            ..window
        })
    }

    fn undo(&self, state: &State, receipt: &Receipt, now: Now) -> Option<State> {
        receipt.same_clock(state.at, now)?;
        let (window, _) = self.reconcile(Some(state), now);
        (window.used > 0 && window.due == receipt.mark.at).then(|| State {
            used: window.used.saturating_sub(receipt.cost.get()),
            ..window
        })
    }

    #[inline]
    fn start(&self, change: State, _: LeaseId) -> State {
        change
    }

    #[inline]
    fn fresh_at(&self, state: &State) -> Timestamp {
        if state.used > 0 { self.end(state) } else { state.at }
    }
}

/// The end of the aligned window that `now` lies in.
pub(crate) fn window_end(now: Timestamp, period: Micros) -> Timestamp {
    next_boundary(now + Micros::ONE, period)
}

/// The first window boundary at or after `moment`.
fn next_boundary(moment: Timestamp, period: Micros) -> Timestamp {
    Timestamp::from_micros(moment.as_micros().next_multiple_of(period.get()))
}
