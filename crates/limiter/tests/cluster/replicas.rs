//! Looks at the replicas of a cluster's primaries.

use crate::fixture::{charge, key, once, open, owner_of, remaining, subject_on, until};
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{ReadFrom, Redis};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

fn open_reading_replicas(cluster: &Cluster) -> Redis {
    let options = Redis::options(&cluster.url()).expect("a URL");
    options
        .deadline(Duration::from_secs(2))
        .read_from(ReadFrom::Replica)
        .open()
}

/// How often each server was called by commands that may write, and by those that may not.
fn calls(cluster: &Cluster) -> [Vec<u64>; 2] {
    let command_calls = |commands: [&str; 2]| {
        let on = |server| {
            let stats = cluster.command(server, "INFO commandstats").unwrap_or_default();
            let count = |command: &str| {
                let start = format!("cmdstat_{command}:calls=");
                let line = stats.lines().find_map(|line| line.strip_prefix(&start))?;
                line.split(',').next()?.parse::<u64>().ok()
            };
            commands.into_iter().filter_map(count).sum()
        };
        (0..cluster.servers.len()).map(on).collect()
    };
    [
        command_calls(["fcall", "evalsha"]),
        command_calls(["fcall_ro", "evalsha_ro"]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_go_to_the_replicas_of_each_primary_and_charges_do_not() {
    for kind in [ServerKind::Redis70, ServerKind::Valkey] {
        let mut cluster = Cluster::start(kind);
        let plain = open(&cluster);
        assert_eq!(
            plain.diagnose().await.expect("a cluster").warnings,
            Vec::<String>::new()
        );
        let store = open_reading_replicas(&cluster);
        assert_eq!(
            store.diagnose().await.expect("a cluster").warnings,
            Vec::<String>::new()
        );
        let limit = once(10);
        let subjects = [0, 1, 2].map(|primary| subject_on(&cluster, &store, primary, ""));
        let keys = subjects.map(|subject| key(&store, "r", &limit, &[subject.as_bytes()]));
        for key in keys {
            assert!(store.settle(&[charge(key, &limit)], LeaseId::default()).await.allowed);
            until("the charge at the replica", async || {
                remaining(&store, key, &limit).await == 9
            })
            .await;
        }
        let [wrote, peeked] = calls(&cluster);
        for _ in 0..50 {
            for key in keys {
                assert_eq!(remaining(&store, key, &limit).await, 9);
            }
        }
        // Charges in several slots are looked at where each is.
        let peeks = keys.map(|key| charge(key, &limit));
        let cross_slot = store.peek(&peeks).await;
        assert!(
            cross_slot.allowed && cross_slot.outcomes.iter().all(Result::is_ok),
            "{cross_slot:?}"
        );
        let [wrote_then, peeked_after] = calls(&cluster);
        assert_eq!(wrote_then, wrote, "{kind:?}");
        assert_eq!(wrote[3..], [0; 3], "{kind:?}");
        let grown: Vec<u64> = peeked_after.iter().zip(&peeked).map(|(then, now)| then - now).collect();
        assert_eq!(grown, [0, 0, 0, 51, 51, 51], "{kind:?}");
        assert_eq!(
            (store.metrics().redirects.get(), store.metrics().replica_misses.get()),
            (0, 0)
        );
        // Without its replica a primary is looked at itself.
        cluster.servers[3].kill();
        for _ in 0..50 {
            assert_eq!(remaining(&store, keys[0], &limit).await, 9);
        }
        assert_eq!(store.metrics().errors().map(|(_, count)| count).sum::<u64>(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_its_primarys_place_is_asked_for_everything() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let store = open_reading_replicas(&cluster);
    assert_eq!(
        store.diagnose().await.expect("a cluster").warnings,
        Vec::<String>::new()
    );
    let limit = once(10);
    let subject = subject_on(&cluster, &store, 1, "");
    let key = key(&store, "r", &limit, &[subject.as_bytes()]);
    assert_eq!(owner_of(&cluster, &store, key), 1);
    assert!(store.settle(&[charge(key, &limit)], LeaseId::default()).await.allowed);
    until("the charge at the replica", async || {
        remaining(&store, key, &limit).await == 9
    })
    .await;
    cluster.servers[1].kill();
    until("another primary", async || {
        cluster.has_line(4, "INFO replication", "role:master")
    })
    .await;
    until("a charge", async || {
        store.settle(&[charge(key, &limit)], LeaseId::default()).await.allowed
    })
    .await;
    // Nobody follows it, so what is told is its own.
    assert_eq!(remaining(&store, key, &limit).await, 8);
}
