//! Refusals that need no asking: the store would say the same.

use crate::fixture::{Fixture, charge, every_limit, lease, rate, settle};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::{Charge, Concurrency, FixedWindow, Gcra, Limit, Micros, Policy, Retry, SlidingLog, TokenBucket};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Settlement, Source, Store};
use tollgate_limiter::testing::servers::ServerKind;

fn is_from_near_cache(settlement: &Settlement) -> bool {
    settlement
        .outcomes
        .iter()
        .flatten()
        .any(|outcome| outcome.source == Source::Near)
}

/// Takes all that a key has, and one more, which the store refuses.
async fn exhaust(store: &Redis, key: RedisKey, limit: &Limit) {
    for _ in 0..limit.capacity() {
        assert!(settle(store, key, limit, 1).await.allowed);
    }
    settle(store, key, limit, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_nearby_the_store_refuses_too() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let (cached, uncached) = (fixture.options().open(), fixture.options().near_cache(false).open());
    // Refilled while it is asked, so that refusals end again and again.
    for limit in every_limit(20, Micros::from_secs(1)) {
        let key = fixture.counter(&cached, &limit, "mixed");
        let mut denied = 0;
        let end = Instant::now() + Duration::from_millis(600);
        for turn in 0_u64.. {
            if Instant::now() > end {
                break;
            }
            let cost = [1, 3, 7, 1, 20, 2][turn as usize / 16 % 6];
            let settlement = settle(&cached, key, &limit, cost).await;
            if !is_from_near_cache(&settlement) {
                continue;
            }
            assert!(!settlement.allowed);
            denied += 1;
            let denied_with = settlement.outcomes[0].expect("an answer").decision;
            let peeked = uncached.peek(&[charge(key, &limit, cost)]).await;
            let store = peeked.outcomes[0].expect("an answer").decision;
            // The store is asked later than the refusal was made, and may have refilled at last: then the refusal must
            // have said to wait for no longer than until then.
            if store.is_allow() {
                let wait = denied_with.retry().expect("a refusal");
                let tollgate_core::Retry::After(wait) = wait else {
                    panic!("{limit:?}: {cost} passes, and was told {wait:?}")
                };
                assert!(
                    settlement.now + wait <= peeked.now,
                    "{limit:?}: {denied_with:?}, then {store:?}"
                );
            }
        }
        let is_leased = matches!(limit, Limit::Concurrency(_));
        assert_eq!(denied == 0, is_leased, "{limit:?}: {denied} refused nearby");
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_here_can_be_taken_at_once() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    for limit in every_limit(3, Micros::from_secs(3_600)) {
        // What is shaped or queued promises nothing back.
        let has_refunds = !matches!(limit, Limit::LeakyBucket(_));
        let key = fixture.counter(&store, &limit, "refunded");
        exhaust(&store, key, &limit).await;
        let denied = settle(&store, key, &limit, 1).await;
        assert!(!denied.allowed);
        assert_eq!(
            is_from_near_cache(&denied),
            !matches!(limit, Limit::Concurrency(_)),
            "{limit:?}"
        );
        if has_refunds && !matches!(limit, Limit::Concurrency(_)) {
            store.refund(&charge(key, &limit, 1)).await.expect("refunded");
            let again = settle(&store, key, &limit, 1).await;
            assert!(again.allowed, "{limit:?}: {again:?}");
            let undone = again.outcomes[0].expect("an answer").receipt;
            assert!(!settle(&store, key, &limit, 1).await.allowed);
            store.undo(key, &limit, &undone).await.expect("undone");
            let again = settle(&store, key, &limit, 1).await;
            assert!(again.allowed, "{limit:?}: {again:?}");
        }
        assert!(!settle(&store, key, &limit, 1).await.allowed);
        assert!(store.forget(key, &limit).await.expect("cleared"));
        assert!(settle(&store, key, &limit, 1).await.allowed, "{limit:?}");
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_elsewhere_is_known_within_250_ms() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let (local, elsewhere) = (fixture.options().open(), fixture.options().open());
    let limit = Limit::from(TokenBucket::new(rate(3, Micros::from_secs(3_600))));
    let key = fixture.counter(&local, &limit, "refunded");
    exhaust(&local, key, &limit).await;
    let requested = Instant::now();
    assert!(is_from_near_cache(&settle(&local, key, &limit, 1).await));
    elsewhere.refund(&charge(key, &limit, 1)).await.expect("refunded");
    // Asked all the time: refusals from nearby must not keep themselves alive.
    while !settle(&local, key, &limit, 1).await.allowed {
        let since = requested.elapsed();
        assert!(since < Duration::from_millis(400), "still refused after {since:?}");
        sleep(Duration::from_millis(1)).await;
    }
    fixture.audit();
}

/// A cost above what remained was denied with the figures of before, although another instance had spent the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_has_the_figures_of_the_store_also_when_others_spend() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let (local, elsewhere) = (fixture.options().open(), fixture.options().open());
    for limit in every_limit(10, Micros::from_secs(1_000)) {
        let key = fixture.counter(&local, &limit, "spent");
        assert!(settle(&local, key, &limit, 3).await.allowed);
        assert!(!settle(&local, key, &limit, 8).await.allowed, "{limit:?}: 7 remain");
        assert!(settle(&elsewhere, key, &limit, 7).await.allowed);
        for cost in [8, 1, 8] {
            let denial = settle(&local, key, &limit, cost).await;
            let peeked = elsewhere.peek(&[charge(key, &limit, cost)]).await;
            let [denied, store] =
                [&denial, &peeked].map(|settlement| settlement.outcomes[0].expect("an answer").decision);
            assert_eq!(denied.standing().remaining, 0, "{limit:?}: {denial:?}");
            if let (Some(Retry::After(wait)), Some(Retry::After(later))) = (denied.retry(), store.retry()) {
                // The same instant, whichever clock it is counted on.
                let gap = (denial.now + wait)
                    .since(peeked.now + later)
                    .max((peeked.now + later).since(denial.now + wait));
                assert!(
                    gap < Micros::from_millis(2),
                    "{limit:?} at {cost}: {denied:?} and {store:?}"
                );
            }
        }
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_counted_although_refused_is_always_asked() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    let limit = Limit::from(FixedWindow::new(rate(2, Micros::from_secs(86_400 * 365))));
    let key = fixture.counter(&store, &limit, "counted");
    exhaust(&store, key, &limit).await;
    assert!(is_from_near_cache(&settle(&store, key, &limit, 1).await));
    let count = Charge {
        policy: Policy::Count,
        ..charge(key, &limit, 1)
    };
    let before = store.metrics().calls.get();
    for _ in 0..5 {
        let settlement = store.settle(&[count], lease()).await;
        assert!(
            !settlement.allowed && !is_from_near_cache(&settlement),
            "{settlement:?}"
        );
    }
    // One that is refused and one that counts: the whole request is asked.
    let other = fixture.counter(&store, &limit, "other");
    let both = [charge(key, &limit, 1), Charge { key: other, ..count }];
    assert!(!is_from_near_cache(&store.settle(&both, lease()).await));
    assert_eq!(store.metrics().calls.get() - before, 6);
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_always_asked_for() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    let limit = Limit::from(Concurrency::new(2, Micros::from_secs(60)).expect("in range"));
    let key = fixture.counter(&store, &limit, "held");
    let (first, second) = (lease(), lease());
    for held in [first, second] {
        assert!(store.settle(&[charge(key, &limit, 1)], held).await.allowed);
    }
    let before = store.metrics().calls.get();
    for _ in 0..5 {
        let denied = settle(&store, key, &limit, 1).await;
        assert!(!denied.allowed && !is_from_near_cache(&denied));
    }
    assert_eq!(store.metrics().calls.get() - before, 5);
    assert!(store.release(key, &limit, first).await.expect("released"));
    assert!(settle(&store, key, &limit, 1).await.allowed);
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_charges_of_one_log_do_not_refuse_one_alone() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    let limit = Limit::from(SlidingLog::new(rate(3, Micros::from_secs(60))).expect("in range"));
    let key = fixture.counter(&store, &limit, "twice");
    assert!(settle(&store, key, &limit, 2).await.allowed);
    // The second of them finds nothing left. One alone would.
    let one = charge(key, &limit, 1);
    assert!(!store.settle(&[one, one], lease()).await.allowed);
    let single = store.settle(&[one], lease()).await;
    assert!(single.allowed, "{single:?}");
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_hammered_costs_few_calls_and_loses_nothing() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let limit = Limit::from(Gcra::new(rate(10, Micros::from_secs(1))));
    let stores: Vec<Arc<Redis>> = (0..4).map(|_| Arc::new(fixture.options().open())).collect();
    let key = fixture.counter(&stores[0], &limit, "hammered");
    // The first second, in which the burst goes.
    let start = settle(&*stores[0], key, &limit, 1).await.now;
    while settle(&*stores[0], key, &limit, 1).await.now < start + Micros::from_secs(1) {
        sleep(Duration::from_millis(1)).await;
    }
    let calls = |stores: &[Arc<Redis>]| -> u64 { stores.iter().map(|store| store.metrics().calls.get()).sum() };
    let before = calls(&stores);
    let from = start + Micros::from_secs(1);
    let end = from + Micros::from_secs(2);
    let mut tasks = Vec::new();
    for store in &stores {
        let store = Arc::clone(store);
        tasks.push(tokio::spawn(async move {
            let (mut requested, mut passed) = (0_u64, 0_u64);
            loop {
                let settlement = settle(&*store, key, &limit, 1).await;
                if settlement.now >= end {
                    return (requested, passed);
                }
                requested += 1;
                passed += u64::from(settlement.allowed);
                tokio::task::yield_now().await;
            }
        }));
    }
    let (mut requested, mut passed) = (0, 0);
    for task in tasks {
        let (more_requested, more_passed) = task.await.expect("a task that ends");
        (requested, passed) = (requested + more_requested, passed + more_passed);
    }
    let made = calls(&stores) - before;
    // Two seconds: 20 come back, and each is asked for by each of four instances, at most three times.
    assert!((19..=21).contains(&passed), "{passed} passed");
    assert!(made <= 2 * 3 * 4 * 10, "{made} calls for {requested} requests");
    assert!(requested > 10_000, "{requested} were asked");
    fixture.audit();
}
