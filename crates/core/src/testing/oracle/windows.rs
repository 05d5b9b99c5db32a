//! Oracles of the windows: one counter with its end, and two counters whose decision is found by search.

use super::{Held, Oracle, OracleDecision, OracleKey, UndoScope, retry_after};
use crate::algorithm::LeaseId;
use crate::decision::Retry;

/// A charge in a window: when that window was due, and the amount.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowCharge {
    due: u64,
    cost: u64,
}

/// The end of the window around `now`, windows being counted from the epoch.
fn aligned_end(now: u64, period: u64) -> u64 {
    (now / period + 1) * period
}

/// The last number for which `holds`, by binary search: it is taken to hold for `first`, and not for `end`.
fn last_before(first: u64, end: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut last, mut end) = (first, end);
    while end - last > 1 {
        let middle = last.midpoint(end);
        if holds(middle) {
            last = middle;
        } else {
            end = middle;
        }
    }
    last
}

/// A fixed window.
pub(super) type FixedWindowOracle = OracleKey<Window>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The time at which it has lasted a period: a boundary, until the clock is set back and this with it.
    due: u64,
    used: u64,
    written_at: u64,
}

impl FixedWindowOracle {
    /// A window ends at the first boundary from `due` on.
    fn end(&self, window: &Window) -> u64 {
        let period = self.numbers.period;
        if window.due.is_multiple_of(period) {
            window.due
        } else {
            aligned_end(window.due, period)
        }
    }

    /// The window at `now`: the stored one while it lasts and holds anything, else an empty one.
    fn window(&self, now: u64) -> Window {
        match self.held {
            Some(held) if held.used > 0 && now < self.end(&held) => Window {
                written_at: now,
                ..held
            },
            _ => Window {
                due: aligned_end(now, self.numbers.period),
                used: 0,
                written_at: now,
            },
        }
    }

    /// Returns units to a window that has used any.
    fn return_units(&mut self, window: Window, units: u64) -> bool {
        if window.used == 0 {
            return false;
        }
        self.held = Some(Window {
            used: window.used.saturating_sub(units),
            ..window
        });
        true
    }
}

impl Held for Window {
    fn written_at(&self) -> u64 {
        self.written_at
    }

    fn step_back(&mut self, by: u64) {
        self.written_at -= by;
        self.due -= by;
    }
}

impl Oracle for FixedWindowOracle {
    type ChargeRef = WindowCharge;
    const UNDO: UndoScope = UndoScope::SameClock;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let window = self.window(now);
        let limit = self.numbers.units;
        let wait = u128::from(self.end(&window) - now);
        let allowed = cost == 0 || window.used + cost <= limit;
        let shown = if allowed { window.used + cost } else { window.used };
        let denied = (!allowed).then(|| if cost > limit { Retry::Never } else { retry_after(wait) });
        let reset_after = if shown > 0 { wait } else { 0 };
        let standing = (limit, limit.saturating_sub(shown).into(), reset_after);
        OracleDecision::new(standing, denied, cost > 0 && (allowed || window.used < limit), now)
    }

    fn take(&mut self, cost: u64, now: u64, _: LeaseId) -> WindowCharge {
        let window = self.window(now);
        let max = self.numbers.units.max(window.used);
        self.held = Some(Window {
            used: (window.used + cost).min(max),
            ..window
        });
        WindowCharge { due: window.due, cost }
    }

    fn refund(&mut self, cost: u64, now: u64) -> bool {
        self.return_units(self.window(now), cost)
    }

    fn undo(&mut self, charge: WindowCharge, now: u64) -> bool {
        let window = self.window(now);
        window.due == charge.due && self.return_units(window, charge.cost)
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| {
            if held.used > 0 {
                self.end(&held)
            } else {
                held.written_at
            }
        })
    }
}

/// A sliding counter.
pub(super) type SlidingCounterOracle = OracleKey<Counts>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// The end of the current window.
    end: u64,
    previous: u64,
    current: u64,
    written_at: u64,
}

