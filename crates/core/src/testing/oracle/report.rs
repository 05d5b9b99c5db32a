//! What comes of a contest: counts, or the first difference with all it takes to see it again.

use super::LimitNumbers;
use crate::algorithm::{LeaseId, Receipt};
use crate::decision::Decision;
use std::fmt;

/// What a contest without a difference came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OracleReport {
    /// The algorithm.
    pub algorithm: &'static str,
    /// The seed of its steps.
    pub seed: u64,
    /// How many answers were compared.
    pub steps: u64,
    /// Costs that passed, peeks not counted.
    pub allowed: u64,
    /// Costs that did not.
    pub denied: u64,
    /// Changes of a limit under a live key.
    pub edits: u64,
    /// Times the clock was found set back further than the slack.
    pub clock_steps: u64,
    /// Promised moments that were waited for: denied one microsecond before, allowed at it.
    pub promises: u64,
    /// Units given back: refunds, charges undone, leases released.
    pub returns: u64,
}

/// The first answer that an algorithm and its referee did not share.
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
    /// How late a clock may be without having been set back, in microseconds.
    pub slack: u64,
    /// The last things that happened to the key, the one in question last.
    pub events: Vec<(u64, OracleEvent)>,
    /// What the algorithm said.
    pub implementation: OracleAnswer,
    /// What its referee said.
    pub oracle: OracleAnswer,
}

/// Something that happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleEvent {
    /// A key never seen.
    Start(LimitNumbers),
    /// A cost was decided and kept if it passed.
    Enforce(u64),
    /// A cost was decided and not kept.
    Peek(u64),
    /// A cost was decided and kept in any case.
    Count(u64),
    /// Units were given back.
    Refund(u64),
    /// A charge was taken back.
    Undo(Receipt),
    /// A lease was given back.
    Release(LeaseId),
    /// A lease was renewed.
    Renew(LeaseId),
    /// The limit was given these numbers.
    Edit(LimitNumbers),
    /// The key was as good as new and forgotten.
    Forget,
}

/// What one side said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleAnswer {
    /// To a cost.
    Step {
        /// The decision.
        decision: Decision,
        /// When the key equals one never seen, if the decision is followed.
        fresh_at: u64,
        /// Whether there is anything to keep.
        takes: bool,
        /// Whether the key was moved to the time of a clock that was set back.
        repairs: bool,
    },
    /// To a call of `CL.THROTTLE`.
    Reply {
        /// The most at once.
        limit: u64,
        /// What is left.
        remaining: u64,
        /// Whether it was limited, the seconds until it passes if that is to come, and those until the key is new.
        rest: Option<(bool, Option<u64>, u64)>,
    },
    /// To the question whether the key was written.
    Written(bool),
    /// To the question when the stored key equals one never seen.
    FreshAt(Option<u64>),
    /// To a cost whose moment had been promised, or which was promised to be denied until then.
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
        write!(f, "  referee         {:?}", self.oracle)
    }
}

impl std::error::Error for Difference {}
