//! Finds out in the background whether a server that is left alone answers again.

use super::breaker::Went;
use super::call::Mode;
use super::node::{Node, went};
use super::work::Work;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;
use tollgate_core::{Charge, Cost, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, TokenBucket};

/// The pause before each probe: at least so long, and up to so much longer at random, so that many instances do not all come
/// at the same moment.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(150));

/// The same after one that was answered: whoever needs eight of them in a row is trusted within a third of a second, and a
/// link that is up for less than that is not.
const NEXT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(20));

/// Probes a server until it answers or is not wanted any more.
pub(super) fn begin(node: Weak<Node>, runtime: &Handle) {
    runtime.spawn(until_it_answers(node));
}

/// One call at a time.
async fn until_it_answers(node: Weak<Node>) {
    let (mut least, mut spread) = PAUSE;
    loop {
        let random = u32::from(crate::lease::random_id().0 as u16);
        sleep(least + spread * random / (1 << 16)).await;
        let Some(node) = node.upgrade() else { return };
        let now = || node.shared.clock.now();
        // On its own, so that nothing that goes wrong in it ends the probing.
        let probed = node.shared.runtime.spawn({
            let node = Arc::clone(&node);
            async move { probe(&node).await }
        });
        let went = probed.await.unwrap_or(Went::Badly);
        if !node.breaker.note_probe(went, now()) {
            return;
        }
        (least, spread) = match went {
            Went::Well => NEXT,
            Went::Badly | Went::Unreached => PAUSE,
        };
    }
}

/// Charges a key that nobody else has. Nothing less would do: a server that loads its data, takes no writes or has no memory
/// left answers a greeting all the same.
async fn probe(node: &Node) -> Went {
    let charge = Charge {
        key: node.shared.keys.probe(node.last_tag.load(Ordering::Relaxed)),
        limit: limit(),
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Closed,
    };
    // A replica is only ever looked at.
    let mode = match node.link.is_to_a_replica() {
        true => Mode::Peek,
        false => Mode::Settle,
    };
    let work = Work::request(mode, vec![charge], LeaseId::default());
    let deadline = node.shared.deadline();
    let done = node.call(&[&work], deadline, deadline.until).await;
    for error in done.iter().filter_map(|done| done.as_ref().err()) {
        node.shared.count(error.error);
    }
    // One that names another server is well.
    went(&done).unwrap_or(Went::Well)
}

/// As much as will ever be asked for, gone in a moment.
fn limit() -> Limit {
    let rate = Rate::new(1_000, Micros::from_secs(1)).expect("in range");
    TokenBucket::new(rate).into()
}
