//! The laws over a Redis server, by its clock; and where it keeps the two counters.

use crate::attempt;
use crate::laws::{RandomAttempts, of_case, random_rule};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::Source;
use tollgate_limiter::core::testing::random::Random;
use tollgate_limiter::core::testing::rules::rule_set;
use tollgate_limiter::store::redis::{Redis, RedisOptions};
use tollgate_limiter::store::{Keyspace, Store};
use tollgate_limiter::testing::eventually;
use tollgate_limiter::testing::reserve::ReserveLaws;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// A store that asks the server each time, with a deadline that a busy machine keeps.
pub(crate) fn options(url: &str) -> RedisOptions {
    Redis::options(url)
        .expect("a URL")
        .deadline(Duration::from_secs(5))
        .near_cache(false)
}

pub(crate) async fn connected(store: &Redis) {
    eventually("a connection", async || store.status().connection_error.is_none()).await;
}

/// Random rules and attempts over a store with a clock of its own.
pub(crate) async fn the_laws_hold(store: Arc<Redis>, rules: u64, cases: u64) {
    let (mut denied, mut reserved) = (0_u64, 0_u64);
    for seed in 0..rules {
        let mut random = Random::new(seed);
        let (rule, unit_us) = random_rule(&mut random, &[1, 10, 50, 1_000]);
        let limiter = RuleLimiter::new(rule.rules.clone(), Arc::clone(&store));
        for case in 0..cases {
            let (case, mut laws) = (format!("{seed} {case}"), ReserveLaws::new(&rule));
            let attempts = RandomAttempts::new(&mut random, &rule);
            for step in 0..random.between(5, 30) {
                if random.one_in(8) {
                    let pause_us = random.below(unit_us * 4).min(4_000);
                    tokio::time::sleep(Duration::from_micros(pause_us)).await;
                }
                let (is_critical, cost) = attempts.next(&mut random);
                let attributes = of_case(&case, is_critical);
                let checked = limiter.check(&attempt(&attributes, cost.get())).await;
                let (verdict, now) = (checked.verdict, checked.now.expect("the server's time"));
                assert_eq!(verdict.source, Source::Shared);
                denied += u64::from(!verdict.allowed);
                reserved += u64::from(verdict.rulings.iter().any(|ruling| ruling.reserved));
                let recorded = laws.record(is_critical, cost, now, verdict.allowed);
                assert!(
                    recorded.is_ok(),
                    "{recorded:?}: seed {seed}, case {case}, step {step}: {rule:?}"
                );
            }
        }
    }
    assert!(denied > 500 && reserved > 100, "{denied} {reserved}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_hold_by_the_clock_of_a_server() {
    let server = Server::start(ServerKind::Redis70);
    let store = Arc::new(options(&server.url()).open());
    connected(&store).await;
    the_laws_hold(store, 60, 6).await;
}

#[test]
fn both_counters_have_one_tag() {
    let members = [
        "limit: 100/s",
        "limit: [100/s, 1000/min]",
        "per: merchant, limit: 100/s",
        "algorithm: concurrency, limit: 10",
        "per: [merchant, endpoint], algorithm: concurrency, limit: 10",
    ];
    // No server is needed to name a key.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _guard = runtime.enter();
    let store = options("redis://127.0.0.1:1").open();
    let rules: Vec<String> = (0..40)
        .flat_map(|number| {
            let rule = |(index, members): (usize, &&str)| {
                format!(
                    "- {{ id: r{number}.{index}, {members}, reserve: {{ share: 20%, for: {{ priority: critical }} }} }}\n"
                )
            };
            members.iter().enumerate().map(rule).collect::<Vec<_>>()
        })
        .collect();
    let rules = rule_set(&format!("rules:\n{}", rules.concat()));
    let mut tags = std::collections::HashSet::new();
    for pair in rules.counters().chunks(2) {
        let per_count = usize::from(pair[0].id.ends_with(".2")) + 2 * usize::from(pair[0].id.ends_with(".4"));
        let per = &[&b"m_1"[..], b"/pay"][..per_count];
        let text = |spec: &tollgate_limiter::core::rules::CounterSpec| {
            let template = store.template(&spec.counter(&[]));
            store.key_text(&store.key(&template, per))
        };
        let [all, others] = [text(&pair[0]), text(&pair[1])];
        // Windows of a list follow each other: all and others of the first, then of the second.
        assert_eq!(pair[0].id, pair[1].id);
        let tag = |key: &str| key.split(['{', '}']).nth(1).map(str::to_owned).expect("a tag");
        assert_eq!(tag(&all), tag(&others), "{}", pair[0].id);
        assert_ne!(all, others);
        tags.insert(tag(&all));
    }
    assert!(tags.len() > 20, "rules are spread over tags: {}", tags.len());
}
