//! Requests to one server, and their results.

use crate::store::redis::connection::Failure;
use crate::store::redis::key::RedisKey;
use crate::store::redis::script::call::{ChargeReply, ScriptOp};
use crate::store::{Outcome, Settlement, Source, StoreError};
use tollgate_core::{Charge, Cost, LeaseId, Receipt, Timestamp};

/// One request to a server.
#[derive(Clone, Debug)]
pub(crate) struct NodeRequest {
    pub(crate) op: ScriptOp,
    pub(crate) routing: Routing,
    /// The charges of a settlement or peek. Other operations have one; to clear a counter, only its key counts.
    pub(crate) charges: Vec<Charge<RedisKey>>,
    /// For a settlement only its lease counts.
    pub(crate) receipt: Receipt,
}

/// The way a request reaches its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// In one script call with other requests.
    Batched,
    /// In a script call of its own: while a slot migrates, no server has all keys of a larger call.
    Solo,
    /// In a script call of its own, behind `ASKING`: the server imports the slot.
    Asking,
}

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum NodeReply {
    /// The script's, one for each charge.
    Script(Timestamp, Vec<ChargeReply>),
    /// A denial from the near cache; no call was made.
    NearCache(Settlement),
}

/// The result of a request.
pub(crate) type NodeResult = Result<NodeReply, Failure>;

impl NodeRequest {
    /// An operation on one counter.
    pub(crate) fn single(op: ScriptOp, charge: Charge<RedisKey>, receipt: Receipt) -> Self {
        Self {
            op,
            routing: Routing::Batched,
            charges: vec![charge],
            receipt,
        }
    }

    /// A settlement or a peek.
    pub(crate) fn new(op: ScriptOp, charges: Vec<Charge<RedisKey>>, lease: LeaseId) -> Self {
        Self {
            op,
            routing: Routing::Batched,
            charges,
            receipt: unmarked_receipt(Cost::ZERO, lease),
        }
    }

    /// The tag of its keys, which on a cluster is the same for all of them.
    pub(crate) fn tag(&self) -> u16 {
        self.charges.first().map_or(0, |charge| charge.key.tag())
    }
}

/// The receipt of a charge that is identified by its cost or lease, not by its mark.
pub(crate) fn unmarked_receipt(cost: Cost, lease: LeaseId) -> Receipt {
    Receipt {
        cost,
        mark: Default::default(),
        lease,
    }
}

/// True if the server was reached after the request's deadline, and did nothing.
pub(crate) fn is_deadline_passed(result: &NodeResult) -> bool {
    matches!(
        result,
        Err(Failure {
            error: StoreError::DeadlinePassed,
            ..
        })
    )
}

/// The settlement that a result stands for. An error leaves it unknown whether the request would be allowed; its time is
/// then the local one, from which the retry of a caller can still be computed.
pub(crate) fn to_settlement(
    result: Result<NodeReply, StoreError>,
    charges: usize,
    local_now: impl FnOnce() -> Timestamp,
) -> Settlement {
    match result {
        Ok(NodeReply::Script(now, replies)) => Settlement {
            allowed: replies.iter().all(is_allowed),
            now,
            outcomes: {
                // Not collected in place: replies are larger than outcomes, and their memory would be moved to shrink it.
                let mut outcomes = Vec::with_capacity(replies.len());
                outcomes.extend(replies.into_iter().map(outcome));
                outcomes
            },
        },
        Ok(NodeReply::NearCache(settlement)) => settlement,
        Err(error) => Settlement {
            allowed: false,
            now: local_now(),
            outcomes: vec![Err(error); charges],
        },
    }
}

fn is_allowed(reply: &ChargeReply) -> bool {
    match reply {
        ChargeReply::Charge { allowed, .. } => *allowed,
        ChargeReply::ForeignValue | ChargeReply::Cleared(_) => true,
    }
}

fn outcome(reply: ChargeReply) -> Result<Outcome, StoreError> {
    match reply {
        ChargeReply::Charge { decision, receipt, .. } => Ok(Outcome {
            decision,
            receipt,
            source: Source::Shared,
        }),
        ChargeReply::ForeignValue => Err(StoreError::ForeignValue),
        ChargeReply::Cleared(_) => Err(StoreError::InvalidReply),
    }
}
