//! Leases of concurrency limits: their ids, and a permit that releases them when its last clone is dropped.

#[cfg(feature = "tokio")]
mod renewer;

#[cfg(feature = "tokio")]
pub use self::renewer::LeaseRenewer;

#[cfg(feature = "tokio")]
use self::renewer::Renewal;
use crate::limiter::{ConcurrencyLimit, Limiter};
#[cfg(feature = "redis")]
use crate::store::SharedStore;
use crate::store::Store;
#[cfg(feature = "redis")]
use crate::store::StoreError;
use crate::store::memory::Memory;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::OnceLock;
use tollgate_core::{Cost, Decision, LeaseId, Limit, Micros};

/// The slots of concurrency limits that one request holds, released when the last clone of the permit is dropped: on
/// return, on error and on panic.
///
/// ```
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::limits::Concurrency;
///
/// let limiter = Limiter::in_memory();
/// let searches = limiter.concurrency("searches", Concurrency::at_most(1))?;
/// let Ok(permit) = limiter.acquire(&searches, "user:42") else { return Ok(()) };
/// let clone = permit.clone();
/// drop(permit);
/// assert!(limiter.acquire(&searches, "user:42").is_err());
/// drop(clone);
/// assert!(limiter.acquire(&searches, "user:42").is_ok());
/// # Ok::<(), tollgate_limiter::core::LimitError>(())
/// ```
///
/// Over a shared store the drop returns at once, and the lease is released in the background, on the runtime that the
/// store was opened on. Without a reply the release is repeated each second for a minute. If that fails too, if the
/// runtime has ended, or if 4,096 leases are being released, the lease ends with its `lease_ttl`.
#[must_use = "a permit that is not held is released at once"]
pub struct Permit<S: Store = Memory>(Arc<LeaseGuard<S>>);

/// A permit of any store: for code that holds permits and does not know stores.
#[derive(Clone)]
#[must_use = "a permit that is not held is released at once"]
pub struct AnyPermit {
    /// Never read: it is there to be dropped.
    _permit: Arc<dyn Any + Send + Sync>,
}

/// One lease, and the counters it is held in. Dropping it releases them.
pub(crate) struct LeaseGuard<S: Store> {
    store: Arc<S>,
    lease: LeaseId,
    first: HeldSlot<S::Key>,
    /// Of a request that holds several. Without any it takes no memory.
    others: Box<[HeldSlot<S::Key>]>,
    /// Set if a renewer renews it.
    #[cfg(feature = "tokio")]
    renewal: OnceLock<Renewal<S>>,
}

/// The renewal of a lease in all its counters. Neither an expired nor an unreachable one keeps the others from it.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RenewedLease {
    /// The shortest new term; none if no counter has one.
    pub(crate) shortest: Option<Micros>,
    /// True if it has expired in a counter.
    pub(crate) has_expired: bool,
    /// The error of a counter that could not be reached.
    pub(crate) error: Option<crate::store::StoreError>,
}

/// A counter that a lease is held in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldSlot<K> {
    pub(crate) key: K,
    pub(crate) limit: Limit,
}

impl Limiter {
    /// Takes one slot of a concurrency limit for the lifetime of the permit.
    ///
    /// # Errors
    /// The denial, if no slot is free.
    pub fn acquire(&self, limit: &ConcurrencyLimit, subject: impl AsRef<[u8]>) -> Result<Permit, Decision> {
        let lease = random_id();
        let decision = self.settle_one(limit.named(), subject.as_ref(), Cost::ONE, lease);
        self.permit(decision, limit, subject.as_ref(), lease)
    }
}

#[cfg(feature = "redis")]
impl<S: SharedStore> Limiter<S> {
    /// Takes one slot of a concurrency limit for the lifetime of the permit. A caller that leaves before the reply holds
    /// none.
    ///
    /// # Errors
    /// The denial, if no slot is free, or if neither the store nor this instance could decide.
    pub async fn acquire(&self, limit: &ConcurrencyLimit<S>, subject: impl AsRef<[u8]>) -> Result<Permit<S>, Decision> {
        let lease = random_id();
        let decision = self
            .settle_one_shared(limit.named(), subject.as_ref(), Cost::ONE, lease)
            .await;
        self.permit(decision, limit, subject.as_ref(), lease)
    }
}

