//! Ten times the limit from four instances, and critical attempts within the reserve: none of them is denied, and the
//! others stay within their part. `tollgate-bench reserve` does the same for longer.

use crate::redis::{connected, options};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::rules::RuleSet;
use tollgate_limiter::core::testing::rules::rule_set;
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::reserve::{ReserveLoad, ReserveObservation, max_excess};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// 200 critical attempts a second and 10,000 others on four instances.
pub(crate) const SHORT: ReserveLoad = ReserveLoad {
    critical_per_s: 50,
    others_per_s: 2_500,
    length: Duration::from_secs(3),
};

pub(crate) fn rules(lend: bool) -> RuleSet {
    rule_set(&format!(
        "rules: [{{ id: ceiling, limit: 1000/s, reserve: {{ share: 20%, for: {{ priority: critical }}, lend: {lend} }} }}]"
    ))
}

/// No critical attempt is denied, the others are within their part, and everything within the limit.
pub(crate) fn check_load(seen: Vec<ReserveObservation>, lend: bool) {
    let sum = ReserveObservation::sum(seen);
    assert_eq!(sum.critical_denied, 0, "of {}", sum.critical);
    assert!(
        sum.critical > 200 && sum.others > 4_000,
        "{} {}",
        sum.critical,
        sum.others
    );
    assert!(sum.others_us.len() > 1_600, "{}", sum.others_us.len());
    assert!(sum.reserved > 100, "{}", sum.reserved);
    assert_eq!(max_excess(&sum.all_us, 1_000), 0);
    if !lend {
        assert_eq!(max_excess(&sum.others_us, 800), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn critical_attempts_pass_on_four_instances_over_redis() {
    let server = Server::start(ServerKind::Redis70);
    for lend in [false, true] {
        let mut instances = Vec::new();
        for _ in 0..4 {
            let prefix = if lend { "lent" } else { "kept" };
            let store = options(&server.url()).near_cache(true).prefix(prefix).open();
            connected(&store).await;
            instances.push(Arc::new(RuleLimiter::new(rules(lend), Arc::new(store))));
        }
        check_load(SHORT.run(&instances).await, lend);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn critical_attempts_pass_in_memory() {
    for lend in [false, true] {
        let instance = RuleLimiter::new(rules(lend), Arc::new(Memory::options().build()));
        let load = ReserveLoad {
            critical_per_s: 200,
            others_per_s: 10_000,
            ..SHORT
        };
        check_load(load.run(&[Arc::new(instance)]).await, lend);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_instance_keeps_its_share_of_the_reserve_while_redis_is_away() {
    let mut server = Server::start(ServerKind::Redis70);
    let mut instances = Vec::new();
    for _ in 0..4 {
        let store = Redis::options(&server.url()).expect("a URL").open();
        connected(&store).await;
        let options = FallbackOptions {
            instances: Some(4),
            ..FallbackOptions::default()
        };
        let store = Arc::new(Fallback::new(Arc::new(store), options));
        instances.push(Arc::new(RuleLimiter::new(rules(false), store)));
    }
    // 80 % of the limit on four instances: 200 a second each, of which 40 are reserved.
    let load = ReserveLoad {
        critical_per_s: 30,
        length: Duration::from_secs(4),
        ..SHORT
    };
    let (seen, ()) = tokio::join!(load.run(&instances), async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.kill();
    });
    for (index, one) in seen.iter().enumerate() {
        assert_eq!(one.critical_denied, 0, "instance {index}: of {}", one.critical);
        assert!(one.local > 1_000, "the outage bit: {}", one.local);
        assert!(one.local_others_us.len() > 160, "{}", one.local_others_us.len());
        assert_eq!(max_excess(&one.local_others_us, 160), 0, "instance {index}");
        assert_eq!(max_excess(&one.local_us, 200), 0, "instance {index}");
    }
    let sum = ReserveObservation::sum(seen);
    assert_eq!(max_excess(&sum.others_us, 800), 0);
}
