//! Permits of whole attempts, their renewal, and costs that are corrected.

use super::{attempt, attributes, rules, stopped_store};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::Micros;
use tollgate_limiter::limits::{Concurrency, TokenBucket};
use tollgate_limiter::store::CostCorrection;
use tollgate_limiter::{ActualUse, LeaseRenewer, LimitCheck, Limiter, RuleLimiter, SlotCheck};

const SEARCHES: &str = r"
rules:
- { id: all, algorithm: concurrency, limit: 2, lease_ttl: 10s }
- { id: user, per: user, algorithm: concurrency, limit: 1, lease_ttl: 5s }
- { id: rate, per: user, limit: 100/min }
";

fn remaining(limiter: &RuleLimiter, pairs: &[&str]) -> Vec<u64> {
    let result = limiter.check_now(&attempt(&attributes(pairs), 0));
    let rulings = result.verdict.rulings.iter();
    rulings
        .map(|ruling| ruling.decision.map_or(0, |decision| decision.standing().remaining))
        .collect()
}

#[test]
fn a_permit_holds_the_slots_of_all_rules_and_a_denied_attempt_none() {
    let (store, _) = stopped_store();
    let limiter = RuleLimiter::new(rules(SEARCHES), store);
    let attributes = attributes(&["user=a"]);
    let acquire = || limiter.acquire_now(&attempt(&attributes, 1));
    let (first, permit) = acquire();
    assert!(first.verdict.allowed && permit.is_some());
    assert_eq!(first.lease, None, "the permit alone releases it");
    assert_eq!(remaining(&limiter, &["user=a"]), [1, 0, 99]);
    let (second, none) = acquire();
    assert!(!second.verdict.allowed && none.is_none());
    assert_eq!(remaining(&limiter, &["user=a"]), [1, 0, 99]);
    let clone = permit.clone();
    drop(permit);
    assert_eq!(remaining(&limiter, &["user=a"]), [1, 0, 99]);
    drop(clone);
    assert_eq!(remaining(&limiter, &["user=a"]), [2, 1, 99]);
}

