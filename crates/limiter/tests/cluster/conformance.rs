//! What every store must do, with keys in several slots.

use crate::fixture::options;
use std::time::Duration;
use tollgate_limiter::conformance::Harness;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::conforms;
use tollgate_limiter::testing::servers::ServerKind;

fn cluster_conforms(kind: ServerKind) {
    let cluster = Cluster::start(kind);
    let options = options(&cluster, Duration::from_secs(5));
    conforms(options, Harness::compensated, |survey, store| {
        assert!(
            survey.server.starts_with("a cluster of 3 primaries, "),
            "{}",
            survey.server
        );
        let metrics = store.metrics();
        assert!(metrics.compensated_charges.get() > 0, "nothing was ever taken back");
        assert_eq!((metrics.uncompensated_charges.get(), metrics.redirects.get()), (0, 0));
        assert_eq!(metrics.errors().map(|(_, count)| count).sum::<u64>(), 0);
    });
}

#[test]
fn redis_6_2_conforms() {
    cluster_conforms(ServerKind::Redis62);
}

#[test]
fn redis_7_0_conforms() {
    cluster_conforms(ServerKind::Redis70);
}

#[test]
fn valkey_conforms() {
    cluster_conforms(ServerKind::Valkey);
}
