//! Instances count each other: each holds a lease of one concurrency limit in the store, and renews it for as long as it
//! lives. How many are held is how many there are.

use super::{Fallback, LocalLimiter};
use crate::store::{CounterStore, InstanceCount, Store, StoreError, StoreMode};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Charge, Concurrency, Cost, Counter, LeaseId, Limit, Micros, OnStoreFailure, Policy};

/// How long an instance is believed to live that says nothing, and how often it says something.
const TTL: Micros = Micros::from_secs(8);
const INTERVAL: Duration = Duration::from_millis(1_500);

/// The limit whose leases are counted.
pub(super) fn limit() -> Limit {
    let limit = Concurrency::new(Concurrency::SLOTS_MAX, TTL).expect("in range");
    limit.into()
}

/// Its counter: no rule can have this name.
pub(super) const fn counter(limit: &Limit) -> Counter<'_> {
    Counter {
        domain: "",
        rule: " instances",
        variant: "",
        limit,
        per: &[],
    }
}

/// Counts in the background for as long as both are there.
pub(super) fn start<S: Store + 'static>(store: &Arc<S>, local: &Arc<LocalLimiter>) {
    let (store, local) = (Arc::downgrade(store), Arc::downgrade(local));
    tokio::spawn(async move {
        loop {
            // A beat that fails, however it fails, is followed by another.
            let heartbeat = tokio::spawn(send_heartbeat(Weak::clone(&store), Weak::clone(&local)));
            if let Ok(None) = heartbeat.await {
                return;
            }
            sleep(INTERVAL).await;
        }
    });
}

/// Says that we live, and counts who does. Nothing if nobody wants to know any more.
async fn send_heartbeat<S: Store>(store: Weak<S>, local: Weak<LocalLimiter>) -> Option<()> {
    let (store, local) = (store.upgrade()?, local.upgrade()?);
    let _guard = local.instances.heartbeat_lock.lock().await;
    if local.instances.deregistered.load(Ordering::Relaxed) {
        return None;
    }
    if local.mode() == StoreMode::LocalOnly {
        return Some(());
    }
    if let Ok(count) = count(&*store, local.instances.lease).await {
        local.instances.record_count(count, local.memory.now());
    }
    Some(())
}

impl<S: CounterStore> Fallback<S> {
    /// Says that this instance ends, so that it is counted no more: whoever takes its place would be counted beside it, and
    /// the largest number of the last minutes holds. Others find out by themselves if the store cannot be told.
    pub async fn deregister(&self) {
        let LocalLimiter { instances, .. } = &*self.local;
        instances.deregistered.store(true, Ordering::Relaxed);
        // Not while it says the opposite.
        let _guard = instances.heartbeat_lock.lock().await;
        if matches!(instances.count(), InstanceCount::Heartbeats(_)) && self.mode() != StoreMode::LocalOnly {
            let limit = limit();
            let key = self.inner.key(&self.inner.template(&counter(&limit)), &[]);
            let _ = self.inner.release(key, &limit, instances.lease).await;
        }
    }
}

async fn count<S: Store>(store: &S, lease: LeaseId) -> Result<u32, StoreError> {
    let limit = limit();
    let key = store.key(&store.template(&counter(&limit)), &[]);
    let charge = Charge {
        key,
        limit,
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Closed,
    };
    let standing = if store.renew(key, &limit, lease).await?.is_some() {
        store.peek(&[charge.as_peek()]).await
    } else {
        store.settle(&[charge], lease).await
    };
    let outcome = standing.outcomes.into_iter().next().ok_or(StoreError::InvalidReply)??;
    let standing = outcome.decision.standing();
    Ok(u32::try_from(standing.limit.saturating_sub(standing.remaining)).unwrap_or(u32::MAX))
}
