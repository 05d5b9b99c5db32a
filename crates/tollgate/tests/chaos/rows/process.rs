//! The server as a process: killed, frozen, restarted, wiped, busy.

use super::trial::Trial;
use crate::harness::{CAPACITY, FALLBACK_SHARE, Harness, LoadResult, Outage, RATE, Setup, pause};
use crate::measurements::Measurements;
use crate::plan::Plan;
use crate::resp::{RespClient, command_ok, info, script_calls, send_command};
use std::time::Duration;
use tollgate_limiter::testing::servers::{Server, ServerKind};

pub(super) fn killed(plan: &Plan) -> Measurements {
    let mut server = Server::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "");
    let from_us = trial.now_us();
    server.kill();
    trial.pause(plan.seconds(2.0, 10.0));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "") - connects;
    server.revive();
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, outage);
    measurements.at_most(
        "over-admission (M3 + M8)",
        result.excess(),
        outage.excess() + CAPACITY as f64,
    );
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    measurements.at_most(
        "attempts to connect, per node and second",
        connects / 2.0 / seconds,
        10.0,
    );
    under_admission(&mut measurements, &result, outage);
    measurements
}

/// While nodes serve their shares, the hot key gets most of what it is due.
pub(super) fn under_admission(measurements: &mut Measurements, result: &LoadResult, outage: Outage) {
    let seconds = (outage.back_us - outage.from_us) as f64 / 1e6;
    let admitted = result
        .for_subject(0)
        .filter(|sample| sample.is_admitted() && (outage.from_us..outage.back_us).contains(&sample.received_us))
        .count();
    let due = FALLBACK_SHARE * RATE as f64 * seconds;
    let share = admitted as f64 / due;
    measurements.share("admitted while it was away, of what is due", share, (0.8, 0.95));
}

pub(super) fn frozen(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let mut setup = Setup::two_nodes(&server.url());
    setup.rules.push_str(LEDGER);
    let mut trial = Trial::start(plan, setup);
    let from_us = trial.now_us();
    server.freeze();
    trial.pause(plan.seconds(2.0, 5.0));
    server.thaw();
    let outage = trial.outage_since(from_us);
    let mut measurements = Measurements::default();
    let result = trial.end_load_after(plan.seconds(2.5, 5.0));
    let debits = debited(&trial);
    trial.audit(&mut measurements, &result, (&[server.port()], 1.0));
    result.common(&mut measurements, plan, outage);
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    result.noticed(&mut measurements, outage);
    let passed = result
        .samples
        .iter()
        .filter(|sample| sample.is_admitted() && sample.is_shared())
        .count();
    measurements.at_most(
        "charges without a response (in flight at the freeze)",
        debits - passed as f64,
        64.0,
    );
    measurements
}

/// A limit that every request meets and that hardly refills: what is gone from it was charged.
pub(super) const LEDGER: &str = "- { id: ledger, limit: 1/day burst 50000, on_store_failure: open }\n";

