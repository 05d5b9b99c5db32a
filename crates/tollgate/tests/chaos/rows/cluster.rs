//! Three primaries with the slots between them, each with a replica.

use super::process::debited;
use super::trial::Trial;
use crate::audit::Except;
use crate::envelope::over_admission;
use crate::harness::{LoadResult, Outage, Setup, share, stored_key, traffic};
use crate::load::{Sample, Traffic};
use crate::measurements::Measurements;
use crate::namespace;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::{info, script_calls, send_command};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// Each shard has a hot key of its own, with this rate and capacity, asked for ten times as often.
const HOT_RATE: u64 = 30;
const SHARDS: usize = 3;

/// A bench whose hot user `n` lies on primary `n`.
fn start_trial<'p>(plan: &'p Plan, cluster: &Cluster) -> Trial<'p> {
    let mut setup = Setup::two_nodes(&cluster.url());
    setup.rules = format!(
        "rules:\n- {{ id: hot, when: {{ kind: hot }}, per: user, limit: {HOT_RATE}/s }}\n\
         - {{ id: many, when: {{ kind: many }}, per: user, limit: {HOT_RATE}/s }}\n"
    );
    let users = one_on_each(plan, &setup, cluster);
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    setup.traffic = traffic(&users, 10 * HOT_RATE as u32, 300);
    Trial::start(plan, setup)
}

