//! Clocks that are set: the server's, and the nodes'.

use super::process::{over, settle};
use crate::audit::{audit, is_too_long, lives_ms};
use crate::bench::{CAPACITY, RATE, Setup, stored_key};
use crate::figures::Figures;
use crate::plan::Plan;
use std::collections::HashSet;
use std::time::Duration;
use tollgate_limiter::testing::servers::{ServerKind, Server};
use tollgate_limiter::testing::skew::Skew;

pub(super) fn server(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    let skew = Skew::none();
    let server = Server::start_skewed(ServerKind::Redis70, &skew);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    skew.set(60_000_000);
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    figures.none("a minute forward: requests that failed", seen.failed());
    figures.at_least(
        "a minute forward: over-admission, to show that it was set",
        seen.excess(),
        1.0,
    );
    figures.at_most("a minute forward: over-admission (M11)", seen.excess(), CAPACITY as f64);

    let skew = Skew::none();
    let server = Server::start_skewed(ServerKind::Redis70, &skew);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let from_us = bench.now_us();
    skew.set(-3_600_000_000);
    // What was written before lives an hour longer now, unless it is written again, as that of the hot key is.
    let mut before: HashSet<String> = lives_ms(server.port()).into_iter().map(|(key, _)| key).collect();
    before.remove(&stored_key(&bench.nodes[0], "h0"));
    bench.pause(Duration::from_secs(4));
    let seen = bench.end_load();
    let since = lives_ms(server.port())
        .into_iter()
        .filter(|(key, _)| !before.contains(key));
    let since: Vec<i64> = since.map(|(_, life_ms)| life_ms).collect();
    let too_long = since.iter().filter(|life_ms| is_too_long(**life_ms)).count();
    let servers = [server.port()];
    audit(
        &mut figures,
        &mut bench,
        &seen,
        &baseline,
        (&servers, before.len() as f64),
    );
    figures.at_least("an hour back: keys written since", since.len() as f64, 10.0);
    figures.none(
        "an hour back: keys written since that live too long (I2)",
        too_long as f64,
    );
    figures.none("an hour back: requests that failed", seen.failed());
    let admitted = |until_us: u64| {
        seen.of(0).filter(move |sample| {
            sample.is_admitted() && sample.is_shared() && (from_us..until_us).contains(&sample.sent_us)
        })
    };
    let first = admitted(u64::MAX)
        .map(|sample| sample.received_us.saturating_sub(from_us))
        .min();
    figures.within(
        "an hour back: first admission after",
        first.map(Duration::from_micros),
        Duration::from_secs(1),
    );
    let due = RATE as f64 * 3.0;
    let share = admitted(from_us + 3_000_000).count() as f64 / due;
    figures.share("an hour back: admitted in 3 s, of what is due", share, (0.9, 0.95));
    figures.at_most(
        "an hour back: over-admission (M4)",
        seen.excess(),
        seen.allowance(0, RATE, 2),
    );
    figures
}

pub(super) fn nodes(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let skews = [5_000_000, -5_000_000].map(|ahead_us| {
        let skew = Skew::none();
        skew.set(ahead_us);
        skew
    });
    let mut setup = Setup::over(&server.url());
    setup.environments = skews.iter().map(|skew| skew.environment().to_vec()).collect();
    let (mut bench, baseline) = over(plan, setup);
    skews[0].set(-60_000_000);
    bench.pause(plan.seconds(1.0, 3.0));
    skews[0].set(60_000_000);
    bench.pause(plan.seconds(2.0, 4.0));
    let seen = bench.end_load();
    let mut figures = Figures::default();
    audit(&mut figures, &mut bench, &seen, &baseline, (&[server.port()], 0.0));
    figures.none("requests that failed", seen.failed());
    figures.at_most("over-admission (M4)", seen.excess(), seen.allowance(0, RATE, 2));
    let longest = seen.of(0).filter_map(|sample| sample.answer?.retry_after_ms).max();
    // One unit comes back in 10 ms.
    figures.within(
        "longest time to wait that was told",
        longest.map(Duration::from_millis),
        Duration::from_secs(1),
    );
    let admitted = seen.of(0).filter(|sample| sample.is_admitted()).count() as f64;
    let due = RATE as f64 * seen.end_us() as f64 / 1e6;
    figures.at_least("admitted of what is due", admitted / due, 0.95);
    figures
}
