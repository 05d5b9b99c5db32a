//! Changes of rules on their way to the instances: lost notices, too many changes, poisoned caches, two databases, no database.

use super::database::{Rows, expect_done};
use crate::admin::{self, get, position, publish, publish_with};
use crate::audit::survived;
use crate::harness::{Harness, hot_and_many, pause, wait_until};
use crate::measurements::Measurements;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::{RespClient, command_ok, send_command, send_command_with};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const MANAGED: &str = "rules:\n- { id: managed, when: { kind: hot }, per: user, limit: 100000/s }\n";

fn settings(store: &Server, database: &str) -> String {
    let rules = hot_and_many("local");
    format!(
        "store: '{}'\nlog: info\n{}{rules}",
        store.url(),
        admin::settings(database)
    )
}

/// Waits until all nodes are at the same position, and returns the time it took.
fn converged(nodes: &[&Node]) -> Duration {
    let since = Instant::now();
    wait_until("all nodes are at the same position", || {
        let first = position(nodes[0]);
        nodes.iter().all(|node| position(node) == first)
    });
    since.elapsed()
}

/// The same, at a revision or after it.
fn converged_at(revision: u64, nodes: &[&Node]) -> Duration {
    let since = Instant::now();
    wait_until("all nodes have the newest change", || {
        nodes.iter().all(|node| position(node).1 >= revision)
    });
    since.elapsed()
}

/// Notices are lost, changes come a thousand a second, and nodes are killed meanwhile.
pub(super) fn storm(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let (store, mut control) = store_and_service();
    let (first, mut second) = (
        Node::start_managed(&settings(&store, "none")),
        Node::start_managed(&settings(&store, "none")),
    );
    converged(&[&control, &first, &second]);
    let mut harness = Harness::over(vec![first], plan);
    harness.load_now();
    let from_us = harness.pause(plan.seconds(1.0, 5.0));
    let batches = plan.pick(20_u32, 200);
    let started = Instant::now();
    let (mut acknowledged, mut newest) = (0, 0);
    for batch in 0..batches {
        newest = loop {
            match import(&control, batch) {
                Some(revision) => break revision,
                // The control service was killed: the batch was not acknowledged, and is sent again.
                None => pause(Duration::from_millis(20)),
            }
        };
        acknowledged += BATCH;
        if batch == batches / 3 {
            second.kill();
            second.restart();
        }
        if batch == batches / 2 {
            control.kill();
            control.restart();
        }
        pause((BATCH_INTERVAL * (batch + 1)).saturating_sub(started.elapsed()));
    }
    let rate = f64::from(acknowledged) / started.elapsed().as_secs_f64();
    measurements.note("changes a second", rate);
    // The last change was acknowledged, and may not be applied anywhere yet.
    let time = converged_at(newest, &[&control, &harness.nodes[0], &second]);
    measurements.within("converged after the storm", Some(time), plan.seconds(4.0, 1.0));
    let to_us = harness.now_us();
    for (name, node) in [
        ("control service", &control),
        ("instance", &harness.nodes[0]),
        ("restarted", &second),
    ] {
        let rows = get(node, "/v1/status").body["override_rows"]
            .as_u64()
            .unwrap_or_default();
        let lost = f64::from(acknowledged) - rows as f64;
        measurements.none(&format!("{name}: acknowledged changes lost"), lost);
    }

    let is_over = AtomicBool::new(false);
    let silent = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = send_command(store.port(), "CLIENT KILL TYPE pubsub");
                pause(Duration::from_millis(5));
            }
        });
        let mut slowest = Duration::ZERO;
        let mut rows = Rows::default();
        for _ in 0..plan.pick(2, 10) {
            rows.write(&control, 1);
            slowest = slowest.max(converged(&[&control, &harness.nodes[0], &second]));
        }
        is_over.store(true, Ordering::Relaxed);
        slowest
    });
    measurements.within("converged without notices", Some(silent), Duration::from_secs(5));
    let result = harness.end_load();
    let names = ("requests that failed", "p99 in the storm, against 2 x before");
    result.undisturbed(&mut measurements, names, (from_us, to_us), |before| before * 2);
    survived(measurements, [&mut control, &mut harness.nodes[0], &mut second])
}

/// Rows in one import, and the time between two.
const BATCH: u32 = 50;
const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Writes a batch and returns its revision. None: it is not acknowledged.
fn import(node: &Node, batch: u32) -> Option<u64> {
    let rows: String = (0..BATCH)
        .map(|row| {
            let user = format!("b{batch}-{row}");
            format!("{{\"domain\":\"default\",\"rule\":\"managed\",\"subject\":{{\"user\":\"{user}\"}},\"terms\":\"5/s\"}}\n")
        })
        .collect();
    let response = admin::post_text(node, "/v1/overrides/import?format=ndjson&reason=storm", &rows);
    response.is_done().then(|| response.body["revision"].as_u64())?
}

/// A store, and a control service on it that has published.
fn store_and_service() -> (Server, Node) {
    let store = Server::start(ServerKind::Redis70);
    let control = Node::start_managed(&settings(&store, "data_dir"));
    expect_done(&publish(&control, MANAGED));
    (store, control)
}

