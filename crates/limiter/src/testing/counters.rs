//! Keys, charges and settlements for tests.

use crate::limiter::{Limiter, NamedLimit};
use crate::store::{Keyspace, SettleRequest, Settlement, Store};
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::{Charge, Cost, Counter, LeaseId, Limit, OnStoreFailure, Policy};

/// The key of a subject under a rule of the default domain.
pub fn key<S: Keyspace>(store: &S, rule: &str, limit: &Limit, per: &[&[u8]]) -> S::Key {
    let counter = Counter {
        domain: "default",
        rule,
        variant: "",
        limit,
        per: &[],
    };
    store.key(&store.template(&counter), per)
}

/// An enforced charge with `on_store_failure: local`.
///
/// # Panics
/// If the cost is out of range.
pub fn charge<K>(key: K, limit: &Limit, cost: u64) -> Charge<K> {
    Charge {
        key,
        limit: *limit,
        cost: Cost::new(cost).expect("a cost in range"),
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Local,
    }
}

/// A limit of any algorithm, also one whose slots only a permit may hold elsewhere.
pub fn named_limit<S: Store>(limiter: &Limiter<S>, id: &str, limit: Limit) -> NamedLimit<S> {
    limiter.named_limit(id, limit)
}

/// A lease id that no other call returns.
pub fn lease() -> LeaseId {
    static LAST: AtomicU64 = AtomicU64::new(1);
    LeaseId(LAST.fetch_add(1, Ordering::Relaxed))
}

/// Settles a request of one charge with a lease of its own.
///
/// # Panics
/// If the cost is out of range.
pub async fn settle<S: Store>(store: &S, key: S::Key, limit: &Limit, cost: u64) -> Settlement {
    store.settle(&[charge(key, limit, cost)], lease()).await
}

/// Requests, each with a lease of its own.
pub fn requests<K>(charges: &[Vec<Charge<K>>]) -> Vec<SettleRequest<'_, K>> {
    let request = |charges| SettleRequest {
        charges,
        lease: lease(),
    };
    charges.iter().map(Vec::as_slice).map(request).collect()
}

/// The units remaining of a counter.
///
/// # Panics
/// If the store fails.
pub async fn remaining<S: Store>(store: &S, key: S::Key, limit: &Limit) -> u64 {
    let peeked = store.peek(&[charge(key, limit, 0)]).await;
    let outcome = peeked.outcomes.first().expect("one outcome");
    outcome.expect("a reply").decision.standing().remaining
}

/// The units used of a counter.
///
/// # Panics
/// If the store fails.
pub async fn used<S: Store>(store: &S, key: S::Key, limit: &Limit) -> u64 {
    limit.capacity() - remaining(store, key, limit).await
}
