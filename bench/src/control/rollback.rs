//! CP7: rollbacks, prepared by all instances; the time from the acknowledgement to the first check that obeys on the slowest of them.

use super::Context;
use super::fleet::{Fleet, INSTANCES, Way};
use super::report::{Report, Times};
use super::watcher::{Expectation, Watchers};
use serde_json::json;
use std::time::{Duration, Instant};

/// The limits of the two versions that take turns.
const LIMITS: [u64; 2] = [1_000_001, 1_000_002];
const BOUND: Duration = Duration::from_secs(1);

pub(super) fn measure(context: &Context, report: &mut Report) -> Result<(), String> {
    let rollbacks = context.pick(100, 5);
    let fleet = Fleet::start(&context.tollgate, Way::Messages, INSTANCES, &rules(LIMITS[0]))?;
    let mut admin = fleet.admin()?;
    admin.publish(&rules(LIMITS[1]), "?wait=2s")?;
    let watchers = Watchers::start(&fleet.instances)?;
    let (mut effective, mut acknowledged) = (Times::default(), Times::default());
    let mut prepared_by_all = 0_u64;
    eprintln!("{rollbacks} rollbacks");
    // Versions 1 and 2 by turns: without a number a rollback is not rolled back.
    for ((change, limit), version) in (1..=rollbacks)
        .zip(LIMITS.into_iter().cycle())
        .zip([1, 2].into_iter().cycle())
    {
        let sent = Instant::now();
        let body = json!({ "version": version, "reason": "bench" });
        let response = admin.write("POST", "/v1/rollback", "if-match: *", &body)?;
        acknowledged.push(sent.elapsed());
        let prepared = response.body.get("prepared").and_then(serde_json::Value::as_u64);
        prepared_by_all += u64::from(prepared == Some(INSTANCES as u64));
        watchers.expect(&Expectation {
            change,
            acknowledged: Instant::now(),
            attributes: json!({ "kind": "release" }),
            limit,
        });
        effective.extend(watchers.slowest(1)?);
    }
    let measured = format!(
        "{rollbacks} rollbacks: acknowledged, to the first check that obeys on the slowest of {INSTANCES} instances"
    );
    report.bounded(
        "CP7",
        &measured,
        effective.summary(),
        "max <= 1 s",
        effective.max() <= BOUND,
    );
    let bound = format!("{rollbacks} of {rollbacks}");
    report.bounded(
        "CP7",
        &format!("rollbacks that all {INSTANCES} instances had prepared"),
        format!("{prepared_by_all} of {rollbacks}"),
        &bound,
        prepared_by_all == rollbacks,
    );
    report.note(
        "CP7",
        "request to acknowledgement: compiled by all, then committed",
        acknowledged.summary(),
    );
    Ok(())
}

fn rules(limit: u64) -> String {
    format!("rules:\n- {{ id: release, when: {{ kind: release }}, limit: {limit}/min }}\n")
}
