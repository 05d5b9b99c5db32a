//! The loads: scripts of others over pipelined connections, or callers of the library.

use super::server::{WatchedServer, error_text};
use crate::measurement::{Measurement, ResponseLog};
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tollgate_core::Cost;
use tollgate_core::testing::random::Random;
use tollgate_limiter::limits::TokenBucket;
use tollgate_limiter::store::redis::{Redis, RedisOptions};
use tollgate_limiter::{LimitCheck, Limiter, NamedLimit};

/// A source of requests.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// One script call per decision, over a number of connections with a pipeline in flight each.
    Script {
        script: Script,
        connections: usize,
        pipeline: usize,
    },
    /// Callers of the library with one request in flight each.
    Library { callers: usize },
}

/// A script from articles.
#[derive(Clone, Copy)]
pub(crate) enum Script {
    TokenBucket,
    Gcra,
}

/// The library and its limit.
pub(crate) struct Library {
    limiter: Limiter<Redis>,
    rule: NamedLimit<Redis>,
}

/// 100 per hour with a burst of 100, of which ten are used: nothing is denied, and no counter expires meanwhile.
const BURST: u64 = 100;
const USED: u64 = 10;
const HOUR_US: u64 = 3_600_000_000;
const FILL: &str = include_str!("fill.lua");

/// Long enough for a busy machine: errors are not part of the measurement.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

impl Script {
    pub(crate) const ALL: [Self; 2] = [Self::TokenBucket, Self::Gcra];

    const fn text(self) -> &'static str {
        match self {
            Self::TokenBucket => include_str!("token_bucket.lua"),
            Self::Gcra => include_str!("gcra.lua"),
        }
    }

    /// One call.
    fn call(self, digest: &str, subject: u64) -> redis::Cmd {
        let us = now_us();
        let mut call = redis::cmd("EVALSHA");
        call.arg(digest).arg(1);
        match self {
            Self::TokenBucket => call
                .arg(format!("rl:user:{subject:016}"))
                .arg(BURST)
                .arg(BURST as f64 / 3_600.0)
                .arg(format!("{}.{:06}", us / 1_000_000, us % 1_000_000)),
            Self::Gcra => call
                .arg(format!("tat:user:{subject:016}"))
                .arg(BURST)
                .arg(HOUR_US / BURST)
                .arg(us),
        };
        call.arg(1);
        call
    }

    /// Creates all counters.
    pub(crate) fn fill(self, server: &mut WatchedServer, keys: u64) -> Result<(), String> {
        fill(server, if matches!(self, Self::Gcra) { "gcra" } else { "hash" }, keys)
    }
}

/// Creates keys of a kind with a script on the server.
pub(crate) fn fill(server: &mut WatchedServer, kind: &str, keys: u64) -> Result<(), String> {
    const AT_ONCE: u64 = 1_000;
    for first in (0..keys).step_by(AT_ONCE as usize) {
        let last = (first + AT_ONCE).min(keys) - 1;
        let mut fill = redis::cmd("EVAL");
        fill.arg(FILL).arg(0).arg(kind).arg(first).arg(last).arg(now_us());
        server.query::<()>(&fill)?;
    }
    Ok(())
}

impl Library {
    pub(crate) async fn open(url: &str) -> Result<Arc<Self>, String> {
        Self::open_with(Redis::options(url).map_err(|error| error.to_string())?).await
    }

    pub(crate) async fn open_with(options: RedisOptions) -> Result<Arc<Self>, String> {
        let limiter = Limiter::new(options.deadline(TIMEOUT).open());
        limiter.store().diagnose().await?;
        let rule = limiter.limit("bench", TokenBucket::per_hour(BURST).burst(BURST));
        let rule = rule.map_err(|error| error.to_string())?;
        Ok(Arc::new(Self { limiter, rule }))
    }

    async fn take(&self, subject: u64, cost: Cost) -> Result<(), String> {
        let subject = format!("user:{subject:016}");
        let ask = LimitCheck {
            limit: &self.rule,
            subject: subject.as_bytes(),
            cost,
        };
        let settled = self.limiter.settle(&[ask]).await;
        match settled.outcomes.first() {
            Some(Ok(_)) if settled.allowed => Ok(()),
            Some(Ok(_)) => Err("a request within its limits was denied".to_owned()),
            Some(Err(error)) => Err(format!("a request failed: {error}")),
            None => Err("a request was not answered".to_owned()),
        }
    }

    /// Creates all counters.
    pub(crate) async fn fill(self: &Arc<Self>, keys: u64) -> Result<(), String> {
        const CALLERS: u64 = 512;
        let cost = Cost::new(USED).map_err(|error| error.to_string())?;
        let mut tasks = JoinSet::new();
        for first in 0..CALLERS.min(keys) {
            let library = Arc::clone(self);
            tasks.spawn(async move {
                for subject in (first..keys).step_by(CALLERS as usize) {
                    library.take(subject, cost).await?;
                }
                Ok::<_, String>(ResponseLog::default())
            });
        }
        gather(tasks).await.map(drop)
    }

