//! Random timelines of one key: actions and the results of the core, for implementations that must agree with it.

use super::oracle::generate::{self, RandomClock};
use super::random::Random;
use crate::algorithm::{LeaseId, Receipt, Step};
use crate::decision::Cost;
use crate::limit::{Change, Limit, State};
use crate::testing::oracle::LimitNumbers;
use crate::units::time::{Micros, Now, Timestamp};
use std::collections::VecDeque;

/// A key from its first request on. Equal seeds give equal timelines.
#[derive(Debug)]
pub struct Timeline {
    algorithm: &'static str,
    random: Random,
    numbers: LimitNumbers,
    limit: Limit,
    state: Option<State>,
    now: u64,
    written_at: u64,
    floor: u64,
    slack: u64,
    /// True if costs are mostly small, so that many requests are recorded.
    small_costs: bool,
    remaining: u64,
    receipts: VecDeque<Receipt>,
}

/// One action on the key and its result.
#[derive(Clone, Debug)]
pub struct TimelineEvent {
    /// The limit of the key at that time.
    pub limit: Limit,
    /// The time.
    pub now: Timestamp,
    /// The slack of the clock.
    pub slack: Micros,
    /// The action.
    pub action: TimelineAction,
    /// The result of the core.
    pub result: EventResult,
}

/// An action on a key.
#[derive(Clone, Copy, Debug)]
pub enum TimelineAction {
    /// Decide a cost.
    Decide {
        /// The cost.
        cost: Cost,
        /// The condition for keeping it.
        keep: KeepOrDrop,
        /// The lease it is kept under.
        lease: LeaseId,
    },
    /// Refund units.
    Refund(Cost),
    /// Undo one charge.
    Undo(Receipt),
    /// Release a lease.
    Release(LeaseId),
    /// Renew a lease.
    Renew(LeaseId),
}

/// The condition for keeping a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepOrDrop {
    /// Drop it.
    Never,
    /// Keep it if it passes.
    IfAllowed,
    /// Keep it in any case.
    Always,
}

/// The result of an action.
#[derive(Clone, Debug)]
pub enum EventResult {
    /// The step of a decision.
    Step(Step<Change>),
    /// The change of any other action, if there is one.
    Change(Option<Change>),
}

/// The end of a timeline: the longest limit still fits between here and the last timestamp.
const END: u64 = 4_000_000_000_000_000;

impl Timeline {
    /// The timeline of a seed under a limit of this algorithm.
    ///
    /// # Panics
    /// On a name that is not in [`Limit::ALGORITHMS`].
    pub fn new(algorithm: &str, seed: u64) -> Self {
        let algorithm = Limit::ALGORITHMS
            .into_iter()
            .find(|name| *name == algorithm)
            .expect("the name of an algorithm");
        let mut random = Random::new(seed);
        let numbers = generate::random_numbers(algorithm, &mut random);
        let start = match random.below(8) {
            0 | 1 => 10 * numbers.period + 20_000_000 + random.below(1_000_000),
            2 => random.below(3_000_000),
            3 => END - END / 8,
            _ => 1_700_000_000_000_000 + random.below(1_000_000_000_000),
        };
        Self {
            algorithm,
            limit: generate::build_limit(algorithm, numbers),
            numbers,
            state: None,
            now: start,
            written_at: start,
            floor: start.min(3 * numbers.period),
            slack: random.pick(&[1_000_000, 1_000_000, 1_000_000, 0, 5_000, 10_000_000]),
            small_costs: random.one_in(3),
            remaining: 1,
            receipts: VecDeque::new(),
            random,
        }
    }

    /// The state of the key after the last action.
    pub const fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// Runs the next action. None at the end of the timeline.
    pub fn step(&mut self) -> Option<TimelineEvent> {
        self.advance_clock();
        if self.now > END {
            return None;
        }
        if self.random.one_in(50) {
            self.numbers = generate::edit_numbers(self.algorithm, self.numbers, &mut self.random);
            self.limit = generate::build_limit(self.algorithm, self.numbers);
        }
        let action = self.next_action();
        let now = Now::new(Timestamp::from_micros(self.now)).with_slack(Micros::new(self.slack));
        let result = self.apply(action, now);
        Some(TimelineEvent {
            limit: self.limit,
            now: now.at(),
            slack: Micros::new(self.slack),
            action,
            result,
        })
    }

