//! Nodes as a whole: floods of keys, restarts, and what they cost while the store is away.

use super::trial::Trial;
use crate::audit::{Baseline, Except, audit_except, broken};
use crate::harness::{Harness, LoadResult, RATE, Setup, check, pause, runtime, traffic, wait_until};
use crate::load::{Load, Sample, Traffic};
use crate::measurements::Measurements;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::command_ok;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const MIB: f64 = 1_048_576.0;

/// A node with a store in memory that is much too small for the flood, and one whose store is away.
pub(super) fn flood(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let rules = "rules:\n- { id: victim, when: { kind: hot }, per: user, limit: 3/day }\n\
                 - { id: many, when: { kind: many }, per: user, limit: 3/day }\n\
                 - { id: other, when: { kind: other }, per: user, limit: 100000/s }\n";
    let cap = 32.0;
    let mut node = Node::start(&format!("store: {{ url: memory, max_memory: 32MiB }}\n{rules}"));
    flooded(plan, &mut measurements, &mut node, ("memory", cap));
    overloaded(plan, &mut measurements, &mut node);

    let mut server = Server::start(ServerKind::Redis70);
    let mut node = Node::start(&format!(
        "store: {{ url: '{}', deadline: 10ms }}\n{rules}",
        server.url()
    ));
    wait_until("the store is reached", || {
        node.json("/readyz")["store"]["reachable"] == true
    });
    server.kill();
    flooded(plan, &mut measurements, &mut node, ("local", LOCAL_MIB));
    measurements
}

/// What the local limiter may take beside everything else.
const LOCAL_MIB: f64 = 134.0;

fn flooded(plan: &Plan, measurements: &mut Measurements, node: &mut Node, (store, cap): (&str, f64)) {
    let name = |what: &str| format!("{store}: {what}");
    let (victim, other) = (check("hot", "victim"), check("other", "somebody"));
    let mut connection = node.connect();
    let statuses: Vec<Option<u16>> = (0..8).map(|_| connection.check(&victim)).collect();
    measurements.holds(&name("the victim is at its limit"), statuses.last() == Some(&Some(429)));
    // What batches and their answers take is no key's.
    for _ in 0..WARM {
        batch(node, 0);
    }
    let mut times = Vec::new();
    for _ in 0..plan.pick(200, 2_000) {
        times.push(connection.time(&other));
        pause(BETWEEN_CHECKS);
    }
    let (before, control, baseline_checks) = (node.resident() / MIB, p99(&mut times), times.len());
    times.clear();
    let (batches, interval) = (plan.pick(100, 1_200), plan.seconds(0.0, 0.05));
    let (mut checks, mut let_pass) = (0_u32, 0_u32);
    let failed = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood_of(node, batches, interval));
        while !flooding.is_finished() {
            checks += 1;
            let_pass += u32::from(connection.check(&victim) != Some(429));
            times.push(connection.time(&other));
            pause(BETWEEN_CHECKS);
        }
        flooding.join().unwrap()
    });
    measurements.none(&name("batches of a thousand new keys that failed"), f64::from(failed));
    measurements.at_least(
        &name("times the victim was asked for"),
        f64::from(checks),
        plan.pick(20.0, 10_000.0),
    );
    measurements.none(
        &name("times the victim passed or was not answered"),
        f64::from(let_pass),
    );
    let more = node.resident() / MIB - before;
    measurements.at_most(&name("MiB more than before"), more, cap * 1.1);
    measurements.latency_at_most(
        &name("p99 of another user, against 2 x before"),
        Some(p99(&mut times)),
        (control * 2).max(Duration::from_millis(2)),
    );
    measurements.none(&name("panics and dead nodes (I5)"), broken(node));
    let requests =
        statuses.len() + baseline_checks + times.len() + checks as usize + 1_000 * (WARM + batches - failed) as usize;
    let counted = node.metric("tollgate_checks_total", "");
    measurements.none(
        &name("verdicts counted and not seen, or seen and not counted (I8)"),
        counted - requests as f64,
    );
}

