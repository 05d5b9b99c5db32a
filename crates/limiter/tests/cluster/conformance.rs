//! What every store must do, with keys in several slots.

use std::time::Duration;
use tokio::runtime::Runtime;
use tollgate_limiter::conformance::{Harness, conformance};
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

fn conforms(kind: ServerKind) {
    let cluster = Cluster::start(kind);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = Redis::options(&cluster.url()).expect("a URL");
        let store = options.deadline(Duration::from_secs(5)).open();
        let survey = store.diagnose().await.expect("a cluster");
        assert_eq!(survey.warnings, Vec::<String>::new());
        assert!(
            survey.server.starts_with("a cluster of 3 primaries, "),
            "{}",
            survey.server
        );
        let harness = Harness::new(store).compensated().in_runtime();
        let report = conformance(&harness).await.expect("a store as it should be");
        assert!(report.answers > 1_000, "{report}");
        let metrics = harness.store().metrics();
        assert!(metrics.compensated_charges.get() > 0, "nothing was ever taken back");
        assert_eq!((metrics.uncompensated_charges.get(), metrics.redirects.get()), (0, 0));
        assert_eq!(metrics.errors().map(|(_, count)| count).sum::<u64>(), 0);
    });
}

#[test]
fn redis_6_2_conforms() {
    conforms(ServerKind::Redis62);
}

#[test]
fn redis_7_0_conforms() {
    conforms(ServerKind::Redis70);
}

#[test]
fn valkey_conforms() {
    conforms(ServerKind::Valkey);
}
