//! CP5: the cost of preparing a large set: CPU time of an instance, wall time with eight of them on this machine, and decisions meanwhile.

use super::Context;
use super::client::Connection;
use super::fleet::{Fleet, INSTANCES, Instance, InstanceSettings, Way};
use super::report::{Report, Times, milliseconds};
use serde_json::json;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tollgate_limiter::testing::servers::Server;

/// Numbers of rules, and the bounds of CPU time.
const SETS: [(usize, Duration); 2] = [(10_000, Duration::from_millis(250)), (100_000, Duration::from_secs(3))];

/// Decisions a second while a set is prepared, and the time for which they are measured before.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
const BEFORE: Duration = Duration::from_secs(3);

/// The longest wait until a published set is effective.
const EFFECTIVE: Duration = Duration::from_secs(60);

/// One that CPU time is measured of: a vote, then the end.
struct Voter<'a> {
    instance: &'a Instance,
    id: String,
    cpu: Option<Duration>,
}

/// The cost of one set to a fleet.
struct Prepared {
    /// Of each instance that only compiled it.
    cpu: Times,
    wall: Duration,
    decisions: Decisions,
}

/// Latencies of decisions before and while a set is prepared.
struct Decisions {
    before: Times,
    meanwhile: Times,
}

pub(super) fn measure(context: &Context, report: &mut Report) -> Result<(), String> {
    let sets = SETS.iter().take(context.pick(2, 1));
    let fleet = Fleet::start(&context.tollgate, Way::Messages, INSTANCES, &rules(1, 1))?;
    for (generation, (rules, bound)) in (2..).zip(sets.clone()) {
        let prepared = measure_fleet(&fleet, *rules, generation)?;
        let measured = format!(
            "{rules} rules: CPU time to prepare them, most of {} instances",
            prepared.cpu.count()
        );
        let limit = format!("<= {}", milliseconds(*bound));
        let most = prepared.cpu.max();
        report.bounded("CP5", &measured, milliseconds(most), &limit, most <= *bound);
        let measured = format!("{rules} rules: request to the votes of all {INSTANCES} instances");
        report.note("CP5", &measured, milliseconds(prepared.wall));
        note_decisions(
            report,
            &format!("{rules} rules on {INSTANCES} instances"),
            &prepared.decisions,
        );
    }
    drop(fleet);
    let settings = InstanceSettings {
        store: None,
        database: "data_dir",
    };
    let alone = Instance::start(&context.tollgate, &settings)?;
    Connection::open(alone.admin)?.publish(&rules(1, 1), "")?;
    for (generation, (rules, _)) in (2..).zip(sets) {
        let decisions = measure_alone(&alone, *rules, generation)?;
        note_decisions(report, &format!("{rules} rules on one instance"), &decisions);
    }
    Ok(())
}

fn note_decisions(report: &Report, name: &str, decisions: &Decisions) {
    let Decisions { before, meanwhile } = decisions;
    let ratio = meanwhile.quantile(0.99).as_secs_f64() / before.quantile(0.99).as_secs_f64();
    let figure = format!(
        "p50 {} to {}, p99 {} to {} (x {ratio:.2})",
        milliseconds(before.quantile(0.5)),
        milliseconds(meanwhile.quantile(0.5)),
        milliseconds(before.quantile(0.99)),
        milliseconds(meanwhile.quantile(0.99)),
    );
    report.note(
        "CP5",
        &format!("{name}: decisions, before and while they are prepared"),
        figure,
    );
}

