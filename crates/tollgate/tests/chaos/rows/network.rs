//! The network between nodes and server: reset, silent, slow, lossy, lying, cut for some, on and off.

use super::process::under_admission;
use super::trial::Trial;
use crate::harness::{CAPACITY, Harness, OTHERS, RATE, Setup, check, runtime, share, traffic, wait_until};
use crate::load::{NodeResponse, Sample, Traffic};
use crate::measurements::Measurements;
use crate::namespace;
use crate::node::Node;
use crate::plan::Plan;
use crate::proxy::{Corruption, Fault, Proxy};
use crate::resp::script_calls;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{Server, ServerKind};

pub(super) fn reset(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "");
    let from_us = trial.now_us();
    namespace::set_input_filter(Some(&format!("tcp dport {} reject with tcp reset", server.port())));
    let gaps_ms = gaps_between_connects(&trial, plan.seconds(2.0, 5.0));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "") - connects;
    namespace::set_input_filter(None);
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, outage);
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    measurements.at_most(
        "attempts to connect, per node and second",
        connects / 2.0 / seconds,
        10.0,
    );
    for gaps_ms in gaps_ms {
        // More than what looking at them from outside makes of equal ones.
        measurements.at_least(
            "standard deviation of the gaps between them, in ms",
            deviation(&gaps_ms),
            5.0,
        );
    }
    measurements
}

/// For so long, the milliseconds between two attempts to connect, of each node.
fn gaps_between_connects(harness: &Harness, time: Duration) -> Vec<Vec<f64>> {
    let connects = |node: &Node| node.metric("tollgate_store_connect_attempts_total", "");
    let mut connects_of: Vec<(f64, Vec<f64>)> = harness.nodes.iter().map(|node| (connects(node), Vec::new())).collect();
    let until = harness.now() + time;
    while harness.now() < until {
        for (node, (known, at_ms)) in harness.nodes.iter().zip(&mut connects_of) {
            let now = connects(node);
            if now > *known {
                *known = now;
                at_ms.push(harness.now().as_secs_f64() * 1e3);
            }
        }
        harness.pause(Duration::from_millis(10));
    }
    // The first are each twice the one before.
    let gaps = |at_ms: Vec<f64>| at_ms.windows(2).skip(4).map(|two| two[1] - two[0]).collect();
    connects_of.into_iter().map(|(_, at_ms)| gaps(at_ms)).collect()
}

fn deviation(all: &[f64]) -> f64 {
    let count = all.len().max(1) as f64;
    let mean = all.iter().sum::<f64>() / count;
    (all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count).sqrt()
}

pub(super) fn swallowed(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let sockets = namespace::connections_to(server.port());
    let from_us = trial.now_us();
    namespace::set_input_filter(Some(&format!("tcp dport {} drop", server.port())));
    trial.pause(plan.seconds(2.5, 20.0));
    namespace::set_input_filter(None);
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, outage);
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    result.noticed(&mut measurements, outage);
    under_admission(&mut measurements, &result, outage);
    let left = namespace::connections_to(server.port());
    measurements.at_most("connections to the server, against before", left as f64, sockets as f64);
    noticed_when_idle(&mut measurements, &trial, &server);
    measurements
}

/// Nobody asks for anything, and the nodes find out all the same: they count each other.
fn noticed_when_idle(measurements: &mut Measurements, harness: &Harness, server: &Server) {
    let started = harness.now();
    namespace::set_input_filter(Some(&format!("tcp dport {} drop", server.port())));
    for node in &harness.nodes {
        wait_until("a node notices", || node.json("/readyz")["store"]["reachable"] == false);
    }
    measurements.within(
        "noticed without a load after",
        Some(harness.now() - started),
        Duration::from_secs(2),
    );
    namespace::set_input_filter(None);
}

