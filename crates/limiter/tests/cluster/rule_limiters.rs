//! Rules and limits in code over a cluster of which a part is unavailable.

use crate::fixture::{key, once, open_for, owner_of, remaining, subject_on, until};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::{Cost, Policy};
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{Attempt, Attribute, ParserOptions, RulesParser};
use tollgate_limiter::core::{Source, yaml};
use tollgate_limiter::limits::Concurrency;
use tollgate_limiter::store::Keyspace;
use tollgate_limiter::store::Store;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::counters::named_limit;
use tollgate_limiter::testing::servers::ServerKind;
use tollgate_limiter::{LimitCheck, Limiter, RuleLimiter, SlotCheck};

const RULES: &str = "rules:
- id: everybody
  limit: 1000/day
- id: open
  per: merchant
  limit: 100/h
  on_store_failure: open
- id: closed
  when: { kind: risky }
  per: merchant
  limit: 100/h
  on_store_failure: closed
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_closed_costs_the_others_nothing() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let store = Arc::new(open_for(&cluster, Duration::from_millis(300)));
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&yaml::parse(&Origin::new("rules.yaml", RULES)).expect("yaml"));
    let rules = reader.finish().expect("sound rules").rules;
    let limiter = RuleLimiter::new(rules, Arc::clone(&store));
    let counter = &limiter.rules().counters()[0];
    let everybody = (store.key(&store.template(&counter.counter(&[])), &[]), counter.limit);
    let used = async || everybody.1.capacity() - remaining(&*store, everybody.0, &everybody.1).await;
    let victim = (owner_of(&cluster, &store, everybody.0) + 1) % 3;
    let limit = once(1);
    let mut names = (0..).map(|number| format!("m_{number}"));
    let merchant = names
        .find(|name| owner_of(&cluster, &store, key(&*store, "any", &limit, &[name.as_bytes()])) == victim)
        .expect("one of them");
    let check = async |kind: &str| {
        let attributes = [("merchant", &*merchant), ("kind", kind)].map(|(name, value)| Attribute {
            name,
            value: value.as_bytes(),
        });
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        let checked = limiter.check(&attempt).await;
        let first = checked.verdict.rulings[0].decision.expect("it is there");
        (
            checked.verdict.allowed,
            checked.verdict.source,
            first.standing().remaining,
        )
    };
    assert_eq!(check("risky").await, (true, Source::Shared, 999));
    // The primary and its replica, so that nobody takes its place.
    for server in [victim + 3, victim] {
        cluster.servers[server].kill();
    }
    until("a fault", async || store.status().connection_error.is_some()).await;
    let host = format!("127.0.0.1:{}", cluster.servers[victim].port());
    let error = store.status().connection_error.unwrap_or_default();
    assert!(error.starts_with(&host), "{error}");
    assert_eq!(check("harmless").await, (true, Source::Open, 998));
    assert_eq!(used().await, 2);
    assert_eq!(check("risky").await, (false, Source::Closed, 998));
    assert_eq!(used().await, 2);
    assert_eq!(
        (
            store.metrics().compensated_charges.get(),
            store.metrics().uncompensated_charges.get()
        ),
        (1, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_cannot_be_decided_costs_no_limit_anything() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let limiter = Limiter::new(open_for(&cluster, Duration::from_millis(300)));
    let store = limiter.store();
    let near = subject_on(&cluster, store, 0, "");
    let far = subject_on(&cluster, store, 1, &near);
    let [one, two] = ["one", "two"].map(|id| named_limit(&limiter, id, once(100)));
    let watched = named_limit(&limiter, "watched", once(100)).with_policy(Policy::Shadow);
    let slots = Concurrency::at_most(1).lease_ttl(Duration::from_secs(3_600));
    let slots = limiter.concurrency("slots", slots).expect("valid");
    let left = async || remaining(store, one.key(store, &[near.as_bytes()]), one.limit()).await;
    let both = [LimitCheck::one(&one, &near), LimitCheck::one(&two, &far)];
    assert!(limiter.check_all(&both).await.allowed);
    assert_eq!(left().await, 99);
    // The primary and its replica, so that nobody takes its place.
    for server in [4, 1] {
        cluster.servers[server].kill();
    }
    until("a fault", async || store.status().connection_error.is_some()).await;
    for _ in 0..5 {
        let settlement = limiter.check_all(&both).await;
        assert!(!settlement.allowed && settlement.outcomes[1].is_err(), "{settlement:?}");
        let standing = settlement.outcomes[0].map(|outcome| outcome.decision.standing().remaining);
        assert_eq!((standing, left().await), (Ok(99), 99));
    }
    let slot = [SlotCheck::new(&slots, &near)];
    let (settlement, permit) = limiter.acquire_all(&both, &slot).await;
    assert!(!settlement.allowed && permit.is_none(), "{settlement:?}");
    assert!(limiter.acquire(&slots, &near).await.is_ok(), "the slot was given back");
    assert_eq!(left().await, 99);
    // A shadow denies nothing, decided or not.
    let beside = [LimitCheck::one(&one, &near), LimitCheck::one(&watched, &far)];
    assert!(limiter.check_all(&beside).await.allowed);
    assert_eq!(left().await, 98);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_cannot_be_reached_does_not_end_the_renewal_of_the_others() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let limiter = Limiter::new(open_for(&cluster, Duration::from_millis(300)));
    let store = limiter.store();
    let near = subject_on(&cluster, store, 0, "");
    let far = subject_on(&cluster, store, 1, &near);
    let slots = Concurrency::at_most(1).lease_ttl(Duration::from_secs(3_600));
    let slots = limiter.concurrency("slots", slots).expect("valid");
    let (_, permit) = limiter
        .acquire_all(&[], &[SlotCheck::new(&slots, &far), SlotCheck::new(&slots, &near)])
        .await;
    let permit = permit.expect("slots are free");
    let counter = named_limit(&limiter, "slots", *slots.limit());
    let ttl = format!("PTTL {}", store.key_text(&counter.key(store, &[near.as_bytes()])));
    let ttl_ms = |cluster: &Cluster| -> u64 {
        let left = cluster.command(0, &ttl).expect("a term");
        left.parse().expect("a number")
    };
    let first = ttl_ms(&cluster);
    until("an older lease", async || ttl_ms(&cluster) + 2_000 < first).await;
    for server in [4, 1] {
        cluster.servers[server].kill();
    }
    let before = ttl_ms(&cluster);
    assert!(permit.renew().await.is_err(), "one of them is unavailable");
    assert!(ttl_ms(&cluster) > before, "the other was renewed");
}
