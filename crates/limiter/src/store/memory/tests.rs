//! A single charge is settled as one of several is, and a late thread hands nothing out twice.

use super::*;
use crate::conformance::{Harness, block_on, conformance};
use crate::limits::TokenBucket;
use crate::{LimitCheck, Limiter};

/// Settles single charges as `Limiter::check` does, with the shortcut for one unit.
struct OneByOne(Memory);

impl Keyspace for OneByOne {
    type Key = Fingerprint;
    type Template = MemoryKeyTemplate;

    fn template(&self, counter: &Counter<'_>) -> MemoryKeyTemplate {
        self.0.template(counter)
    }

    fn key(&self, template: &MemoryKeyTemplate, per: &[&[u8]]) -> Fingerprint {
        self.0.key(template, per)
    }
}

impl CounterStore for OneByOne {}

impl Store for OneByOne {
    async fn settle(&self, charges: &[Charge<Fingerprint>], lease: LeaseId) -> Settlement {
        let [charge] = charges else {
            return self.0.settle(charges, lease).await;
        };
        let options = ChargeOptions {
            cost: charge.cost,
            policy: charge.policy,
            lease,
        };
        let outcome: Outcome = self.0.settle_one(charge.key, &charge.limit, options);
        Settlement {
            allowed: outcome.decision.is_allow() || charge.policy == Policy::Shadow,
            now: self.0.now(),
            outcomes: vec![Ok(outcome)],
        }
    }

    async fn peek(&self, charges: &[Charge<Fingerprint>]) -> Settlement {
        self.0.peek(charges).await
    }

    async fn undo(&self, key: Fingerprint, limit: &Limit, receipt: &Receipt) -> Result<(), StoreError> {
        self.0.undo(key, limit, receipt).await
    }

    async fn refund(&self, charge: &Charge<Fingerprint>) -> Result<(Decision, Source), StoreError> {
        self.0.refund(charge).await
    }

    async fn release(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<bool, StoreError> {
        self.0.release(key, limit, lease).await
    }

    fn release_later(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) {
        self.0.release_later(key, limit, lease);
    }

    async fn renew(&self, key: Fingerprint, limit: &Limit, lease: LeaseId) -> Result<Option<Micros>, StoreError> {
        self.0.renew(key, limit, lease).await
    }

    async fn forget(&self, key: Fingerprint, limit: &Limit) -> Result<bool, StoreError> {
        self.0.forget(key, limit).await
    }

    fn status(&self) -> StoreStatus {
        self.0.status()
    }
}

/// A counting limit once returned the standing before its charge.
#[test]
fn one_charge_is_settled_as_every_store_must_settle_it() {
    let clock = Clock::manual(Timestamp::from_micros(1_770_854_400_000_000));
    let store = OneByOne(Memory::options().clock(clock.clone()).build());
    let bench = Harness::new(store).with_clock(move |span| clock.advance(span));
    block_on(conformance(&bench)).expect("it conforms");
}

#[test]
fn a_thread_that_waited_long_for_its_lock_hands_nothing_out_twice() {
    let at = |ms| Timestamp::from_micros(1_770_854_400_000_000) + Micros::from_millis(ms);
    let clock = Clock::manual(at(5_000));
    let limiter = Limiter::new(Memory::options().clock(clock.clone()).build());
    let limit = limiter
        .limit("one", TokenBucket::per_second(1))
        .expect("a limit is one");
    assert!(limiter.check(&limit, "a").is_allow());
    // Its time was read five seconds before the charge that got in first.
    clock.set(at(0));
    assert!(!limiter.check(&limit, "a").is_allow());
    assert!(!limiter.check_all(&[LimitCheck::one(&limit, "a")]).allowed);
    clock.set(at(5_999));
    assert!(!limiter.check(&limit, "a").is_allow(), "a second has not passed since");
    clock.set(at(6_000));
    assert!(limiter.check(&limit, "a").is_allow());
}
