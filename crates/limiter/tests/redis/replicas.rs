//! Looks at replicas: asked only if that is wanted, only for what keeps nothing, and never waited for in vain.

use crate::fixture::{Fixture, charge, every_limit, query, rate, settle};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::{Limit, Micros, TokenBucket};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{Functions, ReadFrom, Redis, RedisKey, RedisOptions};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// A replica that is there when this returns.
fn follow(fixture: &Fixture, kind: ServerKind, settings: &[&str]) -> Fixture {
    let port = fixture.server.port().to_string();
    let mut all = vec!["--replicaof", "127.0.0.1", &port];
    all.extend(settings);
    let replica = Fixture::on(Server::start_with(kind, &all));
    while !replica
        .query::<String>(&["INFO", "replication"])
        .contains("master_link_status:up")
    {
        std::thread::yield_now();
    }
    replica
}

fn options(fixture: &Fixture) -> RedisOptions {
    fixture.options().read_from(ReadFrom::Replica)
}

fn limit() -> Limit {
    TokenBucket::new(rate(1_000, Micros::from_secs(86_400))).into()
}

/// How often these were called on a server.
fn calls(fixture: &Fixture, commands: &[&str]) -> u64 {
    let stats: String = fixture.query(&["INFO", "commandstats"]);
    let calls_of = |name: &&str| {
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    commands.iter().filter_map(calls_of).sum()
}

const WRITE_COMMANDS: [&str; 3] = ["fcall", "evalsha", "eval"];
const READ_ONLY_COMMANDS: [&str; 3] = ["fcall_ro", "evalsha_ro", "eval_ro"];

/// How many units of a key are used, as a look says.
async fn used(store: &Redis, key: RedisKey, limit: &Limit) -> u64 {
    let peeked = store.peek(&[charge(key, limit, 0)]).await;
    let outcome = peeked.outcomes[0].expect("an answer");
    limit.capacity() - outcome.decision.standing().remaining
}

/// Waits until a look says so.
async fn until_used(store: &Redis, key: RedisKey, limit: &Limit, units: u64) {
    let from = Instant::now();
    while used(store, key, limit).await != units {
        assert!(from.elapsed() < Duration::from_secs(10), "{units} were never seen");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn until_it_lists_a_function(fixture: &Fixture) {
    let from = Instant::now();
    while fixture.query::<Vec<redis::Value>>(&["FUNCTION", "LIST"]).is_empty() {
        assert!(from.elapsed() < Duration::from_secs(10), "no function came");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_go_to_a_replica_and_nothing_else_does() {
    let cases = [
        (ServerKind::Redis70, Functions::Auto, "fcall_ro"),
        (ServerKind::Redis70, Functions::Off, "evalsha_ro"),
        (ServerKind::Valkey, Functions::On, "fcall_ro"),
        (ServerKind::Valkey, Functions::Off, "evalsha_ro"),
    ];
    for (kind, functions, by) in cases {
        let fixture = Fixture::start(kind);
        let replica = follow(&fixture, kind, &[]);
        // The first brings the function, which the replica is told of.
        let plain = fixture.options().functions(functions).open();
        assert_eq!(plain.diagnose().await.expect("a server").warnings, Vec::<String>::new());
        if by == "fcall_ro" {
            until_it_lists_a_function(&replica).await;
        }
        let store = options(&fixture).functions(functions).open();
        assert_eq!(store.diagnose().await.expect("a server").warnings, Vec::<String>::new());
        let limits = every_limit(100, Micros::from_secs(3_600));
        for limit in &limits {
            let key = fixture.counter(&store, limit, "u");
            for _ in 0..3 {
                assert!(settle(&store, key, limit, 1).await.allowed);
            }
            until_used(&store, key, limit, 3).await;
        }
        let wrote = calls(&fixture, &WRITE_COMMANDS);
        let peeked = calls(&replica, &[by]);
        let reads = store.metrics().replica_reads.get();
        let key = fixture.counter(&store, &limits[0], "u");
        for _ in 0..100 {
            assert_eq!(used(&store, key, &limits[0]).await, 3);
        }
        assert_eq!(calls(&replica, &[by]), peeked + 100, "{kind:?}");
        assert_eq!(calls(&replica, &WRITE_COMMANDS), 0, "{kind:?}");
        assert_eq!(calls(&fixture, &WRITE_COMMANDS), wrote, "{kind:?}");
        assert_eq!(calls(&fixture, &READ_ONLY_COMMANDS), 0, "{kind:?}");
        let metrics = store.metrics();
        assert_eq!(
            (metrics.replica_reads.get(), metrics.replica_misses.get()),
            (reads + 100, 0)
        );
        // Whoever did not ask for it looks at the primary.
        assert_eq!(used(&plain, key, &limits[0]).await, 3);
        assert_eq!(calls(&fixture, &WRITE_COMMANDS), wrote + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_forgot_the_script_is_sent_it_along() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let replica = follow(&fixture, ServerKind::Redis70, &[]);
    let store = options(&fixture).functions(Functions::Off).open();
    assert_eq!(store.diagnose().await.expect("a server").warnings, Vec::<String>::new());
    let key = fixture.counter(&store, &limit(), "u");
    replica.query::<()>(&["SCRIPT", "FLUSH"]);
    let before = calls(&replica, &["evalsha_ro"]);
    for _ in 0..3 {
        assert_eq!(used(&store, key, &limit()).await, 0);
    }
    assert_eq!(calls(&replica, &["eval_ro"]), 1);
    assert_eq!(calls(&replica, &["evalsha_ro"]), before + 3);
    assert_eq!(store.metrics().replica_misses.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_goes_or_falls_silent_leaves_looks_to_the_primary() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let mut replica = follow(&fixture, ServerKind::Redis70, &[]);
    let store = options(&fixture).deadline(Duration::from_secs(2)).open();
    assert_eq!(store.diagnose().await.expect("a server").warnings, Vec::<String>::new());
    let key = fixture.counter(&store, &limit(), "u");
    assert!(settle(&store, key, &limit(), 7).await.allowed);
    until_used(&store, key, &limit(), 7).await;
    // The first who asks it waits for half of the time; others then do not wait at all.
    replica.server.freeze();
    let from = Instant::now();
    for _ in 0..20 {
        assert_eq!(used(&store, key, &limit()).await, 7);
    }
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
    let (reads, misses) = (
        store.metrics().replica_reads.get(),
        store.metrics().replica_misses.get(),
    );
    assert!(misses <= 1, "{misses}");
    // When it is well again, it is asked again.
    replica.server.thaw();
    let from = Instant::now();
    while store.metrics().replica_reads.get() == reads {
        assert!(from.elapsed() < Duration::from_secs(10), "the replica was forgotten");
        assert_eq!(used(&store, key, &limit()).await, 7);
        sleep(Duration::from_millis(10)).await;
    }
    replica.server.kill();
    for _ in 0..20 {
        assert_eq!(used(&store, key, &limit()).await, 7);
    }
    assert!(store.metrics().replica_misses.get() <= 2);
    assert_eq!(store.metrics().errors().map(|(_, count)| count).sum::<u64>(), 0);
    assert_eq!(store.status().connection_error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_primary_is_soon_not_asked() {
    for serves_stale in ["yes", "no"] {
        let fixture = Fixture::start(ServerKind::Redis70);
        let replica = follow(
            &fixture,
            ServerKind::Redis70,
            &["--replica-serve-stale-data", serves_stale],
        );
        let store = options(&fixture).open();
        assert_eq!(store.diagnose().await.expect("a server").warnings, Vec::<String>::new());
        let key = fixture.counter(&store, &limit(), "u");
        assert!(settle(&store, key, &limit(), 1).await.allowed);
        until_used(&store, key, &limit(), 1).await;
        assert!(store.metrics().replica_reads.get() > 0);
        replica.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        assert!(settle(&store, key, &limit(), 1).await.allowed);
        if serves_stale == "no" {
            // It says itself that it knows nothing, and the look that hears it goes on to the primary.
            assert_eq!(used(&store, key, &limit()).await, 2);
        }
        until_used(&store, key, &limit(), 2).await;
        let reads = store.metrics().replica_reads.get();
        for _ in 0..100 {
            assert_eq!(used(&store, key, &limit()).await, 2);
        }
        assert_eq!(store.metrics().replica_reads.get(), reads);
        // When it has a primary again, it is asked again, with all that it has missed.
        let port = fixture.server.port().to_string();
        query::<()>(&mut replica.admin(), &["REPLICAOF", "127.0.0.1", &port]);
        let from = Instant::now();
        while store.metrics().replica_reads.get() == reads {
            assert!(from.elapsed() < Duration::from_secs(20), "the replica was forgotten");
            assert_eq!(used(&store, key, &limit()).await, 2);
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_is_told_why_no_replica_is_asked() {
    // The oldest servers have no commands that cannot write.
    let fixture = Fixture::start(ServerKind::Redis62);
    let replica = follow(&fixture, ServerKind::Redis62, &[]);
    let store = options(&fixture).open();
    let reply = store.diagnose().await.expect("a server").warnings;
    assert_eq!(reply.len(), 1, "{reply:?}");
    let host = format!("127.0.0.1:{}", replica.server.port());
    assert!(reply[0].contains(&host) && reply[0].contains("EVALSHA_RO"), "{reply:?}");
    let key = fixture.counter(&store, &limit(), "u");
    assert!(settle(&store, key, &limit(), 4).await.allowed);
    assert_eq!(used(&store, key, &limit()).await, 4);
    assert_eq!(calls(&replica, &WRITE_COMMANDS), 0);
    // And here there is none.
    let single = Fixture::start(ServerKind::Redis70);
    let reply = options(&single).open().diagnose().await.expect("a server").warnings;
    assert!(
        matches!(&reply[..], [warning] if warning.contains("the primary lists none")),
        "{reply:?}"
    );
}
