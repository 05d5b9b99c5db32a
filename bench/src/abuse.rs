//! Abusive clients against a server with default settings: its memory growth, and the service other clients get.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- abuse
//! ```

mod attacks;
mod bystander;

use crate::servers::process::{self, Server};
use bystander::Bystander;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Attacks a server: oversized commands over the Redis protocol, slow HTTP, rapid resets of HTTP/2 streams.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- abuse --seconds 20")]
pub(crate) struct Args {
    /// Duration of each attack, longer than a server waits for a header.
    #[arg(long, default_value_t = 12)]
    seconds: u64,
}

/// The addresses of a server.
#[derive(Clone, Copy)]
struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
    resp: SocketAddr,
}

/// The result of one attack.
struct AttackResult {
    name: &'static str,
    /// The attackers' own summary.
    description: String,
    grown_bytes: u64,
    length: Duration,
    bystander: bystander::BystanderResult,
}

/// The maximum growth of a server.
const GROWTH_MAX: u64 = 64 << 20;
/// The minimum rate of responses for the other client. It shares its thread with the attackers, which take most of the time.
const ANSWERS_MIN: u64 = 10;
/// The maximum latency of the other client.
const SLOWEST_MAX: Duration = Duration::from_secs(1);
/// Open files this process needs.
const FILES: u64 = 8_192;

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(attack_all(args).map(|outcomes| {
        print_table(&outcomes);
        outcomes.iter().all(AttackResult::is_within_bounds)
    }))
}

fn print_table(outcomes: &[AttackResult]) {
    println!("| attack | server grew by | other client: responses | slowest response | errors | |");
    println!("|---|---:|---:|---:|---:|---|");
    for outcome in outcomes {
        println!(
            "| {} | {:.1} MiB | {} | {:.1} ms | {} | {} |",
            outcome.name,
            outcome.grown_bytes as f64 / f64::from(1 << 20),
            outcome.bystander.answers,
            outcome.bystander.slowest.as_secs_f64() * 1e3,
            outcome.bystander.errors,
            outcome.description,
        );
    }
}

impl AttackResult {
    fn is_within_bounds(&self) -> bool {
        let bystander = &self.bystander;
        let served = bystander.answers >= ANSWERS_MIN * self.length.as_secs() && bystander.slowest <= SLOWEST_MAX;
        served && bystander.errors == 0 && self.grown_bytes < GROWTH_MAX
    }
}

fn attack_all(args: &Args) -> Result<Vec<AttackResult>, String> {
    let files = rlimit::increase_nofile_limit(FILES).map_err(|error| format!("no more open files: {error}"))?;
    if files < FILES {
        return Err(format!("this needs {FILES} open files, and the system allows {files}"));
    }
    let program = process::build_product()?;
    let length = Duration::from_secs(args.seconds);
    let attack = |(name, attackers)| attack(name, &program, length, attackers);
    ATTACKS.into_iter().map(attack).collect()
}

type Attack = std::pin::Pin<Box<dyn Future<Output = String>>>;

type Attackers = fn(Addresses, Duration) -> Attack;

/// The name of an attack, and its clients.
const ATTACKS: [(&str, Attackers); 4] = [
    ("1,000 connections of RESP bombs", |at, length| {
        Box::pin(attacks::bombs(at.resp, length))
    }),
    ("2,000 slow HTTP connections", |at, length| {
        Box::pin(attacks::slow(at.http, length))
    }),
    ("one HTTP/2 connection of rapid resets", |at, length| {
        Box::pin(attacks::resets(at.http, length))
    }),
    ("the same on the gRPC port", |at, length| {
        Box::pin(attacks::resets(at.grpc, length))
    }),
];

/// One attack on its own server, while another client keeps sending requests.
fn attack(
    name: &'static str,
    program: &PathBuf,
    length: Duration,
    attackers: Attackers,
) -> Result<AttackResult, String> {
    eprintln!("{name}");
    let at = Addresses {
        http: process::free_address()?,
        grpc: process::free_address()?,
        resp: process::free_address()?,
    };
    let mut command = Command::new(program);
    command.args(["serve", "--set", "rules=[]", "--set", "log=error"]);
    command.arg("--set").arg(format!("server.http={}", at.http));
    command.arg("--set").arg(format!("server.grpc={}", at.grpc));
    command.arg("--set").arg(format!("server.resp={}", at.resp));
    command.args(["--set", "server.admin=disabled"]);
    let server = Server::start(&mut command, 0)?;
    crate::block_on(async {
        let bystander = Bystander::connect(at.http, at.resp).await?;
        let before = server.resident()?;
        let asking = tokio::task::spawn_local(bystander.run(length));
        let words = attackers(at, length).await;
        let bystander = asking
            .await
            .map_err(|error| format!("the other client failed: {error}"))?;
        Ok(AttackResult {
            name,
            description: words,
            length,
            grown_bytes: server.peak_resident()?.saturating_sub(before),
            bystander,
        })
    })
}