    /// Sends requests for random keys for the given time, to servers whose CPU time is `cpu`.
    pub(crate) async fn measure(
        self: &Arc<Self>,
        callers: usize,
        (keys, seed): (u64, u64),
        length: Duration,
        mut cpu: impl FnMut() -> Result<f64, String>,
    ) -> Result<Measurement, String> {
        let mut tasks = JoinSet::new();
        let (started, before) = (Instant::now(), cpu()?);
        self.call(&mut tasks, callers, (keys, seed), (started, length));
        let log = gather(tasks).await?;
        Ok(log.measurement(started.elapsed().as_secs_f64(), cpu()? - before))
    }

    fn call(
        self: &Arc<Self>,
        tasks: &mut JoinSet<Result<ResponseLog, String>>,
        callers: usize,
        (keys, seed): (u64, u64),
        (started, length): (Instant, Duration),
    ) {
        for number in 0..callers {
            let (library, mut random) = (Arc::clone(self), random(seed, number));
            let mut turns = Turns::new(1, started + length);
            tasks.spawn(async move {
                while turns.next() {
                    library.take(random.below(keys), Cost::ONE).await?;
                }
                Ok(turns.log)
            });
        }
    }

    /// Settled charges, and the script calls that settled them.
    pub(crate) fn charges_and_calls(&self) -> [u64; 2] {
        let metrics = self.limiter.store().metrics();
        [metrics.charges.get(), metrics.calls.get()]
    }
}

/// The random numbers of a caller.
fn random(seed: u64, number: usize) -> Random {
    Random::new(seed * 1_000_003 + number as u64)
}

impl Load {
    /// Sends requests for random keys for the given time.
    pub(crate) async fn run(
        self,
        server: &mut WatchedServer,
        library: &Arc<Library>,
        (keys, seed): (u64, u64),
        length: Duration,
    ) -> Result<Measurement, String> {
        let mut tasks = JoinSet::new();
        let (started, cpu);
        match self {
            Self::Script {
                script,
                connections,
                pipeline,
            } => {
                let digest: String = server.query(redis::cmd("SCRIPT").arg("LOAD").arg(script.text()))?;
                let client = redis::Client::open(server.url()).map_err(error_text)?;
                let mut lines = Vec::new();
                for _ in 0..connections {
                    lines.push(client.get_multiplexed_async_connection().await.map_err(error_text)?);
                }
                (started, cpu) = (Instant::now(), server.cpu_seconds()?);
                for (number, line) in lines.into_iter().enumerate() {
                    let (digest, random) = (digest.clone(), random(seed, number));
                    let turns = Turns::new(pipeline, started + length);
                    tasks.spawn(call(line, script, digest, pipeline, (keys, random), turns));
                }
            }
            Self::Library { callers } => {
                (started, cpu) = (Instant::now(), server.cpu_seconds()?);
                library.call(&mut tasks, callers, (keys, seed), (started, length));
            }
        }
        let log = gather(tasks).await?;
        Ok(log.measurement(started.elapsed().as_secs_f64(), server.cpu_seconds()? - cpu))
    }
}

/// Calls a script until the end of the round.
async fn call(
    mut line: MultiplexedConnection,
    script: Script,
    digest: String,
    pipeline: usize,
    (keys, mut random): (u64, Random),
    mut turns: Turns,
) -> Result<ResponseLog, String> {
    while turns.next() {
        let mut pipe = redis::Pipeline::with_capacity(pipeline);
        for _ in 0..pipeline {
            pipe.add_command(script.call(&digest, random.below(keys)));
        }
        let answers: Vec<[i64; 2]> = pipe.query_async(&mut line).await.map_err(error_text)?;
        if answers.iter().any(|[allowed, _]| *allowed != 1) {
            return Err("a script denied a request within its limits".to_owned());
        }
    }
    Ok(turns.log)
}

/// The sequential operations of one task until the end, each of a number of decisions.
struct Turns {
    decisions: usize,
    until: Instant,
    last: Option<Instant>,
    log: ResponseLog,
}

impl Turns {
    fn new(decisions: usize, until: Instant) -> Self {
        Self {
            decisions,
            until,
            last: None,
            log: ResponseLog::default(),
        }
    }

    fn next(&mut self) -> bool {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.log.record(self.decisions as u64, now - last, false);
        }
        now < self.until
    }
}

async fn gather(mut tasks: JoinSet<Result<ResponseLog, String>>) -> Result<ResponseLog, String> {
    let mut all = ResponseLog::default();
    while let Some(done) = tasks.join_next().await {
        all.add(done.map_err(|error| error.to_string())??);
    }
    Ok(all)
}

pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
