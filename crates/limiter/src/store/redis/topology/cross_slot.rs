//! Requests whose charges lie in several slots: taken where allowed, and taken back where another part refuses.
//!
//! Nobody can settle them at one moment. Others may see what will be taken back until it is: for one deadline to ask for
//! all parts, and one to take back. A charge that cannot be taken back, because its server went away in between, stays: its
//! key lacks those units until they come back by themselves.

use crate::store::redis::key::RedisKey;
use crate::store::redis::lease_reaper::PendingLease;
use crate::store::redis::node::request::{Deadline, NodeReply, NodeRequest};
use crate::store::redis::script::call::{ChargeReply, ScriptOp};
use crate::store::redis::topology::Topology;
use crate::store::redis::{failed_settlement, to_settlement};
use crate::store::{Outcome, Settlement, StoreError};
use std::sync::Arc;
use tokio::time::timeout_at;
use tollgate_core::{Charge, Cost, Decision, LeaseId, Policy, Receipt, Timestamp};

/// The charges of a request that lie together, by their places in it.
#[derive(Debug, Default)]
struct SlotGroup {
    indexes: Vec<usize>,
    charges: Vec<Charge<RedisKey>>,
}

/// A key to be given back to, and the places of the charges that took from it.
#[derive(Debug)]
struct Compensation {
    charge: Charge<RedisKey>,
    receipt: Receipt,
    indexes: Vec<usize>,
}

impl Topology {
    /// Settles or looks at charges that lie apart. Once begun it is seen through, whether or not anybody waits for it.
    pub(crate) async fn settle_across_slots(
        self: &Arc<Self>,
        op: ScriptOp,
        charges: &[Charge<RedisKey>],
        lease: LeaseId,
    ) -> Settlement {
        let (topology, owned) = (Arc::clone(self), charges.to_vec());
        let task = self
            .context()
            .runtime
            .spawn(async move { topology.settle_groups(op, &owned, lease).await });
        let joined = task.await;
        joined.unwrap_or_else(|_| {
            failed_settlement(self.context().clock.now(), charges.len(), StoreError::ConnectionLost)
        })
    }

    async fn settle_groups(self: &Arc<Self>, op: ScriptOp, charges: &[Charge<RedisKey>], lease: LeaseId) -> Settlement {
        let deadline = self.context().deadline();
        let groups = groups(charges);
        let requests = groups
            .iter()
            .map(|group| NodeRequest::new(op, group.charges.clone(), lease));
        let replies = self.send(requests.collect(), deadline).await;
        let mut settlement = Settlement {
            allowed: true,
            now: Timestamp::EPOCH,
            outcomes: vec![Err(StoreError::Skipped); charges.len()],
        };
        let mut is_denied = false;
        let mut kept: Vec<usize> = Vec::new();
        for (group, reply) in groups.iter().zip(replies) {
            if op == ScriptOp::Settle {
                PendingLease::new(self, &group.charges, lease).resolve(&reply);
            }
            let count = group.charges.len();
            let (group_settlement, is_answered) = match reply {
                Ok(NodeReply::Script(now, charge_replies)) => (to_settlement(now, charge_replies), true),
                Ok(NodeReply::NearCache(denial)) => (denial, true),
                Err(error) => (failed_settlement(self.context().clock.now(), count, error), false),
            };
            is_denied |= is_answered && !group_settlement.allowed;
            if group_settlement.allowed {
                kept.extend(&group.indexes);
            }
            settlement.allowed &= group_settlement.allowed;
            settlement.now = settlement.now.max(group_settlement.now);
            for (&index, outcome) in group.indexes.iter().zip(group_settlement.outcomes) {
                if let Some(settlement) = settlement.outcomes.get_mut(index) {
                    *settlement = outcome;
                }
            }
        }
        if is_denied {
            match op {
                ScriptOp::Settle => self.compensate(charges, &kept, &mut settlement, deadline).await,
                _ => self.refresh_standings(charges, &kept, &mut settlement, deadline).await,
            }
        }
        settlement
    }

    /// Takes back the charges at these places that were kept, and tells how their keys then stand. Whoever waits does so until
    /// `deadline`; taking back has a deadline of its own.
    pub(crate) async fn compensate(
        self: &Arc<Self>,
        charges: &[Charge<RedisKey>],
        kept: &[usize],
        settlement: &mut Settlement,
        deadline: Deadline,
    ) {
        let compensations = compensations(charges, kept, &settlement.outcomes);
        if compensations.is_empty() {
            return;
        }
        let requests = compensations
            .iter()
            .map(|compensation| NodeRequest::single(ScriptOp::Undo, compensation.charge, compensation.receipt));
        let (topology, requests) = (Arc::clone(self), requests.collect::<Vec<_>>());
        let undo_task = self
            .context()
            .runtime
            .spawn(async move { topology.undo(requests).await });
        let Ok(Ok(standings)) = timeout_at(deadline.instant, undo_task).await else {
            return;
        };
        for (compensation, standings) in compensations.iter().zip(standings) {
            for index in &compensation.indexes {
                standings
                    .into_iter()
                    .for_each(|standings| settlement.update_standing(*index, standings));
            }
        }
    }

