//! What is forgotten when a primary of a cluster is, and how much more than a limit then passes.

use crate::fixture::{charge, key, once, open_for, subject_on};
use std::time::Duration;
use tollgate_core::{Charge, LeaseId};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

const CAPACITY: u64 = 1_000;

/// Takes one unit after the other, so many at most, until there are no more. Says how many it got.
async fn take(store: &Redis, charge: Charge<RedisKey>, max: u64) -> u64 {
    let mut used = 0;
    while used < max {
        let settlement = store.settle(&[charge], LeaseId::default()).await;
        match settlement.outcomes[0] {
            Ok(outcome) if outcome.decision.is_allow() => used += 1,
            Ok(_) => break,
            // Nobody answers for that one, and it counts for nobody.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    used
}

/// The seventh figure of the paper: the leader of a shard acknowledges writes, does not get to replicate them, and crashes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figure_7_acknowledged_charges_are_lost_with_their_primary_and_no_more_than_those() {
    const REPORTED: u64 = 300;
    const UNTOLD: u64 = 200;
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let store = open_for(&cluster, Duration::from_millis(500));
    let limit = once(CAPACITY);
    let [lost, kept] = [0, 1].map(|primary| {
        let subject = subject_on(&cluster, &store, primary, "");
        charge(key(&store, "r", &limit, &[subject.as_bytes()]), &limit)
    });
    for charge in [lost, kept] {
        assert_eq!(take(&store, charge, REPORTED).await, REPORTED);
    }
    let offset = |server: usize, uses: &str| {
        let info = cluster.command(server, "INFO replication").expect("it tells");
        let line = info.lines().find_map(|line| line.strip_prefix(uses));
        line.expect("an offset").trim().to_owned()
    };
    cluster.wait_until("told", |_| {
        offset(0, "master_repl_offset:") == offset(3, "slave_repl_offset:")
    });
    cluster.servers[3].freeze();
    assert_eq!(cluster.command(0, "CLIENT KILL TYPE replica"), Ok("1".to_owned()));
    for charge in [lost, kept] {
        assert_eq!(take(&store, charge, UNTOLD).await, UNTOLD);
    }
    cluster.servers[0].kill();
    cluster.servers[3].thaw();
    let [after_lost, after_kept] = [
        take(&store, lost, 2 * CAPACITY).await,
        take(&store, kept, 2 * CAPACITY).await,
    ];
    let beyond = (REPORTED + UNTOLD + after_lost).saturating_sub(CAPACITY);
    println!("{UNTOLD} charges were not told of, and {beyond} more passed than {CAPACITY}");
    assert!(beyond > 0, "the fault did not bite");
    assert!(beyond <= UNTOLD, "{beyond}");
    // The others' keys are as exact as ever.
    assert_eq!(REPORTED + UNTOLD + after_kept, CAPACITY);
}
