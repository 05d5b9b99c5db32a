//! The loads: scripts of others over pipelined connections, or callers of the library.

use super::server::{WatchedServer, error_text};
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

/// The result of one load in one round.
#[derive(Clone, Copy)]
pub(crate) struct Measurement {
    decisions: u64,
    cpu_seconds: f64,
    seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
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
                Ok::<_, String>(Vec::new())
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
        let took = gather(tasks).await?;
        Ok(Measurement::new(
            took,
            1,
            started.elapsed().as_secs_f64(),
            cpu()? - before,
        ))
    }

    fn call(
        self: &Arc<Self>,
        tasks: &mut JoinSet<Result<Vec<u32>, String>>,
        callers: usize,
        (keys, seed): (u64, u64),
        (started, length): (Instant, Duration),
    ) {
        for number in 0..callers {
            let (library, mut random) = (Arc::clone(self), random(seed, number));
            let mut turns = Turns::new(started, length);
            tasks.spawn(async move {
                while turns.next() {
                    library.take(random.below(keys), Cost::ONE).await?;
                }
                Ok(turns.took)
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
        let (started, cpu, per_turn);
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
                (started, cpu, per_turn) = (Instant::now(), server.cpu_seconds()?, pipeline);
                for (number, line) in lines.into_iter().enumerate() {
                    let (digest, random) = (digest.clone(), random(seed, number));
                    let turns = Turns::new(started, length);
                    tasks.spawn(call(line, script, digest, pipeline, (keys, random), turns));
                }
            }
            Self::Library { callers } => {
                (started, cpu, per_turn) = (Instant::now(), server.cpu_seconds()?, 1);
                library.call(&mut tasks, callers, (keys, seed), (started, length));
            }
        }
        let took = gather(tasks).await?;
        let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), server.cpu_seconds()? - cpu);
        Ok(Measurement::new(took, per_turn, seconds, cpu_seconds))
    }
}

impl Measurement {
    fn new(mut took: Vec<u32>, per_turn: usize, seconds: f64, cpu_seconds: f64) -> Self {
        took.sort_unstable();
        let percentile = |percent| took.get(took.len() * percent / 100).copied().unwrap_or_default();
        Self {
            decisions: (took.len() * per_turn) as u64,
            cpu_seconds,
            seconds,
            p50_us: f64::from(percentile(50)) / 1_000.0,
            p99_us: f64::from(percentile(99)) / 1_000.0,
        }
    }

    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.decisions as f64 / self.cpu_seconds
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.decisions as f64 / self.seconds
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
) -> Result<Vec<u32>, String> {
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
    Ok(turns.took)
}

/// The sequential operations of one task until the end, and their times in nanoseconds.
struct Turns {
    until: Instant,
    last: Option<Instant>,
    took: Vec<u32>,
}

impl Turns {
    fn new(started: Instant, length: Duration) -> Self {
        Self {
            until: started + length,
            last: None,
            took: Vec::new(),
        }
    }

    fn next(&mut self) -> bool {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            let took = u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX);
            self.took.push(took);
        }
        now < self.until
    }
}

async fn gather(mut tasks: JoinSet<Result<Vec<u32>, String>>) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done.map_err(|error| error.to_string())??);
    }
    Ok(all)
}

pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
