//! Batches: independent requests, settled in order as one pipeline to each server.
//!
//! A pipeline keeps the order of requests on one server, so each sees the charges of those before it. Requests that cross
//! slots are settled by [`cross_slot`](super::cross_slot) alongside the pipeline, in a wave of requests that share no key
//! with them; a request that does share one starts the next wave.

use super::Topology;
use crate::store::redis::key::RedisKey;
use crate::store::redis::lease_reaper::PendingLease;
use crate::store::redis::node::PIPELINE_WAIT_CALLS;
use crate::store::redis::node::call_group::CHARGES_PER_PIPELINED_CALL_MAX;
use crate::store::redis::node::request::{NodeReply, NodeRequest, to_settlement};
use crate::store::redis::script::call::ScriptOp;
use crate::store::{SettleRequest, Settlement, StoreError};
use futures_util::future::{join, join_all};
use std::collections::HashSet;
use std::sync::Arc;

/// The most charges of one pipeline. Other requests on the connection wait for its replies: at 6 µs per charge, a third of
/// the default deadline.
const CHARGES_PER_PIPELINE_MAX: usize = CALLS_PER_PIPELINE_MAX as usize * CHARGES_PER_PIPELINED_CALL_MAX;
const CALLS_PER_PIPELINE_MAX: u32 = 2;

/// Requests that are settled at the same time, by their indexes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wave {
    /// They go in one pipeline, in order.
    pipelined: Vec<usize>,
    /// Their charges are in several slots.
    crossing: Vec<usize>,
    charges: usize,
}

