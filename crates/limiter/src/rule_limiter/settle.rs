//! Settling the charges of one request: one call to the store, with hits counted alongside it, and compensation.

use super::{RuleLimiter, takes_lease};
use crate::store::{CounterStore, Hit, HitOp, Settlement, StoreError};
use futures_util::future::join;
use tollgate_core::rules::{Plan, PlannedCharge, Undecided, record};
use tollgate_core::{Charge, LeaseId, Outcome, Receipt, Timestamp};

/// The charges of one request: those of one plan, or of several items.
pub(super) trait RequestCharges<K> {
    /// All charges, in order.
    fn charges<'p>(&'p self) -> impl Iterator<Item = &'p PlannedCharge<K>>
    where
        K: 'p;

    /// All charges, in order.
    fn charges_mut<'p>(&'p mut self) -> impl Iterator<Item = &'p mut PlannedCharge<K>>
    where
        K: 'p;

    /// True if the request is allowed, by the outcomes recorded so far.
    fn is_allowed(&self) -> bool;

    /// True if the request is banned: then the store is only peeked.
    fn is_banned(&self) -> bool;

    /// True if a rule in shadow mode has two charges for one window: see [`Plan::half_kept_mut`].
    fn has_shadow_reserve(&self) -> bool;

    /// The charges that such a rule would not have made.
    fn half_kept_mut<'p>(&'p mut self) -> Vec<&'p mut PlannedCharge<K>>
    where
        K: 'p;
}

impl<K> RequestCharges<K> for Plan<'_, K> {
    #[inline]
    fn charges<'p>(&'p self) -> impl Iterator<Item = &'p PlannedCharge<K>>
    where
        K: 'p,
    {
        Plan::charges(self)
    }

    #[inline]
    fn charges_mut<'p>(&'p mut self) -> impl Iterator<Item = &'p mut PlannedCharge<K>>
    where
        K: 'p,
    {
        Plan::charges_mut(self)
    }

    #[inline]
    fn is_allowed(&self) -> bool {
        Plan::is_allowed(self)
    }

    #[inline]
    fn is_banned(&self) -> bool {
        Plan::is_banned(self)
    }

    #[inline]
    fn has_shadow_reserve(&self) -> bool {
        Plan::has_shadow_reserve(self)
    }

    fn half_kept_mut<'p>(&'p mut self) -> Vec<&'p mut PlannedCharge<K>>
    where
        K: 'p,
    {
        Plan::half_kept_mut(self)
    }
}

/// The settlements of one request: of the charges that the store settles, and of the hits it counts.
struct RequestSettlement {
    /// None if no charge is settled.
    settled: Option<Settlement>,
    /// None if nothing is counted.
    counted: Option<Settlement>,
}

impl<S: CounterStore> RuleLimiter<S> {
    /// Settles the charges of a request and records their outcomes. Returns the store's time; None if there are no
    /// charges. The charges of a banned request are peeked.
    #[inline]
    pub(super) async fn settle(&self, request: &mut impl RequestCharges<S::Key>, lease: LeaseId) -> Option<Timestamp> {
        if request.is_banned() {
            return self.peek_banned(request).await;
        }
        if self.hits(request).next().is_some() {
            // Boxed: most stores count no hits, and their futures stay small.
            return Box::pin(self.settle_with_hits(request, lease)).await;
        }
        let several;
        let charges = match only_charge(request) {
            Some(charge) => std::slice::from_ref(charge),
            None => {
                several = self.settled_charges(request);
                several.as_slice()
            }
        };
        if charges.is_empty() {
            return None;
        }
        let settlement = self.store.settle(charges, lease).await;
        Some(self.record_settlement(request, settlement).await)
    }

    /// Does the same for a request some of whose charges are counted as hits. Neither part waits for the other: hits
    /// are counted in any case.
    async fn settle_with_hits(&self, request: &mut impl RequestCharges<S::Key>, lease: LeaseId) -> Option<Timestamp> {
        let settlement = {
            let charges = self.settled_charges(request);
            let hits: Vec<Hit<'_, S::Key>> = self.hits(request).collect();
            let settling = self.store.settle(&charges, lease);
            self.with_hits(&charges, settling, &hits, HitOp::Increment).await
        };
        let now = settlement.now();
        record(self.counted_mut(request), outcomes(settlement.counted.as_ref()));
        match settlement.settled {
            Some(settled) => Some(self.record_settlement(request, settled).await),
            None => now,
        }
    }

