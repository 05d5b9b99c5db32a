//! The closed list of algorithms, and the one match over it.

use crate::algorithm::{Algorithm, LeaseId, Receipt, Step};
use crate::algorithm::{
    cell, cell::Cell, concurrency::Concurrency, fixed_window, fixed_window::FixedWindow, gcra, gcra::Gcra,
    leaky_bucket, leaky_bucket::LeakyBucket, sliding_counter, sliding_counter::SlidingCounter, sliding_log::SlidingLog,
    token_bucket, token_bucket::TokenBucket,
};
use crate::decision::Cost;
use crate::ring::{Edit, Ring};
use crate::time::{Micros, Now, Timestamp};

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

/// What a store remembers of one key.
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
    Concurrency(Ring),
    /// Of a `CL.THROTTLE` limit.
    Cell(cell::State),
}

/// What a step does to a key.
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
    Concurrency(Edit),
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

    /// The period, where another period is another counter: for windows. Other limits keep their key when it changes.
    pub fn window(&self) -> Option<Micros> {
        match self {
            Self::FixedWindow(limit) => Some(limit.rate().period()),
            Self::SlidingCounter(limit) => Some(limit.rate().period()),
            Self::SlidingLog(limit) => Some(limit.rate().period()),
            Self::TokenBucket(_) | Self::Gcra(_) | Self::LeakyBucket(_) | Self::Concurrency(_) | Self::Cell(_) => None,
        }
    }

    /// Decides `cost` for a key that holds `state`. See [`Algorithm::decide`].
    ///
    /// A state of another algorithm counts as none: the key of a counter names its algorithm, so it is not this one's.
    #[inline]
    pub fn decide(&self, state: Option<&State>, cost: Cost, now: Now) -> Step<Change> {
        each!(self, algorithm, of => {
            let Step { decision, next, repair, fresh_at, mark } = algorithm.decide(of!(state state), cost, now);
            Step { decision, next: of!(wrap change next), repair: of!(wrap change repair), fresh_at, mark }
        })
    }

    /// Gives `cost` back, never above full. See [`Algorithm::refund`].
    pub fn refund(&self, state: Option<&State>, cost: Cost, now: Now) -> Option<Change> {
        each!(self, algorithm, of => of!(wrap change algorithm.refund(of!(state state)?, cost, now)))
    }

    /// Takes exactly one charge back. See [`Algorithm::undo`].
    pub fn undo(&self, state: Option<&State>, receipt: &Receipt, now: Now) -> Option<Change> {
        each!(self, algorithm, of => of!(wrap change algorithm.undo(of!(state state)?, receipt, now)))
    }

    /// Carries out a change that this limit made. See [`Algorithm::keep`].
    #[inline]
    pub fn keep(&self, state: &mut Option<State>, change: Change, lease: LeaseId) {
        each!(self, algorithm, of => {
            let Some(change) = of!(change change) else { return };
            match of!(state state.as_mut()) {
                Some(own) => algorithm.edit(own, change, lease),
                None => *state = of!(wrap state Some(algorithm.begin(change, lease))),
            }
        });
    }

    /// When a key that holds `state` equals one never seen. Nothing for a state of another algorithm.
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