/// Asked by five times as many as keep it busy, all of them as fast as it answers.
fn overloaded(plan: &Plan, measurements: &mut Measurements, node: &mut Node) {
    let runtime = runtime();
    let traffic = Traffic {
        // More than can be: nobody ever pauses.
        per_second: 1_000_000,
        ..traffic(&["h0"], 700, 300)
    };
    let time = plan.seconds(1.0, 5.0);
    let mut failed = 0;
    let mut per_second = |times: u64| {
        let start = |seed| Load::start(runtime.handle(), &[node.address()], &traffic, plan.seed ^ seed);
        let loads: Vec<Load> = (0..times).map(start).collect();
        pause(time);
        loads.iter().for_each(Load::stop);
        let ended = loads.into_iter().flat_map(|load| load.end(runtime.handle()));
        let (bad, good): (Vec<Sample>, Vec<Sample>) = ended.partition(Sample::is_failed);
        failed += bad.len();
        good.len() as f64 / time.as_secs_f64()
    };
    let capacity = per_second(1);
    let other = check("other", "somebody");
    let p99_unloaded = |node: &Node| {
        let mut connection = node.connect();
        let mut times: Vec<Duration> = (0..500).map(|_| connection.time(&other)).collect();
        p99(&mut times)
    };
    let control = p99_unloaded(node);
    let goodput = per_second(5);
    pause(Duration::from_secs(2));
    measurements.none("overload: requests that failed", failed as f64);
    measurements.note("overload: answers a second to 24 connections", capacity);
    measurements.timed_at_least("overload: to five times as many, of that", goodput / capacity, 0.9);
    measurements.latency_at_most(
        "overload: p99 two seconds later, against 2 x before",
        Some(p99_unloaded(node)),
        (control * 2).max(Duration::from_millis(2)),
    );
    measurements.none("overload: panics and dead nodes (I5)", broken(node));
}

/// So many batches, not more often than this. Says how many failed.
fn flood_of(node: &Node, batches: u32, interval: Duration) -> u32 {
    let mut failed = 0;
    let started = Instant::now();
    for number in 1..=batches {
        failed += u32::from(!batch(node, number));
        pause((interval * number).saturating_sub(started.elapsed()));
    }
    failed
}

