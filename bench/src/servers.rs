//! Servers compared: HTTP checks of Tollgate, of throttlecrab-server, of a baseline hyper endpoint and of the same with a
//! response of Tollgate's size; gRPC calls; and the Redis protocol.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- servers
//! cargo run --profile dist -p tollgate-bench -- servers --only resp --json --seconds 10
//! ```
//!
//! Every server runs alone on the first core, the load on the second, and all alternate several times in one run. The
//! result is decisions per second of the server's CPU time, which does not depend on the strength of the load.

mod baseline;
mod grpc;
mod load;
pub(crate) mod process;
mod resp;

pub(crate) use baseline::{BaselineAnswer, serve as serve_baseline};

use crate::planning::{self, PlanningReport};
use load::{Load, Measurement};
use process::{Server, pin_self};
use serde_json::json;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Measures Tollgate, throttlecrab-server, a baseline endpoint and Redis, over HTTP, gRPC and the Redis protocol.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- servers\n  cargo run --profile dist -p tollgate-bench -- servers --only resp --seconds 10"
)]
pub(crate) struct Args {
    /// Seconds per server and round.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The number of rounds; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Connections of the load, with one request in flight each.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Distinct keys.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Measures one front end only.
    #[arg(long)]
    only: Option<FrontEnd>,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The measured front ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FrontEnd {
    Http,
    Grpc,
    Resp,
}

/// A measured server.
struct Contestant {
    name: &'static str,
    start: fn(&Paths, SocketAddr) -> Command,
    /// The path, and the body of a request for a key.
    path: &'static str,
    body: fn(u64) -> String,
    rounds: Vec<Measurement>,
}

/// Paths of the programs.
struct Paths {
    tollgate: PathBuf,
    throttlecrab: PathBuf,
    this_binary: PathBuf,
    config: PathBuf,
}

const TOLLGATE: &str = "tollgate";
const THROTTLECRAB: &str = "throttlecrab";
const BASELINE: &str = "baseline";
const READY: &str = "baseline, full response";

/// The version that is measured. Its limits are those of [`RULES`].
const THROTTLECRAB_VERSION: &str = "0.4.40";

/// High enough that nothing is denied: both servers do the whole work for every request.
const RULES: &str = "rules:\n- { id: api, per: key, limit: 100/min burst 100 }\n";

pub(crate) fn run(args: &Args) -> ExitCode {
    match run_each(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("tollgate-bench: {reason}");
            ExitCode::from(2)
        }
    }
}

/// True if the goals of the run were met.
fn run_each(args: &Args) -> Result<bool, String> {
    let paths = paths()?;
    pin_self(1)?;
    let is_wanted = |way| args.only.is_none_or(|only| only == way);
    let mut tables = Vec::new();
    let mut all = serde_json::Map::new();
    let mut is_met = true;
    if is_wanted(FrontEnd::Http) {
        let contestants = measure(args, &paths)?;
        eprintln!("planning");
        let planned = planning::measure(planning::ROUNDS);
        tables.push(format!("{}\n{}", as_table(args, &contestants), planned.as_table()));
        all.insert("http".into(), as_json(&contestants, &planned));
    }
    if is_wanted(FrontEnd::Grpc) {
        let report = grpc::measure(args, &paths)?;
        is_met &= report.is_met();
        tables.push(report.as_table());
        all.insert("grpc".into(), report.as_json());
    }
    if is_wanted(FrontEnd::Resp) {
        let report = resp::measure(args, &paths)?;
        is_met &= report.is_met();
        tables.push(report.as_table());
        all.insert("resp".into(), report.as_json());
    }
    if args.json {
        println!("{}", serde_json::Value::from(all));
    } else {
        print!("{}", tables.join("\n"));
    }
    Ok(is_met)
}

fn measure(args: &Args, paths: &Paths) -> Result<Vec<Contestant>, String> {
    let mut contestants = contestants();
    for round in 1..=args.rounds {
        for contestant in &mut contestants {
            eprintln!("round {round} of {}: {}", args.rounds, contestant.name);
            let address = process::free_address()?;
            let server = Server::start(&mut (contestant.start)(paths, address), 0)?;
            let load = Load {
                address,
                path: contestant.path,
                body: contestant.body,
                connections: args.connections,
                keys: args.keys,
                seed: round,
            };
            contestant.rounds.push(load.run(&server, args.seconds)?);
        }
    }
    Ok(contestants)
}

