//! The network between nodes and server: reset, silent, slow, lossy, lying, cut for some, on and off.

use super::process::{over, settle, under_admission};
use crate::audit::audit;
use crate::bench::{Bench, CAPACITY, OTHERS, Outage, RATE, Setup, check, traffic, wait_until};
use crate::figures::Figures;
use crate::load::{Answer, Sample, Traffic};
use crate::node::Node;
use crate::plan::Plan;
use crate::proxy::{Fault, Proxy, Spoil};
use crate::resp::script_calls;
use crate::space;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{ServerKind, Server};

pub(super) fn reset(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let dials = bench.metric("tollgate_store_dials_total", "");
    let from_us = bench.now_us();
    space::on_arrival(Some(&format!("tcp dport {} reject with tcp reset", server.port())));
    let gaps_ms = gaps_between_dials(&bench, plan.seconds(2.0, 5.0));
    let dials = bench.metric("tollgate_store_dials_total", "") - dials;
    space::on_arrival(None);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    figures.at_most("attempts to connect, per node and second", dials / 2.0 / seconds, 10.0);
    for gaps_ms in gaps_ms {
        // More than what looking at them from outside makes of equal ones.
        figures.at_least(
            "standard deviation of the gaps between them, in ms",
            deviation(&gaps_ms),
            5.0,
        );
    }
    figures
}

/// For so long, the milliseconds between two attempts to connect, of each node.
fn gaps_between_dials(bench: &Bench, time: Duration) -> Vec<Vec<f64>> {
    let dials = |node: &Node| node.metric("tollgate_store_dials_total", "");
    let mut seen: Vec<(f64, Vec<f64>)> = bench.nodes.iter().map(|node| (dials(node), Vec::new())).collect();
    let until = bench.now() + time;
    while bench.now() < until {
        for (node, (known, at_ms)) in bench.nodes.iter().zip(&mut seen) {
            let now = dials(node);
            if now > *known {
                *known = now;
                at_ms.push(bench.now().as_secs_f64() * 1e3);
            }
        }
        bench.pause(Duration::from_millis(10));
    }
    // The first are each twice the one before.
    let gaps = |at_ms: Vec<f64>| at_ms.windows(2).skip(4).map(|two| two[1] - two[0]).collect();
    seen.into_iter().map(|(_, at_ms)| gaps(at_ms)).collect()
}

fn deviation(all: &[f64]) -> f64 {
    let count = all.len().max(1) as f64;
    let mean = all.iter().sum::<f64>() / count;
    (all.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count).sqrt()
}

pub(super) fn swallowed(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let sockets = space::connections_to(server.port());
    let from_us = bench.now_us();
    space::on_arrival(Some(&format!("tcp dport {} drop", server.port())));
    bench.pause(plan.seconds(2.5, 20.0));
    space::on_arrival(None);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    seen.noticed(&mut figures, outage);
    under_admission(&mut figures, &seen, outage);
    let left = space::connections_to(server.port());
    figures.at_most("connections to the server, against before", left as f64, sockets as f64);
    noticed_when_idle(&mut figures, &bench, &server);
    figures
}

/// Nobody asks for anything, and the nodes find out all the same: they count each other.
fn noticed_when_idle(figures: &mut Figures, bench: &Bench, server: &Server) {
    let began = bench.now();
    space::on_arrival(Some(&format!("tcp dport {} drop", server.port())));
    for node in &bench.nodes {
        wait_until("a node notices", || node.json("/readyz")["store"]["reachable"] == false);
    }
    figures.within(
        "noticed without a load after",
        Some(bench.now() - began),
        Duration::from_secs(2),
    );
    space::on_arrival(None);
}

pub(super) fn slow(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    for (late, more) in [(50, 0), (200, 0), (20, 60)] {
        let server = Server::start(ServerKind::Redis70);
        let runtime = crate::bench::runtime();
        let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
        let (mut bench, baseline) = over(plan, Setup::over(&proxy.url()));
        let changes = bench.metric("tollgate_breaker_transitions_total", "");
        let from_us = bench.now_us();
        proxy.set(Fault::Slow(Duration::from_millis(late), Duration::from_millis(more)));
        bench.pause(plan.seconds(2.0, 20.0));
        let changes = bench.metric("tollgate_breaker_transitions_total", "") - changes;
        proxy.set(Fault::None);
        let outage = Outage {
            from_us,
            back_us: bench.now_us(),
        };
        let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
        seen.common(&mut figures, plan, outage);
        let name = |what: &str| format!("{late} to {} ms: {what}", late + more);
        figures.at_most(&name("over-admission (M3)"), seen.excess(), outage.excess());
        figures.at_most(&name("changes of the breaker, per node"), changes / 2.0, 4.0);
    }
    figures
}

pub(super) fn lossy(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
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
        let mut setup = Setup::over(&server.url());
        setup.traffic = traffic(&["h0"], 1_000, others);
        let (mut bench, baseline) = over(plan, setup);
        let from_us = bench.now_us();
        space::on_arrival(Some(&format!("tcp dport {} {rule} counter drop", server.port())));
        bench.pause(plan.seconds(3.0, 10.0));
        let dropped = space::dropped();
        space::on_arrival(None);
        let outage = Outage {
            from_us,
            back_us: bench.now_us(),
        };
        let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
        let name = |figure: &str| format!("{what}: {figure}");
        figures.at_least(&name("packets that were dropped"), dropped, 10.0);
        figures.none(&name("requests that failed"), seen.failed());
        figures.within(
            &name("shared again"),
            seen.shared_again(outage.back_us),
            plan.seconds(4.0, 3.0),
        );
        figures.share(
            &name("share decided by the store"),
            seen.shared(from_us, outage.back_us),
            shared,
        );
        figures.quick(
            &name("p99.9"),
            seen.latency(0.999, 0, seen.end_us()),
            Duration::from_millis(20),
        );
        figures.at_most(&name("over-admission (M3)"), seen.excess(), outage.excess());
    }
    figures
}