    /// Takes charges back and says how each key then stands.
    async fn undo(&self, requests: Vec<NodeRequest>) -> Vec<Option<Decision>> {
        let context = self.context();
        let keys: Vec<RedisKey> = requests
            .iter()
            .filter_map(|request| Some(request.charges.first()?.key))
            .collect();
        let replies = self.send(requests, context.deadline()).await;
        // After the answers: what came before them must not be believed either.
        keys.into_iter().for_each(|key| context.invalidate(key));
        let standings = replies.into_iter().map(|reply| {
            let count = match reply {
                Ok(_) => &context.metrics.compensated_charges,
                Err(_) => &context.metrics.uncompensated_charges,
            };
            count.add(1);
            match reply {
                Ok(NodeReply::Script(_, charge_replies)) => {
                    charge_replies
                        .into_iter()
                        .find_map(|charge_replies| match charge_replies {
                            ChargeReply::Charge { decision, .. } => Some(decision),
                            ChargeReply::ForeignValue | ChargeReply::Cleared(_) => None,
                        })
                }
                Ok(NodeReply::NearCache(_)) | Err(_) => None,
            }
        });
        standings.collect()
    }

    /// Tells how keys stand that would have been charged, had nobody refused.
    async fn refresh_standings(
        &self,
        charges: &[Charge<RedisKey>],
        kept: &[usize],
        settlement: &mut Settlement,
        deadline: Deadline,
    ) {
        let indexed_charges = kept.iter().filter_map(|index| Some((*index, charges.get(*index)?)));
        let (indexes, peeks): (Vec<usize>, Vec<NodeRequest>) = indexed_charges
            .filter(|(_, charge)| charge.policy != Policy::Count)
            .map(|(index, charge)| {
                let peek = NodeRequest::new(ScriptOp::Peek, vec![charge.as_peek()], LeaseId::default());
                (index, peek)
            })
            .unzip();
        let replies = self.send(peeks, deadline).await;
        for (index, reply) in indexes.into_iter().zip(replies) {
            if let Ok(NodeReply::Script(_, charge_replies)) = reply
                && let Some(ChargeReply::Charge { decision, .. }) = charge_replies.first()
            {
                settlement.update_standing(index, *decision);
            }
        }
    }
}

/// The charges of each tag.
fn groups(charges: &[Charge<RedisKey>]) -> Vec<SlotGroup> {
    let mut groups: Vec<SlotGroup> = Vec::new();
    for (index, charge) in charges.iter().enumerate() {
        let same_tag = |group: &SlotGroup| group.charges.first().map(|first| first.key.tag()) == Some(charge.key.tag());
        let position = groups.iter().position(same_tag).unwrap_or_else(|| {
            groups.push(SlotGroup::default());
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(position) {
            group.indexes.push(index);
            group.charges.push(*charge);
        }
    }
    groups
}

/// What is to be given back of the charges at these places, which passed. Those of one key stand as one: the last of them
/// says where. Whoever took nothing behind another charge of its key is told anew with it.
fn compensations(
    charges: &[Charge<RedisKey>],
    kept: &[usize],
    outcomes: &[Result<Outcome, StoreError>],
) -> Vec<Compensation> {
    let mut compensations: Vec<Compensation> = Vec::new();
    for &index in kept {
        let (Some(charge), Some(Ok(outcome))) = (charges.get(index), outcomes.get(index)) else {
            continue;
        };
        if charge.policy == Policy::Count || !outcome.decision.is_allow() {
            continue;
        }
        let receipt = outcome.receipt;
        match compensations
            .iter_mut()
            .find(|compensation| compensation.charge.key == charge.key)
        {
            Some(compensation) => {
                if charge.cost > Cost::ZERO {
                    compensation.receipt = Receipt {
                        cost: compensation.receipt.cost.plus(receipt.cost),
                        ..receipt
                    };
                }
                compensation.indexes.push(index);
            }
            None => compensations.push(Compensation {
                charge: *charge,
                receipt,
                indexes: vec![index],
            }),
        }
    }
    compensations.retain(|compensation| compensation.receipt.cost > Cost::ZERO);
    compensations
}
