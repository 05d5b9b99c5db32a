//! Two builds of Tollgate compared, so that a change that makes it slower is seen.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- compare --before path/to/an/older/tollgate
//! ```
//!
//! Both run on the first core at the same time, under the same load, so that whatever the machine does meets both alike; the
//! load, and the shared store where there is one, have the second core. Batches, whose latency counts, alternate round by round. The
//! results are medians of the ratios of each round.

use super::http::Checks;
use super::load::{Load, Requests};
use super::process::{self, Server, pin_self};
use super::{FrontEnd, Paths, grpc, http, resp, tollgate};
use crate::measurement::{Measurement, Rounds};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Measures two builds of Tollgate.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- compare --before ../before/target/dist/tollgate\n  cargo run --profile dist -p tollgate-bench -- compare --before ../before/target/dist/tollgate --only gRPC --rounds 15"
)]
pub(crate) struct CompareArgs {
    /// The program of the older build.
    #[arg(long)]
    before: PathBuf,
    /// The program of the newer build; by default that of this tree.
    #[arg(long)]
    after: Option<PathBuf>,
    /// Seconds per build and round.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// The number of rounds; the median is reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Measures only loads whose names contain this text.
    #[arg(long)]
    only: Option<String>,
}

/// Decisions per CPU-second of the newer build, as a part of those of the older one.
const GOAL: f64 = 0.98;

const KEYS: u64 = 1_000_000;

/// Checks of one `POST /v1/check/batch`.
const BATCH: u64 = 1_000;

/// The builds, and the results so far.
struct Comparison<'a> {
    args: &'a CompareArgs,
    before: Paths,
    after: Paths,
    is_met: bool,
}

pub(crate) fn run(args: &CompareArgs) -> ExitCode {
    crate::exit_code(compare(args))
}

/// True if the newer build is fast enough everywhere.
fn compare(args: &CompareArgs) -> Result<bool, String> {
    let after = match &args.after {
        Some(path) => path.clone(),
        None => process::build_product()?,
    };
    let config = super::write_config(&process::this_binary()?)?;
    let paths = |tollgate: &PathBuf| Paths {
        tollgate: tollgate.clone(),
        throttlecrab: PathBuf::new(),
        this_binary: PathBuf::new(),
        config: config.clone(),
    };
    pin_self(1)?;
    let mut comparison = Comparison {
        args,
        before: paths(&args.before),
        after: paths(&after),
        is_met: true,
    };
    println!("| load | before, per CPU-second | after | ratio | before, p50 µs | after | ratio |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let check = http::check();
    comparison.measure("HTTP", FrontEnd::Http, &check, 50, None)?;
    let calls = grpc::should_rate_limit();
    comparison.measure("gRPC", FrontEnd::Grpc, &calls, grpc::CONNECTIONS, None)?;
    for pipeline in resp::PIPELINES {
        let name = format!("Redis protocol, pipeline {pipeline}");
        comparison.measure(&name, FrontEnd::Resp, &resp::throttle(pipeline), 50, None)?;
    }
    let (redis, address) = start_redis()?;
    for callers in [64, 512] {
        let name = format!("HTTP over Redis, {callers} callers");
        comparison.measure(&name, FrontEnd::Http, &check, callers, Some(address))?;
    }
    let batch = Checks {
        path: "/v1/check/batch",
        body: |key| {
            let body = http::check().body;
            let checks: Vec<String> = (0..BATCH).map(|index| body((key + index) % KEYS)).collect();
            format!("[{}]", checks.join(","))
        },
    };
    comparison.measure("batch of 1,000 over Redis", FrontEnd::Http, &batch, 1, Some(address))?;
    drop(redis);
    Ok(comparison.is_met)
}

impl Comparison<'_> {
    /// Measures both builds with one load, alternating, and prints a row.
    fn measure<R: Requests>(
        &mut self,
        name: &str,
        front_end: FrontEnd,
        requests: &R,
        connections: u64,
        redis: Option<SocketAddr>,
    ) -> Result<(), String> {
        if !self.args.only.as_ref().is_none_or(|only| name.contains(only)) {
            return Ok(());
        }
        let alternation = Alternation {
            name,
            requests,
            connections,
            rounds: self.args.rounds,
            seconds: self.args.seconds,
        };
        let command = |paths, address| {
            let mut command = tollgate(paths, front_end, address);
            if let Some(redis) = redis {
                command.arg("--store").arg(format!("redis://{redis}"));
            }
            command
        };
        let before = |address| command(&self.before, address);
        let after = |address| command(&self.after, address);
        let [before, after] = match connections {
            1 => alternation.run([&before, &after])?,
            _ => alternation.run_both([&before, &after])?,
        };
        let p50 = |measured: &Measurement| measured.p50_us;
        let [cpu_ratio, p50_ratio] = [Measurement::per_cpu_second, p50].map(|figure| after.ratio(&before, figure));
        println!(
            "| {name} | {:.0} | {:.0} | {cpu_ratio:.3} | {:.0} | {:.0} | {p50_ratio:.3} |",
            before.median(Measurement::per_cpu_second),
            after.median(Measurement::per_cpu_second),
            before.median(p50),
            after.median(p50),
        );
        self.is_met &= cpu_ratio >= GOAL;
        Ok(())
    }
}

