//! Tests of the conformance suite: each of these stores has one defect, and the suite must find it.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use tollgate_limiter::clock::Clock;
use tollgate_limiter::conformance::{Harness, block_on, conformance};
use tollgate_limiter::core::{
    Charge, Cost, Counter, Decision, LeaseId, Limit, Micros, OnStoreFailure, Policy, Receipt, Timestamp,
};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::{
    CounterStore, Keyspace, SettleRequest, Settlement, Source, Store, StoreError, StoreStatus,
};
use tollgate_limiter::{Fingerprint, MemoryKeyTemplate};

/// One mistake a store can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// Each charge of a request is settled for itself.
    ChargesSettledSeparately,
    /// Several requests are settled from the last to the first.
    EachReversed,
    /// A refused charge is taken all the same.
    DenialCharges,
    PeekCharges,
    UndoDoesNothing,
    /// Gives the cost back as if it were any unit.
    UndoRefundsMore,
    RefundDoesNothing,
    ForgetDoesNothing,
    ReleaseSaysYes,
    RenewDoesNothing,
    /// Rounds what is left of a limit's time to milliseconds.
    CoarseTimes,
    /// Counters of variants are one.
    VariantsMeet,
    /// The second value a subject is counted by is not looked at.
    ValuesMeet,
    /// Looks at one moment and takes at another: right as long as nobody else is there.
    PeekThenCharge,
    /// The charges of a refused request are taken and given back, and others can see it.
    Compensates,
}

struct FaultyStore {
    store: Memory,
    mistake: Mistake,
}

impl FaultyStore {
    async fn settle_separately(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        let mut all = self.store.peek(charges).await;
        for (charge, outcome) in charges.iter().zip(&mut all.outcomes) {
            let one = self.store.settle(&[*charge], lease).await;
            all.allowed &= one.allowed;
            *outcome = one.outcomes.first().copied().unwrap_or(Err(StoreError::Unavailable));
        }
        all
    }

    /// Charges in any case.
    async fn settle_counting(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        let mut counted = charges.to_vec();
        for charge in &mut counted {
            charge.policy = Policy::Count;
        }
        self.store.settle(&counted, lease).await
    }

    async fn settle_compensated(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        let mut all = self.settle_separately(charges, lease).await;
        linger();
        if !all.allowed {
            for (charge, outcome) in charges.iter().zip(&mut all.outcomes) {
                let kept = outcome.as_ref().is_ok_and(|outcome| outcome.decision.is_allow());
                if let Ok(outcome) = outcome
                    && kept
                {
                    let undone = self.store.undo(charge.key, &charge.limit, &outcome.receipt).await;
                    undone.expect("memory is always there");
                    let peeked = self
                        .store
                        .peek(&[Charge {
                            cost: Cost::ZERO,
                            ..*charge
                        }])
                        .await;
                    let peeked = peeked.outcomes.first().copied().expect("one charge");
                    outcome.decision = peeked.expect("memory is always there").decision;
                }
            }
        }
        all
    }
}

/// Lets other threads in: else the moment would be too short for them to see.
fn linger() {
    for _ in 0..20 {
        std::thread::yield_now();
    }
}

impl Keyspace for FaultyStore {
    type Key = Fingerprint;
    type Template = MemoryKeyTemplate;

    fn template(&self, counter: &Counter<'_>) -> MemoryKeyTemplate {
        let variant = if self.mistake == Mistake::VariantsMeet {
            ""
        } else {
            counter.variant
        };
        self.store.template(&Counter { variant, ..*counter })
    }

    fn key(&self, template: &MemoryKeyTemplate, per: &[&[u8]]) -> Fingerprint {
        match per {
            [first, _] if self.mistake == Mistake::ValuesMeet => self.store.key(template, &[first, b""]),
            _ => self.store.key(template, per),
        }
    }
}

impl CounterStore for FaultyStore {}