/// A user for each primary, the first whose slot is low enough to be moved away.
fn one_on_each(plan: &Plan, setup: &Setup, cluster: &Cluster) -> Vec<String> {
    let node = Node::start(&setup.settings(plan, &cluster.url()));
    let mut found = vec![None; SHARDS];
    for number in 0..1_000 {
        let user = format!("h{number}");
        let slot = slot_of(&node, cluster, &user);
        let shard = slot * SHARDS / SLOTS;
        if found[shard].is_none() && (shard > 0 || slot < 4_000) {
            found[shard] = Some(user);
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().flatten().collect()
}

/// The slot of a user's counter.
fn slot_of(node: &Node, cluster: &Cluster, user: &str) -> usize {
    let key = stored_key(node, user);
    let slot = cluster.command(0, &format!("CLUSTER KEYSLOT {key}")).unwrap();
    slot.parse().unwrap()
}

/// Lets all settle for so long, ends the load and audits the primaries that there are then.
fn settle(trial: &mut Trial<'_>, cluster: &Cluster, time: Duration) -> (LoadResult, Measurements) {
    let result = trial.end_load_after(time);
    let mut measurements = Measurements::default();
    trial.audit(&mut measurements, &result, (&primaries(cluster), 0.0));
    (result, measurements)
}

/// The ports of servers that have keys and answer.
fn primaries(cluster: &Cluster) -> Vec<u16> {
    let ports = cluster.servers.iter().map(Server::port);
    ports
        .filter(|&port| send_command(port, "ROLE").is_ok_and(|role| role[0] == "master"))
        .collect()
}

fn excess(result: &LoadResult, shard: usize) -> f64 {
    over_admission(result.for_subject(shard as u16), HOT_RATE, HOT_RATE)
}

/// What may pass beyond the limit of a hot key whose shard is well: formula M4.
fn allowance(result: &LoadResult, shard: usize) -> f64 {
    result.allowance(shard as u16, HOT_RATE, 2)
}

/// What may pass beyond the limit of a hot key here: formula M3.
fn bound(outage: Outage) -> f64 {
    let seconds = (outage.back_us - outage.from_us) as f64 / 1e6;
    HOT_RATE as f64 + HOT_RATE as f64 * seconds.min(1.0)
}

/// Whether a sample is of a hot key on another shard than the first.
fn is_other_shard(sample: &Sample) -> bool {
    (1..SHARDS as u16).contains(&sample.subject)
}

pub(super) fn killed(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    for coverage in plan.pick(&["no"][..], &["no", "yes"]) {
        let mut cluster = Cluster::start_with(ServerKind::Redis70, &["--cluster-require-full-coverage", coverage]);
        let mut trial = start_trial(plan, &cluster);
        let from_us = trial.now_us();
        cluster.servers[0].kill();
        cluster.wait_until("led by the replica", |cluster| {
            cluster.has_line(3, "INFO replication", "role:master")
        });
        let outage = trial.outage_since(from_us);
        let result = trial.end_load_after(plan.seconds(3.0, 5.0));
        trial.audit(&mut measurements, &result, (&primaries(&cluster), 0.0));
        result.common(&mut measurements, plan, outage);
        measurements.at_most(
            "over-admission on the shard (M3 + M6)",
            excess(&result, 0),
            bound(outage) + 3.0,
        );
        if *coverage == "no" {
            let others = result
                .between(from_us, outage.back_us)
                .filter(|sample| is_other_shard(sample));
            let shared = share(others, Sample::is_shared);
            measurements.share("share of other shards that the store decided", shared, (0.95, 0.999));
        }
        for shard in 1..SHARDS {
            // With full coverage the others refuse as well, for as long.
            let (what, bound) = match *coverage {
                "no" => ("over-admission on another shard (M4)", allowance(&result, shard)),
                _ => ("over-admission on another shard (M3)", bound(outage)),
            };
            measurements.at_most(what, excess(&result, shard), bound);
        }
    }
    measurements
}

pub(super) fn failover(plan: &Plan) -> Measurements {
    let cluster = Cluster::start(ServerKind::Redis70);
    let mut trial = start_trial(plan, &cluster);
    let from_us = trial.now_us();
    cluster.command(3, "CLUSTER FAILOVER").unwrap();
    cluster.wait_until("led by the replica", |cluster| {
        cluster.has_line(3, "INFO replication", "role:master")
    });
    let (result, mut measurements) = settle(&mut trial, &cluster, plan.seconds(2.5, 5.0));
    measurements.none("requests that failed", result.failed());
    let calls = script_calls(cluster.servers[3].port());
    measurements.at_least("calls of the new primary", calls as f64, 1.0);
    let shared = result.shared(from_us, result.end_us());
    measurements.share("share decided by the store", shared, (0.95, 0.995));
    measurements.note(
        "share in the worst 200 ms",
        result.shared_at_worst(from_us, result.end_us()),
    );
    measurements.latency_at_most(
        "without the store, from the first decision to the last",
        Some(result.time_without(from_us, result.end_us())),
        Duration::from_millis(200),
    );
    for shard in 0..SHARDS {
        measurements.at_most("over-admission (M4)", excess(&result, shard), allowance(&result, shard));
    }
    measurements.latency_at_most(
        "max",
        result.latency(1.0, 0, result.end_us()),
        Duration::from_millis(100),
    );
    measurements
}

pub(super) fn resharded(plan: &Plan) -> Measurements {
    let cluster = Cluster::start(ServerKind::Redis70);
    let mut trial = start_trial(plan, &cluster);
    let before = primaries(&cluster);
    let from_us = trial.now_us();
    let at = format!("127.0.0.1:{}", cluster.servers[0].port());
    let (source, target) = (cluster.id(0), cluster.id(1));
    let slots = plan.pick("500", "5000");
    let arguments = [
        "--cluster",
        "reshard",
        &at,
        "--cluster-from",
        &source,
        "--cluster-to",
        &target,
    ];
    let more = ["--cluster-slots", slots, "--cluster-yes"];
    namespace::run_program("redis-cli", &[&arguments[..], &more].concat());
    let until_us = trial.pause(plan.seconds(1.0, 2.0));
    let (result, mut measurements) = settle(&mut trial, &cluster, Duration::ZERO);
    measurements.none("requests that failed", result.failed());
    let redirects = trial.metric("tollgate_store_redirects_total", "");
    measurements.at_least("redirects that were followed", redirects, 1.0);
    measurements.at_most("redirects, per request", redirects / result.samples.len() as f64, 2.0);
    let shared = result.shared(from_us, until_us);
    measurements.share("share decided by the store", shared, (0.9, 0.95));
    for shard in 0..SHARDS {
        measurements.note("passed without the store", result.allowed_locally(shard as u16));
        measurements.at_most("over-admission (M4)", excess(&result, shard), allowance(&result, shard));
    }
    measurements.holds("the primaries are those that there were", primaries(&cluster) == before);
    measurements.latency_at_most(
        "max",
        result.latency(1.0, 0, result.end_us()),
        Duration::from_millis(100),
    );
    measurements.none("calls across slots", crossings(&cluster));
    measurements
}

pub(super) fn lost(plan: &Plan) -> Measurements {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let mut trial = start_trial(plan, &cluster);
    let from_us = trial.now_us();
    cluster.servers[0].kill();
    cluster.servers[3].kill();
    let long = plan.seconds(3.0, 60.0);
    trial.pause(long);
    let outage = trial.outage_since(from_us);
    let until_us = outage.back_us;
    let result = trial.end_load();
    let mut measurements = Measurements::default();
    let left = primaries(&cluster);
    // Its breaker stays open.
    trial.audit_except(Except::Breakers, &mut measurements, &result, (&left, 0.0));
    result.during_outage(&mut measurements, outage);
    let on_lost_shard = |sample: &&Sample| sample.subject == 0;
    let local = share(
        result.between(from_us, until_us).filter(on_lost_shard),
        Sample::is_fallback,
    );
    measurements.at_least("share of the lost shard decided without the store", local, 0.9);
    measurements.at_most(
        "over-admission on the lost shard (M3)",
        excess(&result, 0),
        bound(outage),
    );
    for shard in 1..SHARDS {
        measurements.at_most(
            "over-admission on another shard (M4)",
            excess(&result, shard),
            allowance(&result, shard),
        );
    }
    let others = result
        .between(from_us, until_us)
        .filter(|sample| is_other_shard(sample));
    let shared = share(others, Sample::is_shared);
    measurements.share("share of other shards that the store decided", shared, (0.95, 0.999));
    // As many in the last third as in the one before: the share does not fade.
    let admitted = |from: u64, to: u64| {
        result
            .between(from, to)
            .filter(on_lost_shard)
            .filter(|sample| sample.is_admitted())
            .count() as f64
    };
    let third = (until_us - from_us) / 3;
    let ratio = admitted(until_us - third, until_us) / admitted(until_us - 2 * third, until_us - third).max(1.0);
    measurements.at_least("admitted on the lost shard, last third to the one before", ratio, 0.8);
    measurements
}

pub(super) fn several_slots(plan: &Plan) -> Measurements {
    let cluster = Cluster::start(ServerKind::Redis70);
    let mut setup = Setup::two_nodes(&cluster.url());
    setup.rules = "rules:\n- { id: ledger, limit: 1/day burst 50000, on_store_failure: open }\n\
                   - { id: each, per: user, limit: 3/s, on_store_failure: open }\n\
                   - { id: place, per: place, limit: 20/s, on_store_failure: open }\n"
        .to_owned();
    setup.store_settings = ", near_cache: false".to_owned();
    let next = |random: &mut Random| {
        let (user, location) = (random.below(200), random.below(40));
        (
            0,
            format!(r#"{{"attributes":{{"user":"u{user}","place":"p{location}"}}}}"#),
        )
    };
    setup.traffic = Traffic {
        per_second: plan.pick(800, 2_000),
        next: Arc::new(next),
    };
    let mut trial = Trial::start(plan, setup);
    let result = trial.end_load_after(plan.seconds(3.5, 50.0));
    trial.pause(Duration::from_millis(200));
    let debits = debited(&trial);
    let mut measurements = Measurements::default();
    trial.audit(&mut measurements, &result, (&primaries(&cluster), 1.0));
    measurements.none("requests that failed", result.failed());
    measurements.at_least(
        "requests under three limits",
        result.samples.len() as f64,
        plan.pick(3_000.0, 99_000.0),
    );
    measurements.none("calls across slots", crossings(&cluster));
    let compensated = trial.metric("tollgate_store_compensated_charges_total", "");
    measurements.at_least("charges taken back", compensated, 1.0);
    let admitted = result
        .samples
        .iter()
        .filter(|sample| sample.is_admitted() && sample.is_shared())
        .count() as f64;
    let unreported = result.samples.iter().filter(|sample| sample.is_fallback()).count() as f64;
    let uncompensated = trial.metric("tollgate_store_uncompensated_charges_total", "");
    if unreported + uncompensated == 0.0 {
        measurements.none("charged beyond what passed", debits - admitted);
    } else {
        measurements.at_most(
            "charged beyond what passed",
            debits - admitted,
            unreported + uncompensated,
        );
        measurements.at_least("charged beyond what passed, from below", debits - admitted, -unreported);
    }
    let shared = 1.0 - unreported / result.samples.len() as f64;
    measurements.share("share decided by the store", shared, (0.95, 0.999));
    measurements
}

/// Calls that named keys of several slots, as servers counted them.
fn crossings(cluster: &Cluster) -> f64 {
    let ports = cluster.servers.iter().map(Server::port);
    ports
        .map(|port| info(port, "errorstats", "errorstat_CROSSSLOT", Some("count")))
        .sum::<u64>() as f64
}

const SLOTS: usize = 16_384;
