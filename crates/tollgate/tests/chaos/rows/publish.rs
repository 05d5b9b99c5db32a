//! Publishes that go wrong: an instance that dies of a set, a control service that dies while it publishes.

use super::database::expect_done;
use crate::admin::{self, get, position, publish};
use crate::audit::broken;
use crate::harness::{hot_and_many, pause, wait_until};
use crate::measurements::Measurements;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::RespClient;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{Server, ServerKind};

fn settings(store: &Server, database: &str) -> String {
    let control = admin::settings(database).replace("control: { ", "control: { prepare_timeout: 3s, ");
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

/// One of four instances dies of a set while it compiles it.
pub(super) fn deadly(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let store = Server::start(ServerKind::Redis70);
    let mut control = Node::start_managed(&settings(&store, "data_dir"));
    expect_done(&publish(&control, &set(0)));
    let mut others = [(); 3].map(|()| Node::start_managed(&settings(&store, "none")));
    let old = position(&control);
    wait_until("all have the first set", || {
        others.iter().all(|node| position(node) == old)
    });
    wait_until("all instances are known", || {
        get(&control, "/v1/instances").body["items"]
            .as_array()
            .is_some_and(|items| items.len() >= 4)
    });
    for _ in 0..plan.pick(1, 5) {
        let mut notices = RespClient::connect(store.port()).unwrap();
        notices.send("SUBSCRIBE tg:{cfg}:invalidate").unwrap();
        notices.read_reply().unwrap().unwrap();
        let victim = &mut others[0];
        let response = std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok(Ok(words)) = notices.read_reply() {
                    if words.last().is_some_and(|text| text.starts_with("prepare")) {
                        victim.kill();
                        return;
                    }
                }
            });
            publish(&control, &set(1))
        });
        // Killed after its vote, it has not died of the set.
        if response.is_done() {
            measurements.note("voted before it was killed", 1.0);
            others[0].restart();
            expect_done(&publish(&control, &set(0)));
            continue;
        }
        measurements.holds(
            "refused with 409 prepare-incomplete",
            response.body["code"] == "prepare-incomplete",
        );
        let live: Vec<bool> = others[1..].iter().map(|node| position(node).3 == old.3).collect();
        measurements.holds(
            "live nowhere",
            live.iter().all(|same| *same) && position(&control).3 == old.3,
        );
        others[0].restart();
        wait_until("the instance returns with the old set", || {
            position(&others[0]).3 == old.3
        });
        wait_until("all instances are known again", || {
            get(&control, "/v1/instances").body["items"]
                .as_array()
                .is_some_and(|items| items.len() == 4)
        });
    }
    let dead: f64 = others[1..].iter_mut().map(broken).sum();
    measurements.none("panics and dead nodes", dead + broken(&mut control));
    measurements
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
    let seeds = plan.pick(3_u64, 200);
    for number in 1..=seeds {
        let killed_after = Duration::from_micros(random.below(KILL_WITHIN_US));
        let response = std::thread::scope(|scope| {
            let publishing = scope.spawn(|| publish(&control, &set(number)));
            pause(killed_after);
            control_kill(&control);
            publishing.join().unwrap()
        });
        control.kill();
        control.restart();
        let since = Instant::now();
        wait_until("both are at one position", || position(&control) == position(&follower));
        slowest = slowest.max(since.elapsed());
        let (ours, theirs) = (limits(&control), limits(&follower));
        mixed += u32::from(theirs[0] != theirs[1] || ours[0] != ours[1]);
        differ += u32::from(ours != theirs);
        let is_new = ours[0].starts_with(&format!("{}/s", 1_000 + number));
        lost += u32::from(response.is_done() && !is_new);
        let audit = get(&control, "/v1/audit?action=publish&limit=1").body;
        let revision = audit["items"][0]["revision"].as_u64().unwrap_or_default();
        let set_revision = get(&control, "/v1/status").body["set_revision"]
            .as_u64()
            .unwrap_or_default();
        unaudited += u32::from(revision != set_revision);
    }
    measurements.note("times it was killed", seeds as f64);
    measurements.none("times rules of two versions were live together", f64::from(mixed));
    measurements.none("times instances differed", f64::from(differ));
    measurements.none("acknowledged publishes lost", f64::from(lost));
    measurements.none("times the audit log disagreed", f64::from(unaudited));
    measurements.within("old or new everywhere", Some(slowest), plan.seconds(5.0, 2.0));
    measurements.none("panics and dead nodes", broken(&mut follower));
    measurements
}

/// The time from the request within which it is killed.
const KILL_WITHIN_US: u64 = 400_000;

fn control_kill(node: &Node) {
    crate::namespace::run_program("kill", &["-KILL", &node.process_id().to_string()]);
}
