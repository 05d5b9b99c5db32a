//! `CL.THROTTLE` of Tollgate over the Redis protocol, compared with throttlecrab-server's `THROTTLE` and with `PING` of
//! Redis: without pipelining and with a pipeline of 16, and the memory of a million keys.

use super::load::Measurement;
use super::process::Server;
use super::process::free_address;
use super::{Args, Paths};
use serde_json::json;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

mod load;

use load::Load;

/// A measured server.
struct Contestant {
    name: &'static str,
    start: fn(&Paths, SocketAddr) -> Command,
    /// The command with a placeholder for the key, and the number of lines of its reply.
    command: &'static [&'static str],
    reply_lines: usize,
    /// For each pipeline depth.
    rounds: [Vec<Measurement>; PIPELINES.len()],
}

/// All results.
pub(crate) struct RespReport {
    contestants: Vec<Contestant>,
    /// Resident bytes per key in addition to the server without keys.
    bytes_per_key: f64,
    connections: u64,
    keys: u64,
}

/// The pipeline depths.
const PIPELINES: [usize; 2] = [1, 16];

const TOLLGATE: &str = "tollgate CL.THROTTLE";
const THROTTLECRAB: &str = "throttlecrab THROTTLE";
const REDIS: &str = "redis PING";

/// The placeholder for the key. Limits are high enough that nothing is denied, and slow enough that a key is live for a
/// minute after its use: none is swept during the measurement.
const KEY: &str = "user:0000000000000000";

/// The minimum ratios of Tollgate's commands per CPU-second to those of others.
const GOALS: [(&str, usize, f64); 3] = [(THROTTLECRAB, 0, 1.5), (THROTTLECRAB, 1, 7.0), (REDIS, 1, 0.5)];
const BYTES_PER_KEY_MAX: f64 = 90.0;

pub(super) fn measure(args: &Args, paths: &Paths) -> Result<RespReport, String> {
    let mut contestants = contestants();
    for round in 1..=args.rounds {
        for contestant in &mut contestants {
            for (index, pipeline) in PIPELINES.into_iter().enumerate() {
                eprintln!(
                    "round {round} of {}: {}, pipeline {pipeline}",
                    args.rounds, contestant.name
                );
                let address = free_address()?;
                let server = Server::start(&mut (contestant.start)(paths, address), 0)?;
                let load = contestant.load(args, address, pipeline, round);
                let measured = load.run(&server, args.seconds)?;
                if let Some(rounds) = contestant.rounds.get_mut(index) {
                    rounds.push(measured);
                }
            }
        }
    }
    let tollgate = contestants.first().ok_or("Tollgate is measured")?;
    eprintln!("memory of {} keys", args.keys);
    let address = free_address()?;
    let server = Server::start(&mut (tollgate.start)(paths, address), 0)?;
    let load = tollgate.load(args, address, 16, 0);
    let bytes = load.fill(&server)?;
    Ok(RespReport {
        bytes_per_key: bytes as f64 / args.keys as f64,
        contestants,
        connections: args.connections,
        keys: args.keys,
    })
}

fn contestants() -> Vec<Contestant> {
    let contestant = |name, start, command, reply_lines| Contestant {
        name,
        start,
        command,
        reply_lines,
        rounds: Default::default(),
    };
    vec![
        contestant(
            TOLLGATE,
            |paths, address| {
                let mut command = Command::new(&paths.tollgate);
                command.arg("serve").arg("--config").arg(&paths.config);
                for setting in ["server.http=disabled", "server.grpc=disabled"] {
                    command.arg("--set").arg(setting);
                }
                command.arg("--set").arg(format!("server.resp={address}"));
                command
            },
            &["CL.THROTTLE", KEY, "99", "100", "6000"],
            6,
        ),
        contestant(
            THROTTLECRAB,
            |paths, address| {
                let mut command = Command::new(&paths.throttlecrab);
                command.args(["--redis", "--redis-host", "127.0.0.1", "--log-level", "error"]);
                command.arg("--redis-port").arg(address.port().to_string());
                command.args(["--store", "periodic", "--store-capacity", "2000000"]);
                command
            },
            &["THROTTLE", KEY, "100", "100", "6000"],
            6,
        ),
        contestant(
            REDIS,
            |_, address| {
                let mut command = Command::new("redis-server");
                command.arg("--port").arg(address.port().to_string());
                command.args(["--save", "", "--appendonly", "no"]);
                command
            },
            &["PING"],
            1,
        ),
    ]
}