/// One load on two servers that alternate round by round.
pub(super) struct Alternation<'a, R> {
    pub(super) name: &'a str,
    pub(super) requests: &'a R,
    pub(super) connections: u64,
    pub(super) rounds: u64,
    /// Of each server in each round.
    pub(super) seconds: u64,
}

impl<R: Requests> Alternation<'_, R> {
    /// Measures the servers of these commands at the same time, started anew for every round. Every second round starts the
    /// second first.
    pub(super) fn run_both(&self, commands: [&dyn Fn(SocketAddr) -> Command; 2]) -> Result<[Rounds; 2], String> {
        let mut measured = [Rounds::default(), Rounds::default()];
        for round in 1..=self.rounds {
            eprintln!("{}, round {round} of {}", self.name, self.rounds);
            let start = |command: &dyn Fn(SocketAddr) -> Command| {
                let address = process::free_address()?;
                Ok::<_, String>((self.load(address, round), Server::start(&mut command(address), 0)?))
            };
            let is_reversed = round % 2 == 0;
            let mut commands = commands;
            if is_reversed {
                commands.reverse();
            }
            let [one, other] = commands.map(start);
            let ((load, server), (other_load, other_server)) = (one?, other?);
            let mut results = Load::run_both([(&load, &server), (&other_load, &other_server)], self.seconds)?;
            if is_reversed {
                results.reverse();
            }
            for (rounds, result) in measured.iter_mut().zip(results) {
                rounds.push(result);
            }
        }
        Ok(measured)
    }

    /// Measures the servers of these commands, each started anew for every round. Every second round begins with the second.
    pub(super) fn run(&self, commands: [&dyn Fn(SocketAddr) -> Command; 2]) -> Result<[Rounds; 2], String> {
        let [first, second] = commands;
        let mut measured = [Rounds::default(), Rounds::default()];
        for round in 1..=self.rounds {
            eprintln!("{}, round {round} of {}", self.name, self.rounds);
            let [one, other] = &mut measured;
            let mut servers = [(first, one), (second, other)];
            if round % 2 == 0 {
                servers.reverse();
            }
            for (command, rounds) in servers {
                let address = process::free_address()?;
                let server = Server::start(&mut command(address), 0)?;
                rounds.push(self.load(address, round).run(&server, self.seconds)?);
            }
        }
        Ok(measured)
    }

    fn load(&self, address: SocketAddr, round: u64) -> Load<'_, R> {
        Load {
            address,
            requests: self.requests,
            connections: self.connections,
            keys: KEYS,
            seed: round,
        }
    }
}

/// A Redis without persistence, on the core of the load.
pub(super) fn start_redis() -> Result<(Server, SocketAddr), String> {
    let address = process::free_address()?;
    let mut command = Command::new("redis-server");
    command.arg("--port").arg(address.port().to_string());
    command.args(["--save", "", "--appendonly", "no"]);
    Ok((Server::start(&mut command, 1)?, address))
}
