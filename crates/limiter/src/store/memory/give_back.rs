//! Giving back and lengthening what was taken: leases, receipts, refunds.

use super::Memory;
use super::kinds::Kind;
use super::table::Place;
use crate::fingerprint::Fingerprint;
use tollgate_core::{LeaseId, Limit, Micros, Now};

impl Memory {
    pub(crate) fn release_lease(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> bool {
        let Limit::Concurrency(concurrency) = limit else {
            return false;
        };
        self.alter(concurrency, limit, key, lease, |limit, state, now| {
            let change = state.and_then(|state| limit.release(state, lease, now));
            let released = change.is_some();
            (change, released)
        })
    }

    pub(crate) fn renew_lease(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Option<Micros> {
        let Limit::Concurrency(concurrency) = limit else {
            return None;
        };
        self.alter(concurrency, limit, key, lease, |limit, state, now| {
            let change = state.and_then(|state| limit.renew(state, lease, now));
            let term = change.map(|_| limit.lease_ttl());
            (change, term)
        })
    }

    /// Does to one key what `change` says, if anything. A key that is not there may have been charged on the counter that
    /// new keys share.
    pub(super) fn alter<A: Kind, T>(
        &self,
        kind: &A,
        limit: &Limit,
        key: Fingerprint,
        lease: LeaseId,
        change: impl Fn(&A, Option<&A::State>, Now) -> (Option<A::Change>, T),
    ) -> T {
        let now = self.moment();
        let shards = A::shards(&self.tables);
        let mut key = key;
        let mut table = shards.lock(shards.index_of(key));
        if self.spill.charges() > 0 && matches!(table.find(key), Place::Missing(_)) {
            drop(table);
            key = self.secret.shared(limit);
            table = shards.lock(shards.index_of(key));
        }
        let place = table.find(key);
        let (change, answer) = A::with_state(table.get(place), |state| change(kind, state, now));
        if let Some(change) = change {
            self.keep(kind, &mut table, (key, place), change, lease);
        }
        answer
    }
}