impl SlidingCounterOracle {
    /// The counts at `now`, one window after the other become the previous one; empty ones start at a boundary.
    fn counts(&self, now: u64) -> Counts {
        let period = self.numbers.period;
        let fresh = Counts {
            end: aligned_end(now, period),
            previous: 0,
            current: 0,
            written_at: now,
        };
        let Some(mut counts) = self.held else { return fresh };
        while now >= counts.end && counts.previous + counts.current > 0 {
            counts.previous = counts.current;
            counts.current = 0;
            counts.end += period;
        }
        counts.written_at = now;
        if counts.previous + counts.current > 0 {
            counts
        } else {
            fresh
        }
    }

    /// True if `cost` would pass at `now` if nothing else happened: current + previous * covered / period + cost is within
    /// the limit.
    fn allows(&self, cost: u64, now: u64) -> bool {
        let counts = self.counts(now);
        let period = u128::from(self.numbers.period);
        let covered = u128::from(counts.end - now);
        let held = u128::from(counts.current + cost) * period + u128::from(counts.previous) * covered;
        held <= u128::from(self.numbers.units) * period
    }

    /// The largest cost that passes at `now`; zero if not even one does.
    fn largest(&self, now: u64) -> u64 {
        last_before(0, self.numbers.units + 1, |cost| self.allows(cost, now))
    }

    /// The first time at which `cost` passes; within two periods everything has expired.
    fn first_allowed_at(&self, cost: u64, now: u64) -> u64 {
        1 + last_before(now, now + 2 * self.numbers.period, |moment| !self.allows(cost, moment))
    }

    /// The time at which these counts have expired.
    fn empty_at(&self, counts: &Counts) -> u64 {
        if counts.current > 0 {
            counts.end + self.numbers.period
        } else if counts.previous > 0 {
            counts.end
        } else {
            counts.written_at
        }
    }
}

impl Held for Counts {
    fn written_at(&self) -> u64 {
        self.written_at
    }

    fn step_back(&mut self, by: u64) {
        self.written_at -= by;
        self.end -= by;
    }
}

impl Oracle for SlidingCounterOracle {
    type ChargeRef = WindowCharge;
    const UNDO: UndoScope = UndoScope::SameClock;

    fn decide(&self, cost: u64, now: u64) -> OracleDecision {
        let limit = self.numbers.units;
        let mut counts = self.counts(now);
        let largest = self.largest(now);
        let allowed = cost == 0 || self.allows(cost, now);
        if allowed {
            counts.current += cost;
        }
        let remaining = if allowed { largest - cost } else { largest };
        let denied = (!allowed).then(|| {
            if cost > limit {
                Retry::Never
            } else {
                retry_after(u128::from(self.first_allowed_at(cost, now) - now))
            }
        });
        let reset_after = u128::from(self.empty_at(&counts) - now);
        let takes = cost > 0 && largest > 0;
        OracleDecision::new((limit, remaining.into(), reset_after), denied, takes, now)
    }

    fn take(&mut self, cost: u64, now: u64, _: LeaseId) -> WindowCharge {
        let mut counts = self.counts(now);
        counts.current += cost.min(self.largest(now));
        self.held = Some(counts);
        WindowCharge { due: counts.end, cost }
    }

    /// Only the current window can be refunded: the previous one is an estimate.
    fn refund(&mut self, cost: u64, now: u64) -> bool {
        let mut counts = self.counts(now);
        if counts.current == 0 || cost == 0 {
            return false;
        }
        counts.current = counts.current.saturating_sub(cost);
        self.held = Some(counts);
        true
    }

    fn undo(&mut self, charge: WindowCharge, now: u64) -> bool {
        let mut counts = self.counts(now);
        let units = if counts.end == charge.due {
            &mut counts.current
        } else if counts.end - self.numbers.period == charge.due {
            &mut counts.previous
        } else {
            return false;
        };
        *units = units.saturating_sub(charge.cost);
        self.held = Some(counts);
        true
    }

    fn fresh_at(&self) -> Option<u64> {
        self.held.map(|held| self.empty_at(&held))
    }
}
