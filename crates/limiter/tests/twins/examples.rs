//! The worked examples as a life of a key: what the core, which obeys them, makes of each line.

use crate::lives::TimelineRun;
use std::collections::HashMap;
use tollgate_core::testing::timeline::{EventResult, KeepOrDrop, TimelineAction, TimelineEvent};
use tollgate_core::testing::vectors::{self, ChargeOp, Scenario};
use tollgate_core::{Change, LeaseId, Limit, Micros, Now, Receipt, State};

/// Lives through one scenario.
pub(crate) fn run_scenario(scenario: &Scenario) -> Vec<TimelineRun> {
    let mut key = Key {
        limit: scenario.limit,
        state: None,
        charges: HashMap::new(),
        leases: 0,
    };
    let mut run_scenario = Vec::new();
    for step in &scenario.steps {
        for time in 0..step.repeat {
            let now = Now::new(step.at + Micros::new(step.interval.get() * time));
            let act = match &step.action {
                vectors::Action::Edit(limit) => {
                    key.limit = *limit;
                    continue;
                }
                vectors::Action::Decide { cost, .. } => {
                    key.leases += 1;
                    TimelineAction::Decide {
                        cost: *cost,
                        keep: KeepOrDrop::IfAllowed,
                        lease: LeaseId(key.leases),
                    }
                }
                vectors::Action::Refund { cost, .. } => TimelineAction::Refund(*cost),
                vectors::Action::Charge {
                    op: charge_op, name, ..
                } => {
                    let receipt = *key.charges.get(name).expect("a charge named above");
                    match charge_op {
                        ChargeOp::Undo => TimelineAction::Undo(receipt),
                        ChargeOp::Release => TimelineAction::Release(receipt.lease),
                        ChargeOp::Renew => TimelineAction::Renew(receipt.lease),
                    }
                }
            };
            let result = key.carry_out(act, now);
            if let (
                vectors::Action::Decide { name: Some(name), .. },
                TimelineAction::Decide { cost, lease, .. },
                EventResult::Step(step),
            ) = (&step.action, act, &result)
            {
                let mark = step.mark;
                key.charges.insert(name.clone(), Receipt { cost, mark, lease });
            }
            let happening = TimelineEvent {
                limit: key.limit,
                now: now.at(),
                slack: Now::SLACK,
                action: act,
                result,
            };
            run_scenario.push((happening, key.state.clone()));
        }
    }
    run_scenario
}

struct Key {
    limit: Limit,
    state: Option<State>,
    charges: HashMap<String, Receipt>,
    leases: u64,
}

impl Key {
    fn carry_out(&mut self, act: TimelineAction, now: Now) -> EventResult {
        let state = self.state.as_ref();
        let (change, lease) = match (act, &self.limit, state) {
            (TimelineAction::Decide { cost, lease, .. }, limit, state) => {
                let step = limit.decide(state, cost, now);
                let next = step.next.clone().filter(|_| step.decision.is_allow());
                self.keep(next.or_else(|| step.repair.clone()), lease);
                return EventResult::Step(step);
            }
            (TimelineAction::Refund(cost), limit, state) => (limit.refund(state, cost, now), LeaseId::default()),
            (TimelineAction::Undo(receipt), limit, state) => (limit.undo(state, &receipt, now), receipt.lease),
            (TimelineAction::Release(lease), Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                (limit.release(ring, lease, now).map(Change::Concurrency), lease)
            }
            (TimelineAction::Renew(lease), Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                (limit.renew(ring, lease, now).map(Change::Concurrency), lease)
            }
            (TimelineAction::Release(lease) | TimelineAction::Renew(lease), ..) => (None, lease),
        };
        self.keep(change.clone(), lease);
        EventResult::Change(change)
    }

    fn keep(&mut self, change: Option<Change>, lease: LeaseId) {
        if let Some(change) = change {
            self.limit.keep(&mut self.state, change, lease);
        }
    }
}