    /// Records a settlement. If the request is denied although no charge denies it, because a closed rule could not be
    /// decided or a counted limit is exceeded, the charges that were kept are compensated. Returns the store's time.
    #[inline]
    pub(super) async fn record_settlement(
        &self,
        request: &mut impl RequestCharges<S::Key>,
        mut settlement: Settlement,
    ) -> Timestamp {
        record(self.settled_mut(request), outcomes(Some(&settlement)));
        let allowed = request.is_allowed();
        if !allowed && !request.charges().any(PlannedCharge::is_denied) {
            let charges = self.settled_charges(request);
            self.store.compensate(&charges, &mut settlement).await;
            record(self.settled_mut(request), outcomes(Some(&settlement)));
        }
        if allowed && request.has_shadow_reserve() {
            // Boxed: few requests come here, and the futures of all others stay small.
            Box::pin(self.compensate_half_kept(request, settlement.now)).await;
        }
        settlement.now
    }

    /// Reverses the charges that rules with a reserve would not have made in enforce mode: where only one of two counters
    /// denies, the store has charged the other, because in shadow mode it keeps each charge by itself.
    async fn compensate_half_kept(&self, request: &mut impl RequestCharges<S::Key>, now: Timestamp) {
        for planned in request.half_kept_mut() {
            let outcome = planned.outcome.and_then(Result::ok);
            let mut kept = Settlement {
                allowed: true,
                now,
                outcomes: outcome.map(Ok).into_iter().collect(),
            };
            self.store.compensate(&[planned.charge], &mut kept).await;
            record([planned], outcomes(Some(&kept)));
        }
    }

    /// Records the outcomes that settling would have, without consuming anything. Returns the store's time; None if
    /// there are no charges.
    pub(super) async fn peek(&self, request: &mut impl RequestCharges<S::Key>) -> Option<Timestamp> {
        if request.is_banned() {
            return self.peek_banned(request).await;
        }
        let charges = self.settled_charges(request);
        let settlement = {
            let hits: Vec<Hit<'_, S::Key>> = self.hits(request).collect();
            self.with_hits(&charges, self.store.peek(&charges), &hits, HitOp::Get)
                .await
        };
        self.record_peek(request, &settlement)
    }

    /// Does the same for a banned request. The store does not know that it is denied, so the limits that would allow it
    /// report their standing without it.
    async fn peek_banned(&self, request: &mut impl RequestCharges<S::Key>) -> Option<Timestamp> {
        let charges = self.settled_charges(request);
        let free_charges: Vec<Charge<S::Key>> = charges.iter().map(Charge::as_peek).collect();
        let (mut peeked, standings) = {
            let hits: Vec<Hit<'_, S::Key>> = self.hits(request).collect();
            let free_hits: Vec<Charge<S::Key>> = hits.iter().map(|hit| hit.charge.as_peek()).collect();
            let free_hits = free_hits.iter().zip(&hits);
            let free_hits: Vec<Hit<'_, S::Key>> = free_hits.map(|(charge, hit)| Hit { charge, ..*hit }).collect();
            // Concurrently, within one deadline.
            join(
                self.with_hits(&charges, self.store.peek(&charges), &hits, HitOp::Get),
                self.with_hits(&free_charges, self.store.peek(&free_charges), &free_hits, HitOp::Get),
            )
            .await
        };
        replace_allowed(&mut peeked.settled, standings.settled);
        replace_allowed(&mut peeked.counted, standings.counted);
        self.record_peek(request, &peeked)
    }

    fn record_peek(
        &self,
        request: &mut impl RequestCharges<S::Key>,
        settlement: &RequestSettlement,
    ) -> Option<Timestamp> {
        record(self.settled_mut(request), outcomes(settlement.settled.as_ref()));
        record(self.counted_mut(request), outcomes(settlement.counted.as_ref()));
        settlement.now()
    }

