//! The checks of a limiter over a shared store: those of the memory store by name and argument, and async.
//!
//! With a [`Fallback`] around the store, this instance decides by its share while the store is unavailable. A charge that
//! neither decides is denied: nothing is allowed without a count.

use super::{LimitCheck, Limiter, NamedLimit, SlotCheck};
use crate::lease::Permit;
use crate::store::fallback::{Fallback, FallbackOptions};
use crate::store::redis::{Redis, UrlError};
use crate::store::{CostCorrection, SettleRequest, Settlement, SharedStore, StoreError};
use std::slice::from_ref;
use std::sync::Arc;
use tollgate_core::{Cost, Decision, LeaseId, Micros, Retry, Standing};

/// The most subjects that are settled in one call.
const BATCH_MAX: usize = 1_000;

impl Limiter<Fallback<Redis>> {
    /// A limiter over Redis or Valkey with default options, that decides by its share of each limit while the store is
    /// unavailable. It connects in the background.
    ///
    /// ```no_run
    /// use tollgate_limiter::Limiter;
    /// use tollgate_limiter::limits::TokenBucket;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::redis("redis://127.0.0.1:6379/0")?;
    /// let logins = limiter.limit("logins", TokenBucket::per_minute(100).burst(2))?;
    /// assert!(limiter.check(&logins, "user:42").await.is_allow());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The URL names no server.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O.
    pub fn redis(url: &str) -> Result<Self, UrlError> {
        Ok(Self::with_fallback(
            Redis::options(url)?.open(),
            FallbackOptions::default(),
        ))
    }
}

impl<S: SharedStore + 'static> Limiter<Fallback<S>> {
    /// A limiter over this store, that decides by its share of each limit while the store is unavailable.
    /// [`Limiter::new`] over the same store denies everything meanwhile.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn with_fallback(store: S, options: FallbackOptions) -> Self {
        Self::new(Fallback::new(Arc::new(store), options))
    }
}

impl<S: SharedStore> Limiter<S> {
    /// Decides about one unit for `subject`, and consumes it if allowed.
    pub async fn check(&self, limit: &NamedLimit<S>, subject: impl AsRef<[u8]>) -> Decision {
        self.check_cost(limit, subject, Cost::ONE).await
    }

    /// Decides about a cost for `subject`, and consumes it if allowed; a cost of zero peeks.
    pub async fn check_cost(&self, limit: &NamedLimit<S>, subject: impl AsRef<[u8]>, cost: Cost) -> Decision {
        self.settle_one_shared(limit, subject.as_ref(), cost, LeaseId::default())
            .await
    }

    /// Checks one unit for each of the subjects independently, and reports the decisions in order.
    ///
    /// Faster than single checks: up to a thousand subjects are one call.
    pub async fn check_each<K: AsRef<[u8]>>(
        &self,
        limit: &NamedLimit<S>,
        subjects: &[K],
        mut on_decision: impl FnMut(Decision),
    ) {
        for subjects in subjects.chunks(BATCH_MAX) {
            let charge = |subject: &K| {
                let key = self.store.key(&limit.template, &[subject.as_ref()]);
                limit.charge(key, Cost::ONE)
            };
            let charges: Vec<_> = subjects.iter().map(charge).collect();
            let request = |charge| SettleRequest {
                charges: from_ref(charge),
                lease: LeaseId::default(),
            };
            let requests: Vec<_> = charges.iter().map(request).collect();
            let settlements = self.store.settle_each(&requests).await;
            for index in 0..subjects.len() {
                on_decision(limit.shared_decision(settlements.get(index)));
            }
        }
    }

    /// Checks all at one instant: every check is charged if every one passes, otherwise none is. The settlement says of
    /// each limit where it was decided. A limit that could not be decided has an error, and the request is denied.
    pub async fn check_all(&self, checks: &[LimitCheck<'_, S>]) -> Settlement {
        self.settle(checks).await
    }

    /// Checks all at one instant, and takes a slot of each concurrency limit: every check is charged and every slot taken, or
    /// nothing is. The permit holds the slots, if there are any; the outcomes are those of the checks, then of the slots. A
    /// caller that leaves before the reply holds none.
    pub async fn acquire_all(
        &self,
        checks: &[LimitCheck<'_, S>],
        slots: &[SlotCheck<'_, S>],
    ) -> (Settlement, Option<Permit<S>>) {
        self.settle_with_slots(checks, slots).await
    }

    /// Brings the charge of an admitted request from what was charged to the actual cost.
    ///
    /// # Errors
    /// The store could not be reached; the charge stays.
    pub async fn correct_cost(
        &self,
        limit: &NamedLimit<S>,
        subject: impl AsRef<[u8]>,
        charged: Cost,
        actual: Cost,
    ) -> Result<CostCorrection, StoreError> {
        self.settle_correction(limit, subject.as_ref(), charged, actual).await
    }

    pub(crate) async fn settle_one_shared(
        &self,
        limit: &NamedLimit<S>,
        subject: &[u8],
        cost: Cost,
        lease: LeaseId,
    ) -> Decision {
        let charge = limit.charge(self.store.key(&limit.template, &[subject]), cost);
        let settlement = self.store.settle(from_ref(&charge), lease).await;
        limit.shared_decision(Some(&settlement))
    }
}

impl<S: SharedStore> NamedLimit<S> {
    /// The decision about the only charge of a request. One that could not be decided is denied, without a time to retry.
    fn shared_decision(&self, settlement: Option<&Settlement>) -> Decision {
        let outcome = settlement.and_then(|settlement| settlement.outcomes.first());
        let decision = match outcome {
            Some(Ok(outcome)) => outcome.decision,
            Some(Err(_)) | None => Decision::Deny {
                standing: Standing {
                    limit: self.limit.capacity(),
                    remaining: 0,
                    reset_after: Micros::ZERO,
                },
                retry: Retry::Unknown,
            },
        };
        self.unless_shadow(decision)
    }
}