impl<S: Store> Limiter<S> {
    fn permit(
        &self,
        decision: Decision,
        limit: &ConcurrencyLimit<S>,
        subject: &[u8],
        lease: LeaseId,
    ) -> Result<Permit<S>, Decision> {
        if !decision.is_allow() {
            return Err(decision);
        }
        let slot = HeldSlot {
            key: limit.named().key(self.store(), &[subject]),
            limit: *limit.limit(),
        };
        Ok(Permit::with_first(self.shared_store(), lease, slot, Vec::new()))
    }
}

impl<S: Store> Permit<S> {
    /// A permit for these slots. None if there are none.
    pub(crate) fn new(
        store: &Arc<S>,
        lease: LeaseId,
        slots: impl IntoIterator<Item = HeldSlot<S::Key>>,
    ) -> Option<Self> {
        let mut slots = slots.into_iter();
        let first = slots.next()?;
        Some(Self::with_first(store, lease, first, slots.collect()))
    }

    fn with_first(store: &Arc<S>, lease: LeaseId, first: HeldSlot<S::Key>, others: Vec<HeldSlot<S::Key>>) -> Self {
        Self(Arc::new(LeaseGuard {
            store: Arc::clone(store),
            lease,
            first,
            others: others.into(),
            #[cfg(feature = "tokio")]
            renewal: OnceLock::new(),
        }))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn guard(&self) -> &Arc<LeaseGuard<S>> {
        &self.0
    }
}

impl Permit {
    /// Renews the lease for a whole term from now, for work longer than `lease_ttl`. Returns the shortest term of the limits
    /// whose slots it still holds; `None` if all have expired.
    pub fn renew(&self) -> Option<Micros> {
        let guard = &*self.0;
        let terms = guard
            .slots()
            .filter_map(|slot| guard.store.renew_lease(slot.key, &slot.limit, guard.lease));
        terms.min()
    }
}

#[cfg(feature = "redis")]
impl<S: SharedStore> Permit<S> {
    /// Renews the lease for a whole term from now, for work longer than `lease_ttl`. Returns the shortest term of the limits
    /// whose slots it still holds; `None` if all have expired.
    ///
    /// # Errors
    /// The store could not be reached for a slot, which lasts as long as before. The others are renewed.
    pub async fn renew(&self) -> Result<Option<Micros>, StoreError> {
        let renewed = self.0.renew().await;
        match renewed.error {
            Some(error) => Err(error),
            None => Ok(renewed.shortest),
        }
    }
}

impl<S: Store> LeaseGuard<S> {
    fn slots(&self) -> impl Iterator<Item = &HeldSlot<S::Key>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

#[cfg(feature = "tokio")]
impl<S: Store> LeaseGuard<S> {
    pub(crate) const fn lease(&self) -> LeaseId {
        self.lease
    }

    pub(crate) const fn renewal(&self) -> &OnceLock<Renewal<S>> {
        &self.renewal
    }

    /// The shortest `lease_ttl` of its limits.
    pub(crate) fn shortest_ttl(&self) -> Micros {
        let terms = self.slots().filter_map(|slot| match &slot.limit {
            Limit::Concurrency(limit) => Some(limit.lease_ttl()),
            _ => None,
        });
        terms.min().unwrap_or(Micros::MAX)
    }

    /// Renews it in all its counters.
    pub(crate) async fn renew(&self) -> RenewedLease {
        let mut renewed = RenewedLease::default();
        for slot in self.slots() {
            match self.store.renew(slot.key, &slot.limit, self.lease).await {
                Ok(Some(term)) => renewed.shortest = Some(renewed.shortest.map_or(term, |shortest| shortest.min(term))),
                Ok(None) => renewed.has_expired = true,
                Err(error) => renewed.error = Some(error),
            }
        }
        renewed
    }
}

impl<S: Store> Drop for LeaseGuard<S> {
    fn drop(&mut self) {
        #[cfg(feature = "tokio")]
        if let Some(renewal) = self.renewal.get() {
            renewal.end(self.lease);
        }
        for slot in self.slots() {
            self.store.release_later(slot.key, &slot.limit, self.lease);
        }
    }
}

impl<S: Store + 'static> From<Permit<S>> for AnyPermit {
    /// Forgets the store. Takes no memory.
    fn from(permit: Permit<S>) -> Self {
        Self { _permit: permit.0 }
    }
}

impl<S: Store> Clone for Permit<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("limit", &self.0.first.limit)
            .field("lease", &self.0.lease)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AnyPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyPermit").finish_non_exhaustive()
    }
}

/// A new lease id: 64 random bits.
pub(crate) fn random_id() -> LeaseId {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    LeaseId(u64::from_le_bytes(bytes))
}
