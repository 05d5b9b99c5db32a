//! `CL.THROTTLE` of Tollgate over the Redis protocol, compared with throttlecrab-server's `THROTTLE` and with `PING` of
//! Redis: without pipelining and with a pipeline of 16, and the memory of a million keys.

mod client;

use self::client::{Commands, KEY};
use super::{Args, Contestant, FrontEnd, Paths, throttlecrab, tollgate};
use crate::measurement::Measurement;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::Command;

/// All results.
pub(crate) struct RespReport {
    /// Each command with each pipeline depth.
    contestants: Vec<Contestant<Commands>>,
    /// Resident bytes per key in addition to the server without keys.
    bytes_per_key: f64,
    connections: u64,
    keys: u64,
}

/// The pipeline depths.
pub(super) const PIPELINES: [usize; 2] = [1, 16];

const TOLLGATE: &str = "tollgate CL.THROTTLE";
const THROTTLECRAB: &str = "throttlecrab THROTTLE";
const REDIS: &str = "redis PING";

/// Few enough for a server that sends each reply in its own write.
const FILL_PIPELINE: usize = 100;

/// The minimum ratios of Tollgate's commands per CPU-second to those of others.
const GOALS: [(&str, usize, f64); 3] = [(THROTTLECRAB, 1, 1.5), (THROTTLECRAB, 16, 7.0), (REDIS, 16, 0.5)];
const BYTES_PER_KEY_MAX: f64 = 90.0;

pub(super) fn measure(args: &Args, paths: &Paths) -> Result<RespReport, String> {
    let mut contestants = contestants();
    let title = |contestant: &Contestant<Commands>| {
        let Contestant { name, requests, .. } = contestant;
        format!("Redis protocol: {name}, pipeline {}", requests.pipeline)
    };
    super::measure(args, paths, args.connections, &mut contestants, title)?;
    eprintln!("memory of {} keys", args.keys);
    let piped = |contestant: &&Contestant<Commands>| contestant.requests.pipeline == 16;
    let tollgate = contestants.iter().find(piped).ok_or("Tollgate is measured")?;
    let (server, address) = tollgate.start(paths)?;
    let load = tollgate.load(args, address, args.connections, 0);
    let bytes = load.fill(&tollgate.requests.with_pipeline(FILL_PIPELINE), &server)?;
    Ok(RespReport {
        bytes_per_key: bytes as f64 / args.keys as f64,
        contestants,
        connections: args.connections,
        keys: args.keys,
    })
}

/// `CL.THROTTLE` of one key.
pub(super) fn throttle(pipeline: usize) -> Commands {
    Commands::new(&["CL.THROTTLE", KEY, "99", "100", "6000"], 6, pipeline)
}

/// Limits are high enough that nothing is denied, and slow enough that a key is live for a minute after its use: none is
/// swept during the measurement.
fn contestants() -> Vec<Contestant<Commands>> {
    let mut contestants = Vec::new();
    for pipeline in PIPELINES {
        contestants.push(Contestant::new(
            TOLLGATE,
            |paths, address| tollgate(paths, FrontEnd::Resp, address),
            throttle(pipeline),
        ));
        contestants.push(Contestant::new(
            THROTTLECRAB,
            |paths, address| throttlecrab(paths, "redis", address),
            Commands::new(&["THROTTLE", KEY, "100", "100", "6000"], 6, pipeline),
        ));
        contestants.push(Contestant::new(
            REDIS,
            |_, address| {
                let mut command = Command::new("redis-server");
                command.arg("--port").arg(address.port().to_string());
                command.args(["--save", "", "--appendonly", "no"]);
                command
            },
            Commands::new(&["PING"], 1, pipeline),
        ));
    }
    contestants
}

impl RespReport {
    /// The median over all rounds of the ratio of Tollgate's commands per CPU-second to another's in the same round.
    fn ratio(&self, other: &str, pipeline: usize) -> f64 {
        let found = |name| {
            let mut all = self.contestants.iter();
            all.find(|contestant| contestant.name == name && contestant.requests.pipeline == pipeline)
        };
        let pair = found(TOLLGATE).zip(found(other));
        pair.map_or(f64::NAN, |(own, other)| {
            own.rounds.ratio(&other.rounds, Measurement::per_cpu_second)
        })
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
        for Contestant {
            name, requests, rounds, ..
        } in &self.contestants
        {
            let (pipeline, ratio) = (requests.pipeline, self.ratio(name, requests.pipeline));
            let (rates, latencies) = (rounds.rate_cells(), rounds.latency_cells());
            let _ = writeln!(table, "| {name} | {pipeline} | {rates} | {latencies} | {ratio:.2}x |");
        }
        let _ = writeln!(
            table,
            "\nmemory per key with {} keys: {:.1} bytes",
            self.keys, self.bytes_per_key
        );
        let _ = writeln!(table, "goals: {}", if self.is_met() { "met" } else { "missed" });
        table
    }

    pub(super) fn as_json(&self) -> Value {
        let row = |contestant: &Contestant<Commands>| {
            let pipeline = contestant.requests.pipeline;
            contestant.rounds.as_json([
                ("command", contestant.name.into()),
                ("pipeline", pipeline.into()),
                ("ratio", self.ratio(contestant.name, pipeline).into()),
            ])
        };
        let rows: Vec<Value> = self.contestants.iter().map(row).collect();
        json!({ "commands": rows, "bytes_per_key": self.bytes_per_key, "met": self.is_met() })
    }
}
