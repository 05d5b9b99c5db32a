//! A primary, replicas and sentinels.

use super::trial::Trial;
use crate::harness::{CAPACITY, RATE, Setup, wait_until};
use crate::measurements::Measurements;
use crate::plan::Plan;
use crate::resp::{script_calls, send_command};
use std::time::Duration;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// What passes beyond the limit because the new primary has not heard of it: replication here takes milliseconds.
const UNREPORTED_MAX: f64 = 7.0;

/// How long after sentinels have announced another primary the old one may still be asked.
const SWITCH_TIME_MAX: Duration = Duration::from_millis(500);

/// Waits until another server than this one takes writes, and says which.
fn promoted(group: &SentinelGroup, old: u16) -> u16 {
    let mut port = old;
    wait_until("sentinels name another primary that takes writes", || {
        port = group.primary_port();
        port != old && send_command(port, "SET chaos:probe 1 PX 1").is_ok()
    });
    port
}

fn server(group: &mut SentinelGroup, port: u16) -> &mut Server {
    group.servers.iter_mut().find(|server| server.port() == port).unwrap()
}

pub(super) fn failover(plan: &Plan) -> Measurements {
    let mut group = SentinelGroup::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&group.url()));
    let old = group.primary_port();
    let from_us = trial.now_us();
    server(&mut group, old).kill();
    let new = promoted(&group, old);
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle_over((&[new], 0.0));
    result.common(&mut measurements, plan, outage);
    let again = result.shared_again(outage.back_us);
    measurements.latency_at_most(
        "shared again after the new primary took writes",
        again,
        Duration::from_millis(500),
    );
    measurements.at_most(
        "over-admission (M3 + M6)",
        result.excess(),
        outage.excess() + UNREPORTED_MAX,
    );
    measurements
}

pub(super) fn zombie(plan: &Plan) -> Measurements {
    let mut group = SentinelGroup::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&group.url()));
    let old = group.primary_port();
    let from_us = trial.now_us();
    let before = script_calls(old);
    let mut switches = group.subscribe("+switch-master");
    server(&mut group, old).freeze();
    wait_until("sentinels announce another primary", || switches.has_message());
    // At once, while it still takes itself for the primary.
    server(&mut group, old).thaw();
    let switched = trial.now();
    let new = promoted(&group, old);
    let outage = trial.outage_since(from_us);
    trial.pause((switched + SWITCH_TIME_MAX).saturating_sub(trial.now()));
    let thawed = script_calls(old);
    trial.pause(plan.seconds(2.5, 5.0));
    let later = script_calls(old);
    let result = trial.end_load();
    let mut measurements = Measurements::default();
    trial.audit(&mut measurements, &result, (&[new], 0.0));
    result.common(&mut measurements, plan, outage);
    measurements.at_least("calls of the old primary before it was frozen", before as f64, 1.0);
    measurements.none("calls that reached it 500 ms after the switch", (later - thawed) as f64);
    // Some may have been on their way when it froze.
    measurements.at_most("calls that had waited in it", (thawed - before) as f64, 64.0);
    let bound = CAPACITY as f64 + RATE as f64 * SWITCH_TIME_MAX.as_secs_f64();
    measurements.at_most("over-admission (M7)", result.excess(), bound);
    measurements
}

pub(super) fn without_sentinels(plan: &Plan) -> Measurements {
    let mut group = SentinelGroup::start(ServerKind::Redis70);
    let mut setup = Setup::two_nodes(&group.url());
    setup.rules.insert_str(0, "data_dir: data\n");
    let mut trial = Trial::start(plan, setup);
    let primary = group.primary_port();
    let from_us = trial.now_us();
    for sentinel in &mut group.sentinels {
        sentinel.kill();
    }
    let until_us = trial.pause(plan.seconds(2.0, 8.0));
    let result = trial.end_load();
    let mut measurements = Measurements::default();
    trial.audit(&mut measurements, &result, (&[primary], 0.0));
    measurements.none("requests that failed", result.failed());
    measurements.share(
        "share decided by the store",
        result.shared(from_us, until_us),
        (0.95, 0.999),
    );
    measurements.at_most("over-admission (M4)", result.excess(), result.allowance(0, RATE, 2));
    // Nobody tells a node that starts now where the primary is: it has kept that.
    trial.nodes[0].stop();
    let started = trial.now();
    trial.nodes[0].restart();
    let check = || trial.nodes[0].post("/v1/check", &crate::harness::check("hot", "h0"));
    let response = check();
    let took = trial.now() - started;
    let by_the_store = (0..10)
        .filter_map(|_| check())
        .any(|(_, body)| body.contains(r#""source":"shared""#));
    measurements.holds(
        "a node that starts meanwhile answers",
        response.is_some_and(|(status, _)| status == 200),
    );
    measurements.holds("by the primary that it knew of", by_the_store);
    measurements.within("and does so after", Some(took), plan.seconds(5.0, 1.0));
    measurements
}

/// Again and again, each time with another seed.
pub(super) fn lagging(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let runs = plan.pick(1, 20);
    let (mut failing, mut slow, mut worst) = (0, 0, 0.0_f64);
    for run in 0..runs {
        let mut run_measurements = Measurements::default();
        worst = worst.max(lagged(&plan.again(run), &mut run_measurements));
        failing += u32::from(!run_measurements.counts_hold());
        slow += u32::from(!run_measurements.latencies_hold());
        measurements.0.extend(run_measurements.failing_counts());
    }
    measurements.note("runs, each with a seed of its own", f64::from(runs));
    measurements.none("runs of which a count or an audit does not hold", f64::from(failing));
    // As with rows, of which two runs of three must be good.
    measurements.timed_at_most(
        "runs of which a latency does not hold",
        f64::from(slow),
        f64::from(runs / 3),
    );
    measurements.note("over-admission at worst, each held to M3 + M6", worst);
    measurements
}

/// One time. Says by how much more passed than the limit allows.
fn lagged(plan: &Plan, measurements: &mut Measurements) -> f64 {
    let mut group = SentinelGroup::start(ServerKind::Redis70);
    let mut trial = Trial::start_after(plan, Setup::two_nodes(&group.url()), plan.seconds(1.5, 2.0));
    let old = group.primary_port();
    let replicas: Vec<u16> = group
        .servers
        .iter()
        .map(Server::port)
        .filter(|port| *port != old)
        .collect();
    for replica in &replicas {
        server(&mut group, *replica).freeze();
    }
    let lag = Duration::from_millis(200);
    trial.pause(lag);
    let from_us = trial.now_us();
    server(&mut group, old).kill();
    for replica in &replicas {
        server(&mut group, *replica).thaw();
    }
    let new = promoted(&group, old);
    let outage = trial.outage_since(from_us);
    let result = trial.end_load_after(plan.seconds(2.5, 3.0));
    trial.audit(measurements, &result, (&[new], 0.0));
    result.common(measurements, plan, outage);
    // At the limit no more than its rate was admitted while the replicas heard nothing.
    let lost = (RATE as f64 * lag.as_secs_f64()).min(CAPACITY as f64) + UNREPORTED_MAX;
    let excess = result.excess();
    measurements.at_most("over-admission (M3 + M6)", excess, outage.excess() + lost);
    excess
}
