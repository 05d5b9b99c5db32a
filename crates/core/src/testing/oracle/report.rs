//! The result of a comparison: counts, or the first difference with everything needed to reproduce it.

use super::LimitNumbers;
use crate::algorithm::{LeaseId, Receipt};
use crate::decision::Decision;
use std::fmt;

/// The counts of a comparison without a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OracleReport {
    /// The algorithm.
    pub algorithm: &'static str,
    /// The seed of its steps.
    pub seed: u64,
    /// Compared decisions.
    pub steps: u64,
    /// Costs that passed, peeks not counted.
    pub allowed: u64,
    /// Costs that did not.
    pub denied: u64,
    /// Changes of a limit under a live key.
    pub edits: u64,
    /// Times the clock was found set back further than the slack.
    pub clock_steps: u64,
    /// Promised times that were reached: denied one microsecond before, allowed at it.
    pub promises: u64,
    /// Refunds, undone charges and released leases.
    pub returns: u64,
}

/// The first difference between an algorithm and its oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The algorithm.
    pub algorithm: &'static str,
    /// The seed of its steps.
    pub seed: u64,
    /// The step, counted from zero.
    pub step: u64,
    /// The numbers of the limit.
    pub numbers: LimitNumbers,
    /// The slack of the clock, in microseconds.
    pub slack: u64,
    /// The last events of the key, the one with the difference last.
    pub events: Vec<(u64, OracleEvent)>,
    /// The result of the algorithm.
    pub implementation: OracleAnswer,
    /// The result of its oracle.
    pub oracle: OracleAnswer,
}

/// An event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleEvent {
    /// A fresh key.
    Start(LimitNumbers),
    /// A cost was decided and kept if it passed.
    Enforce(u64),
    /// A cost was decided and not kept.
    Peek(u64),
    /// A cost was decided and kept in any case.
    Count(u64),
    /// Units were refunded.
    Refund(u64),
    /// A charge was undone.
    Undo(Receipt),
    /// A lease was released.
    Release(LeaseId),
    /// A lease was renewed.
    Renew(LeaseId),
    /// The limit got these numbers.
    Edit(LimitNumbers),
    /// The key was fresh and its state dropped.
    Forget,
}

/// The result of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleAnswer {
    /// Of a cost.
    Step {
        /// The decision.
        decision: Decision,
        /// The time from which the key equals a fresh one, if the decision is followed.
        fresh_at: u64,
        /// True if there is a change to keep.
        takes: bool,
        /// True if the key was moved to a clock that was set back.
        repairs: bool,
    },
    /// Of a call of `CL.THROTTLE`.
    Reply {
        /// The capacity.
        limit: u64,
        /// The remaining units.
        remaining: u64,
        /// Limited or not, the seconds until it passes if it will, and the seconds until the key is fresh.
        rest: Option<(bool, Option<u64>, u64)>,
    },
    /// True if the key was written.
    Written(bool),
    /// The time from which the stored state equals none.
    FreshAt(Option<u64>),
    /// True if a cost passed, at or just before its promised time.
    PromiseKept(bool),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: seed {}, step {}", self.algorithm, self.seed, self.step)?;
        writeln!(f, "  limit           {:?}, slack {} us", self.numbers, self.slack)?;
        for (now, event) in &self.events {
            writeln!(f, "  at {now:>16} {event:?}")?;
        }
        writeln!(f, "  implementation  {:?}", self.implementation)?;
        write!(f, "  oracle          {:?}", self.oracle)
    }
}

impl std::error::Error for Difference {}
