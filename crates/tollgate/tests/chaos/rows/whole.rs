//! Nodes as a whole: floods of keys, restarts, and what they cost while the store is away.

use super::process::over;
use crate::audit::{Baseline, Except, audit_except, broken};
use crate::bench::{Bench, RATE, Seen, Setup, check, pause, runtime, traffic, wait_until};
use crate::figures::Figures;
use crate::load::{Load, Sample, Traffic};
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::tell;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::testing::servers::{ServerKind, Server};

const MIB: f64 = 1_048_576.0;

/// A node with a store in memory that is much too small for the flood, and one whose store is away.
pub(super) fn flood(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    let rules = "rules:\n- { id: victim, when: { kind: hot }, per: user, limit: 3/day }\n\
                 - { id: many, when: { kind: many }, per: user, limit: 3/day }\n\
                 - { id: other, when: { kind: other }, per: user, limit: 100000/s }\n";
    let cap = 32.0;
    let mut node = Node::start(&format!("store: {{ url: memory, max_memory: 32MiB }}\n{rules}"));
    flooded(plan, &mut figures, &mut node, ("memory", cap));
    overloaded(plan, &mut figures, &mut node);

    let mut server = Server::start(ServerKind::Redis70);
    let mut node = Node::start(&format!(
        "store: {{ url: '{}', deadline: 10ms }}\n{rules}",
        server.url()
    ));
    wait_until("the store is reached", || {
        node.json("/readyz")["store"]["reachable"] == true
    });
    server.kill();
    flooded(plan, &mut figures, &mut node, ("local", LOCAL_MIB));
    figures
}

/// What the local limiter may take beside everything else.
const LOCAL_MIB: f64 = 134.0;

fn flooded(plan: &Plan, figures: &mut Figures, node: &mut Node, (store, cap): (&str, f64)) {
    let name = |what: &str| format!("{store}: {what}");
    let (victim, other) = (check("hot", "victim"), check("other", "somebody"));
    let mut talk = node.talk();
    let statuses: Vec<Option<u16>> = (0..8).map(|_| talk.check(&victim)).collect();
    figures.holds(&name("the victim is at its limit"), statuses.last() == Some(&Some(429)));
    // What batches and their answers take is no key's.
    for _ in 0..WARM {
        batch(node, 0);
    }
    let mut times = Vec::new();
    for _ in 0..plan.pick(200, 2_000) {
        times.push(talk.time(&other));
        pause(BETWEEN_CHECKS);
    }
    let (before, control, alone) = (node.resident() / MIB, p99(&mut times), times.len());
    times.clear();
    let (batches, every) = (plan.pick(100, 1_200), plan.seconds(0.0, 0.05));
    let (mut checks, mut let_pass) = (0_u32, 0_u32);
    let failed = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood_of(node, batches, every));
        while !flooding.is_finished() {
            checks += 1;
            let_pass += u32::from(talk.check(&victim) != Some(429));
            times.push(talk.time(&other));
            pause(BETWEEN_CHECKS);
        }
        flooding.join().unwrap()
    });
    figures.none(&name("batches of a thousand new keys that failed"), f64::from(failed));
    figures.at_least(
        &name("times the victim was asked for"),
        f64::from(checks),
        plan.pick(20.0, 10_000.0),
    );
    figures.none(
        &name("times the victim passed or was not answered"),
        f64::from(let_pass),
    );
    let more = node.resident() / MIB - before;
    figures.at_most(&name("MiB more than before"), more, cap * 1.1);
    figures.quick(
        &name("p99 of another user, against 2 x before"),
        Some(p99(&mut times)),
        (control * 2).max(Duration::from_millis(2)),
    );
    figures.none(&name("panics and dead nodes (I5)"), broken(node));
    let asked = statuses.len() + alone + times.len() + checks as usize + 1_000 * (WARM + batches - failed) as usize;
    let counted = node.metric("tollgate_checks_total", "");
    figures.none(
        &name("verdicts counted and not seen, or seen and not counted (I8)"),
        counted - asked as f64,
    );
}