impl Topology {
    /// Settles each request on its own, in order.
    pub(crate) async fn settle_each(self: &Arc<Self>, requests: &[SettleRequest<'_, RedisKey>]) -> Vec<Settlement> {
        let local_now = || self.context().clock.now();
        let mut settlements: Vec<Option<Settlement>> = self.settle_without_call(requests);
        let needs_call = |index: usize| settlements.get(index).is_some_and(Option::is_none);
        for wave in waves(requests, needs_call, |request| self.is_cross_slot(request.charges)) {
            let of = |index: &usize| requests.get(*index);
            let pipelined: Vec<&SettleRequest<'_, RedisKey>> = wave.pipelined.iter().filter_map(of).collect();
            let crossing = wave.crossing.iter().filter_map(of);
            let crossing = crossing.map(|r| self.settle_across_slots(ScriptOp::Settle, r.charges, r.lease));
            let (results, crossing) = join(self.send_pipeline(&pipelined), join_all(crossing)).await;
            let pipelined = pipelined.iter().zip(results);
            let pipelined = pipelined.map(|(r, result)| to_settlement(result, r.charges.len(), local_now));
            let indexes = wave.pipelined.iter().chain(&wave.crossing);
            for (index, settlement) in indexes.zip(pipelined.chain(crossing)) {
                if let Some(entry) = settlements.get_mut(*index) {
                    *entry = Some(settlement);
                }
            }
        }
        let missing = |(settlement, request): (Option<Settlement>, &SettleRequest<'_, RedisKey>)| {
            let error = Err(StoreError::InvalidReply);
            settlement.unwrap_or_else(|| to_settlement(error, request.charges.len(), local_now))
        };
        settlements.into_iter().zip(requests).map(missing).collect()
    }

    /// The settlements that need no call: of requests without charges, and denials of the near cache. A denial holds whatever
    /// the requests before it in the batch consume.
    fn settle_without_call(&self, requests: &[SettleRequest<'_, RedisKey>]) -> Vec<Option<Settlement>> {
        let context = self.context();
        let now = context.clock.now();
        let settle = |request: &SettleRequest<'_, RedisKey>| match &context.near_cache {
            _ if request.charges.is_empty() => {
                let reply = Ok(NodeReply::Script(now, Vec::new()));
                Some(to_settlement(reply, 0, || now))
            }
            Some(near_cache) => near_cache.denial(request.charges, now),
            None => None,
        };
        requests.iter().map(settle).collect()
    }

    /// Sends requests in order, as one pipeline to each server.
    async fn send_pipeline(
        self: &Arc<Self>,
        requests: &[&SettleRequest<'_, RedisKey>],
    ) -> Vec<Result<NodeReply, StoreError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        // No call starts later: the wait for other pipelines, then the calls.
        let deadline = self.context().deadline * (PIPELINE_WAIT_CALLS + CALLS_PER_PIPELINE_MAX);
        let mut pending: Vec<PendingLease<'_, Self>> = requests
            .iter()
            .map(|request| PendingLease::new(self, request.charges, request.lease, deadline))
            .collect();
        let requests: Vec<NodeRequest> = requests
            .iter()
            .map(|request| NodeRequest::new(ScriptOp::Settle, request.charges.to_vec(), request.lease))
            .collect();
        let results = match &**self {
            Self::Single(node, _) => self.count_errors(node.send_pipeline(requests).await),
            Self::Cluster(cluster) => cluster.send_pipeline(&requests).await,
        };
        for (pending, result) in pending.iter_mut().zip(&results) {
            pending.resolve(result);
        }
        results
    }
}

/// Divides requests into waves. In one wave a cross-slot request shares no key with any other request.
fn waves<'r>(
    requests: &'r [SettleRequest<'r, RedisKey>],
    needs_call: impl Fn(usize) -> bool,
    is_cross_slot: impl Fn(&SettleRequest<'r, RedisKey>) -> bool,
) -> Vec<Wave> {
    let mut waves: Vec<Wave> = Vec::new();
    let mut wave = Wave::default();
    let mut pipelined_keys: HashSet<RedisKey> = HashSet::new();
    let mut crossing_keys: HashSet<RedisKey> = HashSet::new();
    let has_crossing = requests.iter().any(&is_cross_slot);
    for (index, request) in requests.iter().enumerate().filter(|(index, _)| needs_call(*index)) {
        let keys = || request.charges.iter().map(|charge| charge.key);
        let is_crossing = has_crossing && is_cross_slot(request);
        let shares_key = has_crossing
            && keys().any(|key| crossing_keys.contains(&key) || (is_crossing && pipelined_keys.contains(&key)));
        let charges = wave.charges + request.charges.len();
        if shares_key || (wave.charges > 0 && charges > CHARGES_PER_PIPELINE_MAX) {
            waves.push(std::mem::take(&mut wave));
            pipelined_keys.clear();
            crossing_keys.clear();
        }
        wave.charges += request.charges.len();
        match is_crossing {
            true => {
                wave.crossing.push(index);
                crossing_keys.extend(keys());
            }
            false => {
                wave.pipelined.push(index);
                if has_crossing {
                    pipelined_keys.extend(keys());
                }
            }
        }
    }
    if wave.charges > 0 {
        waves.push(wave);
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::key::RedisKeyspace;
    use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, TokenBucket};

    fn charge(tag: u16) -> Charge<RedisKey> {
        let rate = Rate::new(1, Micros::from_secs(1)).expect("in range");
        Charge {
            key: RedisKeyspace::new("tg", 64, None).probe_key(tag),
            limit: Limit::from(TokenBucket::new(rate)),
            cost: Cost::ONE,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        }
    }

    /// The waves of requests with these tags, as `pipelined/crossing`.
    fn check(requests: &[&[u16]], expected: &str) {
        let charges: Vec<Vec<Charge<RedisKey>>> = requests
            .iter()
            .map(|tags| tags.iter().map(|tag| charge(*tag)).collect())
            .collect();
        let requests: Vec<SettleRequest<'_, RedisKey>> = charges
            .iter()
            .map(|charges| SettleRequest {
                charges,
                lease: LeaseId::default(),
            })
            .collect();
        let is_cross_slot = |request: &SettleRequest<'_, RedisKey>| request.charges.len() > 1;
        let text: Vec<String> = waves(&requests, |_| true, is_cross_slot)
            .iter()
            .map(|wave| format!("{:?}/{:?}", wave.pipelined, wave.crossing))
            .collect();
        assert_eq!(text.join(" "), expected, "{charges:?}");
    }

    #[test]
    fn a_request_that_shares_a_key_with_a_cross_slot_request_starts_a_wave() {
        check(&[&[1], &[1], &[2]], "[0, 1, 2]/[]");
        check(&[&[1], &[2, 3], &[4]], "[0, 2]/[1]");
        check(&[&[1], &[1, 2], &[3]], "[0]/[] [2]/[1]");
        check(&[&[1, 2], &[3, 4], &[4], &[4]], "[]/[0, 1] [2, 3]/[]");
        check(&[&[1, 2], &[2, 3]], "[]/[0] []/[1]");
    }

    #[test]
    fn a_pipeline_has_a_bound() {
        let tags: Vec<&[u16]> = vec![&[1]; CHARGES_PER_PIPELINE_MAX + 1];
        let all: Vec<usize> = (0..CHARGES_PER_PIPELINE_MAX).collect();
        check(&tags, &format!("{all:?}/[] [{CHARGES_PER_PIPELINE_MAX}]/[]"));
    }
}