impl Store for FaultyStore {
    async fn settle_each(&self, requests: &[SettleRequest<'_, Fingerprint>]) -> Vec<Settlement> {
        let mut requests = requests.to_vec();
        let is_reversed = self.mistake == Mistake::EachReversed;
        if is_reversed {
            requests.reverse();
        }
        let mut settlements = Vec::new();
        for request in requests {
            settlements.push(self.settle(request.charges, request.lease).await);
        }
        if is_reversed {
            settlements.reverse();
        }
        settlements
    }

    async fn settle(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        match self.mistake {
            Mistake::ChargesSettledSeparately if charges.len() > 1 => self.settle_separately(charges, lease).await,
            Mistake::Compensates if charges.iter().all(|charge| charge.policy == Policy::Enforce) => {
                let several = charges.windows(2).all(|pair| matches!(pair, [a, b] if a.key != b.key));
                if charges.len() > 1 && several {
                    self.settle_compensated(charges, lease).await
                } else {
                    self.store.settle(charges, lease).await
                }
            }
            Mistake::DenialCharges => self.settle_counting(charges, lease).await,
            Mistake::PeekThenCharge => {
                let peeked = self.store.peek(charges).await;
                linger();
                if !peeked.allowed || charges.iter().any(|charge| charge.policy == Policy::Shadow) {
                    return self.store.settle(charges, lease).await;
                }
                let mut charged = self.settle_counting(charges, lease).await;
                charged.allowed = peeked.allowed;
                charged
            }
            Mistake::CoarseTimes => {
                let mut settlement = self.store.settle(charges, lease).await;
                for outcome in settlement.outcomes.iter_mut().flatten() {
                    let (Decision::Allow { standing, .. } | Decision::Deny { standing, .. }) = &mut outcome.decision;
                    standing.reset_after = Micros::from_millis(standing.reset_after.as_millis_ceil());
                }
                settlement
            }
            _ => self.store.settle(charges, lease).await,
        }
    }

    async fn peek(&self, charges: &[Charge<Fingerprint>]) -> Settlement {
        if self.mistake == Mistake::PeekCharges {
            return self.store.settle(charges, LeaseId::default()).await;
        }
        self.store.peek(charges).await
    }

    async fn undo(&self, key: Fingerprint, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        match self.mistake {
            Mistake::UndoDoesNothing => Ok(()),
            Mistake::UndoRefundsMore => {
                let all = Charge {
                    key,
                    limit: *limit,
                    cost: Cost::MAX,
                    policy: Policy::Enforce,
                    on_failure: OnStoreFailure::Local,
                };
                self.store.refund(&all).await.map(drop)
            }
            _ => self.store.undo(key, limit, receipt).await,
        }
    }

    async fn refund(&self, charge: &Charge<Fingerprint>) -> Result<(Decision, Source), StoreError> {
        match self.mistake {
            Mistake::RefundDoesNothing => self.store.refund(&charge.as_peek()).await,
            _ => self.store.refund(charge).await,
        }
    }

    async fn release(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        let released = self.store.release(key, limit, lease).await?;
        Ok(released || self.mistake == Mistake::ReleaseSaysYes)
    }

    fn release_later(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) {
        self.store.release_later(key, limit, lease);
    }

    async fn renew(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        if let Limit::Concurrency(limit) = limit
            && self.mistake == Mistake::RenewDoesNothing
        {
            return Ok(Some(limit.lease_ttl()));
        }
        self.store.renew(key, limit, lease).await
    }

    async fn forget(&self, key: Fingerprint, limit: &Limit) -> Result<bool, StoreError> {
        if self.mistake == Mistake::ForgetDoesNothing {
            return Ok(true);
        }
        self.store.forget(key, limit).await
    }

    fn status(&self) -> StoreStatus {
        self.store.status()
    }
}

fn harness(mistake: Mistake) -> Harness<FaultyStore> {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore {
        store: Memory::options().clock(clock.clone()).build(),
        mistake,
    };
    Harness::new(store)
        .with_clock(move |span| clock.advance(span))
        .threads(8, 25)
}

#[test]
fn every_mistake_is_found_and_named() {
    for (mistake, step) in [
        (
            Mistake::ChargesSettledSeparately,
            "several keys are charged all or none",
        ),
        (
            Mistake::EachReversed,
            "several requests are settled each on its own, in order",
        ),
        (Mistake::DenialCharges, "a limit is counted down to zero"),
        (Mistake::PeekCharges, "a peek consumes nothing"),
        (Mistake::UndoDoesNothing, "undo reverses one charge"),
        (Mistake::UndoRefundsMore, "undo reverses one charge"),
        (Mistake::RefundDoesNothing, "a refund never exceeds the capacity"),
        (Mistake::ForgetDoesNothing, "a forgotten key is fresh"),
        (Mistake::ReleaseSaysYes, "a lease is released, renewed, and expires"),
        (Mistake::RenewDoesNothing, "a lease is released, renewed, and expires"),
        (Mistake::CoarseTimes, ""),
        (Mistake::VariantsMeet, "counters of other identities are distinct"),
        (Mistake::ValuesMeet, "counters of other identities are distinct"),
        // By many threads on one key, or on two if they were lucky with one.
        (Mistake::PeekThenCharge, "number allowed"),
    ] {
        let error = block_on(conformance(&harness(mistake)))
            .err()
            .unwrap_or_else(|| format!("{mistake:?} is not found"));
        assert!(error.contains(step), "{mistake:?} is reported as: {error}");
        let (prefix, got) = error.split_once("expected ").expect("what was expected");
        assert!(Limit::ALGORITHMS.iter().any(|name| prefix.starts_with(name)), "{error}");
        assert!(got.contains(", got "), "{error}");
    }
    block_on(conformance(&harness(Mistake::None))).expect("it is right");
}

#[test]
fn a_store_that_compensates_passes_as_one() {
    block_on(conformance(&harness(Mistake::Compensates).compensated())).expect("it is right when all is quiet");
}
