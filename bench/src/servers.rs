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
pub(crate) mod compare;
pub(crate) mod dashboards;
mod grpc;
mod http;
mod load;
pub(crate) mod managed;
pub(crate) mod process;
mod resp;
pub(crate) mod storm;

pub(crate) use baseline::{BaselineAnswer, serve as serve_baseline};

use crate::measurement::Rounds;
use load::{Load, Requests};
use process::{Server, pin_self};
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

/// A measured server, and its requests.
struct Contestant<R> {
    name: &'static str,
    command: fn(&Paths, SocketAddr) -> Command,
    requests: R,
    rounds: Rounds,
}

/// Paths of the programs.
struct Paths {
    tollgate: PathBuf,
    throttlecrab: PathBuf,
    this_binary: PathBuf,
    config: PathBuf,
}

/// The version that is measured. Its limits are those of [`http::RULES`].
const THROTTLECRAB_VERSION: &str = "0.4.40";

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(run_each(args))
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
        let report = http::measure(args, &paths)?;
        tables.push(report.as_table(args));
        all.insert("http".into(), report.as_json());
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

/// Measures all contestants, alternating, each on its own server.
fn measure<R: Requests>(
    args: &Args,
    paths: &Paths,
    connections: u64,
    contestants: &mut [Contestant<R>],
    title: impl Fn(&Contestant<R>) -> String,
) -> Result<(), String> {
    for round in 1..=args.rounds {
        for contestant in &mut *contestants {
            eprintln!("{}, round {round} of {}", title(contestant), args.rounds);
            let (server, address) = contestant.start(paths)?;
            let load = contestant.load(args, address, connections, round);
            contestant.rounds.push(load.run(&server, args.seconds)?);
        }
    }
    Ok(())
}

impl<R> Contestant<R> {
    fn new(name: &'static str, command: fn(&Paths, SocketAddr) -> Command, requests: R) -> Self {
        Self {
            name,
            command,
            requests,
            rounds: Rounds::default(),
        }
    }

    fn start(&self, paths: &Paths) -> Result<(Server, SocketAddr), String> {
        let address = process::free_address()?;
        Ok((Server::start(&mut (self.command)(paths, address), 0)?, address))
    }

    fn load(&self, args: &Args, address: SocketAddr, connections: u64, seed: u64) -> Load<'_, R> {
        Load {
            address,
            requests: &self.requests,
            connections,
            keys: args.keys,
            seed,
        }
    }
}

/// Tollgate with one front end, and without a control plane.
fn tollgate(paths: &Paths, served: FrontEnd, address: SocketAddr) -> Command {
    let mut command = serve(&paths.tollgate, &paths.config, served, address);
    command.args(["--set", "server.admin=disabled"]);
    command
}

/// `tollgate serve` with one front end.
fn serve(tollgate: &Path, config: &Path, served: FrontEnd, address: SocketAddr) -> Command {
    let mut command = Command::new(tollgate);
    command.arg("serve").arg("--config").arg(config);
    for front_end in [FrontEnd::Http, FrontEnd::Grpc, FrontEnd::Resp] {
        let listener = match front_end == served {
            true => address.to_string(),
            false => "disabled".to_owned(),
        };
        let name = format!("{front_end:?}").to_lowercase();
        command.arg("--set").arg(format!("server.{name}={listener}"));
    }
    command
}

/// throttlecrab-server with one front end: `http`, `grpc` or `redis`.
fn throttlecrab(paths: &Paths, front_end: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(&paths.throttlecrab);
    command.arg(format!("--{front_end}")).args(["--log-level", "error"]);
    command.arg(format!("--{front_end}-host")).arg(address.ip().to_string());
    command
        .arg(format!("--{front_end}-port"))
        .arg(address.port().to_string());
    // Its other store collapses above three quarters of its capacity.
    command.args(["--store", "periodic", "--store-capacity", "2000000"]);
    command
}

/// Builds or installs the programs.
fn paths() -> Result<Paths, String> {
    let tollgate = process::build_product()?;
    let target = tollgate
        .ancestors()
        .nth(2)
        .ok_or("this program is not in a target directory")?;
    let throttlecrab = install_throttlecrab(&target.join("peers"))?;
    Ok(Paths {
        throttlecrab,
        this_binary: process::this_binary()?,
        config: write_config(&tollgate)?,
        tollgate,
    })
}

/// Writes the settings and rules of all servers next to a program.
fn write_config(program: &Path) -> Result<PathBuf, String> {
    let config = program.with_file_name("bench-servers.yaml");
    std::fs::write(&config, format!("{}{}", http::RULES, grpc::RULES))
        .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    Ok(config)
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
