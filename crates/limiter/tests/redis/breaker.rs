//! Servers that fail: nobody waits for them for long, and they are asked again when they answer.

use crate::fixture::{Fixture, every_limit, rate, settle};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tollgate_core::{Limit, Micros, TokenBucket};
use tollgate_limiter::store::redis::{BreakerConfig, Functions, OpenFor, Redis, RedisKey, RedisOptions};
use tollgate_limiter::store::{BreakerState, Keyspace, Store, StoreError};
use tollgate_limiter::testing::servers::{Server, ServerKind};

fn limit() -> Limit {
    TokenBucket::new(rate(1_000_000, Micros::from_secs(3_600))).into()
}

/// A store that has answered, with the deadline it has by default.
async fn opened(fixture: &Fixture, functions: Functions) -> (Redis, RedisKey) {
    let options = Redis::options(&fixture.server.url()).expect("a URL");
    answering(fixture, options.functions(functions)).await
}

async fn answering(fixture: &Fixture, options: RedisOptions) -> (Redis, RedisKey) {
    let store = options.near_cache(false).open();
    let key = fixture.counter(&store, &limit(), "somebody");
    until(&store, key, Duration::from_secs(10)).await;
    (store, key)
}

/// Asks until the store settles a charge, and says how long that took.
async fn until(store: &Redis, key: RedisKey, max: Duration) -> Duration {
    let from = Instant::now();
    while !settle(store, key, &limit(), 1).await.allowed {
        assert!(
            from.elapsed() < max,
            "{:?} {:?}",
            store.status().connection_error,
            store.status().breaker.state
        );
        sleep(Duration::from_millis(1)).await;
    }
    from.elapsed()
}

/// Asks until the breaker opens, and says how many calls waited for about half of a tenth of a second or longer.
async fn until_open(store: &Redis, key: RedisKey) -> usize {
    let from = Instant::now();
    let mut waited = 0;
    while store.status().breaker.state != BreakerState::Open {
        assert!(from.elapsed() < Duration::from_secs(5), "it stays closed");
        let requested = Instant::now();
        settle(store, key, &limit(), 1).await;
        waited += usize::from(requested.elapsed() >= Duration::from_millis(45));
        sleep(Duration::from_millis(1)).await;
    }
    waited
}