/// Publishes a set to a fleet whose last instance decides meanwhile.
fn measure_fleet(fleet: &Fleet, count: usize, generation: u64) -> Result<Prepared, String> {
    let text = rules(count, generation);
    let store = fleet.store.as_ref().ok_or("instances vote in a shared store")?;
    let (loaded, others) = fleet.instances.split_last().ok_or("a fleet has instances")?;
    // The first publishes, which is more than to prepare.
    let voters: Result<Vec<Voter<'_>>, String> = others.iter().skip(1).map(Voter::new).collect();
    let mut voters = voters?;
    eprintln!("{count} rules on {INSTANCES} instances");
    let voted = votes(store)?;
    let mut admin = fleet.admin()?;
    let mut wall = Duration::ZERO;
    let decisions = with_decisions(loaded.http, || {
        let before: Result<Vec<Duration>, String> = voters.iter().map(|voter| voter.instance.cpu()).collect();
        let (before, started) = (before?, Instant::now());
        std::thread::scope(|scope| {
            let publish = scope.spawn(|| admin.publish(&text, "").map(drop));
            while wall.is_zero() && !publish.is_finished() {
                let new: Vec<String> = votes(store)?.into_iter().filter(|key| !voted.contains(key)).collect();
                for (voter, before) in voters.iter_mut().zip(&before) {
                    if voter.cpu.is_none() && new.iter().any(|key| key.ends_with(&voter.id)) {
                        voter.cpu = Some(voter.instance.cpu()?.saturating_sub(*before));
                    }
                }
                if new.len() >= INSTANCES - 1 {
                    wall = started.elapsed();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            publish.join().map_err(|_| "the publisher panicked")?
        })
    })?;
    for instance in &fleet.instances {
        wait_effective(instance, generation)?;
    }
    let cpu = voters.iter().filter_map(|voter| voter.cpu).collect::<Times>();
    if cpu.count() != voters.len() || wall.is_zero() {
        return Err("the publish was acknowledged before all votes were seen".to_owned());
    }
    Ok(Prepared { cpu, wall, decisions })
}

/// Publishes a set to an instance that decides meanwhile.
fn measure_alone(instance: &Instance, count: usize, generation: u64) -> Result<Decisions, String> {
    eprintln!("{count} rules on one instance");
    let (text, mut admin) = (rules(count, generation), Connection::open(instance.admin)?);
    let decisions = with_decisions(instance.http, || admin.publish(&text, "").map(drop))?;
    wait_effective(instance, generation)?;
    Ok(decisions)
}

/// Makes checks at a fixed rate, before some work and during it.
fn with_decisions(address: SocketAddr, work: impl FnOnce() -> Result<(), String>) -> Result<Decisions, String> {
    let (is_measured, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let checks = scope.spawn(|| check_until(address, &is_measured, &is_over));
        std::thread::sleep(BEFORE);
        is_measured.store(true, Ordering::Relaxed);
        let worked = work();
        is_over.store(true, Ordering::Relaxed);
        let decisions = checks.join().map_err(|_| "the checks panicked")?;
        worked?;
        decisions
    })
}

/// The latencies of checks while the work goes on.
fn check_until(address: SocketAddr, is_measured: &AtomicBool, is_over: &AtomicBool) -> Result<Decisions, String> {
    let mut connection = Connection::open(address)?;
    let attributes = json!({ "endpoint": "/v1/endpoint-0", "merchant": "m_1" });
    let mut decisions = Decisions {
        before: Times::default(),
        meanwhile: Times::default(),
    };
    let mut next = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // Measured from when it was due, so that a stall counts for every check that it delays.
        let due = next;
        next += CHECK_INTERVAL;
        let response = connection.check(&attributes)?;
        if response.status != 200 {
            return Err(format!("a check fails while rules are prepared: {}", response.body));
        }
        let times = match is_measured.load(Ordering::Relaxed) {
            true => &mut decisions.meanwhile,
            false => &mut decisions.before,
        };
        times.push(due.elapsed());
    }
    Ok(decisions)
}

/// Waits until an instance uses a set, so that its work does not count for the next one.
fn wait_effective(instance: &Instance, generation: u64) -> Result<(), String> {
    let mut connection = Connection::open(instance.http)?;
    let started = Instant::now();
    while connection.check(&json!({ "kind": "generation" }))?.limit() != Some(generation) {
        if started.elapsed() > EFFECTIVE {
            return Err(format!("generation {generation} is not effective after {EFFECTIVE:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

impl<'a> Voter<'a> {
    fn new(instance: &'a Instance) -> Result<Self, String> {
        Ok(Self {
            id: instance.id()?,
            instance,
            cpu: None,
        })
    }
}

/// The keys of all votes.
fn votes(store: &Server) -> Result<Vec<String>, String> {
    let keys = || {
        let mut connection = redis::Client::open(store.url())?.get_connection()?;
        redis::cmd("KEYS").arg("tg:{cfg}:vote:*").query(&mut connection)
    };
    keys().map_err(|error: redis::RedisError| format!("the votes cannot be read: {error}"))
}

/// `count` rules, an even number: two tiers, as in `planning`, a rule that shows the generation, and one that nothing meets.
fn rules(count: usize, generation: u64) -> String {
    let mut text = format!(
        "rules:\n- {{ id: generation, when: {{ kind: generation }}, limit: {generation}/min }}\n\
         - {{ id: other, when: {{ kind: other }}, limit: 1/min }}\n"
    );
    for number in 0..(count / 2).saturating_sub(1) {
        write!(
            text,
            "- {{ id: c{number}, when: {{ endpoint: /v1/endpoint-{number} }}, limit: 1000000/s }}\n\
             - {{ id: m{number}, when: {{ endpoint: /v1/endpoint-{number} }}, per: merchant, limit: 1000000/min, \
             by: {{ tier: {{ enterprise: 5000000/min }} }} }}\n"
        )
        .expect("writing to a string cannot fail");
    }
    text
}
