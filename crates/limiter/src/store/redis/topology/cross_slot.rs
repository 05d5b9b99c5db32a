//! Requests whose charges are in several slots of a cluster: each slot's charges are settled, and compensated if another
//! slot denies.
//!
//! They cannot be settled at one instant. Others may see charges that will be compensated for at most two deadlines: one
//! to settle all slots, one to compensate. A charge whose compensation fails, because its server became unreachable in
//! between, stays: its key lacks those units until they refill.

use crate::store::redis::context::Deadline;
use crate::store::redis::key::RedisKey;
use crate::store::redis::lease_reaper::PendingLease;
use crate::store::redis::node::request::{NodeReply, NodeRequest, to_settlement};
use crate::store::redis::script::call::{ChargeReply, ScriptOp};
use crate::store::redis::topology::Topology;
use crate::store::{Outcome, Settlement, StoreError};
use std::sync::Arc;
use tokio::time::timeout_at;
use tollgate_core::{Charge, Cost, Decision, LeaseId, Policy, Receipt, Timestamp};

/// The charges of a request with one tag, and their indexes in it.
#[derive(Debug, Default)]
struct SlotGroup {
    indexes: Vec<usize>,
    charges: Vec<Charge<RedisKey>>,
}

/// The reversal of all charges on one key, and their indexes.
#[derive(Debug)]
struct Compensation {
    charge: Charge<RedisKey>,
    receipt: Receipt,
    indexes: Vec<usize>,
}

impl Topology {
    /// Settles or peeks at cross-slot charges, in a task that a departing caller does not cancel. The leases that it takes
    /// then are released.
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
        let mut pending =
            (op == ScriptOp::Settle).then(|| PendingLease::new(self, charges, lease, self.context().deadline));
        let joined = task.await;
        // The task releases by itself what it has not got a reply for.
        if let (Ok(_), Some(pending)) = (&joined, &mut pending) {
            pending.disarm();
        }
        joined.unwrap_or_else(|_| {
            let error = Err(StoreError::ConnectionLost);
            to_settlement(error, charges.len(), || self.context().clock.now())
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
                PendingLease::new(self, &group.charges, lease, self.context().deadline).resolve(&reply);
            }
            let is_answered = reply.is_ok();
            let group_settlement = to_settlement(reply, group.charges.len(), || self.context().clock.now());
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

    /// Reverses the kept charges at these indexes and updates their standings. The caller waits until `deadline`; the
    /// reversal has a deadline of its own.
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

    /// Undoes charges, and returns the standing of each key after it.
    async fn undo(&self, requests: Vec<NodeRequest>) -> Vec<Option<Decision>> {
        let context = self.context();
        let keys: Vec<RedisKey> = requests
            .iter()
            .filter_map(|request| Some(request.charges.first()?.key))
            .collect();
        let replies = self.send(requests, context.deadline()).await;
        // After the replies: states read before them are outdated too.
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

    /// Updates the standings of keys that would have been charged, had no slot denied.
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

/// The charges by tag.
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

/// The reversals of the charges at these indexes, which were allowed. Those of one key are one reversal, with the mark of
/// the last; a charge of cost 0 behind another of its key only has its standing updated.
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
