//! What every store must do, through sentinels.

use std::time::Duration;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::conforms;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::ServerKind;

fn group_conforms(kind: ServerKind) {
    let watched = SentinelGroup::start(kind);
    let options = Redis::options(&watched.url()).expect("a URL");
    conforms(options.deadline(Duration::from_secs(5)), |harness| harness, |_, _| ());
}

#[test]
fn redis_7_0_conforms() {
    group_conforms(ServerKind::Redis70);
}

#[test]
fn valkey_conforms() {
    group_conforms(ServerKind::Valkey);
}