pub(super) fn slow(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    for (late, more) in [(50, 0), (200, 0), (20, 60)] {
        let server = Server::start(ServerKind::Redis70);
        let runtime = runtime();
        let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
        let mut trial = Trial::start(plan, Setup::two_nodes(&proxy.url()));
        let changes = trial.metric("tollgate_breaker_transitions_total", "");
        let from_us = trial.now_us();
        proxy.set(Fault::Slow(Duration::from_millis(late), Duration::from_millis(more)));
        trial.pause(plan.seconds(2.0, 20.0));
        let changes = trial.metric("tollgate_breaker_transitions_total", "") - changes;
        proxy.set(Fault::None);
        let outage = trial.outage_since(from_us);
        let result = trial.settle_into(&mut measurements, (&[server.port()], 0.0));
        result.common(&mut measurements, plan, outage);
        let name = |what: &str| format!("{late} to {} ms: {what}", late + more);
        measurements.at_most(&name("over-admission (M3)"), result.excess(), outage.excess());
        measurements.at_most(&name("changes of the breaker, per node"), changes / 2.0, 4.0);
    }
    measurements
}

pub(super) fn lossy(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let rules = [
        ("5 % of packets", "numgen random mod 100 < 5", 500, (0.5, 0.8)),
        // More is asked for than such a line takes.
        (
            "all above 1 Mbit/s",
            "limit rate over 125 kbytes/second",
            2_000,
            (0.0, 0.0),
        ),
    ];
    for (what, rule, others, shared) in rules {
        let server = Server::start(ServerKind::Redis70);
        let mut setup = Setup::two_nodes(&server.url());
        setup.traffic = traffic(&["h0"], 1_000, others);
        let mut trial = Trial::start(plan, setup);
        let from_us = trial.now_us();
        namespace::set_input_filter(Some(&format!("tcp dport {} {rule} counter drop", server.port())));
        trial.pause(plan.seconds(3.0, 10.0));
        let dropped = namespace::dropped();
        namespace::set_input_filter(None);
        let outage = trial.outage_since(from_us);
        let result = trial.settle_into(&mut measurements, (&[server.port()], 0.0));
        let name = |measurement: &str| format!("{what}: {measurement}");
        measurements.at_least(&name("packets that were dropped"), dropped, 10.0);
        measurements.none(&name("requests that failed"), result.failed());
        measurements.within(
            &name("shared again"),
            result.shared_again(outage.back_us),
            plan.seconds(4.0, 3.0),
        );
        measurements.share(
            &name("share decided by the store"),
            result.shared(from_us, outage.back_us),
            shared,
        );
        measurements.latency_at_most(
            &name("p99.9"),
            result.latency(0.999, 0, result.end_us()),
            Duration::from_millis(20),
        );
        measurements.at_most(&name("over-admission (M3)"), result.excess(), outage.excess());
    }
    measurements
}

pub(super) fn spoiled(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let runtime = runtime();
    let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
    let mut setup = Setup::two_nodes(&proxy.url());
    setup.traffic = unique_keys(plan.pick(1_500, 2_500));
    let mut trial = Trial::start(plan, setup);
    let from_us = trial.now_us();
    let before: Vec<f64> = trial.nodes.iter().map(Node::resident).collect();
    for spoil in [
        Corruption::Cut,
        Corruption::Type,
        Corruption::Giant,
        Corruption::Drop,
        Corruption::Late,
    ] {
        proxy.set(Fault::Reply(spoil, 20));
        trial.pause(plan.seconds(1.0, 12.0));
    }
    proxy.set(Fault::None);
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle(&server);
    measurements.none("requests that failed", result.failed());
    measurements.within(
        "shared again",
        result.shared_again(outage.back_us),
        plan.seconds(4.0, 3.0),
    );
    measurements.at_least("replies that were spoiled", proxy.injected() as f64, 1.0);
    measurements.none(
        "calls without a known outcome that were sent again",
        proxy.replays() as f64,
    );
    // Each of the others was asked for once, so it was new: whoever has less left got another's answer.
    let answers: Vec<NodeResponse> = result
        .for_subject(OTHERS)
        .filter(|sample| sample.is_shared())
        .filter_map(|sample| sample.response)
        .collect();
    let strangers = answers
        .iter()
        .filter(|response| response.status != 200 || response.remaining != Some(CAPACITY - 1));
    measurements.none("answers that were another's", strangers.count() as f64);
    measurements.at_least("of so many", answers.len() as f64, plan.pick(1_000.0, 100_000.0));
    for (node, before) in trial.nodes.iter().zip(before) {
        let more = (node.resident() - before) / MIB;
        measurements.at_most("MiB more than before", more, NEW_KEYS_MIB);
    }
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    measurements
}

