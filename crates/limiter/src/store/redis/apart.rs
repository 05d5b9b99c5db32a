//! Requests whose charges lie in several slots: taken where allowed, and taken back where another part refuses.
//!
//! Nobody can settle them at one moment. Others may see what will be taken back until it is: for one deadline to ask for
//! all parts, and one to take back. A charge that cannot be taken back, because its server went away in between, stays: its
//! key lacks those units until they come back by themselves.

use super::call::{Mode, Told};
use super::key::RedisKey;
use super::nodes::Nodes;
use super::orphans::Asked;
use super::work::{Deadline, Reply, Work};
use super::{failed, settled};
use crate::store::{Outcome, Settled, StoreError};
use std::sync::Arc;
use tokio::time::timeout_at;
use tollgate_core::{Charge, Cost, Decision, LeaseId, Policy, Receipt, Timestamp};

/// The charges of a request that lie together, by their places in it.
#[derive(Debug, Default)]
struct Part {
    places: Vec<usize>,
    charges: Vec<Charge<RedisKey>>,
}

/// A key to be given back to, and the places of the charges that took from it.
#[derive(Debug)]
struct Debt {
    charge: Charge<RedisKey>,
    receipt: Receipt,
    places: Vec<usize>,
}

impl Nodes {
    /// Settles or looks at charges that lie apart. Once begun it is seen through, whether or not anybody waits for it.
    pub(super) async fn settle_apart(
        self: &Arc<Self>,
        mode: Mode,
        charges: &[Charge<RedisKey>],
        lease: LeaseId,
    ) -> Settled {
        let (nodes, owned) = (Arc::clone(self), charges.to_vec());
        let seen_through = self
            .shared()
            .runtime
            .spawn(async move { nodes.settle_parts(mode, &owned, lease).await });
        let settled = seen_through.await;
        settled.unwrap_or_else(|_| failed(self.shared().clock.now(), charges.len(), StoreError::Lost))
    }

    async fn settle_parts(self: &Arc<Self>, mode: Mode, charges: &[Charge<RedisKey>], lease: LeaseId) -> Settled {
        let deadline = self.shared().deadline();
        let parts = parts(charges);
        let works = parts
            .iter()
            .map(|part| Work::request(mode, part.charges.clone(), lease));
        let replies = self.ask(works.collect(), deadline).await;
        let mut whole = Settled {
            passes: true,
            now: Timestamp::EPOCH,
            outcomes: vec![Err(StoreError::Unasked); charges.len()],
        };
        let mut is_refused = false;
        let mut taken: Vec<usize> = Vec::new();
        for (part, reply) in parts.iter().zip(replies) {
            if mode == Mode::Settle {
                Asked::new(self, &part.charges, lease).answered(&reply);
            }
            let count = part.charges.len();
            let (came_to, is_known) = match reply {
                Ok(Reply::Told(now, told)) => (settled(now, told), true),
                Ok(Reply::Near(settled)) => (settled, true),
                Err(error) => (failed(self.shared().clock.now(), count, error), false),
            };
            is_refused |= is_known && !came_to.passes;
            if came_to.passes {
                taken.extend(&part.places);
            }
            whole.passes &= came_to.passes;
            whole.now = whole.now.max(came_to.now);
            for (&place, outcome) in part.places.iter().zip(came_to.outcomes) {
                if let Some(whole) = whole.outcomes.get_mut(place) {
                    *whole = outcome;
                }
            }
        }
        if is_refused {
            match mode {
                Mode::Settle => self.take_back(charges, &taken, &mut whole, deadline).await,
                _ => self.look_again(charges, &taken, &mut whole, deadline).await,
            }
        }
        whole
    }

    /// Takes back the charges at these places that were kept, and tells how their keys then stand. Whoever waits does so until
    /// `deadline`; taking back has a deadline of its own.
    pub(super) async fn take_back(
        self: &Arc<Self>,
        charges: &[Charge<RedisKey>],
        taken: &[usize],
        whole: &mut Settled,
        deadline: Deadline,
    ) {
        let debts = debts(charges, taken, &whole.outcomes);
        if debts.is_empty() {
            return;
        }
        let works = debts
            .iter()
            .map(|debt| Work::of_one(Mode::Undo, debt.charge, debt.receipt));
        let (nodes, works) = (Arc::clone(self), works.collect::<Vec<_>>());
        let undoing = self.shared().runtime.spawn(async move { nodes.undo(works).await });
        let Ok(Ok(stands)) = timeout_at(deadline.until, undoing).await else {
            return;
        };
        for (debt, stands) in debts.iter().zip(stands) {
            for place in &debt.places {
                stands.into_iter().for_each(|stands| whole.restate(*place, stands));
            }
        }
    }