    /// Waits for the settlement of these charges and for that of the hits, concurrently.
    async fn with_hits(
        &self,
        charges: &[Charge<S::Key>],
        settling: impl Future<Output = Settlement>,
        hits: &[Hit<'_, S::Key>],
        op: HitOp,
    ) -> RequestSettlement {
        let (settled, counted) = match (charges, hits) {
            ([], []) => (None, None),
            (_, []) => (Some(settling.await), None),
            ([], _) => (None, Some(self.store.hit(hits, op).await)),
            _ => {
                let (settled, counted) = join(settling, self.store.hit(hits, op)).await;
                (Some(settled), Some(counted))
            }
        };
        RequestSettlement { settled, counted }
    }

    /// Refunds one charge and returns its standing as an outcome.
    pub(super) async fn refund_charge(&self, planned: &PlannedCharge<S::Key>) -> Result<Outcome, Undecided> {
        if let Some(hit) = self.hit(planned) {
            let settlement = self.store.hit(&[hit], HitOp::Decrement).await;
            return outcomes(Some(&settlement)).next().unwrap_or(Err(Undecided::Failed));
        }
        // Leases are released by their token; a refund only returns the standing of their limit.
        let charge = match takes_lease(&planned.charge) {
            true => planned.charge.as_peek(),
            false => planned.charge,
        };
        let (decision, source) = self.store.refund(&charge).await?;
        let receipt = Receipt::without_mark(charge.cost, LeaseId::default());
        Ok(Outcome {
            decision,
            receipt,
            source,
        })
    }

    /// The charges that are counted as hits.
    #[inline]
    pub(super) fn hits<'p>(&self, request: &'p impl RequestCharges<S::Key>) -> impl Iterator<Item = Hit<'p, S::Key>>
    where
        S::Key: 'p,
    {
        request.charges().filter_map(|planned| self.hit(planned))
    }

    /// A charge as a hit, if it is counted as one.
    #[inline]
    fn hit<'p>(&self, planned: &'p PlannedCharge<S::Key>) -> Option<Hit<'p, S::Key>> {
        let counting = planned.target.as_ref().filter(|_| self.store.counts_hits())?;
        let charge = &planned.charge;
        Some(Hit { charge, counting })
    }

    /// The charges that the store settles.
    #[inline]
    pub(super) fn settled_charges(&self, request: &impl RequestCharges<S::Key>) -> Vec<Charge<S::Key>> {
        let settled = request.charges().filter(|planned| self.hit(planned).is_none());
        let mut charges = Vec::with_capacity(request.charges().count());
        charges.extend(settled.map(|planned| planned.charge));
        charges
    }

    #[inline]
    fn settled_mut<'p>(
        &self,
        request: &'p mut impl RequestCharges<S::Key>,
    ) -> impl Iterator<Item = &'p mut PlannedCharge<S::Key>>
    where
        S::Key: 'p,
    {
        request.charges_mut().filter(|planned| self.hit(planned).is_none())
    }

    fn counted_mut<'p>(
        &self,
        request: &'p mut impl RequestCharges<S::Key>,
    ) -> impl Iterator<Item = &'p mut PlannedCharge<S::Key>>
    where
        S::Key: 'p,
    {
        request.charges_mut().filter(|planned| self.hit(planned).is_some())
    }
}

/// The charge of a request that has only one, as most have: it is settled where it is.
#[inline]
fn only_charge<K>(request: &impl RequestCharges<K>) -> Option<&Charge<K>> {
    let mut charges = request.charges();
    let first = charges.next()?;
    charges.next().is_none().then_some(&first.charge)
}

impl RequestSettlement {
    fn now(&self) -> Option<Timestamp> {
        let settlement = self.settled.as_ref().or(self.counted.as_ref());
        settlement.map(|settlement| settlement.now)
    }
}

/// Replaces the outcomes that allow by these standings.
fn replace_allowed(peeked: &mut Option<Settlement>, standings: Option<Settlement>) {
    let outcomes = peeked.iter_mut().flat_map(|peeked| &mut peeked.outcomes);
    let standings = standings.into_iter().flat_map(|standings| standings.outcomes);
    for (outcome, standing) in outcomes.zip(standings) {
        if outcome.is_ok_and(|outcome| outcome.decision.is_allow()) {
            *outcome = standing;
        }
    }
}

/// The outcomes of a settlement, as plans record them.
#[inline]
fn outcomes(settlement: Option<&Settlement>) -> impl Iterator<Item = Result<Outcome, Undecided>> {
    let outcomes = settlement.into_iter().flat_map(|settlement| &settlement.outcomes);
    outcomes.map(|outcome| outcome.map_err(Undecided::from))
}

impl From<StoreError> for Undecided {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Skipped => Self::Skipped,
            _ => Self::Failed,
        }
    }
}
