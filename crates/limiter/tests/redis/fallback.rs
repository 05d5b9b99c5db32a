//! Instances that go on without their server: killed, frozen, flushed, coming and going, and not there to begin with.

use crate::fixture::{Fixture, charge, lease, rate};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate_core::{Limit, Micros, TokenBucket};
use tollgate_limiter::conformance::{Harness, conformance};
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions, Registration};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{BreakerState, InstanceCount, Source, Store};
use tollgate_limiter::testing::counters;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const R: f64 = 100.0;
const B: f64 = 100.0;

fn hot() -> Limit {
    TokenBucket::new(rate(100, Micros::from_secs(1))).into()
}

fn instance(fixture: &Fixture, configured: Option<u32>) -> Arc<Fallback<Redis>> {
    let store = Redis::options(&fixture.server.url()).expect("a URL").open();
    let options = FallbackOptions {
        instances: configured,
        share_millionths: 1_000_000,
        ..FallbackOptions::default()
    };
    Arc::new(Fallback::new(Arc::new(store), options))
}

/// One answer: when it was asked for and when it came, in seconds, and what it was.
#[derive(Clone, Copy)]
struct Observation {
    sent: f64,
    received: f64,
    allowed: bool,
    source: Source,
}

/// Two instances that are asked for one hot key, about 1,500 times a second.
struct Load {
    instances: Vec<Arc<Fallback<Redis>>>,
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Observation>>>,
    started: Instant,
}

impl Load {
    /// A load that has run for a while.
    async fn start(fixture: &Fixture) -> Self {
        let load = Self::on(fixture).await;
        sleep(Duration::from_millis(1_500)).await;
        load
    }

    /// Ends it after two more seconds in which the server is back. The fault bit, and cost no more than is promised.
    async fn recover(self, excess_max: f64) -> (Vec<Observation>, Vec<Arc<Fallback<Redis>>>) {
        sleep(Duration::from_secs(2)).await;
        let (observed, instances) = self.end().await;
        let (local, x) = (by(&observed, Source::Local, 0.0), excess(&observed));
        assert!(local > 500, "the fault did not bite: {local}");
        assert!(x <= excess_max, "{x}");
        (observed, instances)
    }

    async fn on(fixture: &Fixture) -> Self {
        let instances = vec![instance(fixture, Some(2)), instance(fixture, Some(2))];
        let key = fixture.counter(instances[0].inner(), &hot(), "hot");
        for store in &instances {
            let from = Instant::now();
            while store.inner().status().connection_error.is_some() {
                assert!(
                    from.elapsed() < Duration::from_secs(5),
                    "{:?}",
                    store.inner().status().connection_error
                );
                sleep(Duration::from_millis(5)).await;
            }
        }
        let (is_over, started) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let tasks = (0..4).map(|task| {
            let (store, is_over) = (Arc::clone(&instances[task % 2]), Arc::clone(&is_over));
            tokio::spawn(async move { run_load(&store, key, &is_over, started).await })
        });
        Self {
            tasks: tasks.collect(),
            instances,
            is_over,
            started,
        }
    }

    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Ends the load, and says what was seen, in the order in which answers came.
    async fn end(self) -> (Vec<Observation>, Vec<Arc<Fallback<Redis>>>) {
        self.is_over.store(true, Ordering::Relaxed);
        let mut observed = Vec::new();
        for task in self.tasks {
            observed.extend(task.await.expect("nothing failed"));
        }
        observed.sort_by(|one: &Observation, other| one.received.total_cmp(&other.received));
        (observed, self.instances)
    }
}

async fn run_load(store: &Fallback<Redis>, key: RedisKey, is_over: &AtomicBool, started: Instant) -> Vec<Observation> {
    let mut observed = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let sent = started.elapsed().as_secs_f64();
        let settlement = store.settle(&[charge(key, &hot(), 1)], lease()).await;
        let outcome = settlement.outcomes[0].expect("every request is decided");
        observed.push(Observation {
            sent,
            received: started.elapsed().as_secs_f64(),
            allowed: settlement.allowed,
            source: outcome.source,
        });
        sleep(Duration::from_millis(1)).await;
    }
    observed
}

