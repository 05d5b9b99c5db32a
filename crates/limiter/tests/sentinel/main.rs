//! The shared store where sentinels choose the primary.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up has failed"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tollgate_core::{Charge, Cost, Counter, LeaseId, Limit, Micros, Policy, Rate, TokenBucket};
use tollgate_limiter::conformance::{Bench, conformance};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Settled, Store};
use tollgate_limiter::testing::sentinel::Watched;
use tollgate_limiter::testing::servers::{Kind, Server};

fn open(watched: &Watched, deadline: Duration) -> Redis {
    let options = Redis::options(&watched.url()).expect("a URL");
    options.deadline(deadline).near_cache(false).open()
}

/// A limit that is never reached, so that every call writes.
fn limit() -> Limit {
    TokenBucket::new(Rate::new(1_000_000, Micros::from_secs(60)).expect("in range")).into()
}

fn charge(store: &Redis, limit: &Limit) -> Charge<RedisKey> {
    let counter = Counter {
        domain: "default",
        rule: "r",
        variant: "",
        limit,
        per: &[],
    };
    Charge {
        key: store.key(&store.subjects(&counter), &[b"u"]),
        limit: *limit,
        cost: Cost::ONE,
        policy: Policy::Enforce,
    }
}

/// Asks without a pause until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    shared: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Load {
    fn on(store: Arc<Redis>) -> Self {
        let [shared, failed] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, well, ill) = (Arc::clone(&stop), Arc::clone(&shared), Arc::clone(&failed));
        let task = tokio::spawn(async move {
            let charge = charge(&store, &limit());
            while !stopped.load(Ordering::Relaxed) {
                let Settled { outcomes, .. } = store.settle(&[charge], LeaseId::default()).await;
                let count = if outcomes[0].is_ok() { &well } else { &ill };
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        Self {
            stop,
            shared,
            failed,
            task,
        }
    }

    fn shared(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("it asks");
        self.failed.load(Ordering::Relaxed)
    }
}

fn connection(server: &Server) -> redis::Connection {
    let client = redis::Client::open(server.url()).expect("a URL");
    client.get_connection().expect("a server")
}

/// How often the script was called on a server.
fn calls(server: &Server) -> u64 {
    let mut connection = connection(server);
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .expect("it tells");
    let of = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(name))?;
        line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok()
    };
    ["cmdstat_fcall:", "cmdstat_evalsha:", "cmdstat_eval:"]
        .into_iter()
        .filter_map(of)
        .sum()
}

/// Waits until something holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a failover takes is what is looked at"
    )]
    let (began, now) = (Instant::now(), Instant::now);
    while !holds() {
        assert!(now() - began < Duration::from_secs(30), "{what} never came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    now() - began
}

#[test]
fn a_store_conforms_through_sentinels() {
    let watched = Watched::start(Kind::Redis70);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = Redis::options(&watched.url()).expect("a URL");
        let store = options.deadline(Duration::from_secs(5)).open();
        let survey = store.survey().await.expect("a primary");
        assert_eq!(survey.warnings, Vec::<String>::new());
        let handle = Handle::current();
        let bench = Bench::new(store).on_threads(move |work| {
            let _inside = handle.enter();
            work();
        });
        conformance(&bench).await.expect("a store as it should be");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_followed_by_another() {
    let mut watched = Watched::start(Kind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_millis(200)));
    let load = Load::on(Arc::clone(&store));
    until("a first answer", || load.shared() > 100).await;
    watched.servers[0].kill();
    let old = watched.servers[0].port();
    until("another primary", || watched.primary_port() != old).await;
    let new = watched.primary_port();
    let new = watched
        .servers
        .iter()
        .find(|server| server.port() == new)
        .expect("one of the replicas");
    until("a primary that takes writes", || {
        let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection(new)).expect("it tells");
        matches!(&role[0], redis::Value::BulkString(role) if role == b"master")
    })
    .await;
    let before = load.shared();
    let took = until("an answer of the new one", || load.shared() > before + 100).await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(load.end().await > 0, "the fault did not bite");
    assert!(calls(new) > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_too_late_is_not_asked() {
    let watched = Watched::start(Kind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_millis(200)));
    let load = Load::on(Arc::clone(&store));
    until("a first answer", || load.shared() > 100).await;
    let (zombie, old) = (&watched.servers[0], watched.servers[0].port());
    // It stands still until another has its place, and knows nothing of it when it goes on.
    zombie.freeze();
    until("another primary", || watched.primary_port() != old).await;
    let before = load.shared();
    until("an answer of the new one", || load.shared() > before + 100).await;
    zombie.thaw();
    let at_first = calls(zombie);
    let before = load.shared();
    until("more answers", || load.shared() > before + 1_000).await;
    assert_eq!(calls(zombie), at_first);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_are_away_stop_nobody() {
    let mut watched = Watched::start(Kind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_secs(5)));
    let charge = charge(&store, &limit());
    let first = store.settle(&[charge], LeaseId::default()).await;
    assert!(first.passes, "{first:?}");
    for sentinel in &mut watched.sentinels {
        sentinel.kill();
    }
    // Also not when the connection breaks: the primary is where it was.
    let killed: i64 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .query(&mut connection(&watched.servers[0]))
        .expect("it does");
    assert!(killed > 0);
    until("a new connection", || store.fault().is_none()).await;
    let second = store.settle(&[charge], LeaseId::default()).await;
    assert!(second.passes, "{second:?}");
}
