//! The server as a process: killed, frozen, restarted, wiped, busy.

use crate::audit::{Baseline, audit};
use crate::bench::{Bench, CAPACITY, FALLBACK_SHARE, Outage, RATE, Seen, Setup, pause};
use crate::figures::Figures;
use crate::plan::Plan;
use crate::resp::{Asking, ask, info, script_calls, tell};
use std::time::Duration;
use tollgate_limiter::testing::servers::{ServerKind, Server};

/// A bench over one server, loaded for the control phase.
pub(super) fn over(plan: &Plan, setup: Setup) -> (Bench, Baseline) {
    let mut bench = setup.start(plan);
    bench.load();
    bench.pause(plan.seconds(1.5, 5.0));
    let baseline = Baseline::of(&bench);
    (bench, baseline)
}

/// Lets all settle, ends the load and audits.
pub(super) fn settle(
    plan: &Plan,
    figures: &mut Figures,
    bench: &mut Bench,
    baseline: &Baseline,
    server: &Server,
) -> Seen {
    bench.pause(plan.seconds(2.5, 5.0));
    let seen = bench.end_load();
    audit(figures, bench, &seen, baseline, (&[server.port()], 0.0));
    seen
}

pub(super) fn killed(plan: &Plan) -> Figures {
    let mut server = Server::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let dials = bench.metric("tollgate_store_dials_total", "");
    let from_us = bench.now_us();
    server.kill();
    bench.pause(plan.seconds(2.0, 10.0));
    let dials = bench.metric("tollgate_store_dials_total", "") - dials;
    server.revive();
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, outage);
    figures.at_most(
        "over-admission (M3 + M8)",
        seen.excess(),
        outage.excess() + CAPACITY as f64,
    );
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    figures.at_most("attempts to connect, per node and second", dials / 2.0 / seconds, 10.0);
    under_admission(&mut figures, &seen, outage);
    figures
}

/// While nodes serve their shares, the hot key gets most of what it is due.
pub(super) fn under_admission(figures: &mut Figures, seen: &Seen, outage: Outage) {
    let seconds = (outage.back_us - outage.from_us) as f64 / 1e6;
    let admitted = seen
        .of(0)
        .filter(|sample| sample.is_admitted() && (outage.from_us..outage.back_us).contains(&sample.received_us))
        .count();
    let due = FALLBACK_SHARE * RATE as f64 * seconds;
    let share = admitted as f64 / due;
    figures.share("admitted while it was away, of what is due", share, (0.8, 0.95));
}

pub(super) fn frozen(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let mut setup = Setup::over(&server.url());
    setup.rules.push_str(LEDGER);
    let (mut bench, baseline) = over(plan, setup);
    let from_us = bench.now_us();
    server.freeze();
    bench.pause(plan.seconds(2.0, 5.0));
    server.thaw();
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    bench.pause(plan.seconds(2.5, 5.0));
    let seen = bench.end_load();
    let debits = debited(&bench);
    audit(&mut figures, &mut bench, &seen, &baseline, (&[server.port()], 1.0));
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    seen.noticed(&mut figures, outage);
    let passed = seen
        .samples
        .iter()
        .filter(|sample| sample.is_admitted() && sample.is_shared())
        .count();
    figures.at_most(
        "charges nobody was told of (in flight at the freeze)",
        debits - passed as f64,
        64.0,
    );
    figures
}

/// A limit that every request meets and that hardly refills: what is gone from it was charged.
pub(super) const LEDGER: &str = "- { id: ledger, limit: 1/day burst 50000, on_store_failure: open }\n";

