//! Brute-force referees: each algorithm once more, slowly and by its definition, and a contest between the two.
//!
//! A referee shares neither code nor arithmetic with the algorithm it watches: levels are plain 128-bit numerators, logs
//! and leases are plain lists, and what can be found by trying is found by trying. [`run`] leads both through the same
//! random life of a key and stops at the first answer they do not share.

mod cell;
mod contest;
pub(super) mod draw;
mod lists;
mod meters;
mod report;
mod windows;

pub use draw::Numbers;
pub use report::{Answer, Difference, Event, Report};

use crate::algorithm::{Algorithm, LeaseId};
use crate::decision::{Decision, Retry, Standing};
use crate::time::Micros;
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
pub fn run(algorithm: &str, steps: u64, seed: u64) -> Result<Report, Box<Difference>> {
    run_watched(algorithm, steps, seed, |_| ())
}

/// The same, telling `watch` now and then how far it has come.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// On a name that is not in [`Limit::ALGORITHMS`](crate::Limit::ALGORITHMS).
pub fn run_watched(
    algorithm: &str,
    steps: u64,
    seed: u64,
    watch: impl FnMut(&Report),
) -> Result<Report, Box<Difference>> {
    match algorithm {
        TokenBucket::NAME => contest::run::<meters::Bucket>(TokenBucket::NAME, steps, seed, watch),
        LeakyBucket::NAME => contest::run::<meters::Bucket>(LeakyBucket::NAME, steps, seed, watch),
        Gcra::NAME => contest::run::<meters::Arrivals>(Gcra::NAME, steps, seed, watch),
        Cell::NAME => contest::run::<cell::Nanos>(Cell::NAME, steps, seed, watch),
        FixedWindow::NAME => contest::run::<windows::Fixed>(FixedWindow::NAME, steps, seed, watch),
        SlidingCounter::NAME => contest::run::<windows::Pair>(SlidingCounter::NAME, steps, seed, watch),
        SlidingLog::NAME => contest::run::<lists::Log>(SlidingLog::NAME, steps, seed, watch),
        Concurrency::NAME => contest::run::<lists::Leases>(Concurrency::NAME, steps, seed, watch),
        other => panic!("no algorithm is called {other:?}"),
    }
}

/// One key under one limit, as its definition has it. Times are microseconds; `now` is never before the last write.
trait Referee: Clone {
    /// What it takes to find one charge again.
    type Ticket: Copy;
    /// For how long a charge can be taken back so that the outcome is defined.
    const UNDO: Undo;

    /// A key never seen.
    fn new(numbers: Numbers) -> Self;

    /// The limit's numbers change under the key.
    fn edit(&mut self, numbers: Numbers);

    /// When the key was last written, if it was.
    fn written(&self) -> Option<u64>;

    /// Moves everything stored back by this much, the last write too.
    fn set_back(&mut self, by: u64);

    /// What it says to `cost`.
    fn judge(&self, cost: u64, now: u64) -> Ruling;

    /// Takes `cost`, or all that is left if it does not pass.
    fn take(&mut self, cost: u64, now: u64, lease: LeaseId) -> Self::Ticket;

    /// Gives units back. False if there is nothing to give back, and then nothing is written.
    fn refund(&mut self, cost: u64, now: u64) -> bool;

    /// Takes a charge back. False if there is nothing left of it, and then nothing is written.
    fn undo(&mut self, ticket: Self::Ticket, now: u64) -> bool;

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
struct Work<T> {
    /// When its turn comes.
    begins: T,
    /// How long it takes.
    takes: T,
    /// When it was taken.
    taken: u64,
    id: LeaseId,
}

/// What a referee says to one cost.
#[derive(Clone, Copy, Debug)]
struct Ruling {
    decision: Decision,
    fresh_at: u64,
    /// Whether keeping it, allowed or not, takes anything.
    takes: bool,
}

/// When a charge can be taken back with an outcome that is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    /// While nothing is given back and the limit stays. Once the clock was set back only the last charge can be.
    InTurn,
    /// Until the clock is set back: a receipt names a moment of the old clock.
    SameClock,
    /// At any time.
    Always,
}

impl Ruling {
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
fn after(us: u128) -> Retry {
    Retry::After(Micros::new(narrow(us)))
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).expect("what a limit says fits in 64 bits")
}
