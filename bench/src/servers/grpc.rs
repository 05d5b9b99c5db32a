//! Calls over gRPC: Envoy's `ShouldRateLimit` of Tollgate, with typical descriptors and rules, compared with `Throttle` of
//! throttlecrab-server.

mod load;

use self::load::{Call, Load};
use super::load::Measurement;
use super::process::Server;
use super::process::free_address;
use super::{Args, Paths};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

/// A measured server.
struct Contestant {
    name: &'static str,
    start: fn(&Paths, SocketAddr) -> Command,
    call: Call,
    rounds: Vec<Measurement>,
}

/// The results of all servers.
pub(super) struct GrpcReport(Vec<Contestant>);

/// The minimum ratio of Tollgate to throttlecrab-server per CPU time.
const GOAL: f64 = 1.1;

/// High enough that nothing is denied: both servers do the whole work for every call.
pub(super) const RULES: &str = "\
- { id: api, domain: shop, when: { generic_key: api }, per: user, limit: 100/min burst 100 }
- { id: logins, domain: shop, when: { generic_key: login }, per: remote_address, limit: 5/min }
";

pub(super) fn measure(args: &Args, paths: &Paths) -> Result<GrpcReport, String> {
    let mut contestants = contestants();
    for round in 1..=args.rounds {
        for contestant in &mut contestants {
            eprintln!("gRPC, round {round} of {}: {}", args.rounds, contestant.name);
            let address = free_address()?;
            let server = Server::start(&mut (contestant.start)(paths, address), 0)?;
            let load = Load {
                address,
                call: contestant.call,
                keys: args.keys,
                seed: round,
            };
            contestant.rounds.push(load.run(&server, args.seconds)?);
        }
    }
    Ok(GrpcReport(contestants))
}

fn contestants() -> Vec<Contestant> {
    vec![
        Contestant {
            name: "tollgate",
            start: |paths, address| {
                let mut command = Command::new(&paths.tollgate);
                command.arg("serve").arg("--config").arg(&paths.config);
                command.args(["--set", "server.http=disabled", "--set", "server.resp=disabled"]);
                command.arg("--set").arg(format!("server.grpc={address}"));
                command
            },
            call: Call {
                path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                message: |key| {
                    let mut entries = entry("generic_key", "api");
                    entries.extend(entry("remote_address", "203.0.113.7"));
                    entries.extend(entry("user", &format!("user:{key:016}")));
                    let mut message = field(1, b"shop");
                    message.extend(field(2, &entries));
                    message
                },
            },
            rounds: Vec::new(),
        },
        Contestant {
            name: "throttlecrab",
            start: |paths, address| {
                let mut command = Command::new(&paths.throttlecrab);
                command.args(["--grpc", "--grpc-host", "127.0.0.1", "--log-level", "error"]);
                command.arg("--grpc-port").arg(address.port().to_string());
                // Its other store collapses above three quarters of its capacity.
                command.args(["--store", "periodic", "--store-capacity", "2000000"]);
                command
            },
            call: Call {
                path: "/throttlecrab.RateLimiter/Throttle",
                message: |key| {
                    let mut message = field(1, format!("user:{key:016}").as_bytes());
                    // max_burst, count_per_period, period, quantity.
                    message.extend_from_slice(&[0x10, 100, 0x18, 100, 0x20, 60, 0x28, 1]);
                    message
                },
            },
            rounds: Vec::new(),
        },
    ]
}

/// A length-delimited protobuf field. All of them are short.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, bytes.len() as u8];
    field.extend_from_slice(bytes);
    field
}

fn entry(key: &str, value: &str) -> Vec<u8> {
    let mut entry = field(1, key.as_bytes());
    entry.extend(field(2, value.as_bytes()));
    field(1, &entry)
}

impl GrpcReport {
    /// True if Tollgate reaches the goal.
    pub(super) fn is_met(&self) -> bool {
        self.ratio() >= GOAL
    }

    /// The median over all rounds of the ratio of Tollgate's value to the other's in the same round.
    fn ratio(&self) -> f64 {
        let [tollgate, other] = &*self.0 else { return f64::NAN };
        let pairs = tollgate.rounds.iter().zip(&other.rounds);
        median(pairs.map(|(own, other)| own.per_cpu_second() / other.per_cpu_second()))
    }

    pub(super) fn as_table(&self) -> String {
        let mut table = format!(
            "gRPC calls, {} connections with {} calls at a time each, server on one core, load on the other; medians\n\n\
             | server | decisions per CPU-second | decisions/s | core busy | p50 µs | p99 µs |\n|---|---:|---:|---:|---:|---:|\n",
            load::CONNECTIONS,
            load::STREAMS
        );
        for contestant in &self.0 {
            let _ = writeln!(
                table,
                "| {} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} |",
                contestant.name,
                contestant.median(Measurement::per_cpu_second),
                contestant.median(Measurement::per_second),
                contestant.median(Measurement::busy),
                contestant.median(|measured| measured.p50_us),
                contestant.median(|measured| measured.p99_us),
            );
        }
        let _ = writeln!(
            table,
            "\nTollgate per CPU-second: {:.2}x of throttlecrab; goal: {GOAL}x",
            self.ratio()
        );
        table
    }

    pub(super) fn as_json(&self) -> Value {
        let servers = self.0.iter().map(|contestant| {
            json!({
                "server": contestant.name,
                "decisions_per_cpu_second": contestant.median(Measurement::per_cpu_second),
                "decisions_per_second": contestant.median(Measurement::per_second),
                "busy": contestant.median(Measurement::busy),
                "p50_us": contestant.median(|measured| measured.p50_us),
                "p99_us": contestant.median(|measured| measured.p99_us),
                "errors": contestant.rounds.iter().map(|measured| measured.errors).sum::<u64>(),
            })
        });
        json!({ "servers": servers.collect::<Vec<_>>(), "ratio_per_cpu_second": self.ratio(), "goal": GOAL })
    }
}

impl Contestant {
    fn median(&self, figure: fn(&Measurement) -> f64) -> f64 {
        median(self.rounds.iter().map(figure))
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