    fn apply(&mut self, action: TimelineAction, now: Now) -> EventResult {
        let state = self.state.as_ref();
        let (change, lease) = match action {
            TimelineAction::Decide { cost, keep, lease } => {
                let step = self.limit.decide(state, cost, now);
                let allowed = step.decision.is_allow();
                self.remaining = step.decision.standing().remaining;
                let kept = keep == KeepOrDrop::Always || (keep == KeepOrDrop::IfAllowed && allowed);
                if kept && allowed && cost > Cost::ZERO {
                    if self.receipts.len() == 12 {
                        self.receipts.pop_front();
                    }
                    self.receipts.push_back(Receipt {
                        cost,
                        mark: step.mark,
                        lease,
                    });
                }
                let next = if kept { step.next.clone() } else { None };
                self.keep(next.or_else(|| step.repair.clone()), lease);
                return EventResult::Step(step);
            }
            TimelineAction::Refund(cost) => (self.limit.refund(state, cost, now), LeaseId::default()),
            TimelineAction::Undo(receipt) => (self.limit.undo(state, &receipt, now), receipt.lease),
            TimelineAction::Release(lease) | TimelineAction::Renew(lease) => {
                let change = match (&self.limit, state) {
                    (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => match action {
                        TimelineAction::Renew(_) => limit.renew(ring, lease, now),
                        _ => limit.release(ring, lease, now),
                    },
                    _ => None,
                };
                (change.map(Change::Concurrency), lease)
            }
        };
        self.keep(change.clone(), lease);
        EventResult::Change(change)
    }

    fn keep(&mut self, change: Option<Change>, lease: LeaseId) {
        if let Some(change) = change {
            self.limit.keep(&mut self.state, change, lease);
            self.written_at = self.now;
        }
    }

    fn next_action(&mut self) -> TimelineAction {
        let lease = LeaseId(self.random.next());
        let decide = |cost, keep| TimelineAction::Decide { cost, keep, lease };
        match self.random.below(100) {
            0..=7 => decide(Cost::ZERO, KeepOrDrop::Always),
            8..=14 => decide(self.cost(), KeepOrDrop::Always),
            15..=18 => decide(self.cost(), KeepOrDrop::Never),
            19..=23 => TimelineAction::Refund(self.cost()),
            24..=33 => {
                let index = self.random.below(self.receipts.len().max(1) as u64) as usize;
                let Some(&receipt) = self.receipts.get(index) else {
                    return decide(Cost::ONE, KeepOrDrop::IfAllowed);
                };
                let leased = matches!(self.limit, Limit::Concurrency(_));
                match self.random.below(3) {
                    0 if leased => TimelineAction::Release(receipt.lease),
                    1 if leased => TimelineAction::Renew(receipt.lease),
                    _ => {
                        // Undone twice now and then: the result of that must be the same too.
                        if !self.random.one_in(4) {
                            self.receipts.remove(index);
                        }
                        TimelineAction::Undo(receipt)
                    }
                }
            }
            _ => decide(self.cost(), KeepOrDrop::IfAllowed),
        }
    }

    fn cost(&mut self) -> Cost {
        let capacity = self.limit.capacity();
        let cost = generate::random_cost(&mut self.random, self.small_costs, capacity, self.remaining);
        Cost::new(cost).expect("clamped to what a cost can be")
    }

    /// Moves the clock, mostly on and sometimes back.
    fn advance_clock(&mut self) {
        let fresh_at = self.state.as_ref().and_then(|state| self.limit.fresh_at(state));
        let clock = RandomClock {
            now: self.now,
            written_at: self.written_at,
            fresh_at: fresh_at.map(Timestamp::as_micros),
            slack: self.slack,
        };
        let next = clock.next(&mut self.random, self.numbers);
        self.now = if self.random.one_in(500) {
            self.floor
        } else {
            next.max(self.floor)
        };
    }
}