/// Nobody waits: a hundred answers in the time that two deadlines take.
async fn answers_at_once(store: &Redis, key: RedisKey) {
    let from = Instant::now();
    for _ in 0..100 {
        let settlement = settle(store, key, &limit(), 1).await;
        assert_eq!(settlement.outcomes, [Err(StoreError::BreakerOpen)]);
    }
    assert!(from.elapsed() < Duration::from_millis(20), "{:?}", from.elapsed());
    assert!(store.is_unavailable(&[crate::fixture::charge(key, &limit(), 1)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_is_left_alone_and_asked_again_when_it_speaks() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let options = Redis::options(&fixture.server.url()).expect("a URL");
    let (store, key) = answering(&fixture, options.deadline(Duration::from_millis(100))).await;
    fixture.server.freeze();
    // One for its deadline, and another for a new connection, though the breaker opens after five deadlines.
    let waited = until_open(&store, key).await;
    assert!((1..=3).contains(&waited), "{waited}");
    answers_at_once(&store, key).await;
    sleep(Duration::from_millis(600)).await;
    assert_eq!(
        store.status().breaker.state,
        BreakerState::Open,
        "it takes connections, and answers nothing"
    );
    fixture.server.thaw();
    until(&store, key, Duration::from_secs(2)).await;
    assert_eq!(
        (store.status().breaker.state, store.status().breaker.transitions),
        (BreakerState::Closed, 2)
    );
    assert!(!store.is_unavailable(&[crate::fixture::charge(key, &limit(), 1)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_answer_is_one_failure() {
    const STALLS: u64 = 10;
    let fixture = Fixture::start(ServerKind::Redis70);
    let options = Redis::options(&fixture.server.url()).expect("a URL");
    let (store, key) = answering(&fixture, options.deadline(Duration::from_millis(5))).await;
    for _ in 0..STALLS {
        let from = Instant::now();
        fixture.server.freeze();
        while from.elapsed() < Duration::from_millis(30) {
            settle(&store, key, &limit(), 1).await;
            sleep(Duration::from_millis(1)).await;
        }
        fixture.server.thaw();
        until(&store, key, Duration::from_secs(5)).await;
        sleep(Duration::from_millis(250)).await;
    }
    // Each of them was longer than five deadlines. A busy machine makes some longer still.
    let changes = store.status().breaker.transitions;
    assert!(changes <= STALLS, "{changes} changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_calls_are_enough_to_notice_that_a_server_is_away() {
    let mut fixture = Fixture::start(ServerKind::Redis70);
    let (store, key) = opened(&fixture, Functions::Auto).await;
    fixture.server.kill();
    let from = Instant::now();
    while store.status().connection_error.is_none() {
        assert!(from.elapsed() < Duration::from_secs(5), "nothing is noticed");
        sleep(Duration::from_millis(1)).await;
    }
    settle(&store, key, &limit(), 1).await;
    settle(&store, key, &limit(), 1).await;
    while store.status().breaker.state != BreakerState::Open {
        assert!(from.elapsed() < Duration::from_secs(5), "it stays closed");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_leave_before_the_deadline_show_that_a_server_is_silent() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let options = Redis::options(&fixture.server.url()).expect("a URL");
    let (store, key) = answering(&fixture, options.deadline(Duration::from_millis(100))).await;
    // Nothing is wrong with a server whose callers are in a hurry.
    for _ in 0..50 {
        let _ = timeout(Duration::ZERO, settle(&store, key, &limit(), 1)).await;
    }
    sleep(Duration::from_millis(200)).await;
    assert_eq!(
        (store.status().breaker.state, store.metrics().connect_attempts.get()),
        (BreakerState::Closed, 1)
    );
    fixture.server.freeze();
    let from = Instant::now();
    while store.status().breaker.state != BreakerState::Open {
        assert!(from.elapsed() < Duration::from_secs(5), "it stays closed");
        let _ = timeout(Duration::from_millis(20), settle(&store, key, &limit(), 1)).await;
    }
    answers_at_once(&store, key).await;
    assert!(store.status().connection_error.is_some());
    fixture.server.thaw();
    until(&store, key, Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_died_is_asked_again_when_it_is_back() {
    let mut fixture = Fixture::start(ServerKind::Valkey);
    let (store, key) = opened(&fixture, Functions::Auto).await;
    fixture.server.kill();
    until_open(&store, key).await;
    answers_at_once(&store, key).await;
    let connect_attempts = store.metrics().connect_attempts.get();
    sleep(Duration::from_secs(1)).await;
    let connect_attempts = store.metrics().connect_attempts.get() - connect_attempts;
    assert!(
        (3..=10).contains(&connect_attempts),
        "{connect_attempts} attempts in a second"
    );
    fixture.server.revive();
    until(&store, key, Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_is_not_well_because_it_answers() {
    // By scripts: a function would be refused before it begins.
    let mut primary = Server::start(ServerKind::Redis70);
    primary.kill();
    let fixture = Fixture::start(ServerKind::Redis70);
    let (store, key) = opened(&fixture, Functions::Off).await;
    fixture.query::<()>(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    until_open(&store, key).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(store.status().breaker.state, BreakerState::Open);
    fixture.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    until(&store, key, Duration::from_secs(2)).await;

    fixture.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    fixture.query::<()>(&["CONFIG", "SET", "maxmemory", "100kb"]);
    until_open(&store, key).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(store.status().breaker.state, BreakerState::Open);
    fixture.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    until(&store, key, Duration::from_secs(3)).await;
    let counted = |code| {
        store
            .metrics()
            .errors()
            .find(|(name, _)| *name == code)
            .expect("a code")
            .1
    };
    assert!(counted("readonly") >= 1 && counted("oom") >= 1, "{:?}", store.metrics());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn for_a_fixed_time_nobody_asks_and_then_one_request_tries() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let breaker_config = BreakerConfig {
        failures: 3,
        open_for: OpenFor::Fixed(Micros::from_millis(500)),
        ..BreakerConfig::default()
    };
    let options = Redis::options(&fixture.server.url()).expect("a URL");
    let store = options.breaker(breaker_config).near_cache(false).open();
    let key = fixture.counter(&store, &limit(), "somebody");
    until(&store, key, Duration::from_secs(10)).await;
    fixture.server.freeze();
    let from = Instant::now();
    until_open(&store, key).await;
    answers_at_once(&store, key).await;
    fixture.server.thaw();
    until(&store, key, Duration::from_secs(2)).await;
    assert!(from.elapsed() >= Duration::from_millis(500), "{:?}", from.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_key_holds_says_nothing_of_the_server() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let (store, key) = opened(&fixture, Functions::Off).await;
    let other = every_limit(5, Micros::from_secs(60))[1];
    let foreign = fixture.counter(&store, &other, "foreign");
    fixture.query::<()>(&["SET", &store.key_text(&foreign), "of somebody else"]);
    for _ in 0..50 {
        assert!(settle(&store, foreign, &other, 1).await.outcomes[0].is_err());
    }
    assert_eq!(store.status().breaker.state, BreakerState::Closed);
    assert!(settle(&store, key, &limit(), 1).await.allowed);
}
