//! Leases of concurrency limits: their ids, and a permit that releases its lease when its last clone is dropped.

use crate::limiter::{ConcurrencyLimit, Limiter};
#[cfg(feature = "redis")]
use crate::store::SharedStore;
use crate::store::Store;
#[cfg(feature = "redis")]
use crate::store::StoreError;
use crate::store::memory::Memory;
use std::fmt;
use std::sync::Arc;
use tollgate_core::{Cost, Decision, LeaseId, Limit, Micros};

/// A slot of a concurrency limit, released when the last clone of the permit is dropped: on return, on error and on panic.
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

struct LeaseGuard<S: Store> {
    limiter: Limiter<S>,
    key: S::Key,
    limit: Limit,
    lease: LeaseId,
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
        Ok(Permit(Arc::new(LeaseGuard {
            limiter: self.clone(),
            key: limit.named().key(self.store(), &[subject]),
            limit: *limit.limit(),
            lease,
        })))
    }
}

impl Permit {
    /// Renews the lease for a whole term from now, for work longer than `lease_ttl`. `None` if it has expired.
    pub fn renew(&self) -> Option<Micros> {
        let LeaseGuard {
            limiter,
            key,
            limit,
            lease,
        } = &*self.0;
        limiter.store().renew_lease(*key, limit, *lease)
    }
}

#[cfg(feature = "redis")]
impl<S: SharedStore> Permit<S> {
    /// Renews the lease for a whole term from now, for work longer than `lease_ttl`. `None` if it has expired.
    ///
    /// # Errors
    /// The store could not be reached; the lease lasts as long as before.
    pub async fn renew(&self) -> Result<Option<Micros>, StoreError> {
        let LeaseGuard {
            limiter,
            key,
            limit,
            lease,
        } = &*self.0;
        limiter.store().renew(*key, limit, *lease).await
    }
}

impl<S: Store> Drop for LeaseGuard<S> {
    fn drop(&mut self) {
        self.limiter.store().release_later(self.key, &self.limit, self.lease);
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
            .field("limit", &self.0.limit)
            .field("lease", &self.0.lease)
            .finish_non_exhaustive()
    }
}

/// A new lease id: 64 random bits.
pub(crate) fn random_id() -> LeaseId {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    LeaseId(u64::from_le_bytes(bytes))
}
