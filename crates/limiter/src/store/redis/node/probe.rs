//! Probes: background calls that find out whether a server with an open circuit breaker answers again.

use super::breaker::CallResult;
use super::request::NodeRequest;
use crate::store::redis::key::RedisKey;
use crate::store::redis::script::call::ScriptOp;
use crate::store::redis::supervise::jittered;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, TokenBucket};

/// The time before each probe: at least the first, plus up to the second as jitter, so that instances do not probe in step.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(150));

/// The same after a probe that succeeded: eight in a row take at most a third of a second, and a connection that holds for
/// less than that is not trusted.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(20));

/// A server that can be probed.
pub(crate) trait ProbeTarget: Send + Sync + 'static {
    /// Makes one probe.
    fn probe(self: Arc<Self>) -> impl Future<Output = CallResult> + Send;

    /// Records its result. False once the circuit breaker has closed.
    fn record_probe(&self, result: CallResult) -> bool;
}

/// Probes a server until its circuit breaker closes, or the server is dropped.
pub(crate) fn spawn<T: ProbeTarget>(target: Weak<T>, runtime: &Handle) {
    runtime.spawn(probe_until_healthy(target, runtime.clone()));
}

async fn probe_until_healthy<T: ProbeTarget>(target: Weak<T>, runtime: Handle) {
    let (mut base, mut jitter) = BACKOFF;
    loop {
        sleep(base + jittered(jitter)).await;
        let Some(target) = target.upgrade() else { return };
        // In a task of its own, so that a panic does not end the probing.
        let probe = runtime.spawn(Arc::clone(&target).probe());
        let result = probe.await.unwrap_or(CallResult::Failed);
        if !target.record_probe(result) {
            return;
        }
        (base, jitter) = match result {
            CallResult::Ok => INTERVAL,
            CallResult::Failed | CallResult::Unreachable => BACKOFF,
        };
    }
}

/// The request of a probe: a charge on a key that no counter has. A handshake would not do: a server that loads its data,
/// rejects writes or is out of memory answers it all the same. A replica is only peeked at.
pub(crate) fn request(key: RedisKey, is_replica: bool) -> NodeRequest {
    let charge = Charge {
        key,
        limit: limit(),
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Closed,
    };
    let op = match is_replica {
        true => ScriptOp::Peek,
        false => ScriptOp::Settle,
    };
    NodeRequest::new(op, vec![charge], LeaseId::default())
}

/// More than probes ever consume, and refilled at once.
fn limit() -> Limit {
    let rate = Rate::new(1_000, Micros::from_secs(1)).expect("in range");
    TokenBucket::new(rate).into()
}
