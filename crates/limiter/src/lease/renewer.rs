//! The lease renewer: renews the leases of permits that are held for long, so that they do not expire under their holders.
//!
//! It does not depend on the holder's progress: a server does not poll the body of a response while its client is stalled.

use super::{LeaseGuard, Permit, RenewedLease};
use crate::store::Store;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tollgate_core::LeaseId;

/// Renews the leases of the permits that were given to it: each when it is older than a third of its `lease_ttl`, several
/// in one batch. Cheap to clone.
///
/// One task does it. It starts with the first permit, on the runtime of that caller, and ends when neither the renewer
/// nor such a permit is left. It holds no permit: one that is dropped is released, and forgotten here.
pub struct LeaseRenewer<S: Store> {
    registry: Arc<Registry<S>>,
}

/// The entry of a permit with a renewer.
pub(crate) struct Renewal<S: Store> {
    registry: Arc<Registry<S>>,
}

/// The permits whose leases are renewed. There are at most as many as the limits have slots.
struct Registry<S: Store> {
    shards: [Mutex<HashMap<LeaseId, HeldLease<S>>>; SHARDS],
    hash: RandomState,
    /// The shortest `lease_ttl` seen, in microseconds.
    shortest_ttl_us: AtomicU64,
    /// True while the task sleeps until a permit arrives.
    is_idle: AtomicBool,
    is_started: AtomicBool,
    wake: Arc<Notify>,
    renewed: AtomicU64,
    expired: AtomicU64,
}

struct HeldLease<S: Store> {
    guard: Weak<LeaseGuard<S>>,
    renewed_at: Instant,
    ttl: Duration,
    /// True if it has expired for one of its limits.
    has_expired: bool,
}

impl<S: Store + 'static> LeaseRenewer<S> {
    /// A renewer without permits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Renews the leases of this permit until its last clone is dropped. Outside a tokio runtime it does nothing, and the
    /// leases end with their `lease_ttl`.
    pub fn keep(&self, permit: &Permit<S>) {
        let guard = permit.guard();
        let registry = &self.registry;
        if !registry.is_started.load(Ordering::Acquire) && !self.start() {
            return;
        }
        let renewal = Renewal {
            registry: Arc::clone(registry),
        };
        if guard.renewal().set(renewal).is_err() {
            return;
        }
        let ttl = guard.shortest_ttl();
        let held = HeldLease {
            guard: Arc::downgrade(guard),
            renewed_at: Instant::now(),
            ttl: ttl.into(),
            has_expired: false,
        };
        registry.shard(guard.lease()).insert(guard.lease(), held);
        let is_shorter = registry.shortest_ttl_us.fetch_min(ttl.get(), Ordering::AcqRel) > ttl.get();
        if registry.is_idle.load(Ordering::Acquire) || is_shorter {
            registry.is_idle.store(false, Ordering::Release);
            registry.wake.notify_one();
        }
    }

    /// Starts the task. False without a runtime to start it on.
    fn start(&self) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        if !self.registry.is_started.swap(true, Ordering::AcqRel) {
            let registry = Arc::downgrade(&self.registry);
            let wake = Arc::clone(&self.registry.wake);
            runtime.spawn(renew_until_dropped(registry, wake));
        }
        true
    }
}

impl<S: Store> LeaseRenewer<S> {
    /// The number of renewals.
    pub fn renewed(&self) -> u64 {
        self.registry.renewed.load(Ordering::Relaxed)
    }

    /// The number of permits whose lease had expired before it was renewed, for one of its limits at least. Their slots may
    /// be held twice.
    pub fn expired(&self) -> u64 {
        self.registry.expired.load(Ordering::Relaxed)
    }

