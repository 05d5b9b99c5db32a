//! What is asked while a call is under way goes together as the next, and nobody pays for another's giving up.

use crate::fixture::{Fixture, charge, lease, rate, settle};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tollgate_core::{Charge, Concurrency, Limit, Micros, SlidingLog, TokenBucket};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Keyspace, Settlement, Source, Store, StoreError};
use tollgate_limiter::testing::admin;
use tollgate_limiter::testing::counters::{self, requests};
use tollgate_limiter::testing::servers::{Server, ServerKind};

type PendingSettle<'a> = Pin<Box<dyn Future<Output = Settlement> + Send + 'a>>;

/// A limit of which nothing comes back while a test runs.
fn limit() -> Limit {
    let log = SlidingLog::new(rate(100_000, Micros::from_secs(86_400)));
    log.expect("in range").into()
}

/// Asks for one unit, and begins at once.
fn start_settle<'a>(fixture: &Fixture, store: &'a Redis, subject: &str) -> PendingSettle<'a> {
    try_start_settle(fixture, store, subject).expect("a connected store")
}

/// The same. None if the store has lost its connection meanwhile and decides alone.
fn try_start_settle<'a>(fixture: &Fixture, store: &'a Redis, subject: &str) -> Option<PendingSettle<'a>> {
    let limit = limit();
    let key = fixture.counter(store, &limit, subject);
    let mut pending: PendingSettle<'a> = Box::pin(async move { settle(store, key, &limit, 1).await });
    poll(&mut pending).is_pending().then_some(pending)
}

