//! The failure policies of rules, one by one and combined, while the store is unavailable.

use crate::fixture::{Fixture, rate};
use std::sync::Arc;
use tollgate_core::rules::{Attempt, ParserOptions, RulesParser};
use tollgate_core::{Charge, Cost, FixedWindow, LeaseId, Limit, Micros, OnStoreFailure, Policy, TokenBucket};
use tollgate_limiter::store::{SettleRequest, Settlement, Source, Store, StoreError, StoreMode};
use tollgate_limiter::{AttemptItem, Direction, Fingerprint, InlineLimit, ItemVerdict, RuleLimiter};

fn limit(units: u64) -> Limit {
    TokenBucket::new(rate(units, Micros::from_secs(1_000))).into()
}

fn with_on_failure(on_failure: OnStoreFailure, charge: Charge<Fingerprint>) -> Charge<Fingerprint> {
    Charge { on_failure, ..charge }
}

const OPEN: OnStoreFailure = OnStoreFailure::Open { cap: None };

/// What of a request was decided, and by whom.
fn outcomes(settlement: &Settlement) -> Vec<Option<(bool, Source)>> {
    let outcomes = settlement.outcomes.iter().map(|outcome| outcome.ok());
    outcomes
        .map(|outcome| outcome.map(|outcome| (outcome.decision.is_allow(), outcome.source)))
        .collect()
}

#[tokio::test]
async fn open_and_closed_stay_without_an_answer_and_a_cap_is_one() {
    let fixture = Fixture::new(1, 1);
    fixture.cut_all(true);
    let store = &fixture.instances[0];
    let cap = OnStoreFailure::Open {
        cap: Some(rate(2, Micros::from_secs(1_000))),
    };
    let plain = fixture.charge(&FixedWindow::new(rate(100, Micros::from_secs(1_000))).into(), "u", 1);
    for (on_failure, expected) in [
        (OPEN, None),
        (OnStoreFailure::Closed, None),
        (OnStoreFailure::Local, Some((true, Source::Local))),
        (cap, Some((true, Source::Open))),
        (cap, Some((true, Source::Open))),
        (cap, Some((false, Source::Open))),
    ] {
        let settlement = store.settle(&[with_on_failure(on_failure, plain)], LeaseId(1)).await;
        assert_eq!(outcomes(&settlement), [expected], "{on_failure:?}");
    }
}

#[tokio::test]
async fn beside_one_that_is_closed_nothing_is_taken_here() {
    let fixture = Fixture::new(1, 1);
    fixture.cut_all(true);
    let store = &fixture.instances[0];
    let local = fixture.charge(&limit(5), "u", 3);
    let closed = with_on_failure(OnStoreFailure::Closed, fixture.charge(&limit(7), "v", 1));
    for _ in 0..3 {
        let mut settlement = store.settle(&[local, closed], LeaseId(1)).await;
        assert_eq!(outcomes(&settlement), [Some((true, Source::Local)), None]);
        store.compensate(&[local, closed], &mut settlement).await;
    }
    let watched = Charge {
        policy: Policy::Shadow,
        ..closed
    };
    assert!(store.settle(&[local, watched], LeaseId(1)).await.outcomes[0].is_ok());
    assert!(
        !store.settle(&[local], LeaseId(1)).await.allowed,
        "what only watches closes nothing"
    );
}

#[tokio::test]
async fn what_was_taken_here_is_taken_back_for_a_refusal_that_only_the_verdict_knows() {
    let fixture = Fixture::new(2, 2);
    let (bucket, watched) = (limit(100), limit(50));
    for (number, store) in fixture.instances.iter().enumerate() {
        let subject = format!("u{number}");
        let window: Limit = FixedWindow::new(rate(100, Micros::from_secs(1_000))).into();
        let counted = Charge {
            policy: Policy::Count,
            ..fixture.charge(&window, &subject, 1)
        };
        let quota = Charge {
            policy: Policy::Shadow,
            ..fixture.charge(&watched, "quota", 1)
        };
        let exact = fixture.charge(&bucket, &subject, 3);
        fixture.cut(number, true);
        let left = async |charge: &Charge<Fingerprint>| {
            let peeked = store.peek(&[charge.as_peek()]).await;
            peeked.outcomes[0].expect("an outcome").decision.standing().remaining
        };
        // Alone and beside others, all of which let it pass.
        for charges in [&[exact][..], &[exact, counted, quota]] {
            let mut settlement = store.settle(charges, LeaseId(1)).await;
            assert!(settlement.allowed);
            assert_eq!(left(&exact).await, 47);
            store.compensate(charges, &mut settlement).await;
            let remaining = settlement.outcomes[0]
                .expect("an outcome")
                .decision
                .standing()
                .remaining;
            assert_eq!((left(&exact).await, remaining), (50, 50));
        }
        // What counts in any case stays.
        assert_eq!((left(&quota).await, left(&counted).await), (25, 49));
        // Nor is it charged to the store afterwards.
        fixture.cut(number, false);
        assert!(store.settle(&[exact], LeaseId(1)).await.allowed);
        assert_eq!(fixture.used(&bucket, &subject).await, 3);
    }
}

