//! What is forgotten when a primary is, and how much more than a limit then passes: never more than the bounds that
//! docs/redis.md states.

use crate::fixture::{charge, connection, is_primary, once, open, query, take, until};
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::store::{RedisErrorCode, Store, StoreError};
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const DEADLINE: Duration = Duration::from_millis(500);

/// Waits until all replicas know what the primary knows.
fn replicated(watched: &SentinelGroup) {
    let mut primary = connection(&watched.servers[0]);
    let mut both = redis::pipe();
    both.cmd("SET").arg("told").arg(1).ignore();
    both.cmd("WAIT").arg(2).arg(10_000);
    let [replicas]: [u64; 1] = both.query(&mut primary).expect("it waits");
    assert_eq!(replicas, 2);
}

/// A store that hears of no sentinel, as if it were cut off with the first primary.
fn cut_off(watched: &SentinelGroup) -> Redis {
    let options = Redis::options(&watched.servers[0].url()).expect("a URL");
    options.deadline(DEADLINE).near_cache(false).open()
}

/// Freezes the first primary until another has its place.
async fn supplant(watched: &SentinelGroup) -> &Server {
    let zombie = &watched.servers[0];
    zombie.freeze();
    until("another primary", || watched.servers[1..].iter().any(is_primary)).await;
    zombie.thaw();
    zombie
}

fn stop_replication(watched: &SentinelGroup) {
    for replica in &watched.servers[1..] {
        replica.freeze();
    }
    let kill = ["CLIENT", "KILL", "TYPE", "replica"];
    let killed: i64 = query(&mut connection(&watched.servers[0]), &kill);
    assert_eq!(killed, 2);
}

/// The seventh figure of the paper: the leader acknowledges writes, does not get to replicate them, and crashes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figure_7_acknowledged_charges_are_lost_with_their_primary_and_no_more_than_those() {
    const CAPACITY: u64 = 1_000;
    // So many before the replicas fall behind, and so many after, which are all that is lost: the rate times the time.
    // More than the capacity of the limit it can never be.
    for (reply, untold) in [(300, 200), (0, CAPACITY)] {
        let mut watched = SentinelGroup::start(ServerKind::Redis70);
        let store = open(&watched, DEADLINE);
        let limit = once(CAPACITY);
        assert_eq!(take(&store, &limit, reply).await, reply);
        replicated(&watched);
        stop_replication(&watched);
        assert_eq!(take(&store, &limit, untold).await, untold);
        watched.servers[0].kill();
        for replica in &watched.servers[1..] {
            replica.thaw();
        }
        let after = take(&store, &limit, 2 * CAPACITY).await;
        let beyond = (reply + untold + after).saturating_sub(CAPACITY);
        println!("{untold} charges were not told of, and {beyond} more passed than {CAPACITY}");
        assert!(beyond > 0, "the fault did not bite");
        assert!(beyond <= untold.min(CAPACITY), "{beyond}");
    }
}

/// The eighth figure of the paper: two servers take themselves for the primary at once, and both are asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figure_8_two_primaries_at_once_let_pass_what_each_has() {
    const CAPACITY: u64 = 200;
    let watched = SentinelGroup::start(ServerKind::Redis70);
    let limit = once(CAPACITY);
    let [one, other] = [(); 2].map(|()| open(&watched, DEADLINE));
    let cut_off = cut_off(&watched);
    for store in [&one, &other, &cut_off] {
        assert_eq!(take(store, &limit, 10).await, 10);
    }
    replicated(&watched);
    let zombie = supplant(&watched).await;
    // Those that follow the sentinels are on one side, so that nothing passes beyond the limit there.
    let mut followed = 30;
    for _ in 0..CAPACITY {
        followed += take(&one, &limit, 1).await + take(&other, &limit, 1).await;
    }
    assert!(followed <= CAPACITY, "{followed}");
    assert!(followed + 10 > CAPACITY, "{followed}");
    // On the other side there is as much again, at most.
    assert!(is_primary(zombie));
    let beyond = take(&cut_off, &limit, 2 * CAPACITY).await;
    println!("{beyond} more passed than {CAPACITY}");
    assert!(beyond > 0, "the fault did not bite");
    assert!(beyond <= CAPACITY, "{beyond}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_must_have_replicas_refuses_when_it_has_lost_them() {
    let watched = SentinelGroup::start(ServerKind::Redis70);
    for server in &watched.servers {
        let mut settings = redis::cmd("CONFIG");
        settings.arg("SET").arg("min-replicas-to-write").arg(1);
        settings.arg("min-replicas-max-lag").arg(1);
        settings.query::<()>(&mut connection(server)).expect("it does");
    }
    let cut_off = cut_off(&watched);
    let limit = crate::fixture::limit();
    until("a primary that knows its replicas", || {
        let info: String = query(&mut connection(&watched.servers[0]), &["INFO", "replication"]);
        info.contains("min_slaves_good_slaves:2")
    })
    .await;
    assert_eq!(take(&cut_off, &limit, 10).await, 10);
    let zombie = supplant(&watched).await;
    let mut passed = 0;
    let took = {
        let from = tokio::time::Instant::now();
        loop {
            let settlement = cut_off.settle(&[charge(&cut_off, &limit)], LeaseId::default()).await;
            match settlement.outcomes[0] {
                Ok(_) => passed += 1,
                Err(StoreError::Server(RedisErrorCode::NoReplicas)) => break,
                Err(_) => {}
            }
            assert!(from.elapsed() < Duration::from_secs(6), "{passed} passed");
        }
        from.elapsed()
    };
    println!("{passed} more passed in {took:?}");
    assert!(is_primary(zombie));
}
