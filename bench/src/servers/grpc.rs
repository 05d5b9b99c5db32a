//! Calls over gRPC: Envoy's `ShouldRateLimit` of Tollgate, with typical descriptors and rules, compared with `Throttle` of
//! throttlecrab-server.

mod client;

pub(super) use self::client::CONNECTIONS;

use self::client::{Calls, STREAMS};
use super::{Args, Contestant, FrontEnd, Paths, throttlecrab, tollgate};
use crate::measurement::Measurement;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The results of all servers.
pub(super) struct GrpcReport(Vec<Contestant<Calls>>);

/// The minimum ratio of Tollgate to throttlecrab-server per CPU time.
const GOAL: f64 = 1.1;

/// High enough that nothing is denied: both servers do the whole work for every call.
pub(super) const RULES: &str = "\
- { id: api, domain: shop, when: { generic_key: api }, per: user, limit: 100/min burst 100 }
- { id: logins, domain: shop, when: { generic_key: login }, per: remote_address, limit: 5/min }
";

pub(super) fn measure(args: &Args, paths: &Paths) -> Result<GrpcReport, String> {
    let mut contestants = contestants();
    let title = |contestant: &Contestant<_>| format!("gRPC: {}", contestant.name);
    super::measure(args, paths, CONNECTIONS, &mut contestants, title)?;
    Ok(GrpcReport(contestants))
}

fn contestants() -> Vec<Contestant<Calls>> {
    let throttle = Calls {
        path: "/throttlecrab.RateLimiter/Throttle",
        message: |key| {
            let mut message = field(1, format!("user:{key:016}").as_bytes());
            // max_burst, count_per_period, period, quantity.
            message.extend_from_slice(&[0x10, 100, 0x18, 100, 0x20, 60, 0x28, 1]);
            message
        },
    };
    vec![
        Contestant::new(
            "tollgate",
            |paths, address| tollgate(paths, FrontEnd::Grpc, address),
            should_rate_limit(),
        ),
        Contestant::new(
            "throttlecrab",
            |paths, address| throttlecrab(paths, "grpc", address),
            throttle,
        ),
    ]
}

/// Envoy's call with typical descriptors.
pub(super) fn should_rate_limit() -> Calls {
    Calls {
        path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        message: |key| {
            let mut entries = entry("generic_key", "api");
            entries.extend(entry("remote_address", "203.0.113.7"));
            entries.extend(entry("user", &format!("user:{key:016}")));
            let mut message = field(1, b"shop");
            message.extend(field(2, &entries));
            message
        },
    }
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
        tollgate.rounds.ratio(&other.rounds, Measurement::per_cpu_second)
    }

    pub(super) fn as_table(&self) -> String {
        let mut table = format!(
            "gRPC calls, {CONNECTIONS} connections with {STREAMS} calls at a time each, server on one core, load on the other; medians\n\n\
             | server | decisions per CPU-second | decisions/s | core busy | p50 µs | p99 µs |\n|---|---:|---:|---:|---:|---:|\n",
        );
        for Contestant { name, rounds, .. } in &self.0 {
            let _ = writeln!(
                table,
                "| {name} | {} | {} |",
                rounds.rate_cells(),
                rounds.latency_cells()
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
        let row = |contestant: &Contestant<_>| contestant.rounds.as_json([("server", contestant.name.into())]);
        let servers: Vec<Value> = self.0.iter().map(row).collect();
        json!({ "servers": servers, "ratio_per_cpu_second": self.ratio(), "goal": GOAL })
    }
}
