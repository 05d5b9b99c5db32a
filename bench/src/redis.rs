//! The shared store on one Redis or Valkey, compared with scripts that decide one request each.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- redis
//! cargo run --profile dist -p tollgate-bench -- redis --only memory --server valkey --json
//! cargo run --profile dist -p tollgate-bench -- redis --cluster
//! ```
//!
//! All measurements of a run use one server process. Server and load have a core each, and all contestants alternate
//! round by round. The result is decisions per second of the server's CPU time. Ends with code 1 if a goal is missed.

mod cluster;
mod hot_key;
mod load;
mod memory;
mod report;
pub(crate) mod server;

pub(crate) use load::now_us;

use crate::measurement::{Measurement, Rounds};
use crate::servers::process::{pin, pin_self};
use clap::ValueEnum;
use hot_key::HotKeyResult;
use load::{Library, Load, Script};
use memory::Bytes;
use server::WatchedServer;
use std::process::ExitCode;
use std::time::Duration;
use tollgate_limiter::testing::servers::ServerKind;

/// Measures the shared store and the scripts of articles on the same server. scripts/servers installs the servers.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- redis\n  cargo run --profile dist -p tollgate-bench -- redis --only memory --server valkey --json\n  cargo run --profile dist -p tollgate-bench -- redis --cluster"
)]
pub(crate) struct Args {
    /// The server.
    #[arg(long, value_enum, default_value_t = ServerChoice::Redis)]
    server: ServerChoice,
    /// Only this part; may be given several times.
    #[arg(long, value_enum)]
    only: Vec<Section>,
    /// Measures only the library, on three primaries of a cluster and on a single server.
    #[arg(long, conflicts_with = "only")]
    cluster: bool,
    /// Duration of each load in each round, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    turn_ms: u64,
    /// The number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Distinct keys.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Prints JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// A server to measure on.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ServerChoice {
    /// Redis 7.0.
    Redis,
    /// Redis 6.2.
    OldRedis,
    /// Valkey.
    Valkey,
}

/// A part of the run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// Decisions per CPU-second, and the latency of one caller.
    Speed,
    /// Bytes per key.
    Memory,
    /// Script calls for a hot key.
    HotKey,
}

/// A load and its measurements.
struct Contestant {
    name: &'static str,
    load: Load,
    rounds: Rounds,
}

/// All results.
struct RedisResults {
    server: String,
    contestants: Vec<Contestant>,
    bytes: Vec<Bytes>,
    hot_key: Option<HotKeyResult>,
}

const ARTICLES_16: &str = "articles' token bucket, pipeline 16";
const ARTICLES_UNPIPELINED: &str = "articles' token bucket, one caller";
const TOLLGATE_1: &str = "Tollgate, 1 caller";
const TOLLGATE_64: &str = "Tollgate, 64 callers";
const TOLLGATE_512: &str = "Tollgate, 512 callers";

/// Connections of loads that have one call, or one pipeline, in flight on each.
const CONNECTIONS: usize = 16;

pub(crate) fn run(args: &Args) -> ExitCode {
    if args.cluster {
        return cluster::run(args);
    }
    crate::exit_code(measure(args).map(|found| report::print(args, &found)))
}

fn measure(args: &Args) -> Result<RedisResults, String> {
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut server = WatchedServer::start(args.server.kind())?;
    let mut found = RedisResults {
        server: server.version()?,
        contestants: Vec::new(),
        bytes: Vec::new(),
        hot_key: None,
    };
    if wanted(Section::HotKey) {
        eprintln!("four processes load one key");
        found.hot_key = Some(hot_key::measure(&mut server)?);
    }
    pin_self(1)?;
    pin(server.process_id(), 0)?;
    crate::block_on(async {
        if wanted(Section::Memory) {
            eprintln!("bytes per key");
            found.bytes = memory::measure(&mut server).await?;
        }
        if wanted(Section::Speed) {
            found.contestants = contest(args, &mut server).await?;
        }
        Ok(found)
    })
}

async fn contest(args: &Args, server: &mut WatchedServer) -> Result<Vec<Contestant>, String> {
    eprintln!("creating {} keys of each kind", args.keys);
    for script in Script::ALL {
        script.fill(server, args.keys)?;
    }
    let library = Library::open(&server.url()).await?;
    library.fill(args.keys).await?;
    let mut contestants = contestants();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for contestant in &mut contestants {
            let length = Duration::from_millis(args.turn_ms);
            let measured = contestant
                .load
                .run(server, &library, (args.keys, round), length)
                .await?;
            contestant.rounds.push(measured);
        }
    }
    Ok(contestants)
}

fn contestants() -> Vec<Contestant> {
    let script = |script, connections, pipeline| Load::Script {
        script,
        connections,
        pipeline,
    };
    let bucket = Script::TokenBucket;
    let all = [
        ("articles' token bucket, pipeline 1", script(bucket, CONNECTIONS, 1)),
        (ARTICLES_16, script(bucket, CONNECTIONS, 16)),
        ("GCRA script, pipeline 1", script(Script::Gcra, CONNECTIONS, 1)),
        ("GCRA script, pipeline 16", script(Script::Gcra, CONNECTIONS, 16)),
        (TOLLGATE_512, Load::Library { callers: 512 }),
        (TOLLGATE_64, Load::Library { callers: 64 }),
        (TOLLGATE_1, Load::Library { callers: 1 }),
        (ARTICLES_UNPIPELINED, script(bucket, 1, 1)),
    ];
    let contestant = |(name, load)| Contestant {
        name,
        load,
        rounds: Rounds::default(),
    };
    all.map(contestant).into_iter().collect()
}

impl ServerChoice {
    pub(crate) const fn kind(self) -> ServerKind {
        match self {
            Self::Redis => ServerKind::Redis70,
            Self::OldRedis => ServerKind::Redis62,
            Self::Valkey => ServerKind::Valkey,
        }
    }
}

impl RedisResults {
    /// The median over all rounds of the ratio of two contestants in one round.
    fn ratio(&self, one: &str, other: &str, figure: fn(&Measurement) -> f64) -> f64 {
        let found = |name| self.contestants.iter().find(|contestant| contestant.name == name);
        let pair = found(one).zip(found(other));
        pair.map_or(f64::NAN, |(one, other)| one.rounds.ratio(&other.rounds, figure))
    }
}