/// How much was charged to the ledger.
pub(super) fn debited(bench: &Bench) -> f64 {
    let (_, said) = bench.nodes[0]
        .post("/v1/explain", r#"{"attributes":{},"cost":0}"#)
        .unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let left = said["verdict"]["remaining"].as_f64();
    50_000.0 - left.unwrap_or_else(|| panic!("{said}"))
}

pub(super) fn restarted(plan: &Plan) -> Figures {
    let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-data", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut server = Server::start_with(ServerKind::Redis70, &["--dir", &folder.to_string_lossy()]);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let before: f64 = tell(server.port(), "DBSIZE").parse().unwrap();
    let from_us = bench.now_us();
    // It closes the connection instead of answering.
    let _ = ask(server.port(), "SHUTDOWN SAVE");
    bench.pause(Duration::from_secs(1));
    server.revive();
    let after: f64 = tell(server.port(), "DBSIZE").parse().unwrap();
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    figures.at_least("keys that were kept, of those before", after / before, 0.95);
    figures
}

pub(super) fn wiped(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let keys: f64 = tell(server.port(), "DBSIZE").parse().unwrap();
    let from_us = bench.now_us();
    tell(server.port(), "FLUSHALL");
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    figures.none("requests that failed", seen.failed());
    let shared = seen.shared(from_us, seen.end_us());
    figures.share("share decided by the store", shared, (0.95, 0.995));
    figures.at_least("keys that were wiped", keys, 100.0);
    figures.at_least("over-admission, to show that it was wiped", seen.excess(), 1.0);
    figures.at_most("over-admission (M8)", seen.excess(), CAPACITY as f64);
    figures
}

pub(super) fn loading(plan: &Plan) -> Figures {
    let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-loading", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let folder_name = folder.to_string_lossy();
    let settings = [
        "--dir",
        &folder_name,
        "--enable-debug-command",
        "yes",
        "--key-load-delay",
        "1",
    ];
    let events = ["--loading-process-events-interval-bytes", "1024"];
    let mut server = Server::start_with(ServerKind::Redis70, &[&settings[..], &events].concat());
    tell(server.port(), &format!("DEBUG POPULATE {}", plan.pick(20_000, 60_000)));
    tell(server.port(), "SAVE");
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let dials = bench.metric("tollgate_store_dials_total", "");
    let from_us = bench.now_us();
    server.kill();
    // Comes back when it has loaded, which takes about 60 us for each key.
    let told = std::thread::scope(|scope| {
        let reviving = scope.spawn(|| server.revive());
        let mut told = String::new();
        while !reviving.is_finished() {
            told.push_str(&bench.nodes[0].json("/readyz")["store"]["error"].to_string());
            pause(Duration::from_millis(50));
        }
        told
    });
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let dials = bench.metric("tollgate_store_dials_total", "") - dials;
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
    seen.common(&mut figures, plan, outage);
    figures.at_most(
        "over-admission (M3 + M8)",
        seen.excess(),
        outage.excess() + CAPACITY as f64,
    );
    figures.holds(
        "nodes told that it loads",
        told.contains("loading") || told.contains("LOADING"),
    );
    figures.at_most("connections opened while it loads, per node", dials / 2.0, 5.0);
    figures
}

pub(super) fn stalled(plan: &Plan) -> Figures {
    let server = Server::start_with(
        ServerKind::Redis70,
        &["--enable-debug-command", "yes", "--lua-time-limit", "500"],
    );
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let from_us = bench.now_us();
    for _ in 0..plan.pick(10, 50) {
        tell(server.port(), "DEBUG SLEEP 0.05");
        bench.pause(Duration::from_millis(50));
    }
    tell(server.port(), &format!("DEBUG SLEEP {}", plan.pick(1, 5)));
    let awake_us = bench.pause(plan.seconds(1.5, 3.0));
    let mut busy = Asking::connect(server.port()).unwrap();
    busy.send_words(&["EVAL", "while true do end", "0"]).unwrap();
    bench.pause(Duration::from_secs(2));
    tell(server.port(), "SCRIPT KILL");
    let back_us = bench.now_us();
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, Outage { from_us, back_us });
    let busy =
        bench.metric("tollgate_store_errors_total", "busy") + bench.metric("tollgate_store_errors_total", "timeout");
    figures.at_least("calls that the server had no time for", busy, 1.0);
    // Two stretches of local shares: the stalls with the sleep behind them, and the script.
    let stalls = Outage {
        from_us,
        back_us: awake_us,
    };
    let script = Outage {
        from_us: awake_us,
        back_us,
    };
    figures.at_most(
        "over-admission (M3, twice)",
        seen.excess(),
        stalls.excess() + script.excess(),
    );
    figures
}

pub(super) fn paused(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let from_us = bench.now_us();
    let half = 500_000;
    tell(server.port(), "CLIENT PAUSE 500 WRITE");
    let first = Outage {
        from_us,
        back_us: from_us + half,
    };
    bench.pause(plan.seconds(2.0, 4.0));
    let from_us = bench.now_us();
    tell(server.port(), "CLIENT PAUSE 500 ALL");
    let second = Outage {
        from_us,
        back_us: from_us + half,
    };
    bench.pause(Duration::from_millis(500));
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, second);
    figures.at_least(
        "decided without the store, the first time",
        seen.fallbacks(first.from_us, first.back_us),
        1.0,
    );
    figures.at_most(
        "over-admission (M3, twice)",
        seen.excess(),
        first.excess() + second.excess(),
    );
    figures.at_least("calls of the script", script_calls(server.port()) as f64, 1.0);
    figures.none(
        "connections it refused",
        info(server.port(), "stats", "rejected_connections", None) as f64,
    );
    figures
}
