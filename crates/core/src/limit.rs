//! The closed list of algorithms, and the one match over it.

use crate::algorithm::{Algorithm, LeaseId, Receipt, Step};
use crate::algorithm::{
    cell, cell::Cell, concurrency::Concurrency, fixed_window, fixed_window::FixedWindow, gcra, gcra::Gcra,
    leaky_bucket, leaky_bucket::LeakyBucket, sliding_counter, sliding_counter::SlidingCounter, sliding_log::SlidingLog,
    token_bucket, token_bucket::TokenBucket,
};
use crate::decision::{Cost, Decision};
use crate::settle::Outcome;
use crate::state::leases::{LeaseEdit, LeaseTable};
use crate::state::ring::{Edit, Ring};
use crate::text::quantity::Period;
use crate::units::calendar::{Calendar, CalendarUnit};
use crate::units::muldiv::muldiv;
use crate::units::rate::Rate;
use crate::units::time::{Micros, Now, Timestamp};
use std::num::NonZeroU64;

/// One limit: an algorithm and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// See [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// See [`Gcra`].
    Gcra(Gcra),
    /// See [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// See [`SlidingCounter`].
    SlidingCounter(SlidingCounter),
    /// See [`SlidingLog`].
    SlidingLog(SlidingLog),
    /// See [`LeakyBucket`].
    LeakyBucket(LeakyBucket),
    /// See [`Concurrency`].
    Concurrency(Concurrency),
    /// See [`Cell`].
    Cell(Cell),
}

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Of a token bucket.
    TokenBucket(token_bucket::State),
    /// Of a GCRA limit.
    Gcra(gcra::State),
    /// Of a fixed window.
    FixedWindow(fixed_window::State),
    /// Of a sliding counter.
    SlidingCounter(sliding_counter::State),
    /// Of a sliding log.
    SlidingLog(Ring),
    /// Of a leaky bucket.
    LeakyBucket(leaky_bucket::State),
    /// Of a concurrency limit.
    Concurrency(LeaseTable),
    /// Of a `CL.THROTTLE` limit.
    Cell(cell::State),
}

/// The change a step makes to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// To a token bucket.
    TokenBucket(token_bucket::State),
    /// To a GCRA limit.
    Gcra(gcra::State),
    /// To a fixed window.
    FixedWindow(fixed_window::State),
    /// To a sliding counter.
    SlidingCounter(sliding_counter::State),
    /// To a sliding log.
    SlidingLog(Edit),
    /// To a leaky bucket.
    LeakyBucket(leaky_bucket::State),
    /// To a concurrency limit.
    Concurrency(LeaseEdit),
    /// To a `CL.THROTTLE` limit.
    Cell(cell::State),
}

/// Runs `$body` for the algorithm of `$limit`, with its type's name as `$kind`.
macro_rules! each {
    ($limit:expr, $algorithm:ident, $kind:ident => $body:expr) => {
        each!(@ $limit, $algorithm, $kind => $body;
            TokenBucket, Gcra, FixedWindow, SlidingCounter, SlidingLog, LeakyBucket, Concurrency, Cell)
    };
    (@ $limit:expr, $algorithm:ident, $kind:ident => $body:expr; $($variant:ident),*) => {
        match $limit {
            $(Limit::$variant($algorithm) => {
                macro_rules! $kind {
                    (state $it:expr) => { match $it { Some(State::$variant(it)) => Some(it), _ => None } };
                    (change $it:expr) => { match $it { Change::$variant(it) => Some(it), _ => None } };
                    (wrap state $it:expr) => { $it.map(State::$variant) };
                    (wrap change $it:expr) => { $it.map(Change::$variant) };
                    (name) => { <$variant as Algorithm>::NAME };
                }
                $body
            })*
        }
    };
}

impl Limit {
    /// The names of all algorithms.
    pub const ALGORITHMS: [&str; 8] = [
        TokenBucket::NAME,
        Gcra::NAME,
        FixedWindow::NAME,
        SlidingCounter::NAME,
        SlidingLog::NAME,
        LeakyBucket::NAME,
        Concurrency::NAME,
        Cell::NAME,
    ];

