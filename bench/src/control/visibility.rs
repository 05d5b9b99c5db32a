//! CP1: the time from the acknowledgement of a change to the first check that obeys, on the slowest of eight instances.

use super::Context;
use super::fleet::{Fleet, INSTANCES, Way};
use super::report::{Report, Times};
use super::watcher::{Expectation, Watchers};
use serde_json::json;
use std::time::{Duration, Instant};
use tollgate_core::testing::random::Random;

/// A way of propagation, the bound of the 99th percentile, and the mean pause between two changes. Where changes are applied as they come,
/// an instance applies at most ten a second, so more would measure that bound.
struct Case {
    way: Way,
    name: &'static str,
    bound: Duration,
    pause_ms: u64,
}

const CASES: [Case; 4] = [
    Case {
        way: Way::Messages,
        name: "Redis",
        bound: Duration::from_secs(1),
        pause_ms: 110,
    },
    Case {
        way: Way::Polls,
        name: "Redis without pub/sub",
        bound: Duration::from_secs(5),
        pause_ms: 40,
    },
    Case {
        way: Way::Notifications,
        name: "PostgreSQL with NOTIFY, no Redis",
        bound: Duration::from_secs(1),
        pause_ms: 40,
    },
    Case {
        way: Way::DatabasePolls,
        name: "PostgreSQL without NOTIFY, no Redis",
        bound: Duration::from_secs(5),
        pause_ms: 40,
    },
];

/// The limits of rows and of the published rule begin here; no rule has such a limit without a change.
const ROW_LIMIT: u64 = 1_000;
const VERSION_LIMIT: u64 = 1_000_000;

pub(super) fn measure(context: &Context, report: &mut Report) -> Result<(), String> {
    for case in &CASES {
        let changes = context.pick(1_000, 30);
        // Each publish waits for the votes of all instances, which poll once a second where there is no Redis.
        let versions = context.pick(20, 2);
        let (times, acknowledgements) = measure_case(context, case, changes, versions)?;
        let measured = format!(
            "{}: {changes} changes, {versions} of them versions, to the first check that obeys on the slowest of {INSTANCES} instances",
            case.name
        );
        let bound = format!("p99 <= {} s", case.bound.as_secs());
        report.bounded(
            "CP1",
            &measured,
            times.summary(),
            &bound,
            times.quantile(0.99) <= case.bound,
        );
        report.note(
            "CP1",
            &format!("{}: acknowledgement of a row", case.name),
            acknowledgements.summary(),
        );
    }
    Ok(())
}

/// The times until all instances obeyed, and the times until rows were acknowledged.
fn measure_case(context: &Context, case: &Case, changes: u64, versions: u64) -> Result<(Times, Times), String> {
    let fleet = Fleet::start(&context.tollgate, case.way, INSTANCES, &rules(VERSION_LIMIT))?;
    let watchers = Watchers::start(&fleet.instances)?;
    let mut admin = fleet.admin()?;
    let mut random = Random::new(7);
    let mut acknowledgements = Times::default();
    eprintln!("{}: {changes} changes", case.name);
    for change in 1..=changes {
        let sent = Instant::now();
        let is_version = change % (changes / versions) == 0;
        let (attributes, limit) = if is_version {
            let limit = VERSION_LIMIT + change;
            admin.publish(&rules(limit), "")?;
            (json!({ "kind": "release" }), limit)
        } else {
            let (merchant, limit) = (format!("m_{change}"), ROW_LIMIT + change);
            admin.set_row("plan", "merchant", &merchant, &format!("{limit}/min"))?;
            acknowledgements.push(sent.elapsed());
            (json!({ "merchant": merchant }), limit)
        };
        watchers.expect(&Expectation {
            change,
            acknowledged: Instant::now(),
            attributes,
            limit,
        });
        let pause = case.pause_ms / 2 + random.below(case.pause_ms);
        std::thread::sleep(Duration::from_millis(pause));
    }
    Ok((watchers.slowest(changes as usize)?, acknowledgements))
}

/// A rule that rows change, and one that versions change.
fn rules(limit: u64) -> String {
    format!(
        "rules:\n- {{ id: plan, per: merchant, limit: 100/min }}\n\
         - {{ id: release, when: {{ kind: release }}, limit: {limit}/min }}\n"
    )
}
