//! HTTP checks of Tollgate, compared with throttlecrab-server and with a baseline endpoint.

mod client;

pub(super) use self::client::Checks;

use super::{Args, Contestant, FrontEnd, Paths, throttlecrab, tollgate};
use crate::measurement::Measurement;
use crate::planning::{self, PlanningReport};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

/// The results of all servers, and the time to find the rules of a check.
pub(super) struct HttpReport {
    contestants: Vec<Contestant<Checks>>,
    planned: PlanningReport,
}

const TOLLGATE: &str = "tollgate";
const THROTTLECRAB: &str = "throttlecrab";
const BASELINE: &str = "baseline";
const READY: &str = "baseline, full response";

/// High enough that nothing is denied: both servers do the whole work for every request.
pub(super) const RULES: &str = "rules:\n- { id: api, per: key, limit: 100/min burst 100 }\n";

pub(super) fn measure(args: &Args, paths: &Paths) -> Result<HttpReport, String> {
    let mut contestants = contestants();
    let title = |contestant: &Contestant<_>| format!("HTTP: {}", contestant.name);
    super::measure(args, paths, args.connections, &mut contestants, title)?;
    eprintln!("planning");
    let planned = planning::measure(planning::ROUNDS);
    Ok(HttpReport { contestants, planned })
}

/// A check of one key.
pub(super) const fn check() -> Checks {
    Checks {
        path: "/v1/check",
        body: |key| format!("{{\"attributes\":{{\"key\":\"user:{key:016}\"}}}}"),
    }
}

fn contestants() -> Vec<Contestant<Checks>> {
    let check = check();
    let throttle = Checks {
        path: "/throttle",
        body: |key| {
            format!(
                "{{\"key\":\"user:{key:016}\",\"max_burst\":100,\"count_per_period\":100,\"period\":60,\"quantity\":1}}"
            )
        },
    };
    vec![
        Contestant::new(
            TOLLGATE,
            |paths, address| tollgate(paths, FrontEnd::Http, address),
            check,
        ),
        Contestant::new(
            THROTTLECRAB,
            |paths, address| throttlecrab(paths, "http", address),
            throttle,
        ),
        Contestant::new(BASELINE, |paths, address| baseline(paths, address, "empty"), check),
        Contestant::new(READY, |paths, address| baseline(paths, address, "ready"), check),
    ]
}

fn baseline(paths: &Paths, address: SocketAddr, answer: &str) -> Command {
    let mut command = Command::new(&paths.this_binary);
    command.arg("serve-baseline").arg(address.to_string()).arg(answer);
    command
}

impl HttpReport {
    /// The median over all rounds of the ratio of Tollgate's value to another's in the same round.
    fn ratio(&self, other: &str, figure: fn(&Measurement) -> f64) -> f64 {
        let rounds = |name| self.contestants.iter().find(|contestant| contestant.name == name);
        let pair = rounds(TOLLGATE).zip(rounds(other));
        pair.map_or(f64::NAN, |(own, other)| own.rounds.ratio(&other.rounds, figure))
    }

    pub(super) fn as_table(&self, args: &Args) -> String {
        let mut table = format!(
            "HTTP checks, {} keys, {} connections, keep-alive, server on one core, load on the other; medians of {} rounds\n\n",
            args.keys, args.connections, args.rounds
        );
        table.push_str(
            "| server | decisions per CPU-second | decisions/s | core busy | p50 µs | p99 µs | Tollgate's decisions per CPU-second |\n",
        );
        table.push_str("|---|---:|---:|---:|---:|---:|---:|\n");
        for Contestant { name, rounds, .. } in &self.contestants {
            let (rates, latencies) = (rounds.rate_cells(), rounds.latency_cells());
            let ratio = self.ratio(name, Measurement::per_cpu_second);
            let _ = writeln!(table, "| {name} | {rates} | {latencies} | {ratio:.2}x |");
        }
        format!("{table}\n{}", self.planned.as_table())
    }

    pub(super) fn as_json(&self) -> Value {
        let row = |contestant: &Contestant<_>| contestant.rounds.as_json([("server", contestant.name.into())]);
        let per_cpu_second = |other| self.ratio(other, Measurement::per_cpu_second);
        json!({
            "servers": self.contestants.iter().map(row).collect::<Vec<_>>(),
            "ratios_per_cpu_second": {
                THROTTLECRAB: per_cpu_second(THROTTLECRAB),
                BASELINE: per_cpu_second(BASELINE),
                READY: per_cpu_second(READY),
            },
            "p99_ratio": { THROTTLECRAB: self.ratio(THROTTLECRAB, |measured| measured.p99_us) },
            "planning": self.planned.as_json(),
        })
    }
}
