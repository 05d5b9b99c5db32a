//! Every way in which a server refuses, put in by the link on some calls of the script and on all.

use crate::audit::{Baseline, audit};
use crate::harness::{Outage, Setup};
use crate::measurements::Measurements;
use crate::plan::Plan;
use crate::proxy::{Fault, Proxy};
use std::time::Duration;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// What servers say, and what it is counted as.
const CODES: [(&str, &str); 19] = [
    ("READONLY You can't write against a read only replica.", "readonly"),
    ("LOADING Redis is loading the dataset in memory", "loading"),
    (
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "masterdown",
    ),
    ("CLUSTERDOWN The cluster is down", "clusterdown"),
    ("MOVED 1 127.0.0.1:1", "moved"),
    ("ASK 1 127.0.0.1:1", "ask"),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "tryagain"),
    ("CROSSSLOT Keys in request don't hash to the same slot", "crossslot"),
    ("NOSCRIPT No matching script.", "noscript"),
    ("ERR Function not found", "nofunction"),
    ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
    ("MISCONF Redis is configured to save RDB snapshots", "misconf"),
    ("NOREPLICAS Not enough good replicas to write.", "noreplicas"),
    ("BUSY Redis is busy running a script.", "busy"),
    ("NOAUTH Authentication required.", "noauth"),
    (
        "WRONGPASS invalid username-password pair or user is disabled.",
        "wrongpass",
    ),
    ("NOPERM this user has no permissions to run the command", "noperm"),
    ("ERR max number of clients reached", "maxclients"),
    (
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "wrongtype",
    ),
];

/// Those that a server is not to be asked again soon after.
const CREDENTIALS: [&str; 3] = ["noauth", "wrongpass", "noperm"];

pub(super) fn every_code(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let runtime = crate::harness::runtime();
    let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
    let mut measurements = Measurements::default();
    let (mut failed, mut audited, mut beyond, mut unnamed) = (0.0, 0, 0, Vec::new());
    // The slowest to be over it, of credentials and of all others.
    let mut slowest = [(Duration::ZERO, ""); 2];
    for (text, code) in CODES {
        let mut counted = 0.0;
        for per_mille in [100, 1_000] {
            // Fresh nodes: a server that failed a moment ago is trusted more slowly, and that is not what is asked here.
            let mut harness = Setup::two_nodes(&proxy.url()).start(plan);
            harness.load();
            let from_us = harness.pause(Duration::from_millis(700));
            let baseline = Baseline::new(&harness);
            let bites = proxy.injected();
            proxy.set(Fault::Refused(text, per_mille));
            harness.pause(Duration::from_millis(700));
            proxy.set(Fault::None);
            let back_us = harness.now_us();
            assert!(
                proxy.injected() > bites,
                "{code} on {per_mille} per mille was put in nowhere"
            );
            let is_credential = CREDENTIALS.contains(&code);
            harness.pause(Duration::from_millis(if is_credential { 3_000 } else { 1_200 }));
            counted += harness.metric("tollgate_store_errors_total", &format!("\"{code}\""));
            let result = harness.end_load();
            failed += result.failed();
            let mut audits = Measurements::default();
            audit(&mut audits, &mut harness, &result, &baseline, (&[server.port()], 0.0));
            audited += usize::from(audits.counts_hold());
            measurements.0.extend(audits.failing_counts());
            beyond += usize::from(result.excess() > Outage { from_us, back_us }.excess());
            let again = result.shared_again(back_us).unwrap_or(Duration::MAX);
            let slowest = &mut slowest[usize::from(is_credential)];
            *slowest = (*slowest).max((again, code));
        }
        if counted == 0.0 {
            unnamed.push(code);
        }
    }
    measurements.none("requests that failed", failed);
    let times = 2.0 * CODES.len() as f64;
    measurements.at_least("times that audits I1 to I8 hold", audited as f64, times);
    measurements.at_least("calls that were refused", proxy.injected() as f64, 38.0);
    let [(again, code), (of_credentials, credential)] = slowest;
    measurements.latency_at_most(
        &format!("shared again, at the latest ({code})"),
        Some(again),
        Duration::from_millis(500),
    );
    measurements.within(
        &format!("shared again at all ({code})"),
        Some(again),
        Duration::from_secs(1),
    );
    // Wrong credentials are tried once a second and no sooner.
    let what = format!("after wrong credentials, at the latest ({credential})");
    measurements.within(&what, Some(of_credentials), Duration::from_millis(1_500));
    measurements.none(
        &format!("codes that are counted as something else {unnamed:?}"),
        unnamed.len() as f64,
    );
    measurements.none("times that more passed than M3 allows", beyond as f64);
    measurements
}