#[tokio::test]
async fn a_request_takes_everywhere_or_nowhere() {
    // One limit is full: nothing is taken from the other, here as there.
    let fixture = Fixture::new(1, 1);
    let store = &fixture.instances[0];
    let (wide, narrow) = (fixture.charge(&limit(100), "u", 10), fixture.charge(&limit(5), "v", 5));
    fixture.cut_all(true);
    assert!(store.settle(&[wide, narrow], LeaseId(1)).await.allowed);
    for _ in 0..5 {
        let settlement = store.settle(&[wide, narrow], LeaseId(1)).await;
        assert!(!settlement.allowed);
    }
    let peeked = store.peek(&[wide.as_peek()]).await;
    assert_eq!(
        peeked.outcomes[0].expect("an outcome").decision.standing().remaining,
        90
    );
}

#[tokio::test]
async fn local_only_asks_nobody_whatever_rules_say_and_shared_only_decides_nothing_here() {
    let fixture = Fixture::new(1, 2);
    let store = &fixture.instances[0];
    let plain = fixture.charge(&limit(100), "u", 1);
    fixture.set_mode(StoreMode::LocalOnly);
    for on_failure in [OPEN, OnStoreFailure::Closed, OnStoreFailure::Local] {
        let settlement = store.settle(&[with_on_failure(on_failure, plain)], LeaseId(1)).await;
        let outcome = settlement.outcomes[0].expect("decided here");
        assert_eq!((outcome.source, outcome.decision.standing().limit), (Source::Local, 50));
    }
    assert_eq!(fixture.used(&limit(100), "u").await, 0);
    // What passed meanwhile is charged as soon as the store is asked again.
    fixture.set_mode(StoreMode::SharedOnly);
    assert!(store.settle(&[plain], LeaseId(1)).await.allowed);
    assert_eq!(fixture.used(&limit(100), "u").await, 4);
    fixture.cut_all(true);
    assert_eq!(outcomes(&store.settle(&[plain], LeaseId(1)).await), [None]);
}

#[tokio::test]
async fn a_limit_that_a_caller_brings_is_closed_where_nothing_is_decided_here() {
    let mut fixture = Fixture::new(1, 2);
    fixture.cut_all(true);
    let store = Arc::new(fixture.instances.remove(0));
    let rules = || {
        RulesParser::new(ParserOptions::default())
            .finish()
            .expect("no rules")
            .rules
    };
    let item = |direction| AttemptItem {
        attempt: Attempt {
            domain: Attempt::DOMAIN,
            attributes: &[],
            cost: Cost::ONE,
        },
        direction,
        inline_limit: Some(InlineLimit::Limited(limit(100))),
    };
    let local = RuleLimiter::new(rules(), Arc::clone(&store));
    let verdict = local.check_all(&[item(Direction::Consume)]).await;
    assert!(
        verdict.allowed && matches!(verdict.items[0], ItemVerdict::Inline(Some(_), Source::Local, _)),
        "{verdict:?}"
    );

    store.set_mode(StoreMode::SharedOnly);
    let closed = RuleLimiter::new(rules().closed_without_store(), store);
    let verdict = closed.check_all(&[item(Direction::Consume)]).await;
    assert!(
        !verdict.allowed && matches!(verdict.items[0], ItemVerdict::Inline(None, Source::Closed, _)),
        "{verdict:?}"
    );
    // What is given back refuses nothing.
    let verdict = closed.check_all(&[item(Direction::Refund)]).await;
    assert!(verdict.allowed && verdict.items[0].is_allow(), "{verdict:?}");
}