/// By how much the ideal was passed: in any interval of length t at most `B + r * t`. A decision lies between sending and
/// receiving, so intervals are taken longer by the longest that any took.
fn excess(observed: &[Observation]) -> f64 {
    let longest = observed
        .iter()
        .map(|observed| observed.received - observed.sent)
        .fold(0.0, f64::max);
    let (mut lowest, mut worst) = (f64::INFINITY, 0_f64);
    for (index, observed) in observed.iter().filter(|observed| observed.allowed).enumerate() {
        lowest = lowest.min(index as f64 - R * (observed.received - longest));
        worst = worst.max(index as f64 + 1.0 - R * observed.received - lowest - B);
    }
    worst
}

fn by(observed: &[Observation], source: Source, from: f64) -> usize {
    observed
        .iter()
        .filter(|observed| observed.source == source && observed.sent >= from)
        .count()
}

#[test]
fn over_a_server_it_conforms() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let inner = Arc::new(fixture.options().open());
        inner.diagnose().await.expect("a server");
        let options = FallbackOptions {
            instances: Some(1),
            ..FallbackOptions::default()
        };
        let bench = Harness::new(Fallback::new(inner, options)).in_runtime();
        let report = conformance(&bench).await.expect("a store as it should be");
        assert!(report.answers > 1_000, "{report}");
        assert_eq!(bench.store().metrics().decided(), 0);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_comes_back_empty_costs_what_is_promised() {
    let mut fixture = Fixture::start(ServerKind::Redis70);
    let load = Load::start(&fixture).await;
    fixture.server.kill();
    sleep(Duration::from_secs(3)).await;
    fixture.server.revive();
    let back = load.now();
    // M3 with all that two instances may allow, and a burst for what was lost with it (M8).
    let (observed, instances) = load.recover(300.0).await;
    let late_local = by(&observed, Source::Local, back + 1.2);
    assert!(
        late_local < 20,
        "{late_local} were not shared when the server was long back"
    );
    assert!(by(&observed, Source::Shared, back + 1.2) > 20);
    for store in &instances {
        assert_eq!(store.inner().status().breaker.state, BreakerState::Closed);
        assert_eq!(store.inner().status().breaker.transitions, 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_what_is_promised_and_is_not_charged_for_those_who_gave_up() {
    let fixture = Fixture::start(ServerKind::Valkey);
    let load = Load::start(&fixture).await;
    fixture.server.freeze();
    sleep(Duration::from_millis(2_500)).await;
    fixture.server.thaw();
    let back = load.now();
    let (observed, _) = load.recover(200.0).await;
    assert!(by(&observed, Source::Local, back + 1.5) < 20);
    // Few waited: those who found out.
    let slow = observed
        .iter()
        .filter(|observed| observed.received - observed.sent > 0.008)
        .count();
    assert!(slow <= 100, "{slow} waited");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_server_costs_a_burst() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let load = Load::start(&fixture).await;
    fixture.query::<()>(&["FLUSHALL"]);
    sleep(Duration::from_millis(1_500)).await;
    let (observed, _) = load.end().await;
    let x = excess(&observed);
    assert!(x > 20.0, "the fault did not bite: {x}");
    assert!(x <= 101.0, "{x}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_comes_and_goes_mints_nothing_and_is_seldom_trusted() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let load = Load::start(&fixture).await;
    for _ in 0..12 {
        fixture.server.freeze();
        sleep(Duration::from_millis(200)).await;
        fixture.server.thaw();
        sleep(Duration::from_millis(200)).await;
    }
    let (_, instances) = load.recover(200.0).await;
    for store in &instances {
        let changes = store.inner().status().breaker.transitions;
        assert!((1..=10).contains(&changes), "{changes}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_count_each_other_and_the_largest_number_stays() {
    let fixture = Fixture::start(ServerKind::Redis62);
    let (one, other) = (instance(&fixture, None), instance(&fixture, None));
    until_counted([&one, &other], 2).await;
    drop(other);
    // Their leases are keys like others: they have a prefix and an end.
    let keys: Vec<String> = fixture.query(&["KEYS", "*"]);
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(fixture.query::<i64>(&["PTTL", &keys[0]]) > 0);
    assert_eq!(one.instances(), InstanceCount::Heartbeats(2));
}

/// Waits until instances count so many.
async fn until_counted<const N: usize>(instances: [&Arc<Fallback<Redis>>; N], count: u32) {
    let from = Instant::now();
    while instances.map(|store| store.instances()) != [InstanceCount::Heartbeats(count); N] {
        let counted = instances.map(|store| store.instances());
        assert!(from.elapsed() < Duration::from_secs(10), "{counted:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_takes_the_place_of_one_that_left_is_not_counted_beside_it() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let stays = instance(&fixture, None);
    let mut leaves = instance(&fixture, None);
    until_counted([&stays, &leaves], 2).await;
    for _ in 0..3 {
        leaves.deregister().await;
        leaves = instance(&fixture, None);
        until_counted([&leaves], 2).await;
    }
    // It has counted all of them meanwhile.
    sleep(Duration::from_millis(1_600)).await;
    assert_eq!(stays.instances(), InstanceCount::Heartbeats(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_leaves_is_not_counted_any_more_and_one_that_is_silent_is() {
    let fixture = Fixture::start(ServerKind::Valkey);
    let [stays, silent, leaves] = [(); 3].map(|()| instance(&fixture, None));
    until_counted([&stays, &silent, &leaves], 3).await;
    drop(silent);
    leaves.deregister().await;
    until_counted([&stays], 2).await;
    // Departures are keys like others: they have a prefix and an end.
    for key in fixture.query::<Vec<String>>(&["KEYS", "*"]) {
        assert!(key.starts_with("tg:{"), "{key}");
        assert!(
            (1..=1_320_000).contains(&fixture.query::<i64>(&["PTTL", &key])),
            "{key}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_counted_from_when_it_registers() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let options = FallbackOptions {
        registration: Registration::Deferred,
        ..FallbackOptions::default()
    };
    let store = Fallback::new(Arc::new(fixture.options().open()), options);
    let key = counters::key(&store, "u", &hot(), &[]);
    store.settle(&[charge(key, &hot(), 1)], lease()).await;
    assert_eq!(fixture.query::<Vec<String>>(&["KEYS", "*"]).len(), 1);
    assert_eq!(store.instances(), InstanceCount::Assumed);
    // It waits for the first heartbeat.
    store.register().await;
    assert_eq!(store.instances(), InstanceCount::Heartbeats(1));
    assert_eq!(fixture.query::<Vec<String>>(&["KEYS", "*"]).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_to_begin_with_it_serves_and_finds_it_later() {
    let mut server = Server::start(ServerKind::Redis70);
    server.kill();
    let store = Redis::options(&server.url()).expect("a URL").open();
    let store = Fallback::new(Arc::new(store), FallbackOptions::default());
    assert_eq!(store.instances(), InstanceCount::Assumed);
    let key = counters::key(&store, "u", &hot(), &[]);
    let source = async || {
        let settlement = store.settle(&[charge(key, &hot(), 1)], lease()).await;
        settlement.outcomes[0].expect("every request is decided").source
    };
    for _ in 0..20 {
        assert_eq!(source().await, Source::Local);
    }
    server.revive();
    let from = Instant::now();
    while source().await != Source::Shared {
        assert!(
            from.elapsed() < Duration::from_secs(3),
            "{:?}",
            store.inner().status().connection_error
        );
        sleep(Duration::from_millis(5)).await;
    }
}
