//! The trait of all algorithms: a pure function from the state of a key, a cost and a time to a step.

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

/// A rate limit algorithm. Its parameters are `self`; it reads nothing else, so equal arguments give equal results.
///
/// Deciding is separate from keeping: the store keeps the step or drops it. So a denial changes nothing, several limits
/// settle all or nothing, and a peek is a step that is not kept.
pub trait Algorithm {
    /// The name in rules, keys and replies.
    const NAME: &'static str;
    /// The state of one key.
    type State;
    /// The change a step makes to a state: the new state if that is small, otherwise an edit.
    type Change;

    /// Decides `cost` for a key with this state; a fresh key has none.
    fn decide(&self, state: Option<&Self::State>, cost: Cost, now: Now) -> Step<Self::Change>;

    /// Returns `cost` to the limit, never above its capacity. No change if nothing is used, or if it cannot be returned.
    fn refund(&self, state: &Self::State, cost: Cost, now: Now) -> Option<Self::Change>;

    /// Reverses one charge made under this very limit: leaves the state there would be without it. No change once the
    /// charge has expired.
    fn undo(&self, state: &Self::State, receipt: &Receipt, now: Now) -> Option<Self::Change>;

    /// The state of a fresh key after a change. `lease` identifies the charge where charges are kept one by one
    /// (concurrency).
    fn start(&self, change: Self::Change, lease: LeaseId) -> Self::State;

    /// Applies a change to the state of a key. Unless it is an edit, the change is the new state and replaces the old.
    #[inline]
    fn edit(&self, state: &mut Self::State, change: Self::Change, lease: LeaseId) {
        *state = self.start(change, lease);
    }

    /// Applies a change to a key with or without a state.
    #[inline]
    fn keep(&self, state: &mut Option<Self::State>, change: Self::Change, lease: LeaseId) {
        match state {
            Some(state) => self.edit(state, change, lease),
            None => *state = Some(self.start(change, lease)),
        }
    }

    /// Takes one unit in place: the fast path for a cost of one.
    ///
    /// Returns the decision and the mark of [`Algorithm::decide`] for a cost of one, and writes what that would keep if
    /// it is allowed. Or returns and writes nothing, and the caller decides the usual way. An algorithm may always
    /// return nothing.
    #[inline]
    fn take_one(&self, state: &mut Self::State, now: Now) -> Option<(Decision, Mark)> {
        let _ = (state, now);
        None
    }

    /// The time from which a key with this state equals a fresh one, under any limit.
    fn fresh_at(&self, state: &Self::State) -> Timestamp;
}

/// A decision and the change that follows from keeping it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<C> {
    /// The decision.
    pub decision: Decision,
    /// The change if the charge is kept. Also on deny, for policies that count denied requests: then all that remained
    /// is taken. None if the charge changes nothing, as a peek.
    pub next: Option<C>,
    /// The change if the charge is not kept: the state moved to a clock that was set back.
    pub repair: Option<C>,
    /// The time from which the key equals a fresh one if this decision is followed: the source of its time to live.
    /// (After a denial that is kept, [`Algorithm::fresh_at`] of the kept state.)
    pub fresh_at: Timestamp,
    /// The position of the charge, so that exactly this charge can be undone.
    pub mark: Mark,
}

/// The position of one charge in its key: a time, exact to a fraction of a microsecond where the algorithm needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The start of its work, the end of its window, or its timestamp.
    pub at: Timestamp,
    /// The fraction of a microsecond, over the limit's own denominator; of a sliding counter the units of the previous
    /// window.
    pub frac: u64,
    /// The time of the charge.
    pub taken_at: Timestamp,
}

/// Identifies one charge that passed and was kept, so that it can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The units that were taken.
    pub cost: Cost,
    /// Its position.
    pub mark: Mark,
    /// The lease it was taken under.
    pub lease: LeaseId,
}

impl Receipt {
    /// The receipt of a charge without a position: nothing can be undone by it, but a lease can be released.
    pub fn without_mark(cost: Cost, lease: LeaseId) -> Self {
        Self {
            cost,
            mark: Mark::default(),
            lease,
        }
    }

    /// None if the clock was set back since the charge or since the last write of its key: the mark then names another
    /// time, and perhaps another charge.
    pub(crate) fn same_clock(&self, written_at: Timestamp, now: Now) -> Option<()> {
        (now.reconcile(Some(self.mark.taken_at.max(written_at))).back == Micros::ZERO).then_some(())
    }
}

/// Identifies one holder of a concurrency limit: 64 random bits made on the caller's side. Other limits ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseId(pub u64);
