//! Changes of a key other than charges: releasing and renewing leases, undo, refunds.

use super::Memory;
use super::table::Lookup;
use super::table_kind::TableKind;
use crate::fingerprint::Fingerprint;
use tollgate_core::{LeaseId, Limit, Micros, Now};

impl Memory {
    pub(crate) fn release_lease(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> bool {
        let Limit::Concurrency(concurrency) = limit else {
            return false;
        };
        self.modify_lease(concurrency, limit, key, lease, |state, now| {
            state.and_then(|state| concurrency.release(state, lease, now))
        })
    }

    pub(crate) fn renew_lease(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Option<Micros> {
        let Limit::Concurrency(concurrency) = limit else {
            return None;
        };
        let renewed = self.modify_lease(concurrency, limit, key, lease, |state, now| {
            state.and_then(|state| concurrency.renew(state, lease, now))
        });
        renewed.then(|| concurrency.lease_ttl())
    }

    /// Applies `change` to the holder of a lease: the key, or the overflow counter. The key may have got its own slot
    /// since the lease was taken, and lease ids are unique, so both are tried. False if neither holds it.
    fn modify_lease<A: TableKind>(
        &self,
        kind: &A,
        limit: &Limit,
        key: Fingerprint,
        lease: LeaseId,
        change: impl Fn(Option<&A::State>, Now) -> Option<A::Change>,
    ) -> bool {
        let change = |_: &A, state: Option<&A::State>, now| {
            let change = change(state, now);
            let is_changed = change.is_some();
            (change, is_changed)
        };
        let has_overflowed = || self.overflow.charges() > 0;
        let modify_overflow = || self.modify_key(kind, self.secret.overflow_key(limit), lease, change);
        self.modify_key(kind, key, lease, change) || (has_overflowed() && modify_overflow())
    }

    /// Applies `change` to one key. A missing key may have been charged on the overflow counter.
    pub(super) fn modify<A: TableKind, T>(
        &self,
        kind: &A,
        limit: &Limit,
        key: Fingerprint,
        lease: LeaseId,
        change: impl Fn(&A, Option<&A::State>, Now) -> (Option<A::Change>, T),
    ) -> T {
        let shards = A::shards(&self.tables);
        let is_vacant = |key| matches!(shards.lock(shards.index_of(key)).find(key), Lookup::Vacant(_));
        let is_overflowing = self.overflow.charges() > 0 && is_vacant(key);
        let key = if is_overflowing {
            self.secret.overflow_key(limit)
        } else {
            key
        };
        self.modify_key(kind, key, lease, change)
    }

    /// Applies `change` to one key, if it returns any.
    pub(super) fn modify_key<A: TableKind, T>(
        &self,
        kind: &A,
        key: Fingerprint,
        lease: LeaseId,
        change: impl Fn(&A, Option<&A::State>, Now) -> (Option<A::Change>, T),
    ) -> T {
        let now = self.instant();
        let shards = A::shards(&self.tables);
        let mut table = shards.lock(shards.index_of(key));
        let lookup = table.find(key);
        let (change, output) = A::with_state(table.get(lookup), |state| change(kind, state, now));
        if let Some(change) = change {
            self.keep(kind, &mut table, (key, lookup), change, lease);
        }
        output
    }
}
