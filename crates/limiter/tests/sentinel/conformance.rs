//! What every store must do, through sentinels.

use std::time::Duration;
use tokio::runtime::Runtime;
use tollgate_limiter::conformance::{Harness, conformance};
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::ServerKind;

fn conforms(kind: ServerKind) {
    let watched = SentinelGroup::start(kind);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = Redis::options(&watched.url()).expect("a URL");
        let store = options.deadline(Duration::from_secs(5)).open();
        let survey = store.diagnose().await.expect("a primary");
        assert_eq!(survey.warnings, Vec::<String>::new());
        let harness = Harness::new(store).in_runtime();
        conformance(&harness).await.expect("a store as it should be");
    });
}

#[test]
fn redis_7_0_conforms() {
    conforms(ServerKind::Redis70);
}

#[test]
fn valkey_conforms() {
    conforms(ServerKind::Valkey);
}