/// A thousand keys that nobody has asked for before.
fn batch(node: &Node, number: u32) -> bool {
    let requests: Vec<String> = (0..1_000).map(|n| check("many", &format!("f{number}-{n}"))).collect();
    let response = node.post("/v1/check/batch", &format!("[{}]", requests.join(",")));
    response.is_some_and(|(status, _)| status == 200)
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Batches of the same keys, in front of the flood.
const WARM: u32 = 100;
const BETWEEN_CHECKS: Duration = Duration::from_millis(4);

/// Nodes are stopped and started one after the other, and one is killed that holds slots.
pub(super) fn rolling(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let mut setup = Setup::two_nodes(&server.url());
    setup
        .rules
        .push_str("- { id: slots, when: { kind: job }, algorithm: concurrency, limit: 5, lease_ttl: 2s }\n");
    let mut trial = Trial::start(plan, setup);
    let from_us = trial.now_us();
    let mut ended_well = true;
    let restarts = plan.pick(2, 52);
    for restart in 0..restarts {
        let node = &mut trial.nodes[restart % 2];
        ended_well &= node.stop();
        node.restart();
        trial.pause(plan.seconds(0.5, 1.0));
    }
    let result = trial.end_load_after(plan.seconds(1.0, 10.0));
    let mut measurements = Measurements::default();
    // A client of HTTP sends a request again if the connection that it used before ends without a byte of an answer.
    measurements.none(
        "requests that failed",
        result.samples.iter().filter(|sample| sample.is_failed()).count() as f64,
    );
    let resent = result.samples.iter().filter(|sample| sample.is_resent).count();
    measurements.at_most(
        "sent again because a node was just closing the connection, per restart",
        resent as f64 / restarts as f64,
        24.0,
    );
    measurements.at_least("requests", result.samples.len() as f64, plan.pick(5_000.0, 100_000.0));
    measurements.holds("every node ended well", ended_well);
    measurements.at_least(
        "requests while nodes came and went",
        result.between(from_us, result.end_us()).count() as f64,
        1_000.0,
    );
    // A node that has just started takes itself for the only one until it has reached the store.
    measurements.at_most(
        "over-admission (M4, each node as if alone)",
        result.excess(),
        result.allowance(0, RATE, 1),
    );
    slots(&mut measurements, &mut trial);
    herd(plan, &mut measurements, &mut trial, server);
    measurements
}

/// A node dies with slots in use. They come back when their leases end.
fn slots(measurements: &mut Measurements, harness: &mut Harness) {
    let is_status = |node: &Node, expected: u16| {
        let response = node.post("/v1/check", r#"{"attributes":{"kind":"job"}}"#);
        response.is_some_and(|(status, _)| status == expected)
    };
    wait_until("nodes are ready", || {
        harness
            .nodes
            .iter()
            .all(|node| node.json("/readyz")["store"]["reachable"] == true)
    });
    let taken = (0..5).filter(|_| is_status(&harness.nodes[0], 200)).count();
    measurements.at_least("slots taken", taken as f64, 5.0);
    harness.nodes[0].kill();
    let started = harness.now();
    measurements.holds("they are taken for others", is_status(&harness.nodes[1], 429));
    wait_until("slots come back", || is_status(&harness.nodes[1], 200));
    measurements.within(
        "they come back after",
        Some(harness.now() - started),
        Duration::from_secs(3),
    );
    let again = 1 + (0..4).filter(|_| is_status(&harness.nodes[1], 200)).count();
    measurements.at_least("all of them", again as f64, 5.0);
    harness.nodes[0].restart();
}

/// The server is away and comes back with the nodes waiting for it.
fn herd(plan: &Plan, measurements: &mut Measurements, trial: &mut Trial<'_>, mut server: Server) {
    trial.load();
    trial.pause(Duration::from_secs(1));
    server.kill();
    trial.pause(plan.seconds(1.0, 3.0));
    server.revive();
    trial.pause(Duration::from_secs(1));
    let connects: f64 = crate::resp::info(server.port(), "stats", "total_connections_received", None) as f64;
    measurements.at_most(
        "connections in the first second after the server is back",
        connects,
        50.0,
    );
    let result = trial.end_load();
    measurements.none("requests that failed then", result.failed());
    let keys: f64 = command_ok(server.port(), "DBSIZE").parse().unwrap();
    measurements.at_least("keys there again", keys, 1.0);
    let servers = [server.port()];
    trial.audit_except(Except::Counts, measurements, &result, (&servers, 0.0));
}

/// Decisions while the breaker is open, beside the same load on a store in memory, in turns.
pub(super) fn against_memory(plan: &Plan) -> Measurements {
    let mut server = Server::start(ServerKind::Redis70);
    let mut setups = [Setup::two_nodes(&server.url()), Setup::two_nodes("memory")];
    for setup in &mut setups {
        setup.stores.truncate(1);
        setup.traffic = traffic(&["h0"], 700, 300);
    }
    let [mut away, mut memory] = setups.map(|setup| setup.start(plan));
    wait_until("the store is reached", || {
        away.nodes[0].json("/readyz")["store"]["reachable"] == true
    });
    server.kill();
    let mut p99s = [Vec::new(), Vec::new()];
    let mut fallbacks = 0.0;
    let mut baselines = Vec::new();
    let mut all = [(); 2].map(|()| LoadResult { samples: Vec::new() });
    for _ in 0..5 {
        let harnesses = [&mut away, &mut memory].into_iter().zip(&mut p99s);
        for ((harness, p99s), all) in harnesses.zip(&mut all) {
            harness.load_now();
            harness.pause(plan.seconds(1.0, 2.0));
            if baselines.len() < 2 {
                baselines.push(Baseline::new(harness));
            }
            let result = harness.end_load();
            fallbacks += result.fallbacks(0, result.end_us());
            p99s.extend(result.latency(0.99, 200_000, result.end_us()));
            all.samples.extend(result.samples);
        }
    }
    let mut measurements = Measurements::default();
    for ((harness, result), baseline) in [&mut away, &mut memory].into_iter().zip(&all).zip(&baselines) {
        // There is no server whose keys could be looked at, and the breaker is to be open.
        audit_except(
            Except::Breakers,
            &mut measurements,
            harness,
            result,
            baseline,
            (&[], 0.0),
        );
    }
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    let [away, memory] = p99s.map(median);
    measurements.at_least("decided without the store", fallbacks, 1_000.0);
    measurements.latency_at_most(
        "p99 while the breaker is open, against 1.2 x memory",
        Some(away),
        memory.mul_f64(1.2),
    );
    measurements
}
