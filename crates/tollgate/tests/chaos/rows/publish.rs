//! Publishes that go wrong: an instance that dies of a set or is too old for it, a control service that dies while it publishes.

use super::database::expect_done;
use crate::admin::{self, AdminResponse, get, position, publish, publish_with, put_row};
use crate::audit::survived;
use crate::harness::{hot_and_many, pause, wait_until};
use crate::measurements::Measurements;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::send_command_with;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{Server, ServerKind};

fn settings(store: &Server, database: &str) -> String {
    let control = admin::settings(database).replace("control: { ", "control: { prepare_timeout: 5s, ");
    format!(
        "store: '{}'\nlog: info\n{control}{}",
        store.url(),
        hot_and_many("local")
    )
}

/// A set with two rules that must always be of one version.
fn set(number: u64) -> String {
    format!(
        "rules:\n- {{ id: first, when: {{ kind: hot }}, per: user, limit: {}/s }}\n\
         - {{ id: second, when: {{ kind: hot }}, per: user, limit: {}/s }}\n",
        1_000 + number,
        1_000 + number
    )
}

/// The limits of both rules as a node has them.
fn limits(node: &Node) -> Vec<String> {
    let limit = |id: &str| get(node, &format!("/v1/rule?domain=default&id={id}")).body["yaml"].to_string();
    let text = |id: &str| limit(id).split("limit: ").nth(1).unwrap_or_default().to_owned();
    vec![text("first"), text("second")]
}

/// A set that takes memory to compile.
fn large_set(rules: u32) -> String {
    let mut text = set(1);
    for number in 0..rules {
        text.push_str(&format!(
            "- {{ id: many-{number}, when: {{ kind: many, path: /v1/{number} }}, per: user, limit: 5/s }}\n"
        ));
    }
    text
}

/// The live instances as one of them sees them.
fn instances(node: &Node) -> Vec<Value> {
    let body = get(node, "/v1/instances").body;
    body["items"].as_array().cloned().unwrap_or_default()
}

fn knows_all(node: &Node, count: usize) {
    wait_until("all instances are known", || instances(node).len() == count);
}

/// True if a response names these instances and no others.
fn names(response: &AdminResponse, ids: &[&str]) -> bool {
    response.body["instances"]
        .as_array()
        .is_some_and(|named| named.iter().filter_map(Value::as_str).eq(ids.iter().copied()))
}

/// Three instances beside a control service, which publishes a set that all of them apply.
fn three_with_the_first_set(control: &Node, start: impl Fn() -> Node) -> [Node; 3] {
    expect_done(&publish(control, &set(0)));
    let others = [(); 3].map(|()| start());
    let first = position(control);
    wait_until("all have the first set", || {
        others.iter().all(|node| position(node) == first)
    });
    others
}

/// One of four instances dies of a set while it compiles it: it is not given the memory that the set takes.
pub(super) fn deadly(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let store = Server::start(ServerKind::Redis70);
    let mut control = Node::start_managed(&settings(&store, "data_dir"));
    let mut others = three_with_the_first_set(&control, || Node::start_frugal(&settings(&store, "none")));
    let old = position(&control);
    let large = large_set(plan.pick(5_000, 20_000));
    for _ in 0..plan.pick(1, 5) {
        knows_all(&control, 4);
        let id = get(&others[0], "/v1/status").body["instance"].clone();
        others[0].limit_memory(8 << 20);
        let response = publish(&control, &large);
        measurements.holds(
            "refused with 409 prepare-incomplete",
            response.body["code"] == "prepare-incomplete",
        );
        measurements.holds(
            "the one that died is named",
            names(&response, &[id.as_str().unwrap_or_default()]),
        );
        measurements.holds("it was aborted", others[0].ended_by_signal() == Some(SIGABRT));
        measurements.holds("it died of the set", others[0].log().contains("memory allocation of"));
        let live: Vec<bool> = others[1..].iter().map(|node| position(node).3 == old.3).collect();
        measurements.holds(
            "live nowhere",
            live.iter().all(|same| *same) && position(&control).3 == old.3,
        );
        // One that has not died must not be waited for.
        others[0].kill();
        others[0].restart();
        wait_until("the instance returns with the old set", || {
            position(&others[0]).3 == old.3
        });
    }
    knows_all(&control, 4);
    let done = publish(&control, &large);
    measurements.holds(
        "with enough memory it is live everywhere",
        done.is_done() && done.body["applied"] == 4,
    );
    survived(measurements, others.iter_mut().chain([&mut control]))
}