    /// The name of its algorithm.
    pub fn algorithm(&self) -> &'static str {
        each!(self, _algorithm, of => of!(name))
    }

    /// The period that identifies its counter among those of a rule. None for a limit that has none, or does not keep
    /// it: concurrency and `Cell`.
    ///
    /// Buckets are identified by it too. A rule may have several windows of any algorithm, and nothing else tells a
    /// window alone from the same window in a list.
    ///
    /// A day and a week are the same in every calendar and without one: what was used stays used when the time zone of a
    /// rule changes.
    pub fn counter_period(&self) -> Option<Period> {
        let unit = match self {
            Self::FixedWindow(limit) => limit.calendar().map(Calendar::unit),
            _ => None,
        };
        Some(match unit {
            Some(CalendarUnit::Month) => Period::Month,
            Some(CalendarUnit::Year) => Period::Year,
            Some(CalendarUnit::Day | CalendarUnit::Week) | None => Period::Exact(self.rate()?.period()),
        })
    }

    /// The length of its window. None for algorithms without windows.
    pub fn window(&self) -> Option<Micros> {
        match self {
            Self::FixedWindow(limit) => Some(limit.rate().period()),
            Self::SlidingCounter(limit) => Some(limit.rate().period()),
            Self::SlidingLog(limit) => Some(limit.rate().period()),
            Self::TokenBucket(_) | Self::Gcra(_) | Self::LeakyBucket(_) | Self::Concurrency(_) | Self::Cell(_) => None,
        }
    }

    /// The most units it holds: `limit` in replies, `q` in headers.
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::TokenBucket(limit) => limit.burst(),
            Self::Gcra(limit) => limit.burst(),
            Self::LeakyBucket(limit) => limit.depth(),
            Self::FixedWindow(limit) => limit.rate().units(),
            Self::SlidingCounter(limit) => limit.rate().units(),
            Self::SlidingLog(limit) => limit.rate().units(),
            Self::Concurrency(limit) => limit.slots(),
            Self::Cell(limit) => limit.limit(),
        }
    }

    /// The rate it was created with. None for concurrency, which has no rate, and `Cell`, which does not keep it.
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Self::TokenBucket(limit) => Some(limit.rate()),
            Self::Gcra(limit) => Some(limit.rate()),
            Self::LeakyBucket(limit) => Some(limit.rate()),
            Self::FixedWindow(limit) => Some(limit.rate()),
            Self::SlidingCounter(limit) => Some(limit.rate()),
            Self::SlidingLog(limit) => Some(limit.rate()),
            Self::Concurrency(_) | Self::Cell(_) => None,
        }
    }

    /// The time to fill its capacity from empty, rounded up: `w` in headers, so that `q` over `w` is the rate. For a
    /// window that is its period. None for a limit without a rate.
    pub fn fill(&self) -> Option<Micros> {
        let rate = self.rate()?;
        let units = NonZeroU64::new(rate.units())?;
        let (us, rest) = muldiv(self.capacity(), rate.period().get(), units);
        Some(Micros::new(us.saturating_add(u64::from(rest > 0))))
    }

    /// The time until `remaining` grows, if nothing else happens, where an outcome of this limit determines it: for an
    /// allowed charge of a sliding counter. None otherwise.
    #[inline]
    pub fn next_unit_after(&self, outcome: &Outcome) -> Option<Micros> {
        match (self, outcome.decision) {
            (Self::SlidingCounter(limit), Decision::Allow { standing, .. }) => {
                limit.next_unit_after(&standing, &outcome.receipt)
            }
            _ => None,
        }
    }

    /// Decides `cost` for a key with this state. See [`Algorithm::decide`].
    ///
    /// A state of another algorithm counts as none: the key of a counter names its algorithm.
    #[inline]
    pub fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<Change> {
        each!(self, algorithm, of => {
            let Step { decision, next, repair, fresh_at, mark } = algorithm.decide(of!(state state), cost, now);
            Step { decision, next: of!(wrap change next), repair: of!(wrap change repair), fresh_at, mark }
        })
    }

    /// Returns `cost` to the limit, never above its capacity. See [`Algorithm::refund`].
    pub fn refund(&self, state: Option<&State>, cost: Cost, now: Now) -> Option<Change> {
        each!(self, algorithm, of => of!(wrap change algorithm.refund(of!(state state)?, cost, now)))
    }

    /// Reverses exactly one charge. See [`Algorithm::undo`].
    pub fn undo(&self, state: Option<&State>, receipt: &Receipt, now: Now) -> Option<Change> {
        each!(self, algorithm, of => of!(wrap change algorithm.undo(of!(state state)?, receipt, now)))
    }

    /// Applies a change that this limit made. See [`Algorithm::keep`].
    #[inline]
    pub fn keep(&self, state: &mut Option<State>, change: Change, lease: LeaseId) {
        each!(self, algorithm, of => {
            let Some(change) = of!(change change) else { return };
            match of!(state state.as_mut()) {
                Some(own) => algorithm.edit(own, change, lease),
                None => *state = of!(wrap state Some(algorithm.start(change, lease))),
            }
        });
    }

    /// The time from which a key with this state equals a fresh one. None for a state of another algorithm.
    pub fn fresh_at(&self, state: &State) -> Option<Timestamp> {
        each!(self, algorithm, of => of!(state Some(state)).map(|state| algorithm.fresh_at(state)))
    }
}

macro_rules! from {
    ($($algorithm:ident),*) => {
        $(impl From<$algorithm> for Limit {
            fn from(limit: $algorithm) -> Self {
                Self::$algorithm(limit)
            }
        })*
    };
}

from!(
    TokenBucket,
    Gcra,
    FixedWindow,
    SlidingCounter,
    SlidingLog,
    LeakyBucket,
    Concurrency,
    Cell
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_over_fill_is_the_rate() {
        let rate = |units, seconds| Rate::new(units, Micros::from_secs(seconds)).expect("in range");
        let bucket = TokenBucket::new(rate(5_000, 60)).with_burst(500).expect("in range");
        let queue = LeakyBucket::new(rate(3, 1)).with_depth(1).expect("in range");
        let slots = Concurrency::new(20, Micros::from_secs(60)).expect("in range");
        let cases: [(Limit, u64, Option<u64>); 5] = [
            (bucket.into(), 500, Some(6_000_000)),
            (Gcra::new(rate(100, 60)).into(), 100, Some(60_000_000)),
            (queue.into(), 1, Some(333_334)),
            (FixedWindow::new(rate(7, 3_600)).into(), 7, Some(3_600_000_000)),
            (slots.into(), 20, None),
        ];
        for (limit, capacity, fill_us) in cases {
            assert_eq!(
                (limit.capacity(), limit.fill()),
                (capacity, fill_us.map(Micros::new)),
                "{limit:?}"
            );
        }
    }
}
