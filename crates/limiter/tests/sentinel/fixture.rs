//! A store over sentinels, and a load on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tollgate_core::{
    Charge, Cost, Counter, FixedWindow, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, Timestamp,
};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Keyspace, Settlement, Store};
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::Server;

pub(crate) fn open(watched: &SentinelGroup, deadline: Duration) -> Redis {
    let options = Redis::options(&watched.url()).expect("a URL");
    options.deadline(deadline).near_cache(false).open()
}

/// A limit that is never reached, so that every call writes.
pub(crate) fn limit() -> Limit {
    once(100_000_000)
}

/// So many units, of which none comes back while a test runs: what is missing was taken.
pub(crate) fn once(units: u64) -> Limit {
    FixedWindow::new(Rate::new(units, Micros::from_secs(365 * 86_400)).expect("in range")).into()
}

pub(crate) fn charge(store: &Redis, limit: &Limit) -> Charge<RedisKey> {
    let counter = Counter {
        domain: "default",
        rule: "r",
        variant: "",
        limit,
        per: &[],
    };
    Charge {
        key: store.key(&store.template(&counter), &[b"u"]),
        limit: *limit,
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Local,
    }
}

/// Asks without a pause until it is told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    shared: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    task: JoinHandle<Vec<Timestamp>>,
}

/// What came of a load.
pub(crate) struct Observation {
    /// When each charge was taken that was answered for.
    pub(crate) passed: Vec<Timestamp>,
    pub(crate) failed: u64,
}

impl Load {
    pub(crate) fn on(store: Arc<Redis>) -> Self {
        let [shared, failed] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, healthy, ill) = (Arc::clone(&stop), Arc::clone(&shared), Arc::clone(&failed));
        let task = tokio::spawn(async move {
            let charge = charge(&store, &limit());
            let mut passed = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Settlement { outcomes, .. } = store.settle(&[charge], LeaseId::default()).await;
                if let Ok(outcome) = outcomes[0] {
                    passed.push(outcome.receipt.mark.taken_at);
                }
                let count = if outcomes[0].is_ok() { &healthy } else { &ill };
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            passed
        });
        Self {
            stop,
            shared,
            failed,
            task,
        }
    }

    pub(crate) fn shared(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    pub(crate) async fn end(self) -> Observation {
        self.stop.store(true, Ordering::Relaxed);
        Observation {
            passed: self.task.await.expect("it asks"),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}

pub(crate) fn connection(server: &Server) -> redis::Connection {
    let client = redis::Client::open(server.url()).expect("a URL");
    client.get_connection().expect("a server")
}

/// Whether a server takes itself for the primary.
pub(crate) fn is_primary(server: &Server) -> bool {
    matches!(role(server).first(), Some(redis::Value::BulkString(role)) if role == b"master")
}

/// What a server says of itself. Nothing if it closes the connection, as whoever is promoted does.
pub(crate) fn role(server: &Server) -> Vec<redis::Value> {
    let client = redis::Client::open(server.url()).expect("a URL");
    let role = client
        .get_connection()
        .and_then(|mut connection| redis::cmd("ROLE").query(&mut connection));
    role.unwrap_or_default()
}

/// How often the script was called on a server by commands that may write.
pub(crate) fn calls(server: &Server) -> u64 {
    calls_by(server, &["fcall", "evalsha", "eval"])
}

/// How often these commands were called on a server.
pub(crate) fn calls_by(server: &Server, commands: &[&str]) -> u64 {
    let mut connection = connection(server);
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .expect("it tells");
    let times = |command: &&str| {
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    commands.iter().filter_map(times).sum()
}

/// How many units of a limit are used, as the store says.
pub(crate) async fn used(store: &Redis, limit: &Limit) -> u64 {
    let peeked = store.peek(&[charge(store, limit).as_peek()]).await;
    let outcome = peeked.outcomes[0].expect("a store that answers");
    limit.capacity() - outcome.decision.standing().remaining
}

/// Takes one unit after the other, so many at most, until there are no more. Says how many it got.
pub(crate) async fn take(store: &Redis, limit: &Limit, max: u64) -> u64 {
    let mut used = 0;
    while used < max {
        let settlement = store.settle(&[charge(store, limit)], LeaseId::default()).await;
        match settlement.outcomes[0] {
            Ok(outcome) if outcome.decision.is_allow() => used += 1,
            Ok(_) => break,
            // Nobody answers for that one, and it counts for nobody.
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    used
}

/// Waits until something holds. For long: sentinels that stood still for two seconds, as on a machine that did, do nothing for
/// the next thirty.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long a failover takes is what is looked at"
    )]
    let (started, now) = (Instant::now(), Instant::now);
    while !holds() {
        assert!(now() - started < Duration::from_secs(75), "{what} never came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    now() - started
}
