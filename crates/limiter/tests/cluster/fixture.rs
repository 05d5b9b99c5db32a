//! A cluster with stores on it, and a load whose every answer is remembered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tollgate_core::{Charge, LeaseId, Limit, Timestamp};
use tollgate_limiter::store::redis::{Redis, RedisKey, RedisOptions};
use tollgate_limiter::store::{Keyspace, Settlement, Store, StoreError};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::counters;

pub(crate) use tollgate_core::testing::limits::{token_bucket as bucket, yearly_window as once};
pub(crate) use tollgate_limiter::testing::counters::{key, remaining};
pub(crate) use tollgate_limiter::testing::eventually as until;

/// A store with a deadline that a busy machine keeps.
pub(crate) fn open(cluster: &Cluster) -> Redis {
    open_for(cluster, Duration::from_secs(5))
}

pub(crate) fn open_for(cluster: &Cluster, deadline: Duration) -> Redis {
    options(cluster, deadline).open()
}

pub(crate) fn options(cluster: &Cluster, deadline: Duration) -> RedisOptions {
    Redis::options(&cluster.url()).expect("a URL").deadline(deadline)
}

pub(crate) fn charge(key: RedisKey, limit: &Limit) -> Charge<RedisKey> {
    counters::charge(key, limit, 1)
}

/// A subject whose counters the given primary has at the start.
pub(crate) fn subject_on(cluster: &Cluster, store: &Redis, primary: usize, but_not: &str) -> String {
    let limit = once(1);
    let mut names = (0..).map(|number| format!("m_{number}"));
    let is_there = |name: &String| {
        name != but_not && owner_of(cluster, store, key(store, "any", &limit, &[name.as_bytes()])) == primary
    };
    names.find(is_there).expect("one of them")
}

/// Which primary has a key at the start.
pub(crate) fn owner_of(cluster: &Cluster, store: &Redis, key: RedisKey) -> usize {
    slot(cluster, store, key) * 3 / 16_384
}

pub(crate) fn slot(cluster: &Cluster, store: &Redis, key: RedisKey) -> usize {
    let slot = cluster.command(3, &format!("CLUSTER KEYSLOT {}", store.key_text(&key)));
    slot.expect("a slot").parse().expect("a number")
}

/// A rule for everybody and one for each merchant.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) ceiling: Limit,
    pub(crate) merchant: Limit,
    pub(crate) merchants: usize,
}

/// What came of a load.
#[derive(Default)]
pub(crate) struct Observation {
    /// When each of the two charges of a request that passed was decided, and the merchant.
    pub(crate) passed: Vec<(usize, Timestamp, Timestamp)>,
    pub(crate) denied: u64,
    /// Requests with a charge that could not be decided: the merchant, and what the ceiling and the merchant's limit said.
    pub(crate) failed: Vec<(usize, Option<StoreError>, Option<StoreError>)>,
}

/// Instances that ask as fast as they may.
pub(crate) struct Load {
    pub(crate) stores: Vec<Arc<Redis>>,
    stop: Arc<AtomicBool>,
    observed: Arc<Mutex<Observation>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Two stores with 16 tasks, once they have a good start.
    pub(crate) async fn start(cluster: &Cluster, deadline: Duration, rules: Rules) -> Self {
        let stores = (0..2).map(|_| Arc::new(open_for(cluster, deadline)));
        let load = Self::on(stores.collect(), 16, rules);
        load.advance(1_000).await;
        load
    }

    pub(crate) fn on(stores: Vec<Arc<Redis>>, tasks: usize, rules: Rules) -> Self {
        let (stop, observed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(Observation::default())),
        );
        let mut running = Vec::new();
        for store in &stores {
            for number in 0..tasks {
                let (store, stop, observed) = (Arc::clone(store), Arc::clone(&stop), Arc::clone(&observed));
                running.push(tokio::spawn(async move {
                    let mut merchant = number;
                    while !stop.load(Ordering::Relaxed) {
                        merchant = (merchant * 7 + 1 + number) % rules.merchants;
                        let settlement = store.settle(&rules.charges(&store, merchant), LeaseId::default()).await;
                        let denied = observed
                            .lock()
                            .expect("no test panics with it")
                            .add(merchant, &settlement);
                        if denied {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                    }
                }));
            }
        }
        Self {
            stores,
            stop,
            observed,
            tasks: running,
        }
    }

