//! Measurements of Tollgate, each a subcommand beside what it is compared with.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::float_arithmetic,
    reason = "a program that measures: it reads the clock, works out ratios and prints them"
)]

mod abuse;
mod counter_error;
mod decide;
mod exact;
mod flood;
mod in_process;
mod local;
mod oracle;
mod planning;
mod redis;
mod servers;

use clap::{Parser, Subcommand};

/// Measures Tollgate.
#[derive(Parser)]
#[command(
    name = "tollgate-bench",
    after_help = "Example:\n  cargo run --release -p tollgate-bench -- decide"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs random steps of every algorithm against its brute-force referee and counts differences.
    Oracle(oracle::Args),
    /// Measures how often the sliding counter decides otherwise than an exact log.
    CounterError(counter_error::Args),
    /// Measures nanoseconds per decision of each algorithm, state in hand.
    Decide(decide::Args),
    /// Floods the embedded store with new keys and watches its memory, its slowest decisions and an exhausted key.
    Flood(flood::Args),
    /// Measures the embedded store beside the libraries it is compared with, in one run.
    InProcess(in_process::Args),
    /// Measures decisions while the shared store is away beside those of the embedded store.
    Local(local::Args),
    /// Measures the server beside peers: HTTP checks, gRPC calls and the Redis protocol.
    Servers(servers::Args),
    /// The endpoint that does nothing, as a server of its own.
    #[command(hide = true)]
    ServeBaseline {
        /// Where it listens.
        address: std::net::SocketAddr,
        /// What it answers.
        answer: servers::BaselineAnswer,
    },
    /// Lets clients that mean harm loose on a server and watches its memory and how others are served.
    Abuse(abuse::Args),
    /// Measures finding the rules of an attempt, by the number of rules.
    Planning(planning::Args),
    /// Measures the shared store beside scripts on the same server: processor time, waiting, memory, calls.
    Redis(redis::Args),
    /// Lets several processes hammer one key of the shared store and counts what passed against what was due.
    Exact(exact::Args),
    /// One of those processes.
    #[command(hide = true)]
    Hammer(exact::hammer::Args),
}

fn main() -> std::process::ExitCode {
    match Cli::parse().command {
        Command::Oracle(args) => oracle::run(&args),
        Command::CounterError(args) => counter_error::run(&args),
        Command::Decide(args) => decide::run(&args),
        Command::Flood(args) => flood::run(&args),
        Command::InProcess(args) => in_process::run(&args),
        Command::Local(args) => local::run(&args),
        Command::Servers(args) => servers::run(&args),
        Command::ServeBaseline { address, answer } => servers::serve_baseline(address, answer),
        Command::Abuse(args) => abuse::run(&args),
        Command::Planning(args) => planning::run(&args),
        Command::Redis(args) => redis::run(&args),
        Command::Exact(args) => exact::run(&args),
        Command::Hammer(args) => exact::hammer::run(&args),
    }
}