#[tokio::test]
async fn a_cost_above_the_share_is_refused_and_one_unit_is_always_there() {
    let fixture = Fixture::new(1, 8);
    fixture.cut_all(true);
    let store = &fixture.instances[0];
    let window: Limit = FixedWindow::new(rate(3, Micros::from_secs(1_000))).into();
    assert!(
        store
            .settle(&[fixture.charge(&window, "u", 1)], LeaseId(1))
            .await
            .allowed
    );
    assert!(
        !store
            .settle(&[fixture.charge(&window, "u", 1)], LeaseId(1))
            .await
            .allowed
    );
    assert!(
        !store
            .settle(&[fixture.charge(&limit(80), "u", 11)], LeaseId(1))
            .await
            .allowed
    );
    assert!(
        store
            .settle(&[fixture.charge(&limit(80), "u", 10)], LeaseId(1))
            .await
            .allowed
    );
}

#[tokio::test]
async fn what_is_forgotten_is_forgotten_here_too() {
    let fixture = Fixture::new(1, 1);
    let store = &fixture.instances[0];
    let all = fixture.charge(&limit(5), "u", 5);
    fixture.cut_all(true);
    assert!(store.settle(&[all], LeaseId(1)).await.allowed);
    assert!(
        store.forget(all.key, &all.limit).await.is_err(),
        "nobody knows what the store holds"
    );
    assert!(store.settle(&[all], LeaseId(1)).await.allowed);
    fixture.cut_all(false);
    assert_eq!(store.forget(all.key, &all.limit).await, Ok(true));
    // Nor is it charged to the shared store.
    assert!(store.settle(&[all], LeaseId(1)).await.allowed);
}

#[tokio::test]
async fn what_is_given_back_here_can_be_taken_here_and_is_not_owed() {
    let fixture = Fixture::new(2, 2);
    let limit = limit(10);
    let subject = "u";
    let [one, two] = [1, 2].map(|cost| fixture.charge(&limit, subject, cost));
    let known = &fixture.instances[0];
    fixture.cut_all(true);
    let passed = async |times: usize| {
        let mut passed = 0;
        for _ in 0..times {
            passed += u32::from(known.settle(&[one], LeaseId(1)).await.allowed);
        }
        passed
    };
    assert_eq!(passed(7).await, 5, "its half of ten");
    let (decision, source) = known.refund(&two).await.expect("given back");
    assert_eq!((decision.standing().remaining, source), (2, Source::Local));
    assert_eq!(passed(3).await, 2);
    fixture.cut_all(false);
    assert!(known.settle(&[one], LeaseId(1)).await.allowed);
    assert_eq!(
        fixture.used(&limit, subject).await,
        5 + 1,
        "seven passed, and two of them did not count"
    );
    let (_, source) = known.refund(&one).await.expect("given back");
    assert_eq!((source, fixture.used(&limit, subject).await), (Source::Memory, 5));
}

#[tokio::test]
async fn what_the_store_may_have_given_back_is_not_given_here_too() {
    let fixture = Fixture::new(2, 2);
    let charge = fixture.charge(&limit(10), "u", 1);
    // The second is asked in vain.
    let unknown = &fixture.instances[1];
    fixture.cut_all(true);
    assert!(unknown.settle(&[charge], LeaseId(1)).await.allowed);
    assert_eq!(unknown.refund(&charge).await, Err(StoreError::Timeout));
    for on_failure in [OPEN, OnStoreFailure::Closed] {
        assert!(
            fixture.instances[0]
                .refund(&with_on_failure(on_failure, charge))
                .await
                .is_err()
        );
    }
    fixture.set_mode(StoreMode::LocalOnly);
    let refunded = unknown.refund(&charge).await;
    assert_eq!(refunded.map(|(_, source)| source), Ok(Source::Local));
}

#[tokio::test]
async fn a_batch_is_settled_in_order_after_the_repayments_of_its_keys() {
    let fixture = Fixture::new(1, 1);
    let store = &fixture.instances[0];
    let [four, three] = [4, 3].map(|cost| [fixture.charge(&limit(10), "u", cost)]);
    let request = |charges| SettleRequest {
        charges,
        lease: LeaseId(1),
    };
    fixture.cut_all(true);
    assert!(store.settle(&four, LeaseId(1)).await.allowed);
    fixture.cut_all(false);
    let settlements = store
        .settle_each(&[request(&three), request(&three), request(&three)])
        .await;
    let allowed: Vec<bool> = settlements.iter().map(|settlement| settlement.allowed).collect();
    assert_eq!(allowed, [true, true, false]);
    assert_eq!(fixture.used(&limit(10), "u").await, 10);
    fixture.cut_all(true);
    let other = [fixture.charge(&limit(10), "other", 6)];
    let settlements = store.settle_each(&[request(&other), request(&other)]).await;
    let decided: Vec<_> = settlements.iter().flat_map(outcomes).collect();
    assert_eq!(decided, [Some((true, Source::Local)), Some((false, Source::Local))]);
}
