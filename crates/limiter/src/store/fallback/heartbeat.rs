//! Heartbeats: each instance holds a lease of one concurrency limit in the store and renews it as long as it runs. The
//! number of leases held is the number of instances.

use super::Fallback;
use super::local_limiter::LocalLimiter;
use crate::store::{CounterStore, InstanceCount, Store, StoreError, StoreMode};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Charge, Concurrency, Cost, Counter, LeaseId, Limit, Micros, OnStoreFailure, Policy};

/// The lifetime of an instance's lease, and the interval of its heartbeats.
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

/// Sends heartbeats in the background until the store or the limiter is dropped.
pub(super) fn start<S: Store + 'static>(store: &Arc<S>, local: &Arc<LocalLimiter>) {
    let (store, local) = (Arc::downgrade(store), Arc::downgrade(local));
    tokio::spawn(async move {
        loop {
            // A heartbeat that fails, even by a panic, is followed by another.
            let heartbeat = tokio::spawn(send_heartbeat(Weak::clone(&store), Weak::clone(&local)));
            if let Ok(None) = heartbeat.await {
                return;
            }
            sleep(INTERVAL).await;
        }
    });
}

/// Renews this instance's lease and counts all leases. `None` when heartbeats are to end.
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
    /// Releases the lease of this instance, which is about to end: otherwise its successor would be counted in addition,
    /// and the largest count of the last minutes holds. If the store is unavailable, the lease expires.
    pub async fn deregister(&self) {
        let LocalLimiter { instances, .. } = &*self.local;
        instances.deregistered.store(true, Ordering::Relaxed);
        // Not during a heartbeat, which would take the lease again.
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
