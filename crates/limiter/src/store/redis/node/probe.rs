//! Finds out in the background whether a server that is left alone answers again.

use crate::store::redis::node::breaker::CallResult;
use crate::store::redis::node::request::NodeRequest;
use crate::store::redis::node::{Node, call_result};
use crate::store::redis::script::call::ScriptOp;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, TokenBucket};

/// The pause before each probe: at least so long, and up to so much longer at random, so that many instances do not all come
/// at the same moment.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(150));

/// The same after one that was answered: whoever needs eight of them in a row is trusted within a third of a second, and a
/// link that is up for less than that is not.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(20));

/// Probes a server until it answers or is not wanted any more.
pub(crate) fn spawn(node: Weak<Node>, runtime: &Handle) {
    runtime.spawn(probe_until_healthy(node));
}

/// One call at a time.
async fn probe_until_healthy(node: Weak<Node>) {
    let (mut base, mut spread) = BACKOFF;
    loop {
        let random = u32::from(crate::lease::random_id().0 as u16);
        sleep(base + spread * random / (1 << 16)).await;
        let Some(node) = node.upgrade() else { return };
        let now = || node.context.clock.now();
        // On its own, so that nothing that goes wrong in it ends the probing.
        let task = node.context.runtime.spawn({
            let node = Arc::clone(&node);
            async move { probe(&node).await }
        });
        let result = task.await.unwrap_or(CallResult::Failed);
        if !node.breaker.record_probe(result, now()) {
            return;
        }
        (base, spread) = match result {
            CallResult::Ok => INTERVAL,
            CallResult::Failed | CallResult::Unreachable => BACKOFF,
        };
    }
}

/// Charges a key that nobody else has. Nothing less would do: a server that loads its data, takes no writes or has no memory
/// left answers a greeting all the same.
async fn probe(node: &Node) -> CallResult {
    let charge = Charge {
        key: node.context.keyspace.probe_key(node.last_tag.load(Ordering::Relaxed)),
        limit: limit(),
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Closed,
    };
    // A replica is only ever looked at.
    let op = match node.connector.is_replica() {
        true => ScriptOp::Peek,
        false => ScriptOp::Settle,
    };
    let request = NodeRequest::new(op, vec![charge], LeaseId::default());
    let deadline = node.context.deadline();
    let results = node.call(&[&request], deadline, deadline.instant).await;
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        node.context.count_error(error.error);
    }
    // One that names another server is well.
    call_result(&results).unwrap_or(CallResult::Ok)
}

/// As much as will ever be asked for, gone in a moment.
fn limit() -> Limit {
    let rate = Rate::new(1_000, Micros::from_secs(1)).expect("in range");
    TokenBucket::new(rate).into()
}
