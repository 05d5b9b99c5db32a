//! Heartbeats: each instance holds a lease of one concurrency limit in the store and renews it as long as it runs. The
//! number of leases held is the number of instances.
//!
//! An instance that is silent may only be cut off, and still serve: it is counted for minutes after its lease has expired.
//! One that stops releases its lease and counts its departure under a second key, so that the others stop counting it.

use super::Fallback;
use super::instances::Reading;
use super::local_limiter::LocalLimiter;
use crate::store::{CounterStore, Settlement, Store, StoreError, StoreMode};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tollgate_core::{
    Charge, Concurrency, Cost, Counter, FixedWindow, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate,
};

/// The lifetime of an instance's lease, and the interval of its heartbeats.
const TTL: Micros = Micros::from_secs(8);
const INTERVAL: Duration = Duration::from_millis(1_500);

/// The window in which departures are counted, as long as a count holds. Readers notice when it starts over.
const DEPARTURES_WINDOW: Micros = Micros::from_secs(600);
const DEPARTURES_MAX: u64 = 1_000_000_000;

/// The longest time of a deregistration, and the pause between two attempts.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(1);
const DEREGISTER_PAUSE: Duration = Duration::from_millis(20);

/// The limit whose leases are counted.
pub(super) fn limit() -> Limit {
    let limit = Concurrency::new(Concurrency::SLOTS_MAX, TTL).expect("in range");
    limit.into()
}

/// Its counter: no rule can have this name.
pub(super) const fn counter(limit: &Limit) -> Counter<'_> {
    internal_counter(" instances", limit)
}

/// The limit whose window counts departures: it denies none.
fn departures_limit() -> Limit {
    FixedWindow::new(Rate::new(DEPARTURES_MAX, DEPARTURES_WINDOW).expect("in range")).into()
}

const fn internal_counter<'c>(rule: &'c str, limit: &'c Limit) -> Counter<'c> {
    Counter {
        domain: "",
        rule,
        variant: "",
        limit,
        per: &[],
    }
}

/// Sends heartbeats in the background until the store or the limiter is dropped. The receiver learns that the first one
/// is over.
pub(super) fn start<S: Store + 'static>(store: &Arc<S>, local: &Arc<LocalLimiter>) -> oneshot::Receiver<()> {
    let (store, local) = (Arc::downgrade(store), Arc::downgrade(local));
    let (first, first_over) = oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            // A heartbeat that fails, even by a panic, is followed by another.
            let heartbeat = tokio::spawn(send_heartbeat(Weak::clone(&store), Weak::clone(&local)));
            if let Ok(None) = heartbeat.await {
                return;
            }
            if let Some(first) = first.take() {
                // Nobody may wait for it.
                let _ = first.send(());
            }
            sleep(INTERVAL).await;
        }
    });
    first_over
}

/// Renews this instance's lease and counts all leases. `None` when heartbeats are to end.
async fn send_heartbeat<S: Store>(store: Weak<S>, local: Weak<LocalLimiter>) -> Option<()> {
    let (store, local) = (store.upgrade()?, local.upgrade()?);
    let instances = &local.instances;
    let _guard = instances.heartbeat_lock.lock().await;
    if instances.deregistered.load(Ordering::Relaxed) {
        return None;
    }
    if local.mode() == StoreMode::LocalOnly {
        return Some(());
    }
    if let Ok(reading) = read(&*store, instances.lease).await {
        instances.record(reading, local.memory.now());
    }
    Some(())
}

impl<S: CounterStore + 'static> Fallback<S> {
    /// Starts to count this instance among those that share the limits, and waits for the first heartbeat. Does nothing
    /// if it is counted already, or if the number of instances is configured.
    pub async fn register(&self) {
        let instances = &self.local.instances;
        if instances.is_configured() || instances.registered.swap(true, Ordering::Relaxed) {
            return;
        }
        // The sender is dropped only when heartbeats end.
        let _ = start(&self.inner, &self.local).await;
    }
}

