//! The reserve of a rule under load: four instances send ten times the limit, and critical attempts within the reserve.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- reserve
//! cargo run --profile dist -p tollgate-bench -- reserve --store redis --seconds 120 --lend
//! ```
//!
//! Ends with code 1 if a critical attempt was denied, or if more passed than a limit allows.

use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::testing::rules::rule_set;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::reserve::{ReserveLoad, ReserveObservation, max_excess};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// Sends ten times a limit from four instances, and critical attempts within its reserve, and counts those denied.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- reserve\n  cargo run --profile dist -p tollgate-bench -- reserve --store redis --seconds 120 --lend"
)]
pub(crate) struct Args {
    /// Only this store; may be given several times.
    #[arg(long, value_enum)]
    store: Vec<LoadedStore>,
    /// Duration of the load on each store. 200 critical attempts are sent each second.
    #[arg(long, default_value_t = 51, value_parser = clap::value_parser!(u64).range(2..))]
    seconds: u64,
    /// Lends the reserve: the others may use its rate, and keep out of its burst only.
    #[arg(long)]
    lend: bool,
    /// Prints one JSON object per store instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LoadedStore {
    /// One instance in memory.
    Memory,
    /// Four instances on one Redis server.
    Redis,
    /// Four instances on a cluster of three primaries.
    Cluster,
    /// Four instances whose Redis server is killed after the first fifth of the time.
    Away,
}

const STORES: [LoadedStore; 4] = [
    LoadedStore::Memory,
    LoadedStore::Redis,
    LoadedStore::Cluster,
    LoadedStore::Away,
];
const INSTANCES: u32 = 4;
/// The limit per second, and the part that is not reserved.
const LIMIT: u64 = 1_000;
const RESERVE_PERCENT: u64 = 20;
/// The part of the limits that all instances enforce without the store.
const FALLBACK_PERCENT: u64 = 80;

type Instances<S> = Vec<Arc<RuleLimiter<S>>>;

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(measure(args))
}

fn measure(args: &Args) -> Result<bool, String> {
    let chosen = |store: &LoadedStore| args.store.is_empty() || args.store.contains(store);
    if !args.json {
        let lent = if args.lend { ", lent" } else { "" };
        println!(
            "limit {LIMIT}/s, reserve {RESERVE_PERCENT} %{lent}; critical attempts at the rate of the reserve, others at {} a second, {} s each\n",
            10 * LIMIT,
            args.seconds
        );
        println!(
            "| store | critical | denied | others | passed | decided locally | others beyond their part | beyond the limit |\n|---|---:|---:|---:|---:|---:|---:|---:|"
        );
    }
    let mut is_kept = true;
    for store in STORES.into_iter().filter(chosen) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        is_kept = runtime.block_on(measure_store(store, args))?.print(store, args) && is_kept;
    }
    Ok(is_kept)
}

/// The result of the load on one store.
struct ReserveResult {
    sum: ReserveObservation,
    /// Units of the others beyond their part, and of all beyond the limit, by the clock of the store that decided.
    beyond_part: i64,
    beyond_limit: i64,
}

impl ReserveResult {
    /// Prints it, and returns whether the reserve was kept.
    fn print(&self, store: LoadedStore, args: &Args) -> bool {
        let Self {
            sum,
            beyond_part,
            beyond_limit,
        } = self;
        let passed = sum.others_us.len() + sum.local_others_us.len();
        if args.json {
            println!(
                "{}",
                json!({
                    "store": format!("{store:?}").to_lowercase(), "critical": sum.critical,
                    "critical_denied": sum.critical_denied, "others": sum.others, "others_passed": passed,
                    "local": sum.local, "others_beyond": beyond_part, "beyond": beyond_limit,
                })
            );
        } else {
            println!(
                "| {} | {} | {} | {} | {passed} | {} | {beyond_part} | {beyond_limit} |",
                format!("{store:?}").to_lowercase(),
                sum.critical,
                sum.critical_denied,
                sum.others,
                sum.local,
            );
        }
        let is_part_kept = args.lend || *beyond_part == 0;
        sum.critical > 0 && sum.critical_denied == 0 && is_part_kept && *beyond_limit == 0
    }
}

