//! Measurements of Tollgate and of the programs it is compared with, one subcommand each.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::float_arithmetic,
    reason = "a benchmark reads the clock, computes ratios and prints them"
)]

mod abuse;
mod control;
mod counter_error;
mod decide;
mod exact;
mod flood;
mod in_process;
mod local;
mod measurement;
mod oracle;
mod pacer;
mod planning;
mod redis;
mod reserve;
mod rows;
mod servers;
mod tower;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures Tollgate.
#[derive(Parser)]
#[command(
    name = "tollgate-bench",
    after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- decide"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compares random steps of every algorithm with a brute-force oracle.
    Oracle(oracle::Args),
    /// Measures how often the sliding counter and an exact log decide differently.
    CounterError(counter_error::Args),
    /// Measures nanoseconds per decision of each algorithm, without a store.
    Decide(decide::Args),
    /// Floods the memory store with new keys and checks its memory, its slowest decisions and an exhausted key.
    Flood(flood::Args),
    /// Measures the memory store and other libraries in one run.
    InProcess(in_process::Args),
    /// Measures decisions while the shared store is unavailable, compared with the memory store.
    Local(local::Args),
    /// Measures the server and its peers: HTTP, gRPC and the Redis protocol.
    Servers(servers::Args),
    /// Measures two builds of the server, alternating.
    Compare(servers::compare::CompareArgs),
    /// Measures a storm of denied callers, with and without spread return times.
    Storm(servers::storm::StormArgs),
    /// The baseline endpoint, as its own server.
    #[command(hide = true)]
    ServeBaseline {
        /// The address to listen on.
        address: std::net::SocketAddr,
        /// The response to send.
        answer: servers::BaselineAnswer,
    },
    /// Attacks a server and checks its memory and the service other clients get.
    Abuse(abuse::Args),
    /// Measures finding the rules of an attempt, by the number of rules.
    Planning(planning::Args),
    /// Measures the control plane against its bounds: propagation, publishes, conflicts, preparation, rollbacks, and its cost.
    Control(control::Args),
    /// Measures clients that keep to a limit: denied requests, and the share of the limit that is used.
    Pacer(pacer::Args),
    /// Measures override rows: applying, finding and storing them.
    Rows(rows::Args),
    /// Measures override rows through the admin API of a running fleet.
    ControlRows(rows::served::ServedArgs),
    /// Measures the shared store and other scripts on the same server: CPU time, latency, memory, calls.
    Redis(redis::Args),
    /// Loads one key of the shared store from several processes and compares admitted requests with the limit.
    Exact(exact::Args),
    /// Loads a rule with a reserve with ten times its limit, and counts the critical attempts that are denied.
    Reserve(reserve::Args),
    /// Measures the layer and tower_governor around a service that does nothing.
    Tower(tower::Args),
    /// One of these processes.
    #[command(hide = true)]
    Hammer(exact::hammer::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Oracle(args) => oracle::run(&args),
        Command::CounterError(args) => counter_error::run(&args),
        Command::Decide(args) => decide::run(&args),
        Command::Flood(args) => flood::run(&args),
        Command::InProcess(args) => in_process::run(&args),
        Command::Local(args) => local::run(&args),
        Command::Servers(args) => servers::run(&args),
        Command::Compare(args) => servers::compare::run(&args),
        Command::Storm(args) => servers::storm::run(&args),
        Command::ServeBaseline { address, answer } => servers::serve_baseline(address, answer),
        Command::Abuse(args) => abuse::run(&args),
        Command::Planning(args) => planning::run(&args),
        Command::Control(args) => control::run(&args),
        Command::Pacer(args) => pacer::run(&args),
        Command::Rows(args) => rows::run(&args),
        Command::ControlRows(args) => rows::served::run(&args),
        Command::Redis(args) => redis::run(&args),
        Command::Exact(args) => exact::run(&args),
        Command::Reserve(args) => reserve::run(&args),
        Command::Tower(args) => tower::run(&args),
        Command::Hammer(args) => exact::hammer::run(&args),
    }
}

/// The end of a run: 1 if a goal was missed, 2 if it could not be measured.
fn exit_code(is_met: Result<bool, String>) -> ExitCode {
    match is_met {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("tollgate-bench: {reason}");
            ExitCode::from(2)
        }
    }
}

/// Runs a load on this thread.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}
