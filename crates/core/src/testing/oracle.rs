//! Brute-force referees: each algorithm once more, slowly and by its definition, and a contest between the two.
//!
//! A referee shares neither code nor arithmetic with the algorithm it watches: levels are plain 128-bit numerators, logs
//! and leases are plain lists, and what can be found by trying is found by trying. [`run`] leads both through the same
//! random life of a key and stops at the first answer they do not share.

mod cell;
mod compare;
pub(super) mod generate;
mod lists;
mod meters;
mod report;
mod windows;

pub use generate::LimitNumbers;
pub use report::{Difference, OracleAnswer, OracleEvent, OracleReport};

use crate::algorithm::{Algorithm, LeaseId};
use crate::decision::{Decision, Retry, Standing};
use crate::units::time::Micros;
use crate::{Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};

/// Leads an algorithm and its referee through `steps` random steps; the same seed is the same steps.
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

/// The same, telling `watch` now and then how far it has come.
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

/// One key under one limit, as its definition has it. Times are microseconds; `now` is never before the last write.
trait Oracle: Clone {
    /// What it takes to find one charge again.
    type ChargeRef: Copy;
    /// For how long a charge can be taken back so that the outcome is defined.
    const UNDO: UndoScope;

    /// A key never seen.
    fn new(numbers: LimitNumbers) -> Self;

    /// The limit's numbers change under the key.
    fn edit(&mut self, numbers: LimitNumbers);

    /// When the key was last written, if it was.
    fn written_at(&self) -> Option<u64>;

    /// Moves everything stored back by this much, the last write too.
    fn step_back(&mut self, by: u64);

    /// What it says to `cost`.
    fn decide(&self, cost: u64, now: u64) -> OracleDecision;

    /// Takes `cost`, or all that is left if it does not pass.
    fn take(&mut self, cost: u64, now: u64, lease: LeaseId) -> Self::ChargeRef;

    /// Gives units back. False if there is nothing to give back, and then nothing is written.
    fn refund(&mut self, cost: u64, now: u64) -> bool;

    /// Takes a charge back. False if there is nothing left of it, and then nothing is written.
    fn undo(&mut self, charge: Self::ChargeRef, now: u64) -> bool;

    /// Ends a lease. False if it is not held.
    fn release(&mut self, _lease: LeaseId, _now: u64) -> bool {
        false
    }

    /// Lets a lease last from now on. False if it is not held.
    fn renew(&mut self, _lease: LeaseId, _now: u64) -> bool {
        false
    }

    /// What a `CL.THROTTLE` reply names after `cost` was settled: whether it was limited, the seconds until it passes,
    /// and the seconds until the key is as good as new.
    fn reply(&self, _cost: u64, _taken: bool, _now: u64) -> Option<(bool, Option<u64>, u64)> {
        None
    }

    /// When what is stored equals nothing stored.
    fn fresh_at(&self) -> Option<u64>;
}

/// A charge of a meter: work that waits its turn and is then done bit by bit. In the parts that its referee counts in.
#[derive(Clone, Copy, Debug)]
struct MeterCharge<T> {
    /// When its turn comes.
    starts_at: T,
    /// How long it takes.
    duration: T,
    /// When it was taken.
    taken_at: u64,
    id: LeaseId,
}

/// What a referee says to one cost.
#[derive(Clone, Copy, Debug)]
struct OracleDecision {
    decision: Decision,
    fresh_at: u64,
    /// Whether keeping it, allowed or not, takes anything.
    takes: bool,
}

/// When a charge can be taken back with an outcome that is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UndoScope {
    /// While nothing is given back and the limit stays. Once the clock was set back only the last charge can be.
    InTurn,
    /// Until the clock is set back: a receipt names a moment of the old clock.
    SameClock,
    /// At any time.
    Always,
}

impl OracleDecision {
    /// A ruling where the key is fresh when it is reset.
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

/// The wait for a moment so far away.
fn retry_after(us: u128) -> Retry {
    Retry::After(Micros::new(narrow(us)))
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).expect("what a limit says fits in 64 bits")
}
