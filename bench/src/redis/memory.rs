//! Bytes per key: every algorithm compared with a plain integer with a TTL, and the log with a sorted set.

use super::load::{TIMEOUT, fill};
use super::server::WatchedServer;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate_core::{Cell, Concurrency, Cost, Limit, LimitError};
use tollgate_limiter::limits::{FixedWindow, Gcra, IntoLimit, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::counters::named_limit;
use tollgate_limiter::{LimitCheck, Limiter};

/// The memory of one kind of key.
pub(crate) struct Bytes {
    pub(crate) kind: &'static str,
    /// Requests in the state of each key.
    pub(crate) requests: u64,
    /// The growth of `used_memory` per key.
    pub(crate) used: f64,
    /// `MEMORY USAGE` of one key.
    pub(crate) reported: u64,
}

/// Keys of the short kinds, and of logs.
const KEYS: u64 = 100_000;
const LOGS: u64 = 256;
/// The number of requests in a full log.
const FULL: u64 = 1_000;
const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) const INTEGER: &str = "plain integer";
pub(crate) const TOKEN_BUCKET: &str = "token bucket";
pub(crate) const GCRA: &str = "GCRA";
pub(crate) const LOG: &str = "sliding log, full at 1,000";

pub(crate) async fn measure(server: &mut WatchedServer) -> Result<Vec<Bytes>, String> {
    let kinds: [(&'static str, Result<Limit, LimitError>); 8] = [
        (TOKEN_BUCKET, TokenBucket::per_hour(1_000).into_limit()),
        (GCRA, Gcra::per_hour(1_000).burst(1_000).into_limit()),
        ("leaky bucket", LeakyBucket::per_hour(1_000).into_limit()),
        ("cell", Cell::new(999, 1_000, 3_600).map(Limit::from)),
        ("fixed window", FixedWindow::per_hour(1_000).into_limit()),
        ("sliding counter", SlidingCounter::per_hour(1_000).into_limit()),
        ("sliding log, one request", SlidingLog::per_hour(1_000).into_limit()),
        (
            "concurrency, one lease",
            Concurrency::new(1_000, HOUR.into()).map(Limit::from),
        ),
    ];
    let mut rows = Vec::new();
    // Twice: the first time the tables and buffers of the server grow too.
    for _ in 0..2 {
        rows.clear();
        let before = start(server)?;
        fill(server, "integer", KEYS)?;
        rows.push(measure_kind(server, INTEGER, (KEYS, 1), before)?);
    }
    for (kind, limit) in kinds {
        let limit = limit.map_err(|error| error.to_string())?;
        let before = start(server)?;
        take(&server.url(), limit, KEYS, 1).await?;
        rows.push(measure_kind(server, kind, (KEYS, 1), before)?);
    }
    let log = SlidingLog::per_hour(FULL).into_limit();
    let before = start(server)?;
    take(&server.url(), log.map_err(|error| error.to_string())?, LOGS, FULL).await?;
    rows.push(measure_kind(server, LOG, (LOGS, FULL), before)?);
    let before = start(server)?;
    fill(server, "sorted set", LOGS)?;
    rows.push(measure_kind(server, "sorted set of 1,000", (LOGS, FULL), before)?);
    server.clear()?;
    Ok(rows)
}

fn start(server: &mut WatchedServer) -> Result<u64, String> {
    server.clear()?;
    server.used_memory()
}

fn measure_kind(
    server: &mut WatchedServer,
    kind: &'static str,
    (keys, requests): (u64, u64),
    before: u64,
) -> Result<Bytes, String> {
    let there: u64 = server.query(&redis::cmd("DBSIZE"))?;
    if there != keys {
        return Err(format!("{kind}: {there} keys instead of {keys}"));
    }
    Ok(Bytes {
        kind,
        requests,
        used: server.used_memory()?.saturating_sub(before) as f64 / keys as f64,
        reported: server.memory_of_a_key()?,
    })
}

/// Consumes units of keys, each at a different time: a key has one caller.
async fn take(url: &str, limit: Limit, keys: u64, requests: u64) -> Result<(), String> {
    const CALLERS: u64 = 256;
    let options = Redis::options(url).map_err(|error| error.to_string())?;
    let limiter = Limiter::new(options.deadline(TIMEOUT).open());
    let rule = Arc::new(named_limit(&limiter, "memory", limit));
    let mut tasks = JoinSet::new();
    for first in 0..CALLERS.min(keys) {
        let (limiter, rule) = (Limiter::clone(&limiter), Arc::clone(&rule));
        tasks.spawn(async move {
            for number in (first..keys).step_by(CALLERS as usize) {
                let subject = number.to_le_bytes();
                let ask = || LimitCheck {
                    limit: &rule,
                    subject: &subject,
                    cost: Cost::ONE,
                };
                for _ in 0..requests {
                    let settled = limiter.settle(&[ask()]).await;
                    if !settled.allowed {
                        return Err(format!("a request within its limits did not pass: {settled:?}"));
                    }
                }
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|error| error.to_string())??;
    }
    Ok(())
}