    /// Takes charges back and says how each key then stands.
    async fn undo(&self, works: Vec<Work>) -> Vec<Option<Decision>> {
        let shared = self.shared();
        let keys: Vec<RedisKey> = works
            .iter()
            .filter_map(|work| Some(work.charges.first()?.key))
            .collect();
        let replies = self.ask(works, shared.deadline()).await;
        // After the answers: what came before them must not be believed either.
        keys.into_iter().for_each(|key| shared.forget(key));
        let stands = replies.into_iter().map(|reply| {
            let figure = match reply {
                Ok(_) => &shared.figures.undone,
                Err(_) => &shared.figures.stranded,
            };
            figure.add(1);
            match reply {
                Ok(Reply::Told(_, told)) => told.into_iter().find_map(|told| match told {
                    Told::Charge { decision, .. } => Some(decision),
                    Told::Foreign | Told::Forgotten(_) => None,
                }),
                Ok(Reply::Near(_)) | Err(_) => None,
            }
        });
        stands.collect()
    }

    /// Tells how keys stand that would have been charged, had nobody refused.
    async fn look_again(&self, charges: &[Charge<RedisKey>], taken: &[usize], whole: &mut Settled, deadline: Deadline) {
        let places_and_charges = taken.iter().filter_map(|place| Some((*place, charges.get(*place)?)));
        let (places, as_they_are): (Vec<usize>, Vec<Work>) = places_and_charges
            .filter(|(_, charge)| charge.policy != Policy::Count)
            .map(|(place, charge)| {
                let look = Work::request(Mode::Peek, vec![charge.as_peek()], LeaseId::default());
                (place, look)
            })
            .unzip();
        let replies = self.ask(as_they_are, deadline).await;
        for (place, reply) in places.into_iter().zip(replies) {
            if let Ok(Reply::Told(_, told)) = reply
                && let Some(Told::Charge { decision, .. }) = told.first()
            {
                whole.restate(place, *decision);
            }
        }
    }
}

/// The charges of each tag.
fn parts(charges: &[Charge<RedisKey>]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (place, charge) in charges.iter().enumerate() {
        let is_its = |part: &Part| part.charges.first().map(|first| first.key.tag()) == Some(charge.key.tag());
        let known = parts.iter().position(is_its).unwrap_or_else(|| {
            parts.push(Part::default());
            parts.len() - 1
        });
        if let Some(part) = parts.get_mut(known) {
            part.places.push(place);
            part.charges.push(*charge);
        }
    }
    parts
}

/// What is to be given back of the charges at these places, which passed. Those of one key stand as one: the last of them
/// says where. Whoever took nothing behind another charge of its key is told anew with it.
fn debts(charges: &[Charge<RedisKey>], taken: &[usize], outcomes: &[Result<Outcome, StoreError>]) -> Vec<Debt> {
    let mut debts: Vec<Debt> = Vec::new();
    for &place in taken {
        let (Some(charge), Some(Ok(outcome))) = (charges.get(place), outcomes.get(place)) else {
            continue;
        };
        if charge.policy == Policy::Count || !outcome.decision.is_allow() {
            continue;
        }
        let receipt = outcome.receipt;
        match debts.iter_mut().find(|debt| debt.charge.key == charge.key) {
            Some(debt) => {
                if charge.cost > Cost::ZERO {
                    debt.receipt = Receipt {
                        cost: debt.receipt.cost.plus(receipt.cost),
                        ..receipt
                    };
                }
                debt.places.push(place);
            }
            None => debts.push(Debt {
                charge: *charge,
                receipt,
                places: vec![place],
            }),
        }
    }
    debts.retain(|debt| debt.receipt.cost > Cost::ZERO);
    debts
}
