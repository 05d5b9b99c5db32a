//! The laws and the load over a cluster: both counters are in one slot, so that they settle at one instant.

use crate::load::{SHORT, check_load, rules};
use crate::redis::{connected, options, the_laws_hold};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_hold_on_a_cluster() {
    let cluster = Cluster::start_without_replicas(ServerKind::Redis70);
    let store = Arc::new(options(&cluster.url()).open());
    connected(&store).await;
    the_laws_hold(Arc::clone(&store), 40, 4).await;
    assert_eq!(
        store.metrics().compensated_charges.get(),
        0,
        "no request was in two slots"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn critical_attempts_pass_on_four_instances_over_a_cluster() {
    let cluster = Cluster::start_without_replicas(ServerKind::Redis70);
    let mut instances = Vec::new();
    for _ in 0..4 {
        let store = Arc::new(options(&cluster.url()).near_cache(true).open());
        connected(&store).await;
        instances.push(Arc::new(RuleLimiter::new(rules(false), store)));
    }
    check_load(SHORT.run(&instances).await, false);
}
