//! Servers that go, come and change places while they are asked.

use crate::fixture::{Load, Rules, charge, key, once, open, open_for, owner_of, remaining, subject_on, until};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate_core::{Charge, LeaseId, Micros};
use tollgate_limiter::limits::Concurrency;
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Keyspace, Settlement, Store, StoreError};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::counters::named_limit;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::{Limiter, SlotCheck};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_cluster_that_was_never_there_and_it_is_found_when_it_is() {
    let cluster = Cluster::start_without_replicas(ServerKind::Redis70);
    cluster.servers.iter().for_each(Server::freeze);
    let store = open_for(&cluster, Duration::from_millis(200));
    let limit = once(1_000);
    let charge = charge(key(&store, "r", &limit, &[b"somebody"]), &limit);
    until("a first look in vain", async || store.is_unavailable(&[charge])).await;
    let from = Instant::now();
    for _ in 0..100 {
        let settlement = store.settle(&[charge], LeaseId::default()).await;
        assert_eq!(settlement.outcomes, [Err(StoreError::Unavailable)]);
    }
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
    cluster.servers.iter().for_each(Server::thaw);
    until("its return", async || {
        store.settle(&[charge], LeaseId::default()).await.allowed
    })
    .await;
    assert!(!store.is_unavailable(&[charge]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_takes_only_its_own_keys_along_until_its_replica_has_its_place() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let rules = Rules::wide();
    let load = Load::start(&cluster, Duration::from_millis(500), rules).await;
    load.advance(1_000).await;
    let store = Arc::clone(&load.stores[0]);
    let [ceiling, _] = rules.keys(&store, 0);
    // Not the one that has the ceiling, or everything would wait for it.
    let victim = (owner_of(&cluster, &store, ceiling) + 1) % 3;
    let is_hit = |merchant: usize| owner_of(&cluster, &store, rules.keys(&store, merchant)[1]) == victim;
    let hit: Vec<bool> = (0..rules.merchants).map(is_hit).collect();
    let (lost, kept) = (
        hit.iter().position(|hit| *hit).expect("one of them"),
        hit.iter().position(|hit| !hit).expect("one of them"),
    );
    let in_the_last_second = {
        let observed = load.times_of(|merchant| hit[merchant]);
        let last = observed.iter().max().copied().expect("some passed");
        observed
            .iter()
            .filter(|at| last.since(**at) < Micros::from_secs(1))
            .count() as u64
    };
    cluster.servers[victim].kill();
    // Whoever asks it waits no longer than for a part of what is measured.
    let impatient = open_for(&cluster, Duration::from_millis(30));
    let merchant_limit = |merchant: usize| charge(rules.keys(&store, merchant)[1], &rules.merchant);
    until("a fault", async || store.status().connection_error.is_some()).await;
    until("another primary", async || {
        // It is asked all the time.
        let _ = impatient.peek(&[merchant_limit(lost)]).await;
        cluster.has_line(victim + 3, "INFO replication", "role:master")
    })
    .await;
    let from = Instant::now();
    until("its keys", async || {
        impatient.peek(&[merchant_limit(lost)]).await.outcomes[0].is_ok()
    })
    .await;
    let took = from.elapsed();
    println!("shared again {took:?} after the new primary took writes");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(store.peek(&[merchant_limit(kept)]).await.outcomes[0].is_ok());
    until("no fault", async || {
        store.status().connection_error.is_none() && impatient.status().connection_error.is_none()
    })
    .await;
    // The killed one has left the map, and that it was left alone once stays counted.
    assert!(impatient.status().breaker.transitions >= 1);
    load.advance(1_000).await;
    let (observed, stores) = load.end().await;
    assert!(!observed.failed.is_empty(), "the fault did not bite");
    // Those of the other primaries stayed shared.
    for (merchant, ceiling_uses, merchant_uses) in &observed.failed {
        assert!(ceiling_uses.is_none(), "the ceiling: {ceiling_uses:?}");
        assert!(hit[*merchant], "merchant {merchant}: {merchant_uses:?}");
    }
    // They are exact, too: what the ceiling gave to requests whose other half failed stays with it, as their callers wish.
    let exact = |key| key != ceiling && owner_of(&cluster, &store, key) != victim;
    rules.audit(&stores[0], &observed, exact).await;
    let used = rules.ceiling.capacity() - remaining(&*stores[0], ceiling, &rules.ceiling).await;
    assert_eq!(used, (observed.passed.len() + observed.failed.len()) as u64);
    // Of the killed one's own, what its replica was not told of is lost, and nothing is counted twice.
    let (mut passed, mut lost) = (0, 0);
    for merchant in (0..rules.merchants).filter(|merchant| hit[*merchant]) {
        let merchant_limit = observed.passed.iter().filter(|(uses, ..)| *uses == merchant).count() as u64;
        let failed = observed.failed.iter().filter(|(uses, ..)| *uses == merchant).count() as u64;
        let key = rules.keys(&store, merchant)[1];
        let used = rules.merchant.capacity() - remaining(&*stores[0], key, &rules.merchant).await;
        assert!(
            used <= merchant_limit + failed,
            "merchant {merchant}: {used} taken, {merchant_limit} passed"
        );
        (passed, lost) = (passed + merchant_limit, lost + merchant_limit.saturating_sub(used));
    }
    println!("{lost} of {passed} charges of the killed primary lost");
    // All that passed there in a second before it was killed is far more than what was on its way to the replica.
    assert!(lost <= in_the_last_second, "{lost} lost");
    for store in &stores {
        for (code, count) in store.metrics().errors() {
            let is_expected = matches!(
                code,
                "unavailable" | "timeout" | "connection_lost" | "deadline_passed" | "breaker_open"
            );
            assert!(count == 0 || is_expected, "{count} {code}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_on_purpose_loses_nothing() {
    let cluster = Cluster::start(ServerKind::Redis70);
    let rules = Rules::wide();
    let load = Load::start(&cluster, Duration::from_secs(5), rules).await;
    for primary in 0..3 {
        cluster.command(primary + 3, "CLUSTER FAILOVER").expect("it begins");
        until("another primary", async || {
            cluster.has_line(primary + 3, "INFO replication", "role:master")
        })
        .await;
        load.advance(500).await;
    }
    let (observed, stores) = load.end().await;
    assert!(
        observed.failed.is_empty(),
        "{} of {}",
        observed.failed.len(),
        observed.passed.len()
    );
    rules.audit(&stores[0], &observed, |_| true).await;
    let redirects: u64 = stores.iter().map(|store| store.metrics().redirects.get()).sum();
    assert!(redirects > 0, "nobody was sent elsewhere");
}

/// A cluster that takes nobody for dead while a test has it stand still.
fn patient() -> Cluster {
    Cluster::start_with(
        ServerKind::Redis70,
        &[
            "--cluster-require-full-coverage",
            "no",
            "--cluster-node-timeout",
            "30000",
        ],
    )
}

/// Starts a request, and waits until its first charge is kept on the first server.
async fn settle_until_kept(
    cluster: &Cluster,
    store: &Arc<Redis>,
    charges: [Charge<RedisKey>; 2],
) -> JoinHandle<Settlement> {
    let pending = tokio::spawn({
        let store = Arc::clone(store);
        async move { store.settle(&charges, LeaseId::default()).await }
    });
    let exists = format!("EXISTS {}", store.key_text(&charges[0].key));
    until("a charge", async || cluster.command(0, &exists) == Ok("1".to_owned())).await;
    pending
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_that_cannot_be_taken_back_is_counted_and_costs_its_key_just_that() {
    let cluster = patient();
    let store = Arc::new(open_for(&cluster, Duration::from_millis(1_000)));
    let (generous, empty) = (once(10), once(1));
    let one = subject_on(&cluster, &store, 0, "");
    let two = subject_on(&cluster, &store, 1, &one);
    let giving = key(&*store, "giving", &generous, &[one.as_bytes()]);
    let refusing = key(&*store, "refusing", &empty, &[two.as_bytes()]);
    assert!(
        store
            .settle(&[charge(refusing, &empty)], LeaseId::default())
            .await
            .allowed
    );
    // What the store says of it must not be known here any more, or it would be refused without asking.
    until("nothing remembered", async || {
        let peeked = store.settle(&[charge(refusing, &empty)], LeaseId::default()).await;
        tokio::time::sleep(Duration::from_millis(260)).await;
        !peeked.allowed
    })
    .await;
    cluster.servers[1].freeze();
    let both = [charge(giving, &generous), charge(refusing, &empty)];
    let pending = settle_until_kept(&cluster, &store, both).await;
    cluster.servers[0].freeze();
    cluster.servers[1].thaw();
    let settlement = pending.await.expect("an answer");
    assert!(!settlement.allowed, "{settlement:?}");
    let denial = settlement.outcomes[1].expect("a decision");
    assert!(!denial.decision.is_allow());
    until("a charge given up", async || {
        store.metrics().uncompensated_charges.get() == 1
    })
    .await;
    cluster.servers[0].thaw();
    until("the server", async || {
        store.peek(&[charge(giving, &generous)]).await.outcomes[0].is_ok()
    })
    .await;
    assert_eq!(remaining(&*store, giving, &generous).await, 9);
    // The next is taken back as it should be.
    let both = [charge(giving, &generous), charge(refusing, &empty)];
    let settlement = store.settle(&both, LeaseId::default()).await;
    assert!(!settlement.allowed, "{settlement:?}");
    assert_eq!(remaining(&*store, giving, &generous).await, 9);
    assert_eq!(store.metrics().uncompensated_charges.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_before_the_answer_leaves_nothing_taken() {
    let cluster = patient();
    let store = Arc::new(open(&cluster));
    let (generous, empty) = (once(10), once(1));
    let one = subject_on(&cluster, &store, 0, "");
    let two = subject_on(&cluster, &store, 1, &one);
    let giving = key(&*store, "giving", &generous, &[one.as_bytes()]);
    let refusing = key(&*store, "refusing", &empty, &[two.as_bytes()]);
    let full = store.settle(&[charge(refusing, &empty)], LeaseId::default()).await;
    assert!(full.allowed, "{full:?}");
    // After a quarter of a second nothing is remembered here, and the store must be asked.
    tokio::time::sleep(Duration::from_millis(260)).await;
    cluster.servers[1].freeze();
    let both = [charge(giving, &generous), charge(refusing, &empty)];
    let pending = settle_until_kept(&cluster, &store, both).await;
    pending.abort();
    assert!(pending.await.is_err(), "it was still asking");
    cluster.servers[1].thaw();
    until("it is given back", async || {
        remaining(&*store, giving, &generous).await == 10
    })
    .await;
    assert_eq!(
        (
            store.metrics().compensated_charges.get(),
            store.metrics().uncompensated_charges.get()
        ),
        (1, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_finds_nobody_says_so() {
    let store = Redis::options("redis+cluster://127.0.0.1:1")
        .expect("a URL")
        .deadline(Duration::from_millis(200))
        .open();
    let limit = once(1);
    let unused = charge(key(&store, "r", &limit, &[b"m"]), &limit);
    let settlement = store.settle(&[unused], LeaseId::default()).await;
    assert_eq!(settlement.outcomes, [Err(StoreError::Unavailable)]);
    until("a fault", async || {
        let error = store.status().connection_error.unwrap_or_default();
        error.starts_with("no server of the cluster answers: ")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_before_the_answer_leaves_no_slot_taken() {
    let cluster = patient();
    let limiter = Limiter::new(open(&cluster));
    let store = limiter.store();
    let one = subject_on(&cluster, store, 0, "");
    let two = subject_on(&cluster, store, 1, &one);
    // Far longer than anybody waits here for the slots.
    let slots = Concurrency::at_most(1).lease_ttl(Duration::from_secs(3_600));
    let slots = limiter.concurrency("slots", slots).expect("valid");
    let counter = named_limit(&limiter, "slots", *slots.limit());
    let keys = [&one, &two].map(|subject| counter.key(store, &[subject.as_bytes()]));
    cluster.servers[1].freeze();
    let pending = tokio::spawn({
        let (limiter, slots, one, two) = (limiter.clone(), slots.clone(), one.clone(), two.clone());
        async move {
            let checks = [SlotCheck::new(&slots, &one), SlotCheck::new(&slots, &two)];
            limiter.acquire_all(&[], &checks).await
        }
    });
    let exists = format!("EXISTS {}", store.key_text(&keys[0]));
    until("a slot", async || cluster.command(0, &exists) == Ok("1".to_owned())).await;
    pending.abort();
    assert!(pending.await.is_err(), "it was still asking");
    cluster.servers[1].thaw();
    for key in keys {
        until("it is free", async || remaining(store, key, slots.limit()).await == 1).await;
    }
}
