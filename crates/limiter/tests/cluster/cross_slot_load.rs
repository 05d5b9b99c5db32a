//! Requests under two limits that lie apart: neither ever lets more pass than it allows, and nothing is lost between them.

use crate::fixture::{Load, Rules, bucket, charge, key, once, open, owner_of, remaining, until};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::{Micros, Timestamp};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::counters::requests;
use tollgate_limiter::testing::excess_millionths;
use tollgate_limiter::testing::servers::ServerKind;

const TASKS: usize = 64;

fn stores(cluster: &Cluster) -> Vec<Arc<Redis>> {
    (0..2).map(|_| Arc::new(open(cluster))).collect()
}

fn assert_no_errors(stores: &[Arc<Redis>]) {
    for store in stores {
        for (code, count) in store.metrics().errors() {
            assert_eq!(count, 0, "{code}");
        }
        assert_eq!(store.metrics().uncompensated_charges.get(), 0);
    }
}

/// The excess of admissions over `rate` a second with a burst of one second's units.
fn excess<'a>(admitted: impl Iterator<Item = &'a Timestamp>, rate: i64) -> i64 {
    let mut us: Vec<u64> = admitted.map(|at| at.as_micros()).collect();
    us.sort_unstable();
    excess_millionths(&us, rate, rate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ceiling_and_limits_of_merchants_hold_at_every_moment() {
    let cluster = Cluster::start(ServerKind::Redis70);
    let rules = Rules {
        ceiling: bucket(1_000, Micros::from_secs(1)),
        merchant: bucket(80, Micros::from_secs(1)),
        merchants: 20,
    };
    let load = Load::on(stores(&cluster), TASKS, rules);
    until("ten seconds' worth", async || load.passed() > 10_500).await;
    let (observed, stores) = load.end().await;
    assert_no_errors(&stores);
    assert!(
        observed.failed.is_empty() && observed.denied > 1_000,
        "{} refused",
        observed.denied
    );
    let ceiling = observed.passed.iter().map(|(_, at, _)| at);
    assert!(excess(ceiling, 1_000) <= 0, "the ceiling");
    for merchant in 0..rules.merchants {
        let merchant_limit = observed.passed.iter().filter(|(uses, ..)| *uses == merchant);
        let merchant_limit: Vec<&Timestamp> = merchant_limit.map(|(_, _, at)| at).collect();
        assert!(merchant_limit.len() > 80, "merchant {merchant} was refused too often");
        assert!(excess(merchant_limit.into_iter(), 80) <= 0, "merchant {merchant}");
    }
    let undone: u64 = stores
        .iter()
        .map(|store| store.metrics().compensated_charges.get())
        .sum();
    assert!(undone > 100, "{undone} charges were taken back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_is_what_passed() {
    let cluster = Cluster::start(ServerKind::Valkey);
    let rules = Rules {
        ceiling: once(8_000),
        merchant: once(600),
        merchants: 20,
    };
    let load = Load::on(stores(&cluster), TASKS, rules);
    // Long after nothing is left, they still ask.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (observed, stores) = load.end().await;
    assert_no_errors(&stores);
    assert!(observed.denied > 1_000, "{} refused", observed.denied);
    // All of it, but for what was on its way back in the end.
    assert!(
        (7_900..=8_000).contains(&observed.passed.len()),
        "{}",
        observed.passed.len()
    );
    for merchant in 0..rules.merchants {
        let merchant_limit = observed.passed.iter().filter(|(uses, ..)| *uses == merchant).count();
        assert!(merchant_limit <= 600, "merchant {merchant}: {merchant_limit}");
    }
    rules.audit(&stores[0], &observed, |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subjects_spread_evenly_over_the_primaries() {
    let cluster = Cluster::start(ServerKind::Redis70);
    let store = open(&cluster);
    let limit = once(10);
    let mut on = [0_u32; 3];
    for subject in 0..3_000 {
        let key = key(&store, "r", &limit, &[format!("m_{subject}").as_bytes()]);
        on[owner_of(&cluster, &store, key)] += 1;
    }
    assert!(on.iter().all(|count| (900..1_100).contains(count)), "{on:?}");
    // And they are where they should be: without being sent elsewhere.
    for subject in 0..100 {
        let key = key(&store, "r", &limit, &[format!("m_{subject}").as_bytes()]);
        let settlement = store
            .settle(&[crate::fixture::charge(key, &limit)], Default::default())
            .await;
        assert!(settlement.allowed, "{settlement:?}");
    }
    assert_eq!(store.metrics().redirects.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_settled_in_order_over_all_primaries_and_across_slots() {
    let cluster = Cluster::start(ServerKind::Valkey);
    let store = open(&cluster);
    let (few, many) = (once(10), once(1_000));
    let keys: Vec<RedisKey> = (0..40)
        .map(|merchant: u32| key(&store, "merchant", &few, &[merchant.to_string().as_bytes()]))
        .collect();
    let ceiling = key(&store, "ceiling", &many, &[b"ceiling"]);
    // 800 requests of one slot each; behind them each merchant once more, under a ceiling in another slot.
    let single = (0..800).map(|n| vec![charge(keys[n % 40], &few)]);
    let crossing = (0..40).map(|n| vec![charge(keys[n], &few), charge(ceiling, &many)]);
    let charges: Vec<Vec<_>> = single.chain(crossing).collect();
    let settlements = store.settle_each(&requests(&charges)).await;
    for (n, settlement) in settlements.iter().enumerate() {
        assert_eq!(settlement.allowed, n < 400, "{n}: {settlement:?}");
    }
    assert_eq!(
        remaining(&store, ceiling, &many).await,
        1_000,
        "denied requests keep nothing"
    );
    // At most a call for each of 40 tags and their overflow, not one for each request.
    let calls = store.metrics().calls.get();
    assert!(calls < 400, "{calls} calls");
}
