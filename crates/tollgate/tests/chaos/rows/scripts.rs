//! The script at the server: forgotten again and again.

use super::process::{LEDGER, debited};
use super::trial::Trial;
use crate::harness::{RATE, Setup};
use crate::measurements::Measurements;
use crate::plan::{Pace, Plan};
use crate::resp::{command_ok, info};
use std::time::Duration;
use tollgate_limiter::testing::servers::{Server, ServerKind};

pub(super) fn flushed(plan: &Plan) -> Measurements {
    let kinds: &[ServerKind] = match plan.pace {
        Pace::Fast => &[ServerKind::Redis70],
        Pace::Full => &ServerKind::ALL,
    };
    let mut measurements = Measurements::default();
    for kind in kinds {
        flush_scripts(plan, &mut measurements, *kind, ("off", "SCRIPT FLUSH"));
    }
    measurements
}

pub(super) fn functions_flushed(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    for kind in [ServerKind::Redis70, ServerKind::Valkey] {
        flush_scripts(plan, &mut measurements, kind, ("on", "FUNCTION FLUSH"));
    }
    measurements
}

fn flush_scripts(plan: &Plan, measurements: &mut Measurements, kind: ServerKind, (functions, flush): (&str, &str)) {
    let server = Server::start(kind);
    let mut setup = Setup::two_nodes(&server.url());
    setup.rules.push_str(LEDGER);
    setup.store_settings = format!(", functions: {functions}");
    let mut trial = Trial::start(plan, setup);
    let loads = trial.metric("tollgate_store_script_loads_total", "");
    let (connects, sent) = (
        trial.metric("tollgate_store_connect_attempts_total", ""),
        loads_sent(&server),
    );
    let from_us = trial.now_us();
    let flushes = plan.pick(20, 100);
    for _ in 0..flushes {
        command_ok(server.port(), flush);
        trial.pause(Duration::from_millis(100));
    }
    let loads = trial.metric("tollgate_store_script_loads_total", "") - loads;
    let connects = trial.metric("tollgate_store_connect_attempts_total", "") - connects;
    // Redis 6.2 counts all commands about scripts together.
    let flushes_counted = if kind == ServerKind::Redis62 {
        f64::from(flushes)
    } else {
        0.0
    };
    let sent = loads_sent(&server) - sent - flushes_counted;
    let until_us = trial.pause(plan.seconds(0.5, 1.0));
    let result = trial.end_load();
    let debits = debited(&trial);
    trial.audit(measurements, &result, (&[server.port()], 1.0));
    let name = |what: &str| format!("{kind:?}: {what}");
    measurements.none(&name("requests that failed"), result.failed());
    measurements.at_least(&name("times it had forgotten the script"), loads, 1.0);
    // The call that finds it forgotten, and what brings it back; each new connection brings it too.
    measurements.at_most(
        &name("commands more, per flush and connection"),
        (loads + sent - connects) / f64::from(flushes) / 2.0,
        2.0,
    );
    let shared = result.shared(from_us, until_us);
    measurements.share(&name("share decided by the store"), shared, (0.95, 0.999));
    measurements.at_most(
        &name("over-admission (M4)"),
        result.excess(),
        result.allowance(0, RATE, 2),
    );
    let passed = result
        .samples
        .iter()
        .filter(|sample| sample.is_admitted() && sample.is_shared())
        .count();
    let unreported = result.samples.iter().filter(|sample| sample.is_fallback()).count();
    // What was decided without the store may have been charged by it all the same.
    measurements.at_most(
        &name("charged beyond what passed"),
        debits - passed as f64,
        unreported as f64,
    );
    measurements.at_least(
        &name("charged beyond what passed, from below"),
        debits - passed as f64,
        0.0,
    );
}

/// How often the script was sent to be kept, as the server counts it.
fn loads_sent(server: &Server) -> f64 {
    let counts = ["cmdstat_script|load", "cmdstat_function|load", "cmdstat_script"];
    let calls = counts.map(|name| info(server.port(), "commandstats", name, Some("calls")));
    calls.iter().sum::<u64>() as f64
}
