//! Leases of concurrency limits: their ids, and a permit that gives its slots back when it is dropped.

use crate::limiter::{Limiter, NamedLimit};
use crate::store::Keyspace;
use crate::store::memory::Memory;
use tollgate_core::{Cost, Decision, LeaseId, Limit, Micros};

/// Slots of a concurrency limit, held until it is dropped: on return, on error and on panic alike.
///
/// ```
/// use tollgate_limiter::Limiter;
/// use tollgate_limiter::limits::Concurrency;
///
/// let limiter = Limiter::in_memory();
/// let searches = limiter.rule("searches", Concurrency::at_most(1))?;
/// let Ok(permit) = limiter.acquire(&searches, "user:42") else { return Ok(()) };
/// assert!(limiter.acquire(&searches, "user:42").is_err());
/// drop(permit);
/// assert!(limiter.acquire(&searches, "user:42").is_ok());
/// # Ok::<(), tollgate_limiter::core::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a permit that is not held is given back at once"]
pub struct Permit {
    limiter: Limiter,
    key: <Memory as Keyspace>::Key,
    limit: Limit,
    lease: LeaseId,
}

impl Limiter {
    /// Takes one slot of a concurrency limit for as long as the permit lives. A permit of any other limit gives
    /// nothing back.
    ///
    /// # Errors
    /// The refusal, if there is no slot free.
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
    /// Lets the permit last a whole lease from now: for work longer than `lease_ttl`. Nothing if it has run out.
    pub fn renew(&self) -> Option<Micros> {
        self.limiter.store().renew_lease(self.key, &self.limit, self.lease)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.store().release_lease(self.key, &self.limit, self.lease);
    }
}

/// An id nobody has had: 64 random bits.
pub(crate) fn random_id() -> LeaseId {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    LeaseId(u64::from_le_bytes(bytes))
}
