//! The worked examples as a life of a key: what the core, which obeys them, makes of each line.

use crate::lives::Lived;
use std::collections::HashMap;
use tollgate_core::testing::life::{Act, Came, Happening, Keep};
use tollgate_core::testing::vectors::{self, How, Scenario};
use tollgate_core::{Change, LeaseId, Limit, Micros, Now, Receipt, State};

/// Lives through one scenario.
pub(crate) fn lived(scenario: &Scenario) -> Vec<Lived> {
    let mut key = Key {
        limit: scenario.limit,
        state: None,
        charges: HashMap::new(),
        leases: 0,
    };
    let mut lived = Vec::new();
    for step in &scenario.moves {
        for time in 0..step.times {
            let now = Now::new(step.at + Micros::new(step.every.get() * time));
            let act = match &step.act {
                vectors::Act::Edit(limit) => {
                    key.limit = *limit;
                    continue;
                }
                vectors::Act::Decide { cost, .. } => {
                    key.leases += 1;
                    Act::Decide {
                        cost: *cost,
                        keep: Keep::IfAllowed,
                        lease: LeaseId(key.leases),
                    }
                }
                vectors::Act::Refund { cost, .. } => Act::Refund(*cost),
                vectors::Act::Settled { how, name, .. } => {
                    let receipt = *key.charges.get(name).expect("a charge named above");
                    match how {
                        How::Undo => Act::Undo(receipt),
                        How::Release => Act::Release(receipt.lease),
                        How::Renew => Act::Renew(receipt.lease),
                    }
                }
            };
            let came = key.carry_out(act, now);
            if let (vectors::Act::Decide { name: Some(name), .. }, Act::Decide { cost, lease, .. }, Came::Step(step)) =
                (&step.act, act, &came)
            {
                let mark = step.mark;
                key.charges.insert(name.clone(), Receipt { cost, mark, lease });
            }
            let happening = Happening {
                limit: key.limit,
                now: now.at(),
                slack: Now::SLACK,
                act,
                came,
            };
            lived.push((happening, key.state.clone()));
        }
    }
    lived
}

struct Key {
    limit: Limit,
    state: Option<State>,
    charges: HashMap<String, Receipt>,
    leases: u64,
}

impl Key {
    fn carry_out(&mut self, act: Act, now: Now) -> Came {
        let state = self.state.as_ref();
        let (change, lease) = match (act, &self.limit, state) {
            (Act::Decide { cost, lease, .. }, limit, state) => {
                let step = limit.decide(state, cost, now);
                let next = step.next.clone().filter(|_| step.decision.is_allow());
                self.keep(next.or_else(|| step.repair.clone()), lease);
                return Came::Step(step);
            }
            (Act::Refund(cost), limit, state) => (limit.refund(state, cost, now), LeaseId::default()),
            (Act::Undo(receipt), limit, state) => (limit.undo(state, &receipt, now), receipt.lease),
            (Act::Release(lease), Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                (limit.release(ring, lease, now).map(Change::Concurrency), lease)
            }
            (Act::Renew(lease), Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                (limit.renew(ring, lease, now).map(Change::Concurrency), lease)
            }
            (Act::Release(lease) | Act::Renew(lease), ..) => (None, lease),
        };
        self.keep(change.clone(), lease);
        Came::Change(change)
    }

    fn keep(&mut self, change: Option<Change>, lease: LeaseId) {
        if let Some(change) = change {
            self.limit.keep(&mut self.state, change, lease);
        }
    }
}