/// One of four instances is too old for the rules of the others.
pub(super) fn too_old(_: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let store = Server::start(ServerKind::Redis70);
    // All are old at first.
    let mut control = Node::start_old(&settings(&store, "data_dir"));
    let mut others = three_with_the_first_set(&control, || Node::start_old(&settings(&store, "none")));
    let old = position(&control);
    control.upgrade();
    let [left, upgraded @ ..] = &mut others;
    upgraded.iter_mut().for_each(Node::upgrade);
    knows_all(&control, 4);
    let before = limits(left);
    let id = get(left, "/v1/status").body["instance"].clone();
    let id = id.as_str().unwrap_or_default();

    let refused = publish(&control, &set(1));
    measurements.holds(
        "refused with 409 prepare-rejected",
        refused.status == 409 && refused.body["code"] == "prepare-rejected",
    );
    measurements.holds("the old one is named", names(&refused, &[id]));
    let is_nowhere = upgraded
        .iter()
        .chain([&control, &*left])
        .all(|node| position(node) == old);
    measurements.holds("live nowhere", is_nowhere);

    let skipped = publish_with(&control, &set(1), "?wait=2s&prepare=skip");
    let since = Instant::now();
    measurements.holds("prepare=skip is done", skipped.is_done());
    let reported = |node: &Node| {
        let found = instances(node).into_iter().find(|instance| instance["id"] == id);
        found.is_some_and(|found| found["error"].to_string().contains("needs a newer version"))
    };
    wait_until("the old one reports it", || reported(&control));
    measurements.within("reported after", Some(since.elapsed()), Duration::from_secs(3));
    wait_until("the others have the new set", || {
        upgraded.iter().all(|node| limits(node) == limits(&control))
    });
    measurements.holds("the others have the new set", limits(&control) != before);
    measurements.holds("the old one keeps its set", limits(left) == before);

    wait_until("it is known to be too old", || {
        put_row(&control, "first", "u", "1/s").body["too_old"] == json!([id])
    });
    let row = put_row(&control, "first", "late", "1/s");
    measurements.holds("the answer to a row names it", row.body["too_old"] == json!([id]));
    wait_until("rows that it reads are applied", || {
        position(left).1 == position(&control).1
    });
    left.upgrade();
    wait_until("the upgraded one has the new set", || {
        position(left) == position(&control)
    });
    measurements.holds("after its upgrade it has the new set", limits(left) == limits(&control));
    wait_until("it is named no more", || {
        put_row(&control, "first", "late", "1/s").body["too_old"].is_null()
    });
    survived(measurements, others.iter_mut().chain([&mut control]))
}

/// The control service is killed at any moment of a publish.
pub(super) fn interrupted(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let store = Server::start(ServerKind::Redis70);
    let mut control = Node::start_managed(&settings(&store, "data_dir"));
    let mut random = Random::new(plan.seed);
    expect_done(&publish(&control, &set(0)));
    let mut follower = Node::start_managed(&settings(&store, "none"));
    let (mut mixed, mut differ, mut lost, mut unaudited, mut slowest) = (0, 0, 0, 0, Duration::ZERO);
    let (mut committed, seeds) = (0, plan.pick(3_u64, 200));
    for number in 1..=seeds {
        // Both have to vote, and nobody else: a publish that waits for a dead one is never killed after its commit.
        knows_all(&control, 2);
        let id = get(&control, "/v1/status").body["instance"].clone();
        let killed_after = Duration::from_micros(random.below(KILL_WITHIN_US));
        let response = std::thread::scope(|scope| {
            let publishing = scope.spawn(|| publish(&control, &set(number)));
            pause(killed_after);
            control_kill(&control);
            publishing.join().unwrap()
        });
        control.kill();
        forget_instance(&store, id.as_str().unwrap_or_default());
        control.restart();
        let since = Instant::now();
        wait_until("both are at one position", || position(&control) == position(&follower));
        slowest = slowest.max(since.elapsed());
        let (ours, theirs) = (limits(&control), limits(&follower));
        mixed += u32::from(theirs[0] != theirs[1] || ours[0] != ours[1]);
        differ += u32::from(ours != theirs);
        let is_new = ours[0].starts_with(&format!("{}/s", 1_000 + number));
        lost += u32::from(response.is_done() && !is_new);
        committed += u32::from(is_new);
        let audit = get(&control, "/v1/audit?action=publish&limit=1").body;
        let revision = audit["items"][0]["revision"].as_u64().unwrap_or_default();
        let set_revision = get(&control, "/v1/status").body["set_revision"]
            .as_u64()
            .unwrap_or_default();
        unaudited += u32::from(revision != set_revision);
    }
    measurements.note("times it was killed", seeds as f64);
    // Killed before it and after it.
    let expected = plan.pick(0.0, 10.0);
    measurements.at_least("publishes that were committed", f64::from(committed), expected);
    let others = seeds as f64 - f64::from(committed);
    measurements.at_least("publishes that were not", others, expected);
    measurements.none("times rules of two versions were live together", f64::from(mixed));
    measurements.none("times instances differed", f64::from(differ));
    measurements.none("acknowledged publishes lost", f64::from(lost));
    measurements.none("times the audit log disagreed", f64::from(unaudited));
    measurements.within("old or new everywhere", Some(slowest), plan.seconds(5.0, 2.0));
    survived(measurements, [&mut follower])
}

/// Removes what an instance that was killed has left in the store for seconds: its status, and the set that it asked others to compile.
fn forget_instance(store: &Server, id: &str) {
    let _ = send_command_with(
        store.port(),
        &["DEL", &format!("tg:{{cfg}}:i:{id}"), "tg:{cfg}:prepare"],
    );
    let _ = send_command_with(store.port(), &["ZREM", "tg:{cfg}:instances", id]);
}

const SIGABRT: i32 = 6;
/// The time from the request within which it is killed.
const KILL_WITHIN_US: u64 = 400_000;

fn control_kill(node: &Node) {
    crate::namespace::run_program("kill", &["-KILL", &node.process_id().to_string()]);
}
