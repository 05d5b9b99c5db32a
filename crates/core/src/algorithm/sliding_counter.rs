//! Sliding counter: two windows, the older weighted by how much of it the rolling window still covers.

mod packed;

use super::fixed_window::window_end;
use super::{Algorithm, LeaseId, Mark, Receipt, Step};
use crate::decision::{Cost, Decision, Standing};
use crate::units::muldiv::muldiv;
use crate::units::rate::Rate;
use crate::units::time::{Micros, Now, Timestamp};
use std::num::NonZeroU64;

pub use self::packed::PackedCounters;

/// A sliding window counter.
///
/// Estimates the rolling window as `current + previous * covered share` and admits while estimate plus cost is within the
/// limit. The estimate assumes that the previous window was filled evenly; if it was filled at its end, up to nearly
/// twice the limit can pass within one period. [`SlidingLog`](super::sliding_log::SlidingLog) is the exact one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    rate: Rate,
}

/// The counters of two neighbouring windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The end of the current window.
    pub(crate) end: Timestamp,
    /// The time of the last write.
    pub(crate) at: Timestamp,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

/// The counters at the moment of a decision.
#[derive(Clone, Copy)]
struct Windows {
    now: Timestamp,
    end: Timestamp,
    previous: u64,
    current: u64,
}

impl SlidingCounter {
    /// `units` in any `period`, as estimated.
    pub const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    /// Units per rolling window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    fn period(&self) -> NonZeroU64 {
        NonZeroU64::new(self.rate.period().get()).expect("a period is at least a millisecond")
    }

    /// The counters at `now`, and the state to write back if the clock was set back.
    fn reconcile(&self, state: Option<&State>, now: Now) -> (Windows, Option<State>) {
        let reading = now.reconcile(state.map(|state| state.at));
        let (now, period) = (reading.now, self.rate.period());
        let fresh = Windows {
            now,
            end: window_end(now, period),
            previous: 0,
            current: 0,
        };
        let Some(state) = state else { return (fresh, None) };
        let end = state.end - reading.back;
        let (previous, current) = (state.previous, state.current);
        let windows = if now < end {
            Windows {
                now,
                end,
                previous,
                current,
            }
        } else if now < end + period {
            Windows {
                now,
                end: end + period,
                previous: current,
                current: 0,
            }
        } else {
            fresh
        };
        let repair = (reading.back > Micros::ZERO).then_some(State { end, at: now, ..*state });
        (
            if windows.previous + windows.current > 0 {
                windows
            } else {
                fresh
            },
            repair,
        )
    }

    /// The estimated units in the rolling window, rounded up.
    fn estimate(&self, windows: &Windows) -> u64 {
        let covered = windows.end.since(windows.now).min(self.rate.period()).get();
        let (whole, rest) = muldiv(windows.previous, covered, self.period());
        windows.current + whole + u64::from(rest > 0)
    }

    /// The first time at which `cost`, which the limit can hold, passes if nothing else happens.
    fn allowed_at(&self, windows: &Windows, cost: u64) -> Timestamp {
        let period = self.rate.period();
        let budget = self.rate.units() - cost;
        if let Some(budget) = budget.checked_sub(windows.current) {
            let covered = self.coverage_max(windows.previous, budget);
            return windows.end - covered;
        }
        windows.end + period - self.coverage_max(windows.current, budget)
    }

    /// The longest covered part of a window with `used` units whose share is within `budget`.
    fn coverage_max(&self, used: u64, budget: u64) -> Micros {
        let whole = self.rate.period();
        match NonZeroU64::new(used) {
            Some(used) if used.get() > budget => Micros::new(muldiv(budget, whole.get(), used).0),
            _ => whole,
        }
    }

    /// The time until `remaining` grows, if nothing else happens: exact, for an outcome of this very limit.
    ///
    /// The mark names the window, its predecessor's units and the time; the standing gives the units of the window
    /// itself. None if they do not belong together, or if a peek shows nothing remaining: more than the limit may then
    /// be in use.
    pub(crate) fn next_unit_after(&self, standing: &Standing, receipt: &Receipt) -> Option<Micros> {
        let Mark {
            at: end,
            frac,
            taken_at: now,
        } = receipt.mark;
        let used = self.rate.units().checked_sub(standing.remaining)?;
        let is_saturated = standing.remaining == 0 && receipt.cost == Cost::ZERO;
        if standing.limit != self.rate.units() || end <= now || is_saturated {
            return None;
        }
        if used == 0 {
            return Some(Micros::ZERO);
        }
        let previous = Windows {
            now,
            end,
            previous: frac,
            current: 0,
        };
        let windows = Windows {
            current: used.checked_sub(self.estimate(&previous))?,
            ..previous
        };
        Some(self.allowed_at(&windows, standing.remaining + 1).since(now))
    }

    fn fresh_at(&self, windows: &Windows) -> Timestamp {
        if windows.current > 0 {
            windows.end + self.rate.period()
        } else if windows.previous > 0 {
            windows.end
        } else {
            windows.now
        }
    }
}

impl Windows {
    fn state(&self) -> State {
        State {
            end: self.end,
            at: self.now,
            previous: self.previous,
            current: self.current,
        }
    }
}

impl Algorithm for SlidingCounter {
    const NAME: &'static str = "sliding_counter";
    type State = State;
    type Change = State;

    #[inline]
    fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<State> {
        let (windows, repair) = self.reconcile(state, now);
        let (limit, cost) = (self.rate.units(), cost.get());
        let free = limit.saturating_sub(self.estimate(&windows));
        let allowed = cost <= free || cost == 0;
        let after = Windows {
            current: windows.current + cost.min(free),
            ..windows
        };
        let held = if allowed { after } else { windows };
        let fresh_at = self.fresh_at(&held);
        let standing = Standing {
            limit,
            remaining: if allowed { free - cost } else { free },
            reset_after: fresh_at.since(windows.now),
        };
        let wait = || self.allowed_at(&windows, cost).since(windows.now);
        Step {
            decision: Decision::new(standing, allowed, cost, wait),
            next: (after.current > windows.current).then(|| after.state()),
            repair,
            fresh_at,
            // The previous window's units, where other marks have a fraction: see `next_unit_after`.
            mark: Mark {
                at: windows.end,
                frac: windows.previous,
                taken_at: windows.now,
            },
        }
    }

    fn refund(&self, state: &State, cost: Cost, now: Now) -> Option<State> {
        let (windows, _) = self.reconcile(Some(state), now);
        let current = windows.current.saturating_sub(cost.get());
        (current < windows.current).then(|| Windows { current, ..windows }.state())
    }

    fn undo(&self, state: &State, receipt: &Receipt, now: Now) -> Option<State> {
        receipt.same_clock(state.at, now)?;
        let (mut windows, _) = self.reconcile(Some(state), now);
        let charged = if windows.end == receipt.mark.at {
            &mut windows.current
        } else if windows.end == receipt.mark.at + self.rate.period() {
            &mut windows.previous
        } else {
            return None;
        };
        *charged = charged.saturating_sub(receipt.cost.get());
        Some(windows.state())
    }

    #[inline]
    fn start(&self, change: State, _: LeaseId) -> State {
        change
    }

    #[inline]
    fn fresh_at(&self, state: &State) -> Timestamp {
        let windows = Windows {
            now: state.at,
            end: state.end,
            previous: state.previous,
            current: state.current,
        };
        self.fresh_at(&windows)
    }
}
