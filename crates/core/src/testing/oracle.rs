//! Oracles: a second, exact implementation of each algorithm by its definition, and a comparison of the two.
//!
//! An oracle shares neither code nor arithmetic with the algorithm it checks: levels are plain 128-bit numerators, logs
//! and leases are plain lists, and times are found by search. [`run`] applies the same random actions to both and stops
//! at the first difference.

mod cell;
mod compare;
pub(super) mod generate;
mod lists;
mod meters;
mod report;
mod windows;
mod work;

pub use generate::LimitNumbers;
pub use report::{Difference, OracleAnswer, OracleEvent, OracleReport};

use crate::algorithm::{Algorithm, LeaseId};
use crate::decision::{Decision, Retry, Standing};
use crate::units::time::Micros;
use crate::{Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};

/// Compares an algorithm with its oracle over `steps` random steps; equal seeds give equal steps.
///
/// ```
/// let report = tollgate_core::testing::oracle::run("gcra", 1_000, 1)?;
/// assert_eq!(report.steps, 1_000);
/// # Ok::<(), Box<tollgate_core::testing::oracle::Difference>>(())
/// ```
///
/// # Errors
/// The first difference.
///
/// # Panics
/// On a name that is not in [`Limit::ALGORITHMS`](crate::Limit::ALGORITHMS).
pub fn run(algorithm: &str, steps: u64, seed: u64) -> Result<OracleReport, Box<Difference>> {
    run_with_progress(algorithm, steps, seed, |_| ())
}

/// The same, reporting the progress now and then.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// On a name that is not in [`Limit::ALGORITHMS`](crate::Limit::ALGORITHMS).
pub fn run_with_progress(
    algorithm: &str,
    steps: u64,
    seed: u64,
    progress: impl FnMut(&OracleReport),
) -> Result<OracleReport, Box<Difference>> {
    match algorithm {
        TokenBucket::NAME => compare::run::<meters::BucketOracle>(TokenBucket::NAME, steps, seed, progress),
        LeakyBucket::NAME => compare::run::<meters::BucketOracle>(LeakyBucket::NAME, steps, seed, progress),
        Gcra::NAME => compare::run::<meters::GcraOracle>(Gcra::NAME, steps, seed, progress),
        Cell::NAME => compare::run::<cell::CellOracle>(Cell::NAME, steps, seed, progress),
        FixedWindow::NAME => compare::run::<windows::FixedWindowOracle>(FixedWindow::NAME, steps, seed, progress),
        SlidingCounter::NAME => {
            compare::run::<windows::SlidingCounterOracle>(SlidingCounter::NAME, steps, seed, progress)
        }
        SlidingLog::NAME => compare::run::<lists::SlidingLogOracle>(SlidingLog::NAME, steps, seed, progress),
        Concurrency::NAME => compare::run::<lists::ConcurrencyOracle>(Concurrency::NAME, steps, seed, progress),
        other => panic!("no algorithm is called {other:?}"),
    }
}

/// One key under one limit, by the definition of the algorithm. Times are microseconds; `now` is never before the last
/// write.
trait Oracle: Key {
    /// Identifies one charge.
    type ChargeRef: Copy;
    /// The condition under which undoing a charge has a defined result.
    const UNDO: UndoScope;

    /// Decides `cost`.
    fn decide(&self, cost: u64, now: u64) -> OracleDecision;

    /// Takes `cost`, or all that remains if it does not pass.
    fn take(&mut self, cost: u64, now: u64, lease: LeaseId) -> Self::ChargeRef;

    /// Refunds units. False if nothing is used, and then nothing is written.
    fn refund(&mut self, cost: u64, now: u64) -> bool;

    /// Undoes a charge. False if it has expired, and then nothing is written.
    fn undo(&mut self, charge: Self::ChargeRef, now: u64) -> bool;

    /// Releases a lease. False if it is not held.
    fn release(&mut self, _lease: LeaseId, _now: u64) -> bool {
        false
    }

    /// Renews a lease. False if it is not held.
    fn renew(&mut self, _lease: LeaseId, _now: u64) -> bool {
        false
    }

    /// The `CL.THROTTLE` reply after `cost` was settled: limited or not, the seconds until it passes, and the seconds
    /// until the key is fresh.
    fn reply(&self, _cost: u64, _taken: bool, _now: u64) -> Option<(bool, Option<u64>, u64)> {
        None
    }

    /// The time from which the stored state equals none.
    fn fresh_at(&self) -> Option<u64>;
}

/// The part of an oracle that is the same for every algorithm: a limit, and a state once there was a write.
trait Key: Clone {
    /// A fresh key.
    fn new(numbers: LimitNumbers) -> Self;

    /// Changes the numbers of the limit.
    fn edit(&mut self, numbers: LimitNumbers);

    /// The time of the last write, if there was one.
    fn written_at(&self) -> Option<u64>;

    /// Moves everything stored back by this much, the last write too.
    fn step_back(&mut self, by: u64);
}

/// A key whose state is an `S`.
#[derive(Clone, Copy, Debug)]
struct OracleKey<S> {
    numbers: LimitNumbers,
    held: Option<S>,
}

/// A state as it was last written.
trait Held: Clone {
    fn written_at(&self) -> u64;

    /// Moves everything back by this much, the last write too.
    fn step_back(&mut self, by: u64);
}

impl<S> OracleKey<S> {
    /// Writes a state if there is a new one. True if there is.
    fn replace(&mut self, new: Option<S>) -> bool {
        let is_written = new.is_some();
        if is_written {
            self.held = new;
        }
        is_written
    }
}

impl<S: Held> Key for OracleKey<S> {
    fn new(numbers: LimitNumbers) -> Self {
        Self { numbers, held: None }
    }

    fn edit(&mut self, numbers: LimitNumbers) {
        self.numbers = numbers;
    }

    fn written_at(&self) -> Option<u64> {
        self.held.as_ref().map(Held::written_at)
    }

    fn step_back(&mut self, by: u64) {
        if let Some(held) = &mut self.held {
            held.step_back(by);
        }
    }
}

/// The decision of an oracle about one cost.
#[derive(Clone, Copy, Debug)]
struct OracleDecision {
    decision: Decision,
    fresh_at: u64,
    /// True if keeping it, allowed or not, takes anything.
    takes: bool,
}

/// The condition under which undoing a charge has a defined result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UndoScope {
    /// While nothing is refunded and the limit stays. After the clock was set back, only for the last charge.
    InTurn,
    /// Until the clock is set back: a receipt has a time of the old clock.
    SameClock,
    /// At any time.
    Always,
}

impl OracleDecision {
    /// A decision where the key is fresh when it is reset.
    fn new(standing: (u64, u128, u128), denied: Option<Retry>, takes: bool, now: u64) -> Self {
        let (limit, remaining, reset_after) = standing;
        let standing = Standing {
            limit,
            remaining: narrow(remaining),
            reset_after: Micros::new(narrow(reset_after)),
        };
        let decision = match denied {
            None => Decision::allow(standing),
            Some(retry) => Decision::Deny { standing, retry },
        };
        Self {
            decision,
            fresh_at: now + narrow(reset_after),
            takes,
        }
    }
}

/// The retry after a time in microseconds.
fn retry_after(us: u128) -> Retry {
    Retry::After(Micros::new(narrow(us)))
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).expect("what a limit says fits in 64 bits")
}
