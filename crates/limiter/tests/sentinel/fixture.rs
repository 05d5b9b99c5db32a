//! A store over sentinels, and a load on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tollgate_core::{Charge, LeaseId, Limit, Timestamp};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Settlement, Store};
use tollgate_limiter::testing::counters;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::Server;

pub(crate) use tollgate_core::testing::limits::yearly_window as once;
pub(crate) use tollgate_limiter::testing::admin::{calls as calls_by, connect as connection, query};

pub(crate) fn open(watched: &SentinelGroup, deadline: Duration) -> Redis {
    let options = Redis::options(&watched.url()).expect("a URL");
    options.deadline(deadline).near_cache(false).open()
}

/// A limit that is never reached, so that every call writes.
pub(crate) fn limit() -> Limit {
    once(100_000_000)
}

pub(crate) fn charge(store: &Redis, limit: &Limit) -> Charge<RedisKey> {
    counters::charge(key(store, limit), limit, 1)
}

fn key(store: &Redis, limit: &Limit) -> RedisKey {
    counters::key(store, "r", limit, &[b"u"])
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

/// The units used of a limit, by the store.
pub(crate) async fn used(store: &Redis, limit: &Limit) -> u64 {
    counters::used(store, key(store, limit), limit).await
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