#[test]
fn rates_and_slots_in_code_pass_together_or_not_at_all() {
    let limiter = Limiter::in_memory();
    let rate = limiter.limit("rate", TokenBucket::per_hour(2)).expect("valid");
    let [one, two] = ["one", "two"].map(|id| limiter.concurrency(id, Concurrency::at_most(1)).expect("valid"));
    let acquire = || {
        limiter.acquire_all(
            &[LimitCheck::one(&rate, "x")],
            &[SlotCheck::new(&one, "x"), SlotCheck::new(&two, "x")],
        )
    };
    let (first, permit) = acquire();
    assert!(first.allowed);
    assert!(!acquire().0.allowed, "the slots are taken");
    drop(permit);
    let (third, permit) = acquire();
    assert!(third.allowed && permit.is_some_and(|permit| permit.renew().is_some()));
    let (fourth, none) = acquire();
    assert!(!fourth.allowed && none.is_none(), "the rate is used up");
    assert!(limiter.acquire(&one, "x").is_ok() && limiter.acquire(&two, "x").is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_renewer_keeps_long_permits_and_forgets_dropped_ones() {
    let (store, clock) = stopped_store();
    let limiter = RuleLimiter::new(rules(SEARCHES), Arc::clone(&store));
    let renewer = LeaseRenewer::new();
    let attributes = attributes(&["user=a"]);
    let (_, permit) = limiter.acquire_now(&attempt(&attributes, 1));
    let permit = permit.expect("slots are free");
    renewer.keep(&permit);
    for _ in 0..400 {
        clock.advance(Micros::from_millis(100));
        tokio::time::advance(Duration::from_millis(100)).await;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(remaining(&limiter, &["user=a"]), [1, 0, 100]);
    assert!(renewer.renewed() >= 8, "{} in eight terms", renewer.renewed());
    assert_eq!((renewer.held(), renewer.expired()), (1, 0));
    drop(permit);
    assert_eq!((renewer.held(), remaining(&limiter, &["user=a"])), (0, vec![2, 1, 100]));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_expired_is_counted_and_not_taken_again() {
    let (store, clock) = stopped_store();
    let limiter = RuleLimiter::new(rules(SEARCHES), Arc::clone(&store));
    let renewer = LeaseRenewer::new();
    let attributes = attributes(&["user=a"]);
    let (_, permit) = limiter.acquire_now(&attempt(&attributes, 1));
    let permit = permit.expect("slots are free");
    renewer.keep(&permit);
    // The store's clock alone goes on, as if this process had been stopped.
    clock.advance(Micros::from_secs(11));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((renewer.held(), renewer.expired()), (0, 1));
    assert_eq!(remaining(&limiter, &["user=a"]), [2, 1, 100]);
    drop(permit);
}

#[test]
fn only_rules_whose_cost_came_from_the_attribute_are_corrected() {
    const RULES: &str = r"
rules:
- { id: requests, per: user, limit: 100/min }
- { id: tokens, per: user, limit: 1000/min, cost: { attribute: tokens, default: 10 } }
- { id: bytes, per: user, limit: 1000/min, cost: { attribute: bytes, default: 10 } }
- { id: watched, per: user, limit: 50/min, cost: { attribute: tokens, default: 10 }, mode: shadow }
";
    let (store, _) = stopped_store();
    let limiter = RuleLimiter::new(rules(RULES), store);
    let attributes = attributes(&["user=a", "tokens=300", "bytes=40"]);
    let attempt = attempt(&attributes, 1);
    let (result, _) = limiter.acquire_now(&attempt);
    let shadows: Vec<Box<str>> = result
        .verdict
        .rulings
        .iter()
        .filter(|ruling| !ruling.is_allow())
        .map(|ruling| ruling.rule.id().into())
        .collect();
    assert_eq!(shadows, [Box::<str>::from("watched")]);
    assert_eq!(remaining(&limiter, &["user=a"]), [99, 700, 960, 50]);
    let correct = |actual| {
        let actual_use = ActualUse {
            attribute: "tokens",
            actual,
            uncharged_rules: &shadows,
        };
        block_on(limiter.correct_cost(&attempt, &actual_use)).expect("a memory store")
    };
    let refunded = correct(120);
    assert_eq!(
        refunded,
        CostCorrection {
            refunded: 180,
            ..CostCorrection::default()
        }
    );
    assert_eq!(remaining(&limiter, &["user=a"]), [99, 880, 960, 50]);
    let charged = correct(1_500);
    let expected = CostCorrection {
        charged: 880,
        overrun: 320,
        ..CostCorrection::default()
    };
    assert_eq!(
        (charged, remaining(&limiter, &["user=a"])),
        (expected, vec![99, 0, 960, 50])
    );
}

#[test]
fn a_slot_that_has_expired_does_not_end_the_renewal_of_the_others() {
    let (store, clock) = stopped_store();
    let limiter = Limiter::new(Arc::into_inner(store).expect("no clone"));
    let slots = |id, ttl| {
        let slots = Concurrency::at_most(1).lease_ttl(Duration::from_secs(ttl));
        limiter.concurrency(id, slots).expect("valid")
    };
    let (short, long) = (slots("short", 5), slots("long", 10));
    let (_, permit) = limiter.acquire_all(&[], &[SlotCheck::new(&short, "x"), SlotCheck::new(&long, "x")]);
    let permit = permit.expect("slots are free");
    assert_eq!(permit.renew(), Some(Micros::from_secs(5)));
    for _ in 0..3 {
        clock.advance(Micros::from_secs(6));
        assert_eq!(permit.renew(), Some(Micros::from_secs(10)));
        assert!(limiter.acquire(&long, "x").is_err(), "it is still held");
        assert!(limiter.acquire(&short, "x").is_ok());
    }
    clock.advance(Micros::from_secs(11));
    assert_eq!(permit.renew(), None);
}

#[tokio::test(start_paused = true)]
async fn a_renewer_keeps_what_is_left_of_a_permit() {
    const RULES: &str = r"
rules:
- { id: user, per: user, algorithm: concurrency, limit: 1, lease_ttl: 5s }
- { id: all, algorithm: concurrency, limit: 2, lease_ttl: 10s }
";
    let (store, clock) = stopped_store();
    let limiter = RuleLimiter::new(rules(RULES), store);
    let renewer = LeaseRenewer::new();
    let attributes = attributes(&["user=a"]);
    let (_, permit) = limiter.acquire_now(&attempt(&attributes, 1));
    let permit = permit.expect("slots are free");
    renewer.keep(&permit);
    // The store's clock alone goes on, as if this process had been stopped.
    clock.advance(Micros::from_secs(6));
    for _ in 0..400 {
        clock.advance(Micros::from_millis(100));
        tokio::time::advance(Duration::from_millis(100)).await;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(remaining(&limiter, &["user=a"]), [1, 1]);
    assert_eq!((renewer.held(), renewer.expired()), (1, 1));
    // And is done when nothing is.
    clock.advance(Micros::from_secs(11));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!((renewer.held(), renewer.expired()), (0, 1));
    drop(permit);
}
