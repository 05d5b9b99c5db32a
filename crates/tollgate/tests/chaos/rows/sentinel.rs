//! A primary, replicas and sentinels.

use super::process::over;
use crate::audit::{Baseline, audit};
use crate::bench::{CAPACITY, Outage, RATE, Setup, wait_until};
use crate::figures::Figures;
use crate::plan::Plan;
use crate::resp::{ask, script_calls};
use std::time::Duration;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{ServerKind, Server};

/// What passes beyond the limit because the new primary has not heard of it: replication here takes milliseconds.
const UNHEARD: f64 = 7.0;

/// How long after sentinels have announced another primary the old one may still be asked.
const OBEYED: Duration = Duration::from_millis(500);

/// Waits until another server than this one takes writes, and says which.
fn promoted(watched: &SentinelGroup, old: u16) -> u16 {
    let mut port = old;
    wait_until("sentinels name another primary that takes writes", || {
        port = watched.primary_port();
        port != old && ask(port, "SET chaos:probe 1 PX 1").is_ok()
    });
    port
}

fn server(watched: &mut SentinelGroup, port: u16) -> &mut Server {
    watched.servers.iter_mut().find(|server| server.port() == port).unwrap()
}

pub(super) fn failover(plan: &Plan) -> Figures {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&watched.url()));
    let old = watched.primary_port();
    let from_us = bench.now_us();
    server(&mut watched, old).kill();
    let new = promoted(&watched, old);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    bench.pause(plan.seconds(2.5, 5.0));
    let seen = bench.end_load();
    let mut figures = Figures::default();
    audit(&mut figures, &mut bench, &seen, &baseline, (&[new], 0.0));
    seen.common(&mut figures, plan, outage);
    let again = seen.shared_again(outage.back_us);
    figures.quick(
        "shared again after the new primary took writes",
        again,
        Duration::from_millis(500),
    );
    figures.at_most("over-admission (M3 + M6)", seen.excess(), outage.excess() + UNHEARD);
    figures
}

pub(super) fn zombie(plan: &Plan) -> Figures {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&watched.url()));
    let old = watched.primary_port();
    let from_us = bench.now_us();
    let before = script_calls(old);
    let mut switches = watched.subscribe("+switch-master");
    server(&mut watched, old).freeze();
    wait_until("sentinels announce another primary", || switches.has_message());
    // At once, while it still takes itself for the primary.
    server(&mut watched, old).thaw();
    let switched = bench.now();
    let new = promoted(&watched, old);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    bench.pause((switched + OBEYED).saturating_sub(bench.now()));
    let thawed = script_calls(old);
    bench.pause(plan.seconds(2.5, 5.0));
    let later = script_calls(old);
    let seen = bench.end_load();
    let mut figures = Figures::default();
    audit(&mut figures, &mut bench, &seen, &baseline, (&[new], 0.0));
    seen.common(&mut figures, plan, outage);
    figures.at_least("calls of the old primary before it was frozen", before as f64, 1.0);
    figures.none("calls that reached it 500 ms after the switch", (later - thawed) as f64);
    // Some may have been on their way when it froze.
    figures.at_most("calls that had waited in it", (thawed - before) as f64, 64.0);
    let bound = CAPACITY as f64 + RATE as f64 * OBEYED.as_secs_f64();
    figures.at_most("over-admission (M7)", seen.excess(), bound);
    figures
}

pub(super) fn alone(plan: &Plan) -> Figures {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let mut setup = Setup::over(&watched.url());
    setup.rules.insert_str(0, "data_dir: data\n");
    let (mut bench, baseline) = over(plan, setup);
    let primary = watched.primary_port();
    let from_us = bench.now_us();
    for sentinel in &mut watched.sentinels {
        sentinel.kill();
    }
    let until_us = bench.pause(plan.seconds(2.0, 8.0));
    let seen = bench.end_load();
    let mut figures = Figures::default();
    audit(&mut figures, &mut bench, &seen, &baseline, (&[primary], 0.0));
    figures.none("requests that failed", seen.failed());
    figures.share(
        "share decided by the store",
        seen.shared(from_us, until_us),
        (0.95, 0.999),
    );
    figures.at_most("over-admission (M4)", seen.excess(), seen.allowance(0, RATE, 2));
    // Nobody tells a node that starts now where the primary is: it has kept that.
    bench.nodes[0].stop();
    let started = bench.now();
    bench.nodes[0].start_again();
    let ask = || bench.nodes[0].post("/v1/check", &crate::bench::check("hot", "h0"));
    let answered = ask();
    let took = bench.now() - started;
    let by_the_store = (0..10)
        .filter_map(|_| ask())
        .any(|(_, said)| said.contains(r#""source":"shared""#));
    figures.holds(
        "a node that starts meanwhile answers",
        answered.is_some_and(|(status, _)| status == 200),
    );
    figures.holds("by the primary that it knew of", by_the_store);
    figures.within("and does so after", Some(took), plan.seconds(5.0, 1.0));
    figures
}

/// Again and again, each time with another seed.
pub(super) fn lagging(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    let runs = plan.pick(1, 20);
    let (mut failing, mut slow, mut worst) = (0, 0, 0.0_f64);
    for run in 0..runs {
        let mut of_run = Figures::default();
        worst = worst.max(lagged(&plan.again(run), &mut of_run));
        failing += u32::from(!of_run.counts_hold());
        slow += u32::from(!of_run.latencies_hold());
        figures.0.extend(of_run.failing_counts());
    }
    figures.told("runs, each with a seed of its own", f64::from(runs));
    figures.none("runs of which a count or an audit does not hold", f64::from(failing));
    // As with rows, of which two runs of three must be good.
    figures.seldom(
        "runs of which a latency does not hold",
        f64::from(slow),
        f64::from(runs / 3),
    );
    figures.told("over-admission at worst, each held to M3 + M6", worst);
    figures
}

/// One time. Says by how much more passed than the limit allows.
fn lagged(plan: &Plan, figures: &mut Figures) -> f64 {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let mut bench = Setup::over(&watched.url()).start(plan);
    bench.load();
    bench.pause(plan.seconds(1.5, 2.0));
    let baseline = Baseline::of(&bench);
    let old = watched.primary_port();
    let replicas: Vec<u16> = watched
        .servers
        .iter()
        .map(Server::port)
        .filter(|port| *port != old)
        .collect();
    for replica in &replicas {
        server(&mut watched, *replica).freeze();
    }
    let lag = Duration::from_millis(200);
    bench.pause(lag);
    let from_us = bench.now_us();
    server(&mut watched, old).kill();
    for replica in &replicas {
        server(&mut watched, *replica).thaw();
    }
    let new = promoted(&watched, old);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    bench.pause(plan.seconds(2.5, 3.0));
    let seen = bench.end_load();
    audit(figures, &mut bench, &seen, &baseline, (&[new], 0.0));
    seen.common(figures, plan, outage);
    // At the limit no more than its rate was admitted while the replicas heard nothing.
    let lost = (RATE as f64 * lag.as_secs_f64()).min(CAPACITY as f64) + UNHEARD;
    let excess = seen.excess();
    figures.at_most("over-admission (M3 + M6)", excess, outage.excess() + lost);
    excess
}