fn poll<T>(pending: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) -> Poll<T> {
    pending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until the store is connected. Nothing is asked of the script.
async fn connected(store: &Redis) {
    while store.status().connection_error.is_some() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// The used units of a subject's counter, by another instance.
async fn used(fixture: &Fixture, subject: &str) -> u64 {
    let other = fixture.options().open();
    counters::used(&other, fixture.counter(&other, &limit(), subject), &limit()).await
}

/// The number of script calls, by the server's own count.
fn calls_received(fixture: &Fixture) -> u64 {
    admin::calls(&fixture.server, &["fcall", "evalsha"])
}

/// A server that stands still, and a store that is connected to it.
async fn frozen() -> (Fixture, Redis) {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    connected(&store).await;
    fixture.server.freeze();
    (fixture, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_who_wait_go_in_two_calls() {
    let (fixture, store) = frozen().await;
    let mut pending: Vec<PendingSettle> = (0..201)
        .map(|subject| start_settle(&fixture, &store, &subject.to_string()))
        .collect();
    fixture.server.thaw();
    for pending in pending.drain(..) {
        assert!(pending.await.allowed);
    }
    // The first goes alone.
    assert_eq!(store.metrics().calls.get(), 1 + 200_u64.div_ceil(128));
    assert_eq!(store.metrics().charges.get(), 201);
    assert_eq!(fixture.audit(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_may_wait_is_refused_at_once_and_who_left_is_not_asked_for() {
    let (fixture, store) = frozen().await;
    let mut pending: Vec<PendingSettle> = (0..=16_384).map(|_| start_settle(&fixture, &store, "many")).collect();
    let key = fixture.counter(&store, &limit(), "many");
    let one_more = timeout(Duration::from_secs(1), settle(&store, key, &limit(), 1)).await;
    let one_more = one_more.expect("an answer at once");
    assert_eq!(one_more.outcomes, [Err(StoreError::Overloaded)]);
    // All but the last give up.
    let last = pending.pop().expect("many");
    while pending.pop().is_some() {}
    fixture.server.thaw();
    assert!(last.await.allowed);
    assert!(settle(&store, key, &limit(), 1).await.allowed);
    // The first was sent already; nobody else who left is charged.
    assert_eq!(used(&fixture, "many").await, 3);
    assert!(store.metrics().calls.get() <= 3);
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_makes_the_call_may_leave_and_the_others_are_answered() {
    let (fixture, store) = frozen().await;
    let first = start_settle(&fixture, &store, "first");
    let others: Vec<PendingSettle> = (0..10).map(|_| start_settle(&fixture, &store, "others")).collect();
    drop(first);
    fixture.server.thaw();
    for pending in others {
        assert!(pending.await.allowed);
    }
    assert_eq!(used(&fixture, "others").await, 10);
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_makes_the_call_and_is_not_woken_holds_the_others_up_only_for_a_while() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().deadline(Duration::from_millis(100)).open();
    // Its waker does nothing: it begins a call and never sees the answer. A busy machine misses the deadline of the keepalive.
    let asleep = loop {
        connected(&store).await;
        if let Some(pending) = try_start_settle(&fixture, &store, "asleep") {
            break pending;
        }
    };
    let key = fixture.counter(&store, &limit(), "awake");
    let from = Instant::now();
    while !settle(&store, key, &limit(), 1).await.allowed {
        assert!(from.elapsed() < Duration::from_secs(2), "nobody is answered");
    }
    for _ in 0..10 {
        assert!(settle(&store, key, &limit(), 1).await.allowed);
    }
    drop(asleep);
    assert!(settle(&store, key, &limit(), 1).await.allowed);
    fixture.audit();
}

/// Asks a server that is frozen, from a store that has asked before or not, and thaws it when all have given up.
async fn check_nothing_is_charged(kind: ServerKind, has_settled: bool) {
    let fixture = Fixture::start(kind);
    let deadline = Duration::from_millis(150);
    let store = fixture.options().deadline(deadline).open();
    connected(&store).await;
    let key = fixture.counter(&store, &limit(), "given up");
    let mut before = 0;
    if has_settled {
        while !settle(&store, key, &limit(), 1).await.allowed {}
        before = used(&fixture, "given up").await;
    }
    let calls_before = calls_received(&fixture);
    fixture.server.freeze();
    let from = Instant::now();
    let first = start_settle(&fixture, &store, "given up");
    let others: Vec<PendingSettle> = (0..20).map(|_| start_settle(&fixture, &store, "given up")).collect();
    assert_eq!(first.await.outcomes, [Err(StoreError::Timeout)]);
    for pending in others {
        let failed = pending.await.outcomes[0];
        assert!(failed.is_err(), "{failed:?}");
    }
    assert!(from.elapsed() < deadline * 4, "{:?}", from.elapsed());
    fixture.server.thaw();
    // What was sent is run now.
    while calls_received(&fixture) == calls_before {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(used(&fixture, "given up").await, before);
    // And it goes on by itself.
    let from = Instant::now();
    while !settle(&store, key, &limit(), 1).await.allowed {
        assert!(from.elapsed() < Duration::from_secs(3));
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_runs_after_its_caller_gave_up_takes_nothing() {
    check_nothing_is_charged(ServerKind::Redis70, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_the_first_call_of_a_connection() {
    check_nothing_is_charged(ServerKind::Redis70, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_one_on_the_oldest_redis() {
    check_nothing_is_charged(ServerKind::Redis62, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_everybody_is_told_within_the_deadline() {
    let mut server = Server::start(ServerKind::Redis70);
    server.kill();
    let store = Redis::options(&server.url()).expect("a URL");
    let deadline = Duration::from_millis(100);
    let store = std::sync::Arc::new(store.deadline(deadline).open());
    let limit = limit();
    let counter = tollgate_core::Counter {
        domain: "default",
        rule: "rule",
        variant: "",
        limit: &limit,
        per: &[],
    };
    let key = store.key(&store.template(&counter), &[]);
    let mut tasks = Vec::new();
    for _ in 0..1_000 {
        let store = std::sync::Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            let from = Instant::now();
            let settlement = settle(&*store, key, &limit, 1).await;
            (settlement.outcomes[0], from.elapsed())
        }));
    }
    for task in tasks {
        let (outcome, took) = task.await.expect("a task that ends");
        let error = outcome.expect_err("there is nobody");
        assert!(
            matches!(
                error,
                StoreError::Unavailable | StoreError::Timeout | StoreError::DeadlinePassed
            ),
            "{error:?}"
        );
        assert!(took < deadline * 5, "{took:?}");
    }
    assert!(store.status().connection_error.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_taken_and_given_back_by_many_go_together_too() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = std::sync::Arc::new(fixture.options().open());
    let limit = Limit::from(Concurrency::new(1_000, Micros::from_secs(60)).expect("in range"));
    let key = fixture.counter(&store, &limit, "held");
    let mut tasks = Vec::new();
    for _ in 0..64 {
        let store = std::sync::Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            for _ in 0..100 {
                let held = lease();
                assert!(store.settle(&[charge(key, &limit, 1)], held).await.allowed);
                assert!(store.release(key, &limit, held).await.expect("released"));
            }
        }));
    }
    for task in tasks {
        task.await.expect("a task that ends");
    }
    let calls = store.metrics().calls.get();
    assert!(calls < 64 * 200 / 8, "{calls} calls for {} things to do", 64 * 200);
    assert_eq!(fixture.audit(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_holder_left_before_the_answer_is_given_back() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().deadline(Duration::from_millis(300)).open();
    let other = fixture.options().open();
    connected(&store).await;
    let limit = Limit::from(Concurrency::new(1, Micros::from_secs(3_600)).expect("in range"));
    let key = fixture.counter(&store, &limit, "held");
    let mut pending: PendingSettle = Box::pin(async { settle(&store, key, &limit, 1).await });
    assert!(poll(&mut pending).is_pending());
    // It is taken, and nobody hears of it.
    let from = Instant::now();
    while other.peek(&[charge(key, &limit, 1)]).await.allowed {
        assert!(from.elapsed() < Duration::from_secs(5), "it was never taken");
    }
    drop(pending);
    let from = Instant::now();
    while !settle(&other, key, &limit, 1).await.allowed {
        assert!(from.elapsed() < Duration::from_secs(5), "it is still held");
        sleep(Duration::from_millis(5)).await;
    }
    // One that is answered is held.
    let third = lease();
    assert!(!store.settle(&[charge(key, &limit, 1)], third).await.allowed);
    sleep(Duration::from_millis(500)).await;
    assert!(!settle(&other, key, &limit, 1).await.allowed);
    assert_eq!(fixture.audit(), 1);
}

/// A limit that a batch exhausts.
fn small(units: u64) -> Limit {
    TokenBucket::new(rate(units, Micros::from_secs(86_400))).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_a_thousand_is_at_most_four_calls() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    connected(&store).await;
    let charges: Vec<Vec<Charge<RedisKey>>> = (0..1_000)
        .map(|subject: u32| {
            vec![charge(
                fixture.counter(&store, &limit(), &subject.to_string()),
                &limit(),
                1,
            )]
        })
        .collect();
    let before = calls_received(&fixture);
    let settlements = store.settle_each(&requests(&charges)).await;
    assert!(settlements.iter().all(|settlement| settlement.allowed));
    assert_eq!(settlements.len(), 1_000);
    assert!(calls_received(&fixture) - before <= 4);
    assert_eq!(store.metrics().calls.get(), 4);
    assert_eq!(store.metrics().charges.get(), 1_000);
    assert_eq!(fixture.audit(), 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_of_a_batch_sees_the_charges_of_those_before_it() {
    let fixture = Fixture::start(ServerKind::Valkey);
    for near_cache in [true, false] {
        let store = fixture.options().near_cache(near_cache).open();
        connected(&store).await;
        // Two keys that alternate: more than one call of the script for each.
        let hot = small(300);
        let keys = ["even", "odd"].map(|name| fixture.counter(&store, &hot, &format!("{name} {near_cache}")));
        let charges: Vec<Vec<Charge<RedisKey>>> = (0..1_000).map(|n| vec![charge(keys[n % 2], &hot, 1)]).collect();
        let settlements = store.settle_each(&requests(&charges)).await;
        for (n, settlement) in settlements.iter().enumerate() {
            let decision = settlement.outcomes[0].expect("a reply").decision;
            let remaining = 299_u64.saturating_sub(n as u64 / 2);
            assert_eq!(
                (settlement.allowed, decision.standing().remaining),
                (n < 600, remaining),
                "{n}"
            );
        }
        // With the keys exhausted, the near cache denies a batch without a call.
        let before = store.metrics().calls.get();
        let denied = store.settle_each(&requests(&charges[..100])).await;
        assert!(denied.iter().all(|settlement| !settlement.allowed));
        assert_eq!(store.metrics().calls.get() == before, near_cache);
        let source = denied[0].outcomes[0].expect("a reply").source;
        assert_eq!(source == Source::Near, near_cache);
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_request_of_a_batch_keeps_nothing_and_the_others_stay() {
    let fixture = Fixture::start(ServerKind::Redis62);
    let store = fixture.options().open();
    let (one, many) = (small(1), small(100));
    let key = |limit: &Limit, name: &str| fixture.counter(&store, limit, name);
    let charges: Vec<Vec<Charge<RedisKey>>> = vec![
        vec![charge(key(&one, "a"), &one, 1), charge(key(&many, "b"), &many, 1)],
        vec![charge(key(&many, "b"), &many, 1), charge(key(&one, "a"), &one, 1)],
        Vec::new(),
        vec![charge(key(&many, "b"), &many, 5)],
    ];
    let settlements = store.settle_each(&requests(&charges)).await;
    let allowed: Vec<bool> = settlements.iter().map(|settlement| settlement.allowed).collect();
    assert_eq!(allowed, [true, false, true, true]);
    let standing = *settlements[3].outcomes[0].expect("a reply").decision.standing();
    assert_eq!(standing.remaining, 94);
    assert_eq!(store.metrics().calls.get(), 1);
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_on_a_silent_server_ends_at_its_deadline_and_takes_nothing() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let deadline = Duration::from_millis(100);
    let store = fixture.options().deadline(deadline).open();
    connected(&store).await;
    let leases = Limit::from(Concurrency::new(1_000, Micros::from_secs(600)).expect("in range"));
    let key = fixture.counter(&store, &leases, "held");
    let charges: Vec<Vec<Charge<RedisKey>>> = (0..1_000).map(|_| vec![charge(key, &leases, 1)]).collect();
    fixture.server.freeze();
    let from = Instant::now();
    let settlements = store.settle_each(&requests(&charges)).await;
    // Two pipelines of two calls have four deadlines.
    assert!(from.elapsed() < deadline * 8, "{:?}", from.elapsed());
    // The second pipeline finds the connection of the first closed.
    for settlement in &settlements {
        let error = settlement.outcomes[0].expect_err("nobody answers");
        assert!(
            matches!(error, StoreError::Timeout | StoreError::Unavailable),
            "{error:?}"
        );
    }
    fixture.server.thaw();
    let other = fixture.options().open();
    let from = Instant::now();
    loop {
        let peeked = other.peek(&[charge(key, &leases, 0)]).await;
        if peeked.outcomes[0].is_ok_and(|outcome| outcome.decision.standing().remaining == 1_000) {
            break;
        }
        assert!(from.elapsed() < Duration::from_secs(10), "leases stay: {peeked:?}");
        sleep(Duration::from_millis(20)).await;
    }
    fixture.audit();
}

/// Subjects `from..to`, one unit each.
fn charges(fixture: &Fixture, store: &Redis, subjects: std::ops::Range<u32>) -> Vec<Vec<Charge<RedisKey>>> {
    let charge_of = |subject: u32| {
        let key = fixture.counter(store, &limit(), &subject.to_string());
        vec![charge(key, &limit(), 1)]
    };
    subjects.map(charge_of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_batches_share_calls_with_each_other() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().deadline(Duration::from_secs(2)).open();
    connected(&store).await;
    let pairs: Vec<_> = (0..60)
        .map(|number| charges(&fixture, &store, 2 * number..2 * number + 2))
        .collect();
    fixture.server.freeze();
    let first = start_settle(&fixture, &store, "first");
    let mut batches: Vec<Pin<Box<dyn Future<Output = Vec<Settlement>> + Send + '_>>> = Vec::new();
    for pair in &pairs {
        let store = &store;
        let mut pending: Pin<Box<dyn Future<Output = Vec<Settlement>> + Send + '_>> =
            Box::pin(async move { store.settle_each(&requests(pair)).await });
        assert!(poll(&mut pending).is_pending());
        batches.push(pending);
    }
    fixture.server.thaw();
    assert!(first.await.allowed);
    for pending in batches {
        assert!(pending.await.iter().all(|settlement| settlement.allowed));
    }
    assert_eq!(store.metrics().calls.get(), 2);
    assert_eq!(fixture.audit(), 121);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_batches_at_once_are_all_settled_by_the_store() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = std::sync::Arc::new(fixture.options().deadline(Duration::from_secs(1)).open());
    connected(&store).await;
    let mut tasks = Vec::new();
    for number in 0..300 {
        let store = std::sync::Arc::clone(&store);
        let charges = charges(&fixture, &store, 300 * number..300 * (number + 1));
        tasks.push(tokio::spawn(async move {
            let settlements = store.settle_each(&requests(&charges)).await;
            settlements.iter().filter(|settlement| settlement.allowed).count()
        }));
    }
    let key = fixture.counter(&store, &limit(), "single");
    assert!(settle(&*store, key, &limit(), 1).await.allowed);
    for task in tasks {
        assert_eq!(task.await.expect("a task that ends"), 300);
    }
    assert_eq!(store.metrics().calls.get(), 601);
}
