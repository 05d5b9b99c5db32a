//! Leases of concurrency limits: their ids, and a permit that releases its lease when it is dropped.

use crate::limiter::{Limiter, NamedLimit};
use crate::store::Keyspace;
use crate::store::memory::Memory;
use tollgate_core::{Cost, Decision, LeaseId, Limit, Micros};

/// A slot of a concurrency limit, released when the permit is dropped: on return, on error and on panic.
///
/// ```
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::limits::Concurrency;
///
/// let limiter = Limiter::in_memory();
/// let searches = limiter.limit("searches", Concurrency::at_most(1))?;
/// let Ok(permit) = limiter.acquire(&searches, "user:42") else { return Ok(()) };
/// assert!(limiter.acquire(&searches, "user:42").is_err());
/// drop(permit);
/// assert!(limiter.acquire(&searches, "user:42").is_ok());
/// # Ok::<(), tollgate_limiter::core::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a permit that is not held is released at once"]
pub struct Permit {
    limiter: Limiter,
    key: <Memory as Keyspace>::Key,
    limit: Limit,
    lease: LeaseId,
}

impl Limiter {
    /// Takes one slot of a concurrency limit for the lifetime of the permit. A permit of any other limit releases
    /// nothing.
    ///
    /// # Errors
    /// The denial, if no slot is free.
    pub fn acquire(&self, limit: &NamedLimit, subject: impl AsRef<[u8]>) -> Result<Permit, Decision> {
        let lease = random_id();
        let decision = self.settle_one(limit, subject.as_ref(), Cost::ONE, lease);
        if !decision.is_allow() {
            return Err(decision);
        }
        let key = limit.key(self.store(), &[subject.as_ref()]);
        Ok(Permit {
            limiter: self.clone(),
            key,
            limit: *limit.limit(),
            lease,
        })
    }
}

impl Permit {
    /// Renews the lease for a whole term from now, for work longer than `lease_ttl`. `None` if it has expired.
    pub fn renew(&self) -> Option<Micros> {
        self.limiter.store().renew_lease(self.key, &self.limit, self.lease)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.store().release_lease(self.key, &self.limit, self.lease);
    }
}

/// A new lease id: 64 random bits.
pub(crate) fn random_id() -> LeaseId {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    LeaseId(u64::from_le_bytes(bytes))
}
