//! Clients against a server with a limit: how many of their requests it denies, and how much of the limit they use.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- pacer
//! cargo run --profile dist -p tollgate-bench -- pacer --seconds 60 --tasks 256
//! ```
//!
//! Ends with code 1 if the paced clients miss a goal.

mod load;
mod upstream;

use load::{Client, ClientKind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tollgate_limiter::testing::servers::{Server, ServerKind};
use upstream::{Counts, Upstream};

/// Measures clients that keep to a limit of 50/s burst 10: denied requests, and the share of the limit that is used.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- pacer --seconds 30")]
pub(crate) struct Args {
    /// Duration of each load, after the ten seconds in which a client may learn.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Tasks that send all the time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(4..))]
    tasks: u64,
    /// Prints one JSON object per client instead of a table.
    #[arg(long)]
    json: bool,
}

/// A goal of a client: the most denied per mille, and the least used of the limit.
struct Goal {
    denied_max: f64,
    used_min: f64,
}

const PER_SECOND: u64 = 50;
const BURST: u64 = 10;
const LEARNING: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(measure(args))
}

fn measure(args: &Args) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    if !args.json {
        println!(
            "{} tasks against {PER_SECOND}/s burst {BURST}, {} s each after {} s",
            args.tasks,
            args.seconds,
            LEARNING.as_secs()
        );
        println!(
            "{:<42} {:>8} {:>8} {:>8} {:>8}",
            "client", "passed", "denied", "denied %", "used %"
        );
    }
    let redis = Server::start(ServerKind::Redis70);
    let exact = Goal {
        denied_max: 0.0,
        used_min: 97.0,
    };
    let learned = Goal {
        denied_max: 1.0,
        used_min: 0.0,
    };
    let none = Goal {
        denied_max: 100.0,
        used_min: 0.0,
    };
    let rows = [
        (ClientKind::Paced, exact),
        (
            ClientKind::PacedOverRedis,
            Goal {
                denied_max: 0.0,
                used_min: 0.0,
            },
        ),
        (ClientKind::Learning, learned),
        (
            ClientKind::Governor,
            Goal {
                denied_max: 100.0,
                used_min: 0.0,
            },
        ),
        (ClientKind::RetryAfter, none),
    ];
    let mut is_met = true;
    for (kind, goal) in rows {
        let counts = runtime.block_on(measure_one(args, kind, &redis.url()))?;
        is_met &= report(args, kind, counts, &goal);
    }
    let attempts = runtime.block_on(attempts_to_a_failing_server(args))?;
    let factor = attempts as f64 / FAILING_REQUESTS as f64;
    if args.json {
        println!(
            "{}",
            serde_json::json!({"client": "failing server", "requests": FAILING_REQUESTS, "attempts": attempts})
        );
    } else {
        println!(
            "{FAILING_REQUESTS} requests to a server that always fails: {attempts} attempts, {factor:.3} each (at most 1.11)"
        );
    }
    Ok(is_met && factor <= 1.11)
}

/// The answers that the server counts after the time for learning.
async fn measure_one(args: &Args, kind: ClientKind, redis: &str) -> Result<Counts, String> {
    let upstream = Arc::new(Upstream::limited(PER_SECOND, BURST).await?);
    let clients = Client::several(kind, PER_SECOND, BURST, redis)?;
    let mut tasks = Vec::new();
    for task in 0..args.tasks {
        let client = clients.get(task as usize % clients.len()).ok_or("no client")?.clone();
        let uri = upstream.uri();
        tasks.push(tokio::spawn(async move { client.send_forever(uri).await }));
    }
    tokio::time::sleep(LEARNING).await;
    let (before, started) = (upstream.counts(), Instant::now());
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let counts = upstream.counts();
    let elapsed = started.elapsed();
    for task in tasks {
        task.abort();
    }
    Ok(Counts {
        passed: counts.passed - before.passed,
        denied: counts.denied - before.denied,
        // A client that is exact is so from the start.
        denied_at_start: before.denied,
        elapsed,
    })
}

fn report(args: &Args, kind: ClientKind, counts: Counts, goal: &Goal) -> bool {
    let denied = if goal.denied_max == 0.0 {
        counts.denied + counts.denied_at_start
    } else {
        counts.denied
    };
    let denied_percent = denied as f64 * 100.0 / (counts.passed + denied).max(1) as f64;
    let used = counts.passed as f64 * 100.0 / (counts.elapsed.as_secs_f64() * PER_SECOND as f64);
    let is_met = denied_percent <= goal.denied_max && used >= goal.used_min;
    if args.json {
        println!(
            "{}",
            serde_json::json!({
                "client": kind.name(), "passed": counts.passed, "denied": denied, "denied_at_start": counts.denied_at_start,
                "denied_percent": denied_percent, "used_percent": used, "met": is_met,
            })
        );
    } else {
        let missed = if is_met { "" } else { "  missed" };
        println!(
            "{:<42} {:>8} {:>8} {denied_percent:>8.2} {used:>8.1}{missed}",
            kind.name(),
            counts.passed,
            denied
        );
    }
    is_met
}

/// The attempts that a server counts which answers 502 to everything.
async fn attempts_to_a_failing_server(args: &Args) -> Result<u64, String> {
    let upstream = Arc::new(Upstream::failing().await?);
    let clients = Client::several(ClientKind::Unlimited, PER_SECOND, BURST, "")?;
    let client = clients.first().ok_or("no client")?;
    let mut tasks = Vec::new();
    for task in 0..args.tasks {
        let (client, uri) = (client.clone(), upstream.uri());
        let requests = FAILING_REQUESTS / args.tasks + u64::from(task < FAILING_REQUESTS % args.tasks);
        tasks.push(tokio::spawn(async move { client.send(uri, requests).await }));
    }
    for task in tasks {
        task.await.map_err(|error| error.to_string())?;
    }
    Ok(upstream.counts().denied)
}

const FAILING_REQUESTS: u64 = 10_000;