/// Values in the cache are spoiled.
pub(super) fn poisoned(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let (store, mut control) = store_and_service();
    let mut follower = Node::start_managed(&settings(&store, "none"));
    let mut rows = Rows::default();
    rows.write(&control, 20);
    converged(&[&control, &follower]);
    let before = position(&follower);
    // The control service writes an anchor of the audit log meanwhile, which moves both.
    let is_whole = |follower: &Node, control: &Node| {
        let at = position(follower);
        at == before || at == position(control)
    };
    let memory = follower.resident();
    let mut random = Random::new(plan.seed);
    let mut client = RespClient::connect(store.port()).unwrap();
    let mutations = plan.pick(300_u32, 10_000);
    let mut moved = 0_u32;
    let mut keys: Vec<String> = Vec::new();
    for number in 0..mutations {
        if number % 100 == 0 {
            keys = send_command(store.port(), "KEYS tg:{cfg}:*").unwrap_or_default();
            moved += u32::from(!is_whole(&follower, &control));
        }
        let Some(key) = keys.get(random.below(keys.len().max(1) as u64) as usize) else {
            continue;
        };
        let _ = client.send_arguments(&["GET", key]);
        let value = match client.read_reply() {
            Ok(Ok(words)) => words.concat(),
            _ => String::new(),
        };
        let spoiled = spoil(&value, &mut random);
        let _ = send_command_with(store.port(), &["SET", key, &spoiled, "KEEPTTL"]);
        if number % 50 == 0 {
            let _ = send_command(store.port(), "PUBLISH tg:{cfg}:invalidate revision");
        }
        pause(plan.seconds(0.001, 0.002));
    }
    measurements.note("values spoiled", f64::from(mutations));
    measurements.none("times the follower moved to a spoiled state", f64::from(moved));
    measurements.holds("the follower has its rules", is_whole(&follower, &control));
    let growth = (follower.resident() - memory) / 1_048_576.0;
    measurements.at_most("MiB more than before", growth, 64.0);
    rows.write(&control, 1);
    let time = converged(&[&control, &follower]);
    measurements.within("changes arrive again", Some(time), Duration::from_secs(10));
    survived(measurements, [&mut control, &mut follower])
}

fn spoil(value: &str, random: &mut Random) -> String {
    let mut characters: Vec<char> = value.chars().collect();
    match random.below(5) {
        0 => characters.truncate(random.below(characters.len() as u64 + 1) as usize),
        1 => characters.clear(),
        2 => characters.extend(std::iter::repeat_n('9', 40)),
        3 => characters.reverse(),
        _ => {
            let length = characters.len().max(1) as u64;
            if let Some(character) = characters.get_mut(random.below(length) as usize) {
                *character = char::from(b' ' + random.below(90) as u8);
            }
        }
    }
    characters.into_iter().collect()
}

/// Two databases of their own on one store: their first changes come at once.
pub(super) fn two_databases(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let rounds = plan.pick(1_u32, 10);
    let (mut winners, mut others, mut heads) = (0, 0, 0);
    for _ in 0..rounds {
        let store = Server::start(ServerKind::Redis70);
        let nodes = [(); 2].map(|()| Node::start_managed(&settings(&store, "data_dir")));
        let responses = std::thread::scope(|scope| {
            let tasks = nodes
                .each_ref()
                .map(|node| scope.spawn(|| publish_with(node, MANAGED, "?prepare=skip")));
            tasks.map(|task| task.join().unwrap())
        });
        winners += responses.iter().filter(|response| response.is_done()).count();
        let is_other =
            |response: &&admin::AdminResponse| response.status == 409 && response.body["code"] == "other-database";
        others += responses.iter().filter(is_other).count();
        pause(Duration::from_secs(2));
        let databases = nodes
            .each_ref()
            .map(|node| get(node, "/v1/status").body["epoch"].clone());
        heads += usize::from(databases[0] == databases[1]);
        // Different sets: that of the other, equal to the live one, would be done without a write.
        let [first, second] = nodes.each_ref();
        let late = [
            (first, "rules: []\n"),
            (second, "rules: [{ id: late, limit: 1/min }]\n"),
        ]
        .map(|(node, text)| publish_with(node, text, "?prepare=skip").is_done());
        measurements.holds("later writes are done by one of them only", late[0] != late[1]);
    }
    let rounds = rounds as f64;
    measurements.at_most("first writes that were done, per round", winners as f64 / rounds, 1.0);
    measurements.at_least("first writes that were done, per round", winners as f64 / rounds, 1.0);
    measurements.at_least("refused as `other-database`, per round", others as f64 / rounds, 1.0);
    measurements.at_least("both follow one head, per round", heads as f64 / rounds, 1.0);
    measurements
}

/// The control service and its database are gone when an instance with an empty disk starts.
pub(super) fn orphaned(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let (store, mut control) = store_and_service();
    let mut late = Node::prepare_managed(&settings(&store, "none"));
    let mut rows = Rows::default();
    rows.write(&control, 5);
    let newest = position(&control);
    pause(Duration::from_millis(1_500));
    control.kill();
    let ready = late.restart_timed(Duration::from_secs(10));
    measurements.within("ready from the cache", ready, plan.seconds(5.0, 2.0));
    measurements.holds("at the last position", position(&late) == newest);
    late.kill();
    let _ = std::fs::remove_dir_all(late.folder().join("data"));
    command_ok(store.port(), "FLUSHALL");
    let ready = late.restart_timed(plan.seconds(2.0, 5.0));
    measurements.holds("not ready without the cache", ready.is_none());
    let readiness = late.get("/readyz").map(|(_, body)| body).unwrap_or_default();
    measurements.holds("the reason is named", readiness.contains("waiting for rules"));
    control.restart();
    wait_until("the cache is filled again, and the instance ready", || {
        late.get("/readyz").is_some_and(|(status, _)| status == 200)
    });
    measurements.holds("at the last position again", position(&late) == newest);
    survived(measurements, [&mut control, &mut late])
}