/// How much was charged to the ledger.
pub(super) fn debited(harness: &Harness) -> f64 {
    let (_, body) = harness.nodes[0]
        .post("/v1/explain", r#"{"attributes":{},"cost":0}"#)
        .unwrap();
    let explanation: serde_json::Value = serde_json::from_str(&body).unwrap();
    let left = explanation["verdict"]["remaining"].as_f64();
    50_000.0 - left.unwrap_or_else(|| panic!("{explanation}"))
}

pub(super) fn restarted(plan: &Plan) -> Measurements {
    let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-data", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut server = Server::start_with(ServerKind::Redis70, &["--dir", &folder.to_string_lossy()]);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let before: f64 = command_ok(server.port(), "DBSIZE").parse().unwrap();
    let from_us = trial.now_us();
    // It closes the connection instead of answering.
    let _ = send_command(server.port(), "SHUTDOWN SAVE");
    trial.pause(Duration::from_secs(1));
    server.revive();
    let after: f64 = command_ok(server.port(), "DBSIZE").parse().unwrap();
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle(&server);
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
    result.common(&mut measurements, plan, outage);
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    measurements.at_least("keys that were kept, of those before", after / before, 0.95);
    measurements
}

pub(super) fn wiped(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let keys: f64 = command_ok(server.port(), "DBSIZE").parse().unwrap();
    let from_us = trial.now_us();
    command_ok(server.port(), "FLUSHALL");
    let (result, mut measurements) = trial.settle(&server);
    measurements.none("requests that failed", result.failed());
    let shared = result.shared(from_us, result.end_us());
    measurements.share("share decided by the store", shared, (0.95, 0.995));
    measurements.at_least("keys that were wiped", keys, 100.0);
    measurements.at_least("over-admission, to show that it was wiped", result.excess(), 1.0);
    measurements.at_most("over-admission (M8)", result.excess(), CAPACITY as f64);
    measurements
}

pub(super) fn loading(plan: &Plan) -> Measurements {
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
    command_ok(server.port(), &format!("DEBUG POPULATE {}", plan.pick(20_000, 60_000)));
    command_ok(server.port(), "SAVE");
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "");
    let from_us = trial.now_us();
    server.kill();
    // Comes back when it has loaded, which takes about 60 us for each key.
    let errors = std::thread::scope(|scope| {
        let reviving = scope.spawn(|| server.revive());
        let mut errors = String::new();
        while !reviving.is_finished() {
            errors.push_str(&trial.nodes[0].json("/readyz")["store"]["error"].to_string());
            pause(Duration::from_millis(50));
        }
        errors
    });
    let outage = trial.outage_since(from_us);
    let connects = trial.metric("tollgate_store_connect_attempts_total", "") - connects;
    let (result, mut measurements) = trial.settle(&server);
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
    result.common(&mut measurements, plan, outage);
    measurements.at_most(
        "over-admission (M3 + M8)",
        result.excess(),
        outage.excess() + CAPACITY as f64,
    );
    measurements.holds(
        "nodes reported that it is loading",
        errors.contains("loading") || errors.contains("LOADING"),
    );
    measurements.at_most("connections opened while it loads, per node", connects / 2.0, 5.0);
    measurements
}

pub(super) fn stalled(plan: &Plan) -> Measurements {
    let server = Server::start_with(
        ServerKind::Redis70,
        &["--enable-debug-command", "yes", "--lua-time-limit", "500"],
    );
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let from_us = trial.now_us();
    for _ in 0..plan.pick(10, 50) {
        command_ok(server.port(), "DEBUG SLEEP 0.05");
        trial.pause(Duration::from_millis(50));
    }
    command_ok(server.port(), &format!("DEBUG SLEEP {}", plan.pick(1, 5)));
    let awake_us = trial.pause(plan.seconds(1.5, 3.0));
    let mut busy = RespClient::connect(server.port()).unwrap();
    busy.send_arguments(&["EVAL", "while true do end", "0"]).unwrap();
    trial.pause(Duration::from_secs(2));
    command_ok(server.port(), "SCRIPT KILL");
    let back_us = trial.now_us();
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, Outage { from_us, back_us });
    let busy =
        trial.metric("tollgate_store_errors_total", "busy") + trial.metric("tollgate_store_errors_total", "timeout");
    measurements.at_least("calls that the server had no time for", busy, 1.0);
    // Two stretches of local shares: the stalls with the sleep behind them, and the script.
    let stalls = Outage {
        from_us,
        back_us: awake_us,
    };
    let script = Outage {
        from_us: awake_us,
        back_us,
    };
    measurements.at_most(
        "over-admission (M3, twice)",
        result.excess(),
        stalls.excess() + script.excess(),
    );
    measurements
}

pub(super) fn paused(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let from_us = trial.now_us();
    let half = 500_000;
    command_ok(server.port(), "CLIENT PAUSE 500 WRITE");
    let first = Outage {
        from_us,
        back_us: from_us + half,
    };
    trial.pause(plan.seconds(2.0, 4.0));
    let from_us = trial.now_us();
    command_ok(server.port(), "CLIENT PAUSE 500 ALL");
    let second = Outage {
        from_us,
        back_us: from_us + half,
    };
    trial.pause(Duration::from_millis(500));
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, second);
    measurements.at_least(
        "decided without the store, the first time",
        result.fallbacks(first.from_us, first.back_us),
        1.0,
    );
    measurements.at_most(
        "over-admission (M3, twice)",
        result.excess(),
        first.excess() + second.excess(),
    );
    measurements.at_least("calls of the script", script_calls(server.port()) as f64, 1.0);
    measurements.none(
        "connections it refused",
        info(server.port(), "stats", "rejected_connections", None) as f64,
    );
    measurements
}