impl Contestant {
    fn load(&self, args: &Args, address: SocketAddr, pipeline: usize, seed: u64) -> Load {
        let mut command = format!("*{}\r\n", self.command.len());
        for word in self.command {
            let _ = write!(command, "${}\r\n{word}\r\n", word.len());
        }
        let digits = command.find(KEY).map(|index| index + KEY.len() - load::DIGITS);
        Load {
            address,
            command: command.into_bytes(),
            digits,
            reply_lines: self.reply_lines,
            pipeline,
            connections: args.connections,
            keys: args.keys,
            seed,
        }
    }

    fn median(&self, pipeline: usize, figure: fn(&Measurement) -> f64) -> f64 {
        let rounds = self.rounds.get(pipeline).map_or(&[][..], Vec::as_slice);
        median(rounds.iter().map(figure).collect())
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

impl RespReport {
    /// The median over all rounds of the ratio of Tollgate's commands per CPU-second to another's in the same round.
    fn ratio(&self, other: &str, pipeline: usize) -> f64 {
        let rounds = |name: &str| {
            let found = self.contestants.iter().find(|contestant| contestant.name == name);
            found
                .and_then(|contestant| contestant.rounds.get(pipeline))
                .map_or(&[][..], Vec::as_slice)
        };
        let pairs = rounds(TOLLGATE).iter().zip(rounds(other));
        median(
            pairs
                .map(|(own, other)| own.per_cpu_second() / other.per_cpu_second())
                .collect(),
        )
    }

    /// True if all goals are met.
    pub(super) fn is_met(&self) -> bool {
        let ratios = GOALS
            .iter()
            .all(|(other, pipeline, goal)| self.ratio(other, *pipeline) >= *goal);
        ratios && self.bytes_per_key <= BYTES_PER_KEY_MAX
    }

    pub(super) fn as_table(&self) -> String {
        let mut table = format!(
            "Redis protocol, {} keys, {} connections, server on one core, load on the other\n\n",
            self.keys, self.connections
        );
        table.push_str(
            "| command | pipeline | per CPU-second | per second | core busy | p50 µs | p99 µs | Tollgate's per CPU-second |\n",
        );
        table.push_str("|---|---:|---:|---:|---:|---:|---:|---:|\n");
        for (index, pipeline) in PIPELINES.into_iter().enumerate() {
            for contestant in &self.contestants {
                let _ = writeln!(
                    table,
                    "| {} | {pipeline} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {:.2}x |",
                    contestant.name,
                    contestant.median(index, Measurement::per_cpu_second),
                    contestant.median(index, Measurement::per_second),
                    contestant.median(index, Measurement::busy),
                    contestant.median(index, |measured| measured.p50_us),
                    contestant.median(index, |measured| measured.p99_us),
                    self.ratio(contestant.name, index),
                );
            }
        }
        let _ = writeln!(
            table,
            "\nmemory per key with {} keys: {:.1} bytes",
            self.keys, self.bytes_per_key
        );
        let _ = writeln!(table, "goals: {}", if self.is_met() { "met" } else { "missed" });
        table
    }

    pub(super) fn as_json(&self) -> serde_json::Value {
        let mut rows = Vec::new();
        for (index, pipeline) in PIPELINES.into_iter().enumerate() {
            for contestant in &self.contestants {
                rows.push(json!({
                    "command": contestant.name,
                    "pipeline": pipeline,
                    "per_cpu_second": contestant.median(index, Measurement::per_cpu_second),
                    "per_second": contestant.median(index, Measurement::per_second),
                    "busy": contestant.median(index, Measurement::busy),
                    "p50_us": contestant.median(index, |measured| measured.p50_us),
                    "p99_us": contestant.median(index, |measured| measured.p99_us),
                    "ratio": self.ratio(contestant.name, index),
                    "errors": contestant.rounds.iter().flatten().map(|measured| measured.errors).sum::<u64>(),
                }));
            }
        }
        json!({ "commands": rows, "bytes_per_key": self.bytes_per_key, "met": self.is_met() })
    }
}
