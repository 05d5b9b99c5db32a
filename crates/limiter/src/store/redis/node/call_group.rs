//! Grouping: which requests share one call of the script.

use super::request::{NodeRequest, Routing};
use crate::store::redis::key::{KeyText, RedisKey, RedisKeyspace};
use crate::store::redis::script::call::{Call, ScriptOp};
use std::collections::HashMap;
use tollgate_core::Charge;

/// The keys that one call of the script may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyScope {
    /// Any keys.
    All,
    /// Keys of one tag: others may be in another slot of a cluster.
    OneTag,
}

/// The most charges of requests that wait for the next call. More would keep the server from other clients for too long:
/// the script settles them at one instant.
const CHARGES_PER_CALL_MAX: usize = 128;

/// The most charges in one write that holds a call for each tag.
const CHARGES_PER_WRITE_MAX: usize = 256;

/// The most charges of one call in a pipeline. It is twice [`CHARGES_PER_CALL_MAX`], because a batch of 1,000 requests in
/// four calls pays the fixed cost of a call less often. Between two calls the server serves other connections.
pub(crate) const CHARGES_PER_PIPELINED_CALL_MAX: usize = 256;

impl KeyScope {
    /// The most charges of queued requests that are sent in one write.
    pub(crate) const fn charges_max(self) -> usize {
        match self {
            Self::All => CHARGES_PER_CALL_MAX,
            Self::OneTag => CHARGES_PER_WRITE_MAX,
        }
    }
}

/// A call, and the indexes of the requests in it.
#[derive(Debug)]
pub(crate) struct CallGroup {
    pub(crate) call: Call,
    pub(crate) routing: Routing,
    pub(crate) members: Vec<usize>,
}

/// Puts requests into as few calls as possible, in order: a later request with the same key is in the same call or a later
/// one. A request is never divided.
pub(crate) fn group(requests: &[&NodeRequest], scope: KeyScope, keyspace: &RedisKeyspace) -> Vec<CallGroup> {
    let mut groups: Vec<CallGroup> = Vec::new();
    let mut by_tag: HashMap<(u16, ScriptOp), usize> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        let is_shared = request.routing == Routing::Batched && request.op != ScriptOp::Forget;
        let open = match scope {
            KeyScope::All => groups.len().checked_sub(1),
            KeyScope::OneTag if is_shared => by_tag.get(&(request.tag(), request.op)).copied(),
            KeyScope::OneTag => None,
        };
        let has_capacity = |open: &usize| {
            groups.get(*open).is_some_and(|group: &CallGroup| {
                group.call.size() + request.charges.len() <= CHARGES_PER_PIPELINED_CALL_MAX
            })
        };
        let position = open.filter(has_capacity).unwrap_or_else(|| {
            if is_shared && scope == KeyScope::OneTag {
                by_tag.insert((request.tag(), request.op), groups.len());
            }
            groups.push(CallGroup {
                call: Call::new(request.op),
                routing: request.routing,
                members: Vec::new(),
            });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(position) {
            encode(request, keyspace, &mut group.call);
            group.members.push(index);
        }
    }
    groups
}

/// Adds a request to a call.
fn encode(request: &NodeRequest, keyspace: &RedisKeyspace, call: &mut Call) {
    match (request.op, &*request.charges) {
        (ScriptOp::Settle | ScriptOp::Peek, [charge]) => {
            call.request(&[with_key_text(charge, keyspace)], request.receipt.lease);
        }
        (ScriptOp::Settle | ScriptOp::Peek, charges) => {
            let charges: Vec<Charge<KeyText>> = charges.iter().map(|charge| with_key_text(charge, keyspace)).collect();
            call.request(&charges, request.receipt.lease);
        }
        (ScriptOp::Forget, [charge, ..]) => call.forget(keyspace.text(charge.key).as_ref()),
        (_, [charge, ..]) => call.modify(keyspace.text(charge.key).as_ref(), &charge.limit, &request.receipt),
        // Nothing is requested, and the reply is empty.
        (_, []) => {}
    }
}

fn with_key_text(charge: &Charge<RedisKey>, keyspace: &RedisKeyspace) -> Charge<KeyText> {
    Charge {
        key: keyspace.text(charge.key),
        limit: charge.limit,
        cost: charge.cost,
        policy: charge.policy,
        on_failure: charge.on_failure,
    }
}