    /// When charges of some merchants' own limits were taken.
    pub(crate) fn times_of(&self, is_one: impl Fn(usize) -> bool) -> Vec<Timestamp> {
        let observed = self.observed.lock().expect("no test panics with it");
        let times = |(merchant, _, at): &(usize, Timestamp, Timestamp)| is_one(*merchant).then_some(*at);
        observed.passed.iter().filter_map(times).collect()
    }

    /// Waits until so many more have passed.
    pub(crate) async fn advance(&self, more: usize) {
        let before = self.passed();
        until("requests that pass", async || self.passed() > before + more).await;
    }

    pub(crate) fn passed(&self) -> usize {
        self.observed.lock().expect("no test panics with it").passed.len()
    }

    pub(crate) async fn end(self) -> (Observation, Vec<Arc<Redis>>) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("it asks");
        }
        let observed = std::mem::take(&mut *self.observed.lock().expect("no test panics with it"));
        (observed, self.stores)
    }
}

impl Rules {
    /// So much that nobody is ever refused.
    pub(crate) fn wide() -> Self {
        Self {
            ceiling: once(1_000_000),
            merchant: once(100_000),
            merchants: 40,
        }
    }

    pub(crate) fn keys(&self, store: &Redis, merchant: usize) -> [RedisKey; 2] {
        let name = format!("merchant {merchant}");
        [
            key(store, "ceiling", &self.ceiling, &[]),
            key(store, "merchant", &self.merchant, &[name.as_bytes()]),
        ]
    }

    fn charges(&self, store: &Redis, merchant: usize) -> [Charge<RedisKey>; 2] {
        let [ceiling, merchant_limit] = self.keys(store, merchant);
        [charge(ceiling, &self.ceiling), charge(merchant_limit, &self.merchant)]
    }

    /// What was taken of the ceiling and of each merchant's limit is what passed: nothing leaked, nothing was charged twice.
    /// Only those of which `is_exact` says so.
    pub(crate) async fn audit(&self, store: &Redis, observed: &Observation, is_exact: impl Fn(RedisKey) -> bool) {
        let mut passed: HashMap<usize, u64> = HashMap::new();
        for (merchant, ..) in &observed.passed {
            *passed.entry(*merchant).or_default() += 1;
        }
        let [ceiling, _] = self.keys(store, 0);
        let mut exact = 0;
        if is_exact(ceiling) {
            exact += 1;
            let used = self.ceiling.capacity() - remaining(store, ceiling, &self.ceiling).await;
            assert_eq!(used, observed.passed.len() as u64, "taken of the ceiling, and passed");
        }
        for merchant in 0..self.merchants {
            let [_, merchant_limit] = self.keys(store, merchant);
            if is_exact(merchant_limit) {
                exact += 1;
                let used = self.merchant.capacity() - remaining(store, merchant_limit, &self.merchant).await;
                let passed = passed.get(&merchant).copied().unwrap_or_default();
                assert_eq!(used, passed, "taken of merchant {merchant}'s, and passed");
            }
        }
        assert!(exact > 0, "nothing was looked at");
    }
}

impl Observation {
    /// Whether the request was refused, or could not be decided.
    fn add(&mut self, merchant: usize, settlement: &Settlement) -> bool {
        match &settlement.outcomes[..] {
            [Ok(ceiling), Ok(merchant_limit)] if settlement.allowed => {
                let [ceiling, merchant_limit] = [ceiling, merchant_limit].map(|outcome| outcome.receipt.mark.taken_at);
                self.passed.push((merchant, ceiling, merchant_limit));
                return false;
            }
            [Ok(_) | Err(StoreError::Skipped), Ok(_) | Err(StoreError::Skipped)] => self.denied += 1,
            [ceiling, merchant_limit] => self.failed.push((merchant, ceiling.err(), merchant_limit.err())),
            other => panic!("two outcomes, not {other:?}"),
        }
        true
    }
}