fn contestants() -> Vec<Contestant> {
    let contestant = |name, start, path, body| Contestant {
        name,
        start,
        path,
        body,
        rounds: Vec::new(),
    };
    vec![
        contestant(
            TOLLGATE,
            |paths, address| {
                let mut command = Command::new(&paths.tollgate);
                command.arg("serve").arg("--config").arg(&paths.config);
                command.arg("--set").arg(format!("server.http={address}"));
                command.args(["--set", "server.grpc=disabled", "--set", "server.resp=disabled"]);
                command
            },
            "/v1/check",
            check_of,
        ),
        contestant(
            THROTTLECRAB,
            |paths, address| {
                let mut command = Command::new(&paths.throttlecrab);
                command.args(["--http", "--http-host", "127.0.0.1", "--log-level", "error"]);
                command.arg("--http-port").arg(address.port().to_string());
                // Its other store collapses above three quarters of its capacity.
                command.args(["--store", "periodic", "--store-capacity", "2000000"]);
                command
            },
            "/throttle",
            |key| {
                format!(
                    "{{\"key\":\"user:{key:016}\",\"max_burst\":100,\"count_per_period\":100,\"period\":60,\"quantity\":1}}"
                )
            },
        ),
        contestant(
            BASELINE,
            |paths, address| {
                let mut command = Command::new(&paths.this_binary);
                command.arg("serve-baseline").arg(address.to_string()).arg("empty");
                command
            },
            "/v1/check",
            check_of,
        ),
        contestant(
            READY,
            |paths, address| {
                let mut command = Command::new(&paths.this_binary);
                command.arg("serve-baseline").arg(address.to_string()).arg("ready");
                command
            },
            "/v1/check",
            check_of,
        ),
    ]
}

fn check_of(key: u64) -> String {
    format!("{{\"attributes\":{{\"key\":\"user:{key:016}\"}}}}")
}

impl Contestant {
    /// The median of one value over the rounds.
    fn median(&self, figure: fn(&Measurement) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// The median over all rounds of the ratio of Tollgate's value to another's in the same round.
fn ratio(contestants: &[Contestant], other: &str, figure: fn(&Measurement) -> f64) -> f64 {
    let rounds = |name: &str| {
        let found = contestants.iter().find(|contestant| contestant.name == name);
        found.map_or(&[][..], |contestant| &contestant.rounds)
    };
    let pairs = rounds(TOLLGATE).iter().zip(rounds(other));
    let mut ratios: Vec<f64> = pairs.map(|(own, other)| figure(own) / figure(other)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}

fn as_table(args: &Args, contestants: &[Contestant]) -> String {
    let mut table = format!(
        "HTTP checks, {} keys, {} connections, keep-alive, server on one core, load on the other; medians of {} rounds\n\n",
        args.keys, args.connections, args.rounds
    );
    table.push_str(
        "| server | decisions per CPU-second | decisions/s | core busy | p50 µs | p99 µs | Tollgate's decisions per CPU-second |\n",
    );
    table.push_str("|---|---:|---:|---:|---:|---:|---:|\n");
    for contestant in contestants {
        let _ = writeln!(
            table,
            "| {} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {:.2}x |",
            contestant.name,
            contestant.median(Measurement::per_cpu_second),
            contestant.median(Measurement::per_second),
            contestant.median(Measurement::busy),
            contestant.median(|measured| measured.p50_us),
            contestant.median(|measured| measured.p99_us),
            ratio(contestants, contestant.name, Measurement::per_cpu_second),
        );
    }
    table
}

fn as_json(contestants: &[Contestant], planned: &PlanningReport) -> serde_json::Value {
    let servers: Vec<_> = contestants
        .iter()
        .map(|contestant| {
            json!({
                "server": contestant.name,
                "decisions_per_cpu_second": contestant.median(Measurement::per_cpu_second),
                "decisions_per_second": contestant.median(Measurement::per_second),
                "busy": contestant.median(Measurement::busy),
                "p50_us": contestant.median(|measured| measured.p50_us),
                "p99_us": contestant.median(|measured| measured.p99_us),
                "errors": contestant.rounds.iter().map(|measured| measured.errors).sum::<u64>(),
            })
        })
        .collect();
    json!({
        "servers": servers,
        "ratios_per_cpu_second": {
            THROTTLECRAB: ratio(contestants, THROTTLECRAB, Measurement::per_cpu_second),
            BASELINE: ratio(contestants, BASELINE, Measurement::per_cpu_second),
            READY: ratio(contestants, READY, Measurement::per_cpu_second),
        },
        "p99_ratio": { THROTTLECRAB: ratio(contestants, THROTTLECRAB, |measured| measured.p99_us) },
        "planning": planned.as_json(),
    })
}

/// Builds or installs the programs.
fn paths() -> Result<Paths, String> {
    let tollgate = process::build_product()?;
    let target = tollgate
        .ancestors()
        .nth(2)
        .ok_or("this program is not in a target directory")?;
    let throttlecrab = install_throttlecrab(&target.join("peers"))?;
    let config = target.join("bench-servers.yaml");
    std::fs::write(&config, format!("{RULES}{}", grpc::RULES))
        .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    Ok(Paths {
        throttlecrab,
        this_binary: process::this_binary()?,
        config,
        tollgate,
    })
}

fn install_throttlecrab(root: &Path) -> Result<PathBuf, String> {
    let program = root.join("bin/throttlecrab-server");
    if program.exists() {
        return Ok(program);
    }
    if Command::new("protoc").arg("--version").output().is_err() {
        return Err("throttlecrab-server is built with protoc: install it (apt-get install protobuf-compiler)".into());
    }
    eprintln!("installing throttlecrab-server {THROTTLECRAB_VERSION}");
    let mut install = Command::new("cargo");
    install.args([
        "install",
        "throttlecrab-server",
        "--locked",
        "--version",
        THROTTLECRAB_VERSION,
        "--root",
    ]);
    process::finish(install.arg(root), "throttlecrab-server cannot be installed")?;
    Ok(program)
}