impl<S: CounterStore> Fallback<S> {
    /// Removes this instance, which is about to end, from those that are counted: otherwise its successor would be counted
    /// in addition, for minutes. Takes at most a second. If the store is unavailable, the lease expires.
    pub async fn deregister(&self) {
        let instances = &self.local.instances;
        if instances.deregistered.swap(true, Ordering::Relaxed) || self.mode() == StoreMode::LocalOnly {
            return;
        }
        let _ = timeout(DEREGISTER_TIMEOUT, async {
            // Not during a heartbeat, which would take the lease again.
            let _guard = instances.heartbeat_lock.lock().await;
            if instances.has_counted() {
                self.release_lease().await?;
                self.count_departure().await?;
            }
            Ok::<(), StoreError>(())
        })
        .await;
    }

    /// Releases the lease of this instance. Releasing is idempotent.
    async fn release_lease(&self) -> Result<(), StoreError> {
        let limit = limit();
        let key = self.inner.key(&self.inner.template(&counter(&limit)), &[]);
        loop {
            match self.inner.release(key, &limit, self.local.instances.lease).await {
                Ok(_) => return Ok(()),
                Err(error @ StoreError::BreakerOpen) => return Err(error),
                Err(_) => sleep(DEREGISTER_PAUSE).await,
            }
        }
    }

    /// Counts the departure of this instance, after its lease is released: a reader in between sees too few departures and
    /// counts too many instances, until its next heartbeat. After an attempt whose outcome is unknown, a departure that
    /// was counted meanwhile is taken for its own: in doubt there are more instances.
    async fn count_departure(&self) -> Result<(), StoreError> {
        let before = read_departures(&*self.inner).await.ok();
        loop {
            let error = match charge_departures(&*self.inner, Cost::ONE).await {
                Ok(_) => return Ok(()),
                Err(error @ StoreError::BreakerOpen) => return Err(error),
                Err(error) => error,
            };
            sleep(DEREGISTER_PAUSE).await;
            if !error.is_definite() && read_departures(&*self.inner).await? > before.unwrap_or(0) {
                return Ok(());
            }
        }
    }
}

/// Renews the lease of this instance, or takes it, and reads how many there are. Departures are read before leases, because
/// they are counted after them.
async fn read<S: Store>(store: &S, lease: LeaseId) -> Result<Reading, StoreError> {
    let departures = read_departures(store).await?;
    let limit = limit();
    let key = store.key(&store.template(&counter(&limit)), &[]);
    let cost = match store.renew(key, &limit, lease).await?.is_some() {
        true => Cost::ZERO,
        false => Cost::ONE,
    };
    let leases = settle_used(store.settle(&[charge(key, limit, cost)], lease).await)?;
    Ok(Reading { leases, departures })
}

async fn read_departures<S: Store>(store: &S) -> Result<u32, StoreError> {
    charge_departures(store, Cost::ZERO).await
}

/// Charges the window of departures, on the primary: a replica may be behind.
async fn charge_departures<S: Store>(store: &S, cost: Cost) -> Result<u32, StoreError> {
    let limit = departures_limit();
    let key = store.key(&store.template(&internal_counter(" departures", &limit)), &[]);
    settle_used(store.settle(&[charge(key, limit, cost)], LeaseId::default()).await)
}

fn charge<K>(key: K, limit: Limit, cost: Cost) -> Charge<K> {
    Charge {
        key,
        limit,
        cost,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Closed,
    }
}

/// The units used of the only limit of a settlement.
fn settle_used(settlement: Settlement) -> Result<u32, StoreError> {
    let outcome = settlement.outcomes.into_iter().next();
    let outcome = outcome.ok_or(StoreError::InvalidReply)??;
    let standing = outcome.decision.standing();
    Ok(u32::try_from(standing.limit.saturating_sub(standing.remaining)).unwrap_or(u32::MAX))
}
