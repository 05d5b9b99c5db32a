//! Every way in which a server refuses, put in by the link on some calls of the script and on all.

use super::process::{over, settle};
use crate::bench::{Outage, Setup, wait_until};
use crate::figures::Figures;
use crate::plan::Plan;
use crate::proxy::{Fault, Proxy};
use std::time::Duration;
use tollgate_limiter::testing::servers::{Kind, Server};

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

pub(super) fn every_code(plan: &Plan) -> Figures {
    let server = Server::start(Kind::Redis70);
    let runtime = crate::bench::runtime();
    let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
    let (mut bench, baseline) = over(plan, Setup::over(&proxy.url()));
    let mut outages = Vec::new();
    let mut unnamed = Vec::new();
    for (text, code) in CODES {
        let counted = bench.metric("tollgate_store_errors_total", &format!("\"{code}\""));
        for per_mille in [100, 1_000] {
            wait_until("breakers settle", || bench.metric("tollgate_breaker_state", "") == 0.0);
            let from_us = bench.pause(Duration::from_millis(300));
            let bites = proxy.bites();
            proxy.set(Fault::Refused(text, per_mille));
            bench.pause(plan.seconds(0.5, 0.7));
            proxy.set(Fault::None);
            let back_us = bench.now_us();
            assert!(
                proxy.bites() > bites,
                "{code} on {per_mille} per mille was put in nowhere"
            );
            outages.push((code, Outage { from_us, back_us }));
        }
        if bench.metric("tollgate_store_errors_total", &format!("\"{code}\"")) <= counted {
            unnamed.push(code);
        }
    }
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    figures.none("requests that failed", seen.failed());
    figures.at_least("calls that were refused", proxy.bites() as f64, 19.0);
    let slowest = |credentials: bool| {
        let those = outages
            .iter()
            .filter(|(code, _)| CREDENTIALS.contains(code) == credentials);
        let again = those.map(|(code, outage)| (seen.shared_again(outage.back_us).unwrap_or(Duration::MAX), *code));
        again.max().unwrap_or((Duration::MAX, ""))
    };
    let (again, code) = slowest(false);
    let what = format!("shared again after each, at the latest ({code})");
    figures.quick(&what, Some(again), Duration::from_millis(500));
    figures.within(&what, Some(again), Duration::from_secs(3));
    // Wrong credentials are tried once a second and no sooner.
    let (again, code) = slowest(true);
    figures.within(
        &format!("after wrong credentials, at the latest ({code})"),
        Some(again),
        Duration::from_secs(3),
    );
    figures.none(
        &format!("codes that are counted as something else {unnamed:?}"),
        unnamed.len() as f64,
    );
    let bound: f64 = outages.iter().map(|(_, outage)| outage.excess()).sum();
    figures.at_most("over-admission (M3, for each)", seen.excess(), bound);
    figures
}
