//! Rule books over a server that does not answer: whatever is asked, it takes one deadline.

use crate::fixture::Fixture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::problem::Origin;
use tollgate_core::rules::{Attempt, ParserOptions, RulesParser};
use tollgate_core::{Cost, Source, yaml};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::ServerKind;
use tollgate_limiter::{AttemptItem, Direction, RuleLimiter};

const DEADLINE: Duration = Duration::from_secs(1);

const RULES: &str = "rules:
- { id: a, limit: 100/h }
- { id: b, limit: 100/min }
- { id: c, limit: 100/s }
- { id: banned, when: { kind: banned }, limit: 0/min }
";

fn attempt() -> Attempt<'static> {
    Attempt {
        domain: Attempt::DOMAIN,
        attributes: &[],
        cost: Cost::ONE,
    }
}

/// A book over a server that has answered, and then is frozen.
async fn frozen() -> (Fixture, RuleLimiter<Redis>) {
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&yaml::parse(&Origin::new("rules.yaml", RULES)).expect("yaml"));
    let rules = reader.finish().expect("sound rules").rules;
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = Redis::options(&fixture.server.url())
        .expect("a URL")
        .deadline(DEADLINE)
        .open();
    let limiter = RuleLimiter::new(rules, Arc::new(store));
    let from = Instant::now();
    while limiter.check(&attempt()).await.verdict.source != Source::Shared {
        assert!(
            from.elapsed() < Duration::from_secs(10),
            "{:?}",
            limiter.store().status().connection_error
        );
        sleep(Duration::from_millis(5)).await;
    }
    fixture.server.freeze();
    (fixture, limiter)
}

/// Less than another deadline, or half of one to connect anew, would take.
fn is_one_deadline(from: Instant) {
    let took = from.elapsed();
    assert!(took >= DEADLINE && took < DEADLINE * 13 / 10, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_banned_attempt_takes_one_deadline() {
    let (_fixture, limiter) = frozen().await;
    let kind = [tollgate_core::rules::Attribute {
        name: "kind",
        value: b"banned",
    }];
    let from = Instant::now();
    let checked = limiter
        .check(&Attempt {
            attributes: &kind,
            ..attempt()
        })
        .await;
    assert!(!checked.verdict.allowed);
    is_one_deadline(from);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_of_several_limits_takes_one_deadline() {
    let (_fixture, limiter) = frozen().await;
    let from = Instant::now();
    assert!(limiter.refund(&attempt()).await.allowed);
    is_one_deadline(from);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_parts_are_given_back_within_one_deadline() {
    let (_fixture, limiter) = frozen().await;
    let part = AttemptItem {
        attempt: attempt(),
        direction: Direction::Refund,
        inline_limit: None,
    };
    let from = Instant::now();
    assert!(limiter.check_all(&[part; 3]).await.allowed);
    is_one_deadline(from);
}

/// Rules that say `local`, over a store without a fallback, once passed while the server did not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_share_a_local_rule_is_closed() {
    let (_fixture, limiter) = frozen().await;
    let verdict = limiter.check(&attempt()).await.verdict;
    assert!(!verdict.allowed && verdict.is_closed(), "{verdict:?}");
}