const MIB: f64 = 1_048_576.0;
/// What notes of keys that were never seen before take, and what answers under way do.
const NEW_KEYS_MIB: f64 = 8.0;

/// The hot key, and others that are asked for once each.
fn unique_keys(per_second: u32) -> Traffic {
    let number = AtomicU64::new(0);
    let next = move |random: &mut Random| match random.below(5) {
        0 => (0, check("hot", "h0")),
        _ => (
            OTHERS,
            check("many", &format!("n{}", number.fetch_add(1, Ordering::Relaxed))),
        ),
    };
    Traffic {
        per_second,
        next: Arc::new(next),
    }
}

pub(super) fn partitioned(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let runtime = runtime();
    let proxies = [(); 2].map(|()| Proxy::start(runtime.handle(), server.port(), plan.seed));
    let mut setup = Setup::two_nodes("");
    setup.stores = proxies.iter().map(Proxy::url).collect();
    let mut trial = Trial::start(plan, setup);
    let from_us = trial.now_us();
    proxies[0].set(Fault::Silent);
    trial.pause(plan.seconds(3.0, 10.0));
    proxies[0].set(Fault::None);
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, outage);
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    let bound = (CAPACITY as f64 + RATE as f64 * seconds) / 2.0;
    measurements.at_most("over-admission (M4)", result.excess(), bound);
    let other = result
        .between(from_us, outage.back_us)
        .filter(|sample| sample.node == 1);
    let shared = share(other, Sample::is_shared);
    measurements.share("share of the other node that the store decided", shared, (0.95, 0.99));
    measurements
}

pub(super) fn flapping(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let runtime = runtime();
    let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
    let mut trial = Trial::start(plan, Setup::two_nodes(&proxy.url()));
    let changes = trial.metric("tollgate_breaker_transitions_total", "");
    let (calls, commands) = (script_calls(server.port()), proxy.commands());
    let from_us = trial.now_us();
    // About 200 ms each, by the seed.
    let mut random = Random::new(plan.seed);
    for _ in 0..plan.pick(8, 25) {
        proxy.set(Fault::Silent);
        trial.pause(Duration::from_millis(random.between(180, 220)));
        proxy.set(Fault::None);
        trial.pause(Duration::from_millis(random.between(180, 220)));
    }
    let outage = trial.outage_since(from_us);
    let changes = trial.metric("tollgate_breaker_transitions_total", "") - changes;
    let commands = proxy.commands() - commands;
    let (result, mut measurements) = trial.settle(&server);
    measurements.none("requests that failed", result.failed());
    let fallbacks = result.fallbacks(from_us, outage.back_us);
    measurements.at_least("decided without the store", fallbacks, 1.0);
    // Trusted more slowly each time, on purpose.
    measurements.within(
        "shared again",
        result.shared_again(outage.back_us),
        plan.seconds(4.0, 3.0),
    );
    measurements.latency_at_most(
        "p99.9",
        result.latency(0.999, 0, result.end_us()),
        Duration::from_millis(20),
    );
    measurements.latency_at_most(
        "max",
        result.latency(1.0, 0, result.end_us()),
        Duration::from_millis(50),
    );
    measurements.at_most("over-admission in all (2 B)", result.excess(), 2.0 * CAPACITY as f64);
    measurements.at_most("changes of the breaker, per node", changes / 2.0, 10.0);
    let requests = result.between(from_us, outage.back_us).count() as f64;
    measurements.at_most("commands to the server, per request", commands as f64 / requests, 1.1);
    measurements.at_least("calls of the script", (script_calls(server.port()) - calls) as f64, 1.0);
    measurements
}
