//! A store over sentinels, and a load on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tollgate_core::{Charge, Cost, Counter, LeaseId, Limit, Micros, Policy, Rate, TokenBucket};
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::store::{Settled, Store};
use tollgate_limiter::testing::sentinel::Watched;
use tollgate_limiter::testing::servers::Server;

pub(crate) fn open(watched: &Watched, deadline: Duration) -> Redis {
    let options = Redis::options(&watched.url()).expect("a URL");
    options.deadline(deadline).near_cache(false).open()
}

/// A limit that is never reached, so that every call writes.
pub(crate) fn limit() -> Limit {
    TokenBucket::new(Rate::new(1_000_000, Micros::from_secs(60)).expect("in range")).into()
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
        key: store.key(&store.subjects(&counter), &[b"u"]),
        limit: *limit,
        cost: Cost::ONE,
        policy: Policy::Enforce,
    }
}

/// Asks without a pause until it is told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    shared: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Load {
    pub(crate) fn on(store: Arc<Redis>) -> Self {
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

    pub(crate) fn shared(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    pub(crate) async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("it asks");
        self.failed.load(Ordering::Relaxed)
    }
}

pub(crate) fn connection(server: &Server) -> redis::Connection {
    let client = redis::Client::open(server.url()).expect("a URL");
    client.get_connection().expect("a server")
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
    let of = |command: &&str| {
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    commands.iter().filter_map(of).sum()
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
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
