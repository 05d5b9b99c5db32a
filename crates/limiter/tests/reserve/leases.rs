//! A reserve of a concurrency limit: one lease holds a slot of both counters.

use crate::redis::{connected, options};
use crate::{attempt, limiter, stopped_store};
use std::sync::Arc;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::rules::Attribute;
use tollgate_limiter::core::testing::random::Random;
use tollgate_limiter::core::testing::rules::{attributes, rule_set};
use tollgate_limiter::store::CounterStore;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::{CheckResult, RuleLimiter};

const SLOTS: &str = "
rules:
- { id: slots, algorithm: concurrency, limit: 10, lease_ttl: 30s, reserve: { share: 20%, for: { priority: critical } } }
";

fn class(is_critical: bool) -> Vec<Attribute<'static>> {
    attributes(&[if is_critical {
        "priority=critical"
    } else {
        "priority=normal"
    }])
}

async fn acquire<S: CounterStore>(limiter: &RuleLimiter<S>, is_critical: bool, cost: u64) -> CheckResult<'_> {
    limiter.check(&attempt(&class(is_critical), cost)).await
}

#[test]
fn one_lease_covers_both_counters() {
    let (limiter, _) = limiter(SLOTS);
    block_on(async {
        let first = acquire(&limiter, false, 8).await.lease.expect("a lease");
        let denied = acquire(&limiter, false, 1).await.verdict;
        let ruling = denied.nearest().expect("a ruling");
        assert!(!denied.allowed && ruling.reserved);
        let numbers = ruling.decision.map(|decision| *decision.standing()).expect("decided");
        assert_eq!((numbers.limit, numbers.remaining), (8, 0));
        let critical = acquire(&limiter, true, 2).await.lease.expect("a lease");
        let full = acquire(&limiter, true, 1).await.verdict;
        let ruling = full.nearest().expect("a ruling");
        assert!(!full.allowed && !ruling.reserved);
        assert_eq!(ruling.decision.map(|decision| decision.standing().limit), Some(10));
        // A slot that critical attempts give back is not for the others.
        assert_eq!(limiter.release(&critical).await, Ok(true));
        assert!(!acquire(&limiter, false, 1).await.verdict.allowed);
        assert_eq!(limiter.release(&first).await, Ok(true));
        assert_eq!(limiter.release(&first).await, Ok(false), "once is all");
        assert!(
            acquire(&limiter, false, 8).await.verdict.allowed,
            "both slots are free again"
        );
    });
}

#[test]
fn a_renewed_lease_keeps_both_slots() {
    let (store, clock) = stopped_store();
    let limiter = RuleLimiter::new(rule_set(SLOTS), store);
    block_on(async {
        let lease = acquire(&limiter, false, 8).await.lease.expect("a lease");
        clock.advance(Micros::from_secs(20));
        assert_eq!(limiter.renew(&lease).await, Ok(Some(Micros::from_secs(30))));
        clock.advance(Micros::from_secs(20));
        assert!(!acquire(&limiter, false, 1).await.verdict.allowed);
        assert!(acquire(&limiter, true, 2).await.verdict.allowed);
        assert!(!acquire(&limiter, true, 1).await.verdict.allowed);
        clock.advance(Micros::from_secs(11));
        assert!(acquire(&limiter, false, 8).await.verdict.allowed, "both have expired");
    });
}

/// Random acquisitions and releases, compared with two plain counts.
async fn slots_are_counted_as_two_plain_counts<S: CounterStore>(limiter: &RuleLimiter<S>, steps: u64) {
    let mut random = Random::new(7);
    let mut held: Vec<(String, bool, u64)> = Vec::new();
    let (mut critical_denied, mut others_denied) = (0, 0);
    for step in 0..steps {
        let in_use = |of_critical: bool| -> u64 {
            let of_class = held.iter().filter(|(_, is_critical, _)| *is_critical == of_critical);
            of_class.map(|(_, _, cost)| cost).sum()
        };
        let (critical, others) = (in_use(true), in_use(false));
        assert!(
            critical + others <= 10 && others <= 8,
            "step {step}: {critical} {others}"
        );
        if !held.is_empty() && random.one_in(3) {
            let index = random.below(held.len() as u64) as usize;
            let (lease, ..) = held.swap_remove(index);
            assert_eq!(limiter.release(&lease).await, Ok(true), "step {step}");
            continue;
        }
        let (is_critical, cost) = (random.one_in(3), random.pick(&[1, 1, 1, 2, 3]));
        let checked = acquire(limiter, is_critical, cost).await;
        let fits = critical + others + cost <= 10 && (is_critical || others + cost <= 8);
        assert_eq!(checked.verdict.allowed, fits, "step {step}: {critical} {others}");
        // Critical work within the reserve never waits for the others.
        assert!(fits || !is_critical || critical + cost > 2, "step {step}");
        critical_denied += u64::from(is_critical && !fits);
        others_denied += u64::from(!is_critical && !fits);
        if let Some(lease) = checked.lease {
            held.push((lease, is_critical, cost));
        }
    }
    let enough = steps / 100;
    assert!(
        critical_denied > enough && others_denied > enough,
        "{critical_denied} {others_denied}"
    );
}

#[test]
fn slots_are_counted_in_memory() {
    let (limiter, _) = limiter(SLOTS);
    block_on(slots_are_counted_as_two_plain_counts(&limiter, 100_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_counted_on_a_server() {
    let server = Server::start(ServerKind::Redis70);
    let store = options(&server.url()).open();
    connected(&store).await;
    let limiter = RuleLimiter::new(rule_set(SLOTS), Arc::new(store));
    slots_are_counted_as_two_plain_counts(&limiter, 2_000).await;
}
