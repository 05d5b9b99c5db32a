//! What a store is: it keeps what the core decides, all charges of a request at one moment.

pub mod memory;
pub mod redis;

use std::fmt;
use std::future::Future;
pub use tollgate_core::Source;
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, Micros, Receipt, Timestamp};

/// Remembers counters and owns the clock they run on.
///
/// Every call happens at one moment of the store's clock. [`crate::conformance`] is what an implementation must do.
pub trait Store: Send + Sync {
    /// Who decides while the store is well.
    const SOURCE: Source = Source::Memory;

    /// How the store names a counter.
    type Key: Key;

    /// What of a counter's key does not depend on its subject: worked out once for a rule.
    type Subjects: Clone + Send + Sync;

    /// The part of the key that all subjects of a counter's rule share. Its `per` values do not matter.
    fn subjects(&self, counter: &Counter<'_>) -> Self::Subjects;

    /// The key of one subject, given by the values it is counted by.
    fn key(&self, subjects: &Self::Subjects, per: &[&[u8]]) -> Self::Key;

    /// How a key is printed, for whoever wants to look it up in the store.
    fn key_text(&self, key: &Self::Key) -> String {
        let mut bytes = Vec::new();
        key.write(&mut bytes);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Settles the charges of one request: all kept, or none, as their policies say. `lease` names what it holds of
    /// concurrency limits.
    fn settle(&self, charges: &[Charge<Self::Key>], lease: LeaseId) -> impl Future<Output = Settled> + Send;

    /// The same, but keeps nothing.
    fn peek(&self, charges: &[Charge<Self::Key>]) -> impl Future<Output = Settled> + Send;

    /// Takes one kept charge back.
    fn undo(
        &self,
        key: Self::Key,
        limit: &Limit,
        receipt: &Receipt,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives cost back, never above full, and says how the key then stands.
    fn refund(
        &self,
        key: Self::Key,
        limit: &Limit,
        cost: Cost,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Gives back what a lease holds. False if it holds nothing any more.
    fn release(
        &self,
        key: Self::Key,
        limit: &Limit,
        lease: LeaseId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Lets a lease last a whole term from now and says how long that is. Nothing if it is not held any more.
    fn renew(
        &self,
        key: Self::Key,
        limit: &Limit,
        lease: LeaseId,
    ) -> impl Future<Output = Result<Option<Micros>, StoreError>> + Send;

    /// Clears a counter. False if there was nothing to clear.
    fn forget(&self, key: Self::Key, limit: &Limit) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// How a store names a counter: of a fixed size, without a caller's bytes in it.
pub trait Key: Copy + Eq + Send + Sync + fmt::Debug {
    /// How many bytes stand for it.
    const LENGTH: usize;

    /// Adds the bytes that stand for it, here and on every instance that shares the store.
    fn write(&self, bytes: &mut Vec<u8>);

    /// The key that these bytes stand for. Nothing if they cannot be one's.
    fn read(bytes: &[u8]) -> Option<Self>;
}

/// What settling a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Whether the request passes.
    pub passes: bool,
    /// The moment it was settled at, on the store's clock.
    pub now: Timestamp,
    /// For each charge, in order. A store of several nodes may have lost one of them.
    pub outcomes: Vec<Result<Outcome, StoreError>>,
}

/// What settling one charge came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the limit says, and how it stands after.
    pub decision: Decision,
    /// For taking the charge back.
    pub receipt: Receipt,
    /// Who decided.
    pub source: Source,
}

/// Why a store could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached. Ours to survive, the operator's to mend.
    Unavailable,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str("the store cannot be reached"),
        }
    }
}

impl std::error::Error for StoreError {}