async fn measure_store(store: LoadedStore, args: &Args) -> Result<ReserveResult, String> {
    let load = ReserveLoad {
        critical_per_s: LIMIT * RESERVE_PERCENT / 100 / u64::from(INSTANCES),
        others_per_s: 10 * LIMIT / u64::from(INSTANCES),
        length: Duration::from_secs(args.seconds),
    };
    let seen = match store {
        LoadedStore::Memory => {
            let load = ReserveLoad {
                critical_per_s: load.critical_per_s * u64::from(INSTANCES),
                others_per_s: load.others_per_s * u64::from(INSTANCES),
                ..load
            };
            load.run(&[limiter(Arc::new(Memory::options().build()), args)]).await
        }
        LoadedStore::Redis => {
            let server = Server::start(ServerKind::Redis70);
            load.run(&instances(&server.url(), args).await?).await
        }
        LoadedStore::Cluster => {
            let cluster = Cluster::start_without_replicas(ServerKind::Redis70);
            load.run(&instances(&cluster.url(), args).await?).await
        }
        LoadedStore::Away => without_store(load, args).await?,
    };
    let others = LIMIT * (100 - RESERVE_PERCENT) / 100;
    let local = |units: u64| (units * FALLBACK_PERCENT / 100 / u64::from(INSTANCES)) as i64;
    // Each instance has a share of its own, by its own clock.
    let of_shares = seen.iter().map(|one| {
        (
            max_excess(&one.local_others_us, local(others)),
            max_excess(&one.local_us, local(LIMIT)),
        )
    });
    let (part, limit) = of_shares.fold((0, 0), |(a, b), (part, limit)| (a + part, b + limit));
    let sum = ReserveObservation::sum(seen);
    Ok(ReserveResult {
        beyond_part: part + max_excess(&sum.others_us, others as i64),
        beyond_limit: limit + max_excess(&sum.all_us, LIMIT as i64),
        sum,
    })
}

/// The load while the server is killed. Critical attempts keep to the reserve of the shares.
async fn without_store(load: ReserveLoad, args: &Args) -> Result<Vec<ReserveObservation>, String> {
    let mut server = Server::start(ServerKind::Redis70);
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let options = FallbackOptions {
            instances: Some(INSTANCES),
            ..FallbackOptions::default()
        };
        // With the deadline that a server has by default: it ends the calls that wait when the store dies.
        let store = Fallback::new(connect(&server.url(), Duration::from_millis(10)).await?, options);
        instances.push(limiter(Arc::new(store), args));
    }
    let load = ReserveLoad {
        critical_per_s: load.critical_per_s * FALLBACK_PERCENT / 100,
        ..load
    };
    let killed = async {
        sleep(load.length / 5).await;
        server.kill();
    };
    Ok(tokio::join!(load.run(&instances), killed).0)
}

async fn instances(url: &str, args: &Args) -> Result<Instances<Redis>, String> {
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(limiter(connect(url, TIMEOUT).await?, args));
    }
    Ok(instances)
}

async fn connect(url: &str, deadline: Duration) -> Result<Arc<Redis>, String> {
    let options = Redis::options(url).map_err(|error| error.to_string())?;
    let store = options.deadline(deadline).open();
    let started = Instant::now();
    while let Some(error) = store.status().connection_error {
        if started.elapsed() > TIMEOUT {
            return Err(error);
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(Arc::new(store))
}

fn limiter<S: tollgate_limiter::store::CounterStore>(store: Arc<S>, args: &Args) -> Arc<RuleLimiter<S>> {
    let rules = format!(
        "rules: [{{ id: ceiling, limit: {LIMIT}/s, reserve: {{ share: {RESERVE_PERCENT}%, for: {{ priority: critical }}, \
         lend: {} }} }}]",
        args.lend
    );
    Arc::new(RuleLimiter::new(rule_set(&rules), store))
}

const TIMEOUT: Duration = Duration::from_secs(5);
