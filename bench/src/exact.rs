//! Exactness of one limit over many processes: all of them send requests for one key, and the admitted requests are
//! compared with the envelope of the limit and with the number that was due.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- exact
//! cargo run --profile dist -p tollgate-bench -- exact --algorithm gcra --seconds 60 --server valkey
//! ```
//!
//! Ends with code 1 if anything passed beyond a limit, or less than 99 % of what was due.

pub(crate) mod hammer;
pub(crate) mod oracle;

use crate::redis::ServerChoice;
use crate::redis::server::WatchedServer;
use hammer::{ALGORITHMS, Plan};
use oracle::ExactnessResult;
use serde_json::json;
use std::process::ExitCode;

/// Loads one key of the shared store from four processes and compares the admitted requests, by store time, with the limit.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- exact\n  cargo run --profile dist -p tollgate-bench -- exact --algorithm gcra --seconds 60 --server valkey"
)]
pub(crate) struct Args {
    /// The server.
    #[arg(long, value_enum, default_value_t = ServerChoice::Redis)]
    server: ServerChoice,
    /// Only this algorithm; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(ALGORITHMS))]
    algorithm: Vec<String>,
    /// Duration of the load for each algorithm.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Callers in each process.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    callers: u64,
    /// The limit per second, and its burst.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    per_second: u64,
    /// Prints one JSON object per algorithm instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) const PROCESSES: usize = 4;

/// The run ends between two window boundaries, so that the due number does not depend on a millisecond.
const HALF_A_SECOND_US: u64 = 500_000;

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(measure(args))
}

fn measure(args: &Args) -> Result<bool, String> {
    let mut server = WatchedServer::start(args.server.kind())?;
    let version = server.version()?;
    let chosen = |name: &&str| args.algorithm.is_empty() || args.algorithm.iter().any(|asked| asked == name);
    if !args.json {
        println!(
            "{PROCESSES} processes x {} callers on one key of {} a second, {} s each, on {version}\n",
            args.callers, args.per_second, args.seconds
        );
        println!(
            "| algorithm | requests | sent to the store | admitted | due | beyond the limit | share of due |\n|---|---:|---:|---:|---:|---:|---:|"
        );
    }
    let mut is_exact = true;
    for algorithm in ALGORITHMS.into_iter().filter(chosen) {
        let length = args.seconds * 1_000_000 + HALF_A_SECOND_US;
        let plan = Plan::soon(algorithm, args.per_second, args.callers, length);
        let children = plan.start(&server.url(), PROCESSES)?;
        let seen = plan.finish(children)?;
        let judged = oracle::compare(&plan, &seen)?;
        let share = judged.admitted as f64 / judged.due as f64;
        let ExactnessResult { admitted, due, beyond } = judged;
        if args.json {
            println!(
                "{}",
                json!({
                    "algorithm": algorithm, "server": version, "requests": seen.sent, "sent_to_store": seen.shared,
                    "admitted": admitted, "due": due, "beyond": beyond,
                })
            );
        } else {
            println!(
                "| {algorithm} | {} | {} | {admitted} | {due} | {beyond} | {:.2} % |",
                seen.sent,
                seen.shared,
                share * 100.0
            );
        }
        is_exact = is_exact && beyond == 0 && share >= 0.99;
    }
    Ok(is_exact)
}
