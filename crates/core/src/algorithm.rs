//! What an algorithm is: a pure function from what a key holds, a cost and a time to a step.

pub mod cell;
pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod sliding_counter;
pub mod sliding_log;
pub mod token_bucket;

use crate::decision::{Cost, Decision};
use crate::units::time::{Micros, Now, Timestamp};

/// One way to limit. Its parameters are `self`; it reads nothing else, so the same question has the same answer.
///
/// Deciding is apart from keeping: the store keeps the step or drops it. So a refusal changes nothing, several limits
/// settle together, and a peek is a step not kept.
pub trait Algorithm {
    /// The name in rules, keys and answers.
    const NAME: &'static str;
    /// What is remembered of one key.
    type State;
    /// What a step does to a state: for small states the new one, for long ones an edit.
    type Change;

    /// Decides `cost` for a key that holds `state`; a key never seen holds nothing.
    fn decide(&self, state: Option<&Self::State>, cost: Cost, now: Now) -> Step<Self::Change>;

    /// Gives `cost` back, never above full. Nothing when there is nothing to give back, or it cannot be.
    fn refund(&self, state: &Self::State, cost: Cost, now: Now) -> Option<Self::Change>;

    /// Takes back one charge made under this very limit: leaves what would have been without it. Nothing to do once its
    /// time has passed.
    fn undo(&self, state: &Self::State, receipt: &Receipt, now: Now) -> Option<Self::Change>;

    /// What a key never seen holds after a change. `lease` names the charge where charges are kept apart (concurrency).
    fn start(&self, change: Self::Change, lease: LeaseId) -> Self::State;

    /// Carries out a change on what a key holds.
    fn edit(&self, state: &mut Self::State, change: Self::Change, lease: LeaseId);

    /// Carries out a change, whether the key holds something or not.
    #[inline]
    fn keep(&self, state: &mut Option<Self::State>, change: Self::Change, lease: LeaseId) {
        match state {
            Some(state) => self.edit(state, change, lease),
            None => *state = Some(self.start(change, lease)),
        }
    }

    /// Takes one unit in place if it is there: a short cut for the usual request.
    ///
    /// Either the answer and the mark of [`Algorithm::decide`] for a cost of one, with what that would keep written if it
    /// is allowed; or nothing, and nothing written: then it takes the long way. An algorithm may always say nothing.
    #[inline]
    fn take_one(&self, state: &mut Self::State, now: Now) -> Option<(Decision, Mark)> {
        let _ = (state, now);
        None
    }

    /// When a key that holds `state` equals one never seen, under any limit.
    fn fresh_at(&self, state: &Self::State) -> Timestamp;
}

/// A decision and what follows from keeping it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<C> {
    /// The answer.
    pub decision: Decision,
    /// What becomes of the key when the charge is kept. Also on deny, for policies that count refused requests: then
    /// all that was left is taken. Nothing when the charge changes nothing (a peek, say).
    pub next: Option<C>,
    /// Kept even when the charge is not: the key moved to the time of a clock that was set back.
    pub repair: Option<C>,
    /// When the key equals one never seen, if this decision is followed: its time to live comes from here. (After a
    /// refusal that is kept all the same, ask [`Algorithm::fresh_at`] of what was kept.)
    pub fresh_at: Timestamp,
    /// Where the charge stands, for taking exactly it back.
    pub mark: Mark,
}

/// The place of one charge in its key: a moment, exact to a fraction of a microsecond where the algorithm needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The start of its work, the end of its window, or its stamp.
    pub at: Timestamp,
    /// The fraction of a microsecond, over the limit's own denominator.
    pub frac: u64,
    /// When it was taken.
    pub taken_at: Timestamp,
}

/// What must be known to take one charge back: one that passed and was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// What was taken.
    pub cost: Cost,
    /// Where it stands.
    pub mark: Mark,
    /// The lease it was taken under.
    pub lease: LeaseId,
}

impl Receipt {
    /// Nothing if the clock was set back since the charge, or since its key was last `written`: the mark then names
    /// another time, and perhaps another charge.
    pub(crate) fn same_clock(&self, written_at: Timestamp, now: Now) -> Option<()> {
        (now.reconcile(Some(self.mark.taken_at.max(written_at))).back == Micros::ZERO).then_some(())
    }
}

/// Names one holder of a concurrency limit. Made by the caller's side, of at least 64 random bits; others ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u64);