    /// The number of permits that are held.
    pub fn held(&self) -> usize {
        self.registry.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

impl<S: Store> Renewal<S> {
    /// Forgets a permit that is dropped.
    pub(crate) fn end(&self, lease: LeaseId) {
        self.registry.shard(lease).remove(&lease);
    }
}

/// The task.
async fn renew_until_dropped<S: Store + 'static>(registry: Weak<Registry<S>>, wake: Arc<Notify>) {
    let _started = StartedFlag(Weak::clone(&registry));
    loop {
        let tick = {
            let Some(registry) = registry.upgrade() else { return };
            registry.renew_due().await;
            registry.next_tick()
        };
        match tick {
            Some(tick) => {
                // A permit with a shorter term arrived, or the time is over.
                let _ = timeout(tick, wake.notified()).await;
            }
            None => wake.notified().await,
        }
    }
}

/// Lets the next permit start the task again if this one ends, also with its runtime.
struct StartedFlag<S: Store>(Weak<Registry<S>>);

impl<S: Store> Drop for StartedFlag<S> {
    fn drop(&mut self) {
        if let Some(registry) = self.0.upgrade() {
            registry.is_started.store(false, Ordering::Release);
        }
    }
}

impl<S: Store> Registry<S> {
    fn shard(&self, lease: LeaseId) -> MutexGuard<'_, HashMap<LeaseId, HeldLease<S>>> {
        let hash = self.hash.hash_one(lease);
        let index = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        let [first, ..] = &self.shards;
        lock(self.shards.get(index).unwrap_or(first))
    }

    /// The time until leases are examined again; none if there are none.
    fn next_tick(&self) -> Option<Duration> {
        // Set first: a permit that arrives while the shards are read either is seen, or wakes the task.
        self.is_idle.store(true, Ordering::SeqCst);
        if self.shards.iter().all(|shard| lock(shard).is_empty()) {
            return None;
        }
        self.is_idle.store(false, Ordering::Release);
        let tick_us = self.shortest_ttl_us.load(Ordering::Acquire) / TICKS_PER_TTL;
        Some(Duration::from_micros(tick_us).max(TICK_MIN))
    }

    /// Renews the leases older than a third of their term, up to [`BATCH_MAX`] at a time.
    async fn renew_due(&self) {
        for shard in &self.shards {
            let now = Instant::now();
            let is_due = |held: &HeldLease<S>| now.duration_since(held.renewed_at) >= held.ttl / 3;
            let due: Vec<Arc<LeaseGuard<S>>> = {
                let shard = lock(shard);
                let due = shard.values().filter(|held| is_due(held));
                due.filter_map(|held| held.guard.upgrade()).collect()
            };
            // Owned, so that a permit that is dropped meanwhile is released as soon as its batch is through.
            let mut due = due.into_iter();
            loop {
                let batch: Vec<Arc<LeaseGuard<S>>> = due.by_ref().take(BATCH_MAX).collect();
                if batch.is_empty() {
                    break;
                }
                let results = join_all(batch.iter().map(|guard| guard.renew())).await;
                for (guard, result) in batch.iter().zip(results) {
                    self.record(guard, now, &result);
                }
            }
        }
    }

    /// Records a renewal. After an error the lease is due again at the next tick. It is forgotten when it has expired for
    /// all its limits.
    fn record(&self, guard: &Arc<LeaseGuard<S>>, renewed_at: Instant, renewed: &RenewedLease) {
        let mut shard = self.shard(guard.lease());
        let Some(held) = shard.get_mut(&guard.lease()) else {
            return;
        };
        if renewed.has_expired && !held.has_expired {
            held.has_expired = true;
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
        if renewed.error.is_some() {
            return;
        }
        if renewed.shortest.is_some() {
            held.renewed_at = renewed_at;
            self.renewed.fetch_add(1, Ordering::Relaxed);
        } else {
            shard.remove(&guard.lease());
        }
    }
}

impl<S: Store> Default for Registry<S> {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hash: RandomState::new(),
            shortest_ttl_us: AtomicU64::new(u64::MAX),
            is_idle: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            wake: Arc::default(),
            renewed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }
}

impl<S: Store> Drop for Registry<S> {
    fn drop(&mut self) {
        // The task may sleep until a permit arrives; now it ends.
        self.wake.notify_one();
    }
}

impl<S: Store> Default for LeaseRenewer<S> {
    fn default() -> Self {
        Self {
            registry: Arc::default(),
        }
    }
}

impl<S: Store> Clone for LeaseRenewer<S> {
    fn clone(&self) -> Self {
        Self {
            registry: Arc::clone(&self.registry),
        }
    }
}

impl<S: Store> fmt::Debug for LeaseRenewer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRenewer")
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks, so that few callers wait for each other.
const SHARDS: usize = 16;
/// The most leases that are renewed at a time.
const BATCH_MAX: usize = 1_000;
/// The examinations in the shortest term: a lease is renewed before half of its own is over.
const TICKS_PER_TTL: u64 = 6;
/// The shortest time between two examinations.
const TICK_MIN: Duration = Duration::from_millis(1);
