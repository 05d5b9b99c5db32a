//! Slots on their way from one server to another.

use crate::fixture::{Load, Rules, charge, key, once, open, owner_of, remaining, slot};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::{Keyspace, RedisErrorCode, Store, StoreError};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

fn must(cluster: &Cluster, server: usize, command: &str) {
    let done = cluster.command(server, command);
    assert!(done.is_ok(), "{command}: {done:?}");
}

/// Begins to move a slot.
fn start_migration(cluster: &Cluster, slot: usize, from: usize, to: usize) {
    let [source, target] = [from, to].map(|server| cluster.id(server));
    must(cluster, to, &format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
    must(cluster, from, &format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
}

fn migrate(cluster: &Cluster, keys: &[String], from: usize, to: usize) {
    let port = cluster.servers[to].port();
    let keys = keys.join(" ");
    must(
        cluster,
        from,
        &format!("MIGRATE 127.0.0.1 {port} \"\" 0 1000 KEYS {keys}"),
    );
}

/// Moves a slot with all that is in it, as the tools do.
fn migrate_slot(cluster: &Cluster, slot: usize, from: usize, to: usize) {
    start_migration(cluster, slot, from, to);
    loop {
        let keys = cluster.list(from, &format!("CLUSTER GETKEYSINSLOT {slot} 3"));
        if keys.is_empty() {
            break;
        }
        migrate(cluster, &keys, from, to);
    }
    let target = cluster.id(to);
    for server in [to, from, 3 - from - to] {
        must(cluster, server, &format!("CLUSTER SETSLOT {slot} NODE {target}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_take_their_counters_along() {
    let cluster = Cluster::start(ServerKind::Redis70);
    let rules = Rules::wide();
    let load = Load::start(&cluster, Duration::from_secs(5), rules).await;
    let store = Arc::clone(&load.stores[0]);
    let mut slots: Vec<(usize, usize)> = (0..rules.merchants)
        .flat_map(|merchant| rules.keys(&store, merchant))
        .map(|key| (slot(&cluster, &store, key), owner_of(&cluster, &store, key)))
        .collect();
    // And some that hold nothing.
    slots.extend((0..200).map(|slot| (slot, 0)));
    slots.sort_unstable();
    slots.dedup();
    let cluster = tokio::task::spawn_blocking(move || {
        for (slot, from) in slots {
            migrate_slot(&cluster, slot, from, (from + 1) % 3);
        }
        cluster
    });
    let cluster = cluster.await.expect("slots that moved");
    load.advance(1_000).await;
    let (observed, stores) = load.end().await;
    assert!(observed.failed.is_empty(), "{:?}", observed.failed.first());
    rules.audit(&stores[0], &observed, |_| true).await;
    let redirects: u64 = stores.iter().map(|store| store.metrics().redirects.get()).sum();
    assert!(redirects > 0, "nobody was sent elsewhere");
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_is_asked_for_at_both_ends() {
    for kind in ServerKind::ALL {
        let cluster = Cluster::start(kind);
        let store = open(&cluster);
        let limit = once(10);
        let [stays, target, comes] = ["stays", "goes", "comes"].map(|rule| key(&store, rule, &limit, &[b"m"]));
        for known in [stays, target] {
            assert!(store.settle(&[charge(known, &limit)], LeaseId::default()).await.allowed);
        }
        let (slot, from) = (slot(&cluster, &store, stays), owner_of(&cluster, &store, stays));
        let to = (from + 1) % 3;
        start_migration(&cluster, slot, from, to);
        migrate(&cluster, &[store.key_text(&target)], from, to);
        assert_eq!(store.metrics().redirects.get(), 0);
        // The one that is still here is answered here, those that are there or nowhere are asked for there.
        for (key, remaining, redirects) in [(stays, 8, 0), (target, 8, 1), (comes, 9, 2)] {
            let settlement = store.settle(&[charge(key, &limit)], LeaseId::default()).await;
            let standing = settlement.outcomes[0].map(|outcome| outcome.decision.standing().remaining);
            assert_eq!(standing, Ok(remaining), "{kind:?}");
            assert_eq!(store.metrics().redirects.get(), redirects, "{kind:?}");
        }
        // Of which neither server has all nobody can be asked, and nothing is taken.
        let both = [charge(stays, &limit), charge(target, &limit)];
        let settlement = store.settle(&both, LeaseId::default()).await;
        let try_again = Err(StoreError::Server(RedisErrorCode::TryAgain));
        assert_eq!(settlement.outcomes, [try_again; 2], "{kind:?}");
        for (key, expected) in [(stays, 8), (target, 8), (comes, 9)] {
            assert_eq!(remaining(&store, key, &limit).await, expected, "{kind:?}");
        }
    }
}
