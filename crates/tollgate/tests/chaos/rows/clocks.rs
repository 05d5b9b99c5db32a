//! Clocks that are set: the server's, and the nodes'.

use super::trial::Trial;
use crate::audit::{is_too_long, ttls_ms};
use crate::harness::{CAPACITY, RATE, Setup, stored_key};
use crate::measurements::Measurements;
use crate::plan::Plan;
use std::collections::HashSet;
use std::time::Duration;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::testing::skew::Skew;

pub(super) fn server(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let skew = Skew::none();
    let server = Server::start_skewed(ServerKind::Redis70, &skew);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    skew.set(60_000_000);
    let result = trial.settle_into(&mut measurements, (&[server.port()], 0.0));
    measurements.none("a minute forward: requests that failed", result.failed());
    measurements.at_least(
        "a minute forward: over-admission, to show that it was set",
        result.excess(),
        1.0,
    );
    measurements.at_most(
        "a minute forward: over-admission (M11)",
        result.excess(),
        CAPACITY as f64,
    );

    let skew = Skew::none();
    let server = Server::start_skewed(ServerKind::Redis70, &skew);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let from_us = trial.now_us();
    skew.set(-3_600_000_000);
    // What was written before lives an hour longer now, unless it is written again, as that of the hot key is.
    let mut before: HashSet<String> = ttls_ms(server.port()).into_iter().map(|(key, _)| key).collect();
    before.remove(&stored_key(&trial.nodes[0], "h0"));
    let result = trial.end_load_after(Duration::from_secs(4));
    let since = ttls_ms(server.port())
        .into_iter()
        .filter(|(key, _)| !before.contains(key));
    let since: Vec<i64> = since.map(|(_, life_ms)| life_ms).collect();
    let too_long = since.iter().filter(|life_ms| is_too_long(**life_ms)).count();
    let servers = [server.port()];
    trial.audit(&mut measurements, &result, (&servers, before.len() as f64));
    measurements.at_least("an hour back: keys written since", since.len() as f64, 10.0);
    measurements.none(
        "an hour back: keys written since that live too long (I2)",
        too_long as f64,
    );
    measurements.none("an hour back: requests that failed", result.failed());
    let admitted = |until_us: u64| {
        result.for_subject(0).filter(move |sample| {
            sample.is_admitted() && sample.is_shared() && (from_us..until_us).contains(&sample.sent_us)
        })
    };
    let first = admitted(u64::MAX)
        .map(|sample| sample.received_us.saturating_sub(from_us))
        .min();
    measurements.within(
        "an hour back: first admission after",
        first.map(Duration::from_micros),
        Duration::from_secs(1),
    );
    let due = RATE as f64 * 3.0;
    let share = admitted(from_us + 3_000_000).count() as f64 / due;
    measurements.share("an hour back: admitted in 3 s, of what is due", share, (0.9, 0.95));
    measurements.at_most(
        "an hour back: over-admission (M4)",
        result.excess(),
        result.allowance(0, RATE, 2),
    );
    measurements
}

pub(super) fn nodes(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let skews = [5_000_000, -5_000_000].map(|ahead_us| {
        let skew = Skew::none();
        skew.set(ahead_us);
        skew
    });
    let mut setup = Setup::two_nodes(&server.url());
    setup.environments = skews.iter().map(|skew| skew.environment().to_vec()).collect();
    let mut trial = Trial::start(plan, setup);
    skews[0].set(-60_000_000);
    trial.pause(plan.seconds(1.0, 3.0));
    skews[0].set(60_000_000);
    let result = trial.end_load_after(plan.seconds(2.0, 4.0));
    let mut measurements = Measurements::default();
    trial.audit(&mut measurements, &result, (&[server.port()], 0.0));
    measurements.none("requests that failed", result.failed());
    measurements.at_most("over-admission (M4)", result.excess(), result.allowance(0, RATE, 2));
    let longest = result
        .for_subject(0)
        .filter_map(|sample| sample.response?.retry_after_ms)
        .max();
    // One unit comes back in 10 ms.
    measurements.within(
        "longest reported wait",
        longest.map(Duration::from_millis),
        Duration::from_secs(1),
    );
    let admitted = result.for_subject(0).filter(|sample| sample.is_admitted()).count() as f64;
    let due = RATE as f64 * result.end_us() as f64 / 1e6;
    measurements.at_least("admitted of what is due", admitted / due, 0.95);
    measurements
}