pub(super) fn spoiled(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let runtime = crate::bench::runtime();
    let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
    let mut setup = Setup::over(&proxy.url());
    setup.traffic = never_twice(plan.pick(1_500, 2_500));
    let (mut bench, baseline) = over(plan, setup);
    let from_us = bench.now_us();
    let before: Vec<f64> = bench.nodes.iter().map(Node::resident).collect();
    for spoil in [Spoil::Cut, Spoil::Type, Spoil::Giant, Spoil::Drop, Spoil::Late] {
        proxy.set(Fault::Reply(spoil, 20));
        bench.pause(plan.seconds(1.0, 12.0));
    }
    proxy.set(Fault::None);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    bench.pause(plan.seconds(2.5, 5.0));
    let seen = bench.end_load();
    audit(&mut figures, &mut bench, &seen, &baseline, (&[server.port()], 0.0));
    figures.none("requests that failed", seen.failed());
    figures.within(
        "shared again",
        seen.shared_again(outage.back_us),
        plan.seconds(4.0, 3.0),
    );
    figures.at_least("replies that were spoiled", proxy.bites() as f64, 1.0);
    figures.none(
        "calls without a known outcome that were sent again",
        proxy.replays() as f64,
    );
    // Each of the others was asked for once, so it was new: whoever has less left got another's answer.
    let answers: Vec<Answer> = seen
        .of(OTHERS)
        .filter(|sample| sample.is_shared())
        .filter_map(|sample| sample.answer)
        .collect();
    let strangers = answers
        .iter()
        .filter(|answer| answer.status != 200 || answer.remaining != Some(CAPACITY - 1));
    figures.none("answers that were another's", strangers.count() as f64);
    figures.at_least("of so many", answers.len() as f64, plan.pick(1_000.0, 100_000.0));
    for (node, before) in bench.nodes.iter().zip(before) {
        let more = (node.resident() - before) / MIB;
        figures.at_most("MiB more than before", more, NEW_KEYS_MIB);
    }
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    figures
}

const MIB: f64 = 1_048_576.0;
/// What notes of keys that were never seen before take, and what answers under way do.
const NEW_KEYS_MIB: f64 = 8.0;

/// The hot key, and others that are asked for once each.
fn never_twice(per_second: u32) -> Traffic {
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

pub(super) fn partitioned(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let runtime = crate::bench::runtime();
    let proxies = [(); 2].map(|()| Proxy::start(runtime.handle(), server.port(), plan.seed));
    let mut setup = Setup::over("");
    setup.stores = proxies.iter().map(Proxy::url).collect();
    let (mut bench, baseline) = over(plan, setup);
    let from_us = bench.now_us();
    proxies[0].set(Fault::Silent);
    bench.pause(plan.seconds(3.0, 10.0));
    proxies[0].set(Fault::None);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, outage);
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    let bound = (CAPACITY as f64 + RATE as f64 * seconds) / 2.0;
    figures.at_most("over-admission (M4)", seen.excess(), bound);
    let other = seen.between(from_us, outage.back_us).filter(|sample| sample.node == 1);
    let shared = crate::bench::share(other, Sample::is_shared);
    figures.share("share of the other node that the store decided", shared, (0.95, 0.99));
    figures
}

pub(super) fn flapping(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let runtime = crate::bench::runtime();
    let proxy = Proxy::start(runtime.handle(), server.port(), plan.seed);
    let (mut bench, baseline) = over(plan, Setup::over(&proxy.url()));
    let changes = bench.metric("tollgate_breaker_transitions_total", "");
    let (calls, commands) = (script_calls(server.port()), proxy.commands());
    let from_us = bench.now_us();
    // About 200 ms each, by the seed.
    let mut random = Random::new(plan.seed);
    for _ in 0..plan.pick(8, 25) {
        proxy.set(Fault::Silent);
        bench.pause(Duration::from_millis(random.between(180, 220)));
        proxy.set(Fault::None);
        bench.pause(Duration::from_millis(random.between(180, 220)));
    }
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let changes = bench.metric("tollgate_breaker_transitions_total", "") - changes;
    let commands = proxy.commands() - commands;
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    figures.none("requests that failed", seen.failed());
    let fallbacks = seen.fallbacks(from_us, outage.back_us);
    figures.at_least("decided without the store", fallbacks, 1.0);
    // Trusted more slowly each time, on purpose.
    figures.within(
        "shared again",
        seen.shared_again(outage.back_us),
        plan.seconds(4.0, 3.0),
    );
    figures.quick(
        "p99.9",
        seen.latency(0.999, 0, seen.end_us()),
        Duration::from_millis(20),
    );
    figures.quick("max", seen.latency(1.0, 0, seen.end_us()), Duration::from_millis(50));
    figures.at_most("over-admission in all (2 B)", seen.excess(), 2.0 * CAPACITY as f64);
    figures.at_most("changes of the breaker, per node", changes / 2.0, 10.0);
    let requests = seen.between(from_us, outage.back_us).count() as f64;
    figures.at_most("commands to the server, per request", commands as f64 / requests, 1.1);
    figures.at_least("calls of the script", (script_calls(server.port()) - calls) as f64, 1.0);
    figures
}
