//! The script at the server: forgotten again and again.

use super::process::{LEDGER, debited, over};
use crate::audit::audit;
use crate::bench::{RATE, Setup};
use crate::figures::Figures;
use crate::plan::{Pace, Plan};
use crate::resp::{info, tell};
use std::time::Duration;
use tollgate_limiter::testing::servers::{ServerKind, Server};

pub(super) fn flushed(plan: &Plan) -> Figures {
    let kinds: &[ServerKind] = match plan.pace {
        Pace::Fast => &[ServerKind::Redis70],
        Pace::Full => &ServerKind::ALL,
    };
    let mut figures = Figures::default();
    for kind in kinds {
        forgetting(plan, &mut figures, *kind, ("off", "SCRIPT FLUSH"));
    }
    figures
}

pub(super) fn functions_flushed(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    for kind in [ServerKind::Redis70, ServerKind::Valkey] {
        forgetting(plan, &mut figures, kind, ("on", "FUNCTION FLUSH"));
    }
    figures
}

fn forgetting(plan: &Plan, figures: &mut Figures, kind: ServerKind, (functions, flush): (&str, &str)) {
    let server = Server::start(kind);
    let mut setup = Setup::over(&server.url());
    setup.rules.push_str(LEDGER);
    setup.store_settings = format!(", functions: {functions}");
    let (mut bench, baseline) = over(plan, setup);
    let loads = bench.metric("tollgate_store_script_loads_total", "");
    let (dials, sent) = (bench.metric("tollgate_store_dials_total", ""), loads_sent(&server));
    let from_us = bench.now_us();
    let flushes = plan.pick(20, 100);
    for _ in 0..flushes {
        tell(server.port(), flush);
        bench.pause(Duration::from_millis(100));
    }
    let loads = bench.metric("tollgate_store_script_loads_total", "") - loads;
    let dials = bench.metric("tollgate_store_dials_total", "") - dials;
    // Redis 6.2 counts all commands about scripts together.
    let flushes_counted = if kind == ServerKind::Redis62 { f64::from(flushes) } else { 0.0 };
    let sent = loads_sent(&server) - sent - flushes_counted;
    let until_us = bench.pause(plan.seconds(0.5, 1.0));
    let seen = bench.end_load();
    let debits = debited(&bench);
    audit(figures, &mut bench, &seen, &baseline, (&[server.port()], 1.0));
    let name = |what: &str| format!("{kind:?}: {what}");
    figures.none(&name("requests that failed"), seen.failed());
    figures.at_least(&name("times it had forgotten the script"), loads, 1.0);
    // The call that finds it forgotten, and what brings it back; each new connection brings it too.
    figures.at_most(
        &name("commands more, per flush and connection"),
        (loads + sent - dials) / f64::from(flushes) / 2.0,
        2.0,
    );
    let shared = seen.shared(from_us, until_us);
    figures.share(&name("share decided by the store"), shared, (0.95, 0.999));
    figures.at_most(&name("over-admission (M4)"), seen.excess(), seen.allowance(0, RATE, 2));
    let passed = seen
        .samples
        .iter()
        .filter(|sample| sample.is_admitted() && sample.is_shared())
        .count();
    let untold = seen.samples.iter().filter(|sample| sample.is_fallback()).count();
    // What was decided without the store may have been charged by it all the same.
    figures.at_most(
        &name("charged beyond what passed"),
        debits - passed as f64,
        untold as f64,
    );
    figures.at_least(
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
