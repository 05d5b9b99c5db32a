//! Whose clock decides, and whose keys they are.

use crate::fixture::{Fixture, charge, every_limit, lease, time};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::{Charge, Counter, Limit, Micros, Timestamp};
use tollgate_limiter::store::redis::{ClockSource, Redis, RedisKey};
use tollgate_limiter::store::{Keyspace, Store};
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::testing::skew::Skew;

/// Asks a server that hears it only after a while: what its clock showed before and after, and when it was decided.
async fn decided(fixture: &Fixture, clock: ClockSource) -> (Timestamp, Timestamp, Timestamp) {
    let store = fixture.options().clock_source(clock).open();
    let limit = every_limit(5, Micros::from_secs(60))[0];
    let key = fixture.counter(&store, &limit, "anybody");
    let warm = store.peek(&[charge(key, &limit, 1)]).await;
    assert!(warm.outcomes[0].is_ok());
    let before = time(&mut fixture.admin());
    fixture.server.freeze();
    let pending = tokio::spawn(async move { store.settle(&[charge(key, &limit, 1)], lease()).await });
    sleep(Duration::from_secs(2)).await;
    fixture.server.thaw();
    let settlement = pending.await.expect("a task that ends");
    assert!(settlement.outcomes[0].is_ok(), "{settlement:?}");
    (before, settlement.now, time(&mut fixture.admin()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_of_ours_counts_within_the_tolerance_and_not_beyond() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let half = Micros::from_secs(1);
    // It was decided when it was sent, or when it was received.
    let client = |tolerance| ClockSource::Client {
        skew_tolerance: tolerance,
    };
    let (before, now, _) = decided(&fixture, client(Micros::from_secs(60))).await;
    assert!(now < before + half, "{:?} later", now.since(before));
    for clock in [
        client(Micros::from_millis(50)),
        client(Micros::ZERO),
        ClockSource::Server,
    ] {
        let (before, now, after) = decided(&fixture, clock).await;
        assert!(now > before + half && now <= after, "{:?} later", now.since(before));
    }
    assert_eq!(fixture.audit(), 1);
}

/// One unit of a counter, by the names that all stores give it.
fn one(store: &Redis, limit: &Limit) -> Charge<RedisKey> {
    let counter = Counter {
        domain: "default",
        rule: "plan",
        variant: "",
        limit,
        per: &[],
    };
    charge(store.key(&store.template(&counter), &[b"m_1"]), limit, 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_apart_by_prefix_and_secret_and_together_without() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let limit = every_limit(5, Micros::from_secs(3_600))[0];
    let differing = [
        ("tg:{", fixture.options()),
        ("other:{", fixture.options().prefix("other")),
        ("tg:{", fixture.options().key_secret(b"one")),
        ("tg:{", fixture.options().key_secret(b"two")),
    ];
    let mut keys = BTreeSet::new();
    for (prefix, options) in differing {
        let stores = [options.clone().open(), options.open()];
        for (store, remaining) in stores.iter().zip([4, 3]) {
            let one = one(store, &limit);
            let settlement = store.settle(&[one], lease()).await;
            let standing = *settlement.outcomes[0].expect("an answer").decision.standing();
            assert_eq!(standing.remaining, remaining, "both take of the same counter");
            let text = store.key_text(&one.key);
            assert!(text.starts_with(prefix), "{text}");
            keys.insert(text);
        }
    }
    assert_eq!(keys.len(), 4);
    assert_eq!(fixture.query::<BTreeSet<String>>(&["KEYS", "*"]), keys);
}

/// A second, in microseconds.
const SECOND: i64 = 1_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_servers_clock_may_be_set_while_it_is_asked() {
    let skew = Skew::none();
    let fixture = Fixture::on(Server::start_skewed(ServerKind::Redis70, &skew));
    let store = fixture.options().deadline(Duration::from_millis(500)).open();
    let mut limits = Vec::from(every_limit(10, Micros::from_millis(400)));
    limits.retain(|limit| !matches!(limit, Limit::Concurrency(_)));
    let hot: Vec<Charge<RedisKey>> = limits
        .iter()
        .map(|limit| charge(fixture.counter(&store, limit, "hot"), limit, 1))
        .collect();
    // Forward by an hour, back by two, by less than the slack, and back to where it was.
    for ahead in [0, 3_600 * SECOND, -3_600 * SECOND, -3_600 * SECOND - SECOND / 2, 0] {
        skew.set(ahead);
        let from = Instant::now();
        let mut passed = vec![0_u64; hot.len()];
        while from.elapsed() < Duration::from_millis(1_600) {
            for (one, passed) in hot.iter().zip(&mut passed) {
                let settlement = store.settle(&[*one], lease()).await;
                assert!(settlement.outcomes[0].is_ok(), "{one:?} at {ahead}: {settlement:?}");
                *passed += u64::from(settlement.allowed);
            }
            sleep(Duration::from_millis(2)).await;
        }
        // What it had, what came back, and once more for the step; and nobody is locked out for long: a window may have to
        // end twice, and half a second be made up for.
        let max = 30 + from.elapsed().as_millis() as u64 / 40;
        for (one, passed) in hot.iter().zip(passed) {
            let limit = one.limit;
            assert!((2..=max).contains(&passed), "{limit:?} at {ahead}: {passed} passed");
        }
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_differs_from_ours_charges_nobody_who_gave_up() {
    for ahead in [-86_400 * SECOND, 86_400 * SECOND] {
        let skew = Skew::none();
        skew.set(ahead);
        let fixture = Fixture::on(Server::start_skewed(ServerKind::Redis70, &skew));
        let store = fixture.options().deadline(Duration::from_millis(200)).open();
        let limit = every_limit(1_000, Micros::from_secs(86_400))[4];
        let key = fixture.counter(&store, &limit, "given up");
        let one = charge(key, &limit, 1);
        let mut used = 0;
        for _ in 0..20 {
            used += u64::from(store.settle(&[one], lease()).await.allowed);
        }
        assert!(used >= 19, "{used} were in time");
        fixture.server.freeze();
        assert!(!store.settle(&[one], lease()).await.allowed);
        fixture.server.thaw();
        let other = fixture.options().open();
        let remaining = other.peek(&[charge(key, &limit, 0)]).await.outcomes[0].expect("an answer");
        assert_eq!(1_000 - remaining.decision.standing().remaining, used);
        fixture.audit();
    }
}
