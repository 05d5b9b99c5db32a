//! One limit over many instances: never more than it allows by the store's clock, and nearly all of that.

use crate::fixture::{Fixture, rate, settle};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Cost, FixedWindow, Gcra, Limit, Micros, Now, SlidingCounter, SlidingLog, Timestamp, TokenBucket};
use tollgate_limiter::store::Source;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::excess_millionths;
use tollgate_limiter::testing::servers::ServerKind;

const INSTANCES: usize = 4;
const TASKS: usize = 64;

/// How long they ask, in the store's time.
const RUN: Micros = Micros::from_millis(2_000);

/// Instances that ask for one key as fast as they may, until its clock has run [`RUN`]: when each request passed.
async fn rush(fixture: &Fixture, limit: Limit) -> Vec<Timestamp> {
    let stores: Vec<Arc<Redis>> = (0..INSTANCES).map(|_| Arc::new(fixture.options().open())).collect();
    let key = fixture.counter(&stores[0], &limit, "hot");
    let first = settle(&*stores[0], key, &limit, 1).await;
    assert!(first.allowed, "{first:?}");
    let end = first.now + RUN;
    let mut tasks = Vec::new();
    for store in &stores {
        for _ in 0..TASKS {
            let store = Arc::clone(store);
            tasks.push(tokio::spawn(async move {
                let mut passed = Vec::new();
                loop {
                    let settlement = settle(&*store, key, &limit, 1).await;
                    let outcome = settlement.outcomes[0].expect("a store that answers");
                    if settlement.now > end {
                        return passed;
                    }
                    if settlement.allowed {
                        assert_eq!(outcome.source, Source::Shared);
                        passed.push(settlement.now);
                    } else {
                        sleep(Duration::from_millis(2)).await;
                    }
                }
            }));
        }
    }
    let mut passed = vec![first.now];
    for task in tasks {
        passed.extend(task.await.expect("a task that ends"));
    }
    passed.sort_unstable();
    passed
}

/// What passes if somebody asks all the time, by the core.
fn due(limit: &Limit, from: Timestamp) -> usize {
    let (mut state, mut passed) = (None, 0);
    for us in (0..=RUN.get()).step_by(50) {
        let step = limit.decide(state.as_ref(), Cost::ONE, Now::new(from + Micros::new(us)));
        if step.decision.is_allow() {
            passed += 1;
            limit.keep(
                &mut state,
                step.next.expect("what passes is kept"),
                crate::fixture::lease(),
            );
        }
    }
    passed
}

/// Runs a limit and holds it to its envelope, which `over` tells: by how much the times that passed are beyond it.
async fn holds(limit: impl Into<Limit>, over: impl Fn(&[u64]) -> i64) {
    let limit = limit.into();
    let fixture = Fixture::start(ServerKind::Redis70);
    let passed = rush(&fixture, limit).await;
    let us: Vec<u64> = passed.iter().map(|at| at.as_micros()).collect();
    let over = over(&us);
    assert!(over <= 0, "{limit:?}: {over} too many of {}", us.len());
    let due = due(&limit, passed[0]);
    assert!(us.len() * 100 >= due * 99, "{limit:?}: {} of {due} passed", us.len());
    assert_eq!(fixture.audit(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_bucket_is_one_over_all_instances() {
    let limit = TokenBucket::new(rate(1_000, Micros::from_secs(1)));
    let limit = limit.with_burst(200).expect("in range");
    holds(limit, |us| excess_millionths(us, 1_000, 200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gcra_is_one_over_all_instances() {
    let limit = Gcra::new(rate(700, Micros::from_secs(1)));
    let limit = limit.with_burst(100).expect("in range");
    holds(limit, |us| excess_millionths(us, 700, 100)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_window_is_one_over_all_instances() {
    let limit = FixedWindow::new(rate(300, Micros::from_millis(400)));
    holds(limit, |us| {
        let mut max = 0;
        for window in us.chunk_by(|one, next| one / 400_000 == next / 400_000) {
            max = max.max(window.len());
        }
        max as i64 - 300
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_log_is_one_over_all_instances() {
    let limit = SlidingLog::new(rate(300, Micros::from_millis(400))).expect("in range");
    holds(limit, |us| {
        let combined = us.windows(301).filter(|all| all[300] - all[0] < 400_000);
        combined.count() as i64
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sliding_counter_is_one_over_all_instances() {
    let limit = SlidingCounter::new(rate(300, Micros::from_millis(400)));
    holds(limit, |us| {
        let (mut previous, mut current, mut window, mut over) = (0, 0, 0, i64::MIN);
        for us in us {
            let this = us / 400_000;
            if this != window {
                previous = if this == window + 1 { current } else { 0 };
                (current, window) = (0, this);
            }
            current += 1;
            let remaining = 400_000 - (us % 400_000) as i64;
            over = over.max(previous * remaining + current * 400_000 - 300 * 400_000);
        }
        over
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_instances_and_380_requests_in_two_seconds_let_100_and_the_refill_pass() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let limit = Limit::from(TokenBucket::new(rate(100, Micros::from_secs(60))));
    let mut tasks = Vec::new();
    for _ in 0..INSTANCES {
        let store = fixture.options().open();
        let key = fixture.counter(&store, &limit, "merchant");
        tasks.push(tokio::spawn(async move {
            let mut settlement = Vec::new();
            for _ in 0..95 {
                settlement.push(settle(&store, key, &limit, 1).await);
                sleep(Duration::from_millis(20)).await;
            }
            settlement
        }));
    }
    let mut settlement = Vec::new();
    for task in tasks {
        settlement.extend(task.await.expect("a task that ends"));
    }
    assert_eq!(settlement.len(), 380);
    assert!(settlement.iter().all(|settlement| settlement.outcomes[0].is_ok()));
    let passed = settlement.iter().filter(|settlement| settlement.allowed).count() as u64;
    let times = || settlement.iter().map(|settlement| settlement.now);
    let (first, last) = (times().min().expect("some"), times().max().expect("some"));
    let refilled = last.since(first).get() * 100 / 60_000_000;
    // The last unit may have come after the last request that could take it.
    assert!(
        (100 + refilled.saturating_sub(1)..=100 + refilled).contains(&passed),
        "{passed} passed, {refilled} came back"
    );
    assert_eq!(fixture.audit(), 1);
}