/// Asked by five times as many as keep it busy, all of them as fast as it answers.
fn overloaded(plan: &Plan, figures: &mut Figures, node: &mut Node) {
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
    let p99_alone = |node: &Node| {
        let mut talk = node.talk();
        let mut times: Vec<Duration> = (0..500).map(|_| talk.time(&other)).collect();
        p99(&mut times)
    };
    let control = p99_alone(node);
    let goodput = per_second(5);
    pause(Duration::from_secs(2));
    figures.none("overload: requests that failed", failed as f64);
    figures.told("overload: answers a second to 24 connections", capacity);
    figures.mostly("overload: to five times as many, of that", goodput / capacity, 0.9);
    figures.quick(
        "overload: p99 two seconds later, against 2 x before",
        Some(p99_alone(node)),
        (control * 2).max(Duration::from_millis(2)),
    );
    figures.none("overload: panics and dead nodes (I5)", broken(node));
}

/// So many batches, not more often than this. Says how many failed.
fn flood_of(node: &Node, batches: u32, every: Duration) -> u32 {
    let mut failed = 0;
    let began = Instant::now();
    for number in 1..=batches {
        failed += u32::from(!batch(node, number));
        pause((every * number).saturating_sub(began.elapsed()));
    }
    failed
}

/// A thousand keys that nobody has asked for before.
fn batch(node: &Node, number: u32) -> bool {
    let requests: Vec<String> = (0..1_000).map(|n| check("many", &format!("f{number}-{n}"))).collect();
    let answered = node.post("/v1/check/batch", &format!("[{}]", requests.join(",")));
    answered.is_some_and(|(status, _)| status == 200)
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Batches of the same keys, in front of the flood.
const WARM: u32 = 100;
const BETWEEN_CHECKS: Duration = Duration::from_millis(4);

/// Nodes are stopped and started one after the other, and one is killed that holds slots.
pub(super) fn rolling(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let mut setup = Setup::over(&server.url());
    setup
        .rules
        .push_str("- { id: slots, when: { kind: job }, algorithm: concurrency, limit: 5, lease_ttl: 2s }\n");
    let (mut bench, baseline) = over(plan, setup);
    let from_us = bench.now_us();
    let mut ended_well = true;
    let restarts = plan.pick(2, 52);
    for restart in 0..restarts {
        let node = &mut bench.nodes[restart % 2];
        ended_well &= node.stop();
        node.start_again();
        bench.pause(plan.seconds(0.5, 1.0));
    }
    bench.pause(plan.seconds(1.0, 10.0));
    let seen = bench.end_load();
    let mut figures = Figures::default();
    // A client of HTTP sends a request again if the connection that it used before ends without a byte of an answer.
    figures.none(
        "requests that failed",
        seen.samples.iter().filter(|sample| sample.is_failed()).count() as f64,
    );
    let resent = seen.samples.iter().filter(|sample| sample.is_resent).count();
    figures.at_most(
        "sent again because a node was just closing the connection, per restart",
        resent as f64 / restarts as f64,
        24.0,
    );
    figures.at_least("requests", seen.samples.len() as f64, plan.pick(5_000.0, 100_000.0));
    figures.holds("every node ended well", ended_well);
    figures.at_least(
        "requests while nodes came and went",
        seen.between(from_us, seen.end_us()).count() as f64,
        1_000.0,
    );
    // A node that has just started takes itself for the only one until it has reached the store.
    figures.at_most(
        "over-admission (M4, each node as if alone)",
        seen.excess(),
        seen.allowance(0, RATE, 1),
    );
    slots(&mut figures, &mut bench);
    herd(plan, &mut figures, &mut bench, (server, &baseline));
    figures
}

/// A node dies with slots in use. They come back when their leases end.
fn slots(figures: &mut Figures, bench: &mut Bench) {
    let job = r#"{"attributes":{"kind":"job"}}"#;
    wait_until("nodes are ready", || {
        bench
            .nodes
            .iter()
            .all(|node| node.json("/readyz")["store"]["reachable"] == true)
    });
    let taken = (0..5)
        .filter(|_| {
            bench.nodes[0]
                .post("/v1/check", job)
                .is_some_and(|(status, _)| status == 200)
        })
        .count();
    figures.at_least("slots taken", taken as f64, 5.0);
    bench.nodes[0].kill();
    let began = bench.now();
    let refused = bench.nodes[1]
        .post("/v1/check", job)
        .is_some_and(|(status, _)| status == 429);
    figures.holds("they are taken for others", refused);
    wait_until("slots come back", || {
        bench.nodes[1]
            .post("/v1/check", job)
            .is_some_and(|(status, _)| status == 200)
    });
    figures.within(
        "they come back after",
        Some(bench.now() - began),
        Duration::from_secs(3),
    );
    let again = 1
        + (0..4)
            .filter(|_| {
                bench.nodes[1]
                    .post("/v1/check", job)
                    .is_some_and(|(status, _)| status == 200)
            })
            .count();
    figures.at_least("all of them", again as f64, 5.0);
    bench.nodes[0].start_again();
}

/// The server is away and comes back with the nodes waiting for it.
fn herd(plan: &Plan, figures: &mut Figures, bench: &mut Bench, (mut server, baseline): (Server, &Baseline)) {
    bench.load();
    bench.pause(Duration::from_secs(1));
    server.kill();
    bench.pause(plan.seconds(1.0, 3.0));
    server.revive();
    bench.pause(Duration::from_secs(1));
    let connects: f64 = crate::resp::info(server.port(), "stats", "total_connections_received", None) as f64;
    figures.at_most(
        "connections in the first second after the server is back",
        connects,
        50.0,
    );
    let seen = bench.end_load();
    figures.none("requests that failed then", seen.failed());
    let keys: f64 = tell(server.port(), "DBSIZE").parse().unwrap();
    figures.at_least("keys there again", keys, 1.0);
    let servers = [server.port()];
    audit_except(Except::Counts, figures, bench, &seen, baseline, (&servers, 0.0));
}

/// Decisions while the breaker is open, beside the same load on a store in memory, in turns.
pub(super) fn beside_memory(plan: &Plan) -> Figures {
    let mut server = Server::start(ServerKind::Redis70);
    let mut setups = [Setup::over(&server.url()), Setup::over("memory")];
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
    let mut all = [(); 2].map(|()| Seen { samples: Vec::new() });
    for _ in 0..5 {
        let benches = [&mut away, &mut memory].into_iter().zip(&mut p99s);
        for ((bench, p99s), all) in benches.zip(&mut all) {
            bench.load_as_it_is();
            bench.pause(plan.seconds(1.0, 2.0));
            if baselines.len() < 2 {
                baselines.push(Baseline::of(bench));
            }
            let seen = bench.end_load();
            fallbacks += seen.fallbacks(0, seen.end_us());
            p99s.extend(seen.latency(0.99, 200_000, seen.end_us()));
            all.samples.extend(seen.samples);
        }
    }
    let mut figures = Figures::default();
    for ((bench, seen), baseline) in [&mut away, &mut memory].into_iter().zip(&all).zip(&baselines) {
        // There is no server whose keys could be looked at, and the breaker is to be open.
        audit_except(Except::Breakers, &mut figures, bench, seen, baseline, (&[], 0.0));
    }
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    let [away, memory] = p99s.map(median);
    figures.at_least("decided without the store", fallbacks, 1_000.0);
    figures.quick(
        "p99 while the breaker is open, against 1.2 x memory",
        Some(away),
        memory.mul_f64(1.2),
    );
    figures
}
