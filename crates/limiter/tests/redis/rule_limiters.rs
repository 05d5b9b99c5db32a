//! Rule limiters over a server: edits under live keys; and one that does not answer: whatever is asked, it takes one
//! deadline.

use crate::fixture::Fixture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::rules::{Attempt, Attribute, EditProblems, RowEdit, Ruling};
use tollgate_core::testing::limits::COUNTING;
use tollgate_core::testing::rules::rule_set;
use tollgate_core::{Calendar, CalendarUnit, Cost, Retry, Source};
use tollgate_limiter::clock::Clock;
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

/// A store with the deadline of these tests.
fn open(fixture: &Fixture) -> Redis {
    let options = Redis::options(&fixture.server.url()).expect("a URL");
    options.deadline(DEADLINE).open()
}

/// A limiter over a server that has answered, and then is frozen.
async fn frozen() -> (Fixture, RuleLimiter<Redis>) {
    let fixture = Fixture::start(ServerKind::Redis70);
    let limiter = RuleLimiter::new(rule_set(RULES), Arc::new(open(&fixture)));
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

/// What remains of each limit after a check of `cost`.
async fn remaining_after(store: &Arc<Redis>, text: &str, cost: u64) -> Vec<u64> {
    let limiter = RuleLimiter::new(rule_set(text), Arc::clone(store));
    let attempt = Attempt {
        cost: Cost::new(cost).expect("in range"),
        ..attempt()
    };
    remaining_of(&limiter, &attempt).await
}

/// What remains of each limit after a check, once the store is connected.
async fn remaining_of(limiter: &RuleLimiter<Redis>, attempt: &Attempt<'_>) -> Vec<u64> {
    let store = limiter.store();
    let from = Instant::now();
    loop {
        let verdict = limiter.check(attempt).await.verdict;
        if verdict.source == Source::Shared {
            let remaining = |ruling: &Ruling<'_>| ruling.decision.map(|decision| decision.standing().remaining);
            return verdict.rulings.iter().filter_map(remaining).collect();
        }
        assert!(
            from.elapsed() < Duration::from_secs(10),
            "{:?}",
            store.status().connection_error
        );
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_window_keeps_its_counter_when_it_joins_a_list_and_when_it_leaves() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = Arc::new(open(&fixture));
    for algorithm in COUNTING {
        let rules = |limit: &str| format!("rules:\n- {{ id: {algorithm}, algorithm: {algorithm}, limit: {limit} }}\n");
        // Years, so that no unit returns meanwhile.
        for (limit, cost, expected) in [
            ("100/365day", 40, &[60][..]),
            ("[100/365day, 50/300day]", 10, &[50, 40]),
            ("50/300day", 5, &[35]),
            ("[50/300day, 100/8760h]", 0, &[35, 50]),
            ("1000/365day", 0, if algorithm == "gcra" { &[500] } else { &[950] }),
        ] {
            let remaining = remaining_after(&store, &rules(limit), cost).await;
            assert_eq!(remaining, expected, "{algorithm} {limit}");
        }
    }
}

#[tokio::test]
async fn a_quota_of_a_year_ends_when_the_year_does() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = Arc::new(open(&fixture));
    let rules = |limit: &str| format!("rules:\n- {{ id: a, algorithm: fixed_window, {limit} }}\n");
    let first = rules("limit: [100/month, 1000/year], calendar: Asia/Tokyo");
    assert_eq!(remaining_after(&store, &first, 30).await, [70, 970]);
    let alone = rules("limit: 1000/year, calendar: Asia/Tokyo");
    assert_eq!(remaining_after(&store, &alone, 20).await, [950]);
    // As the server's clock has it, and the core's calendar.
    let limiter = RuleLimiter::new(rule_set(&alone), Arc::clone(&store));
    let denied = Attempt {
        cost: Cost::new(951).expect("in range"),
        ..attempt()
    };
    let before = Clock::wall().now();
    let verdict = limiter.check(&denied).await.verdict;
    let retry = verdict.rulings.first().and_then(|ruling| ruling.decision?.retry());
    let Some(Retry::After(wait)) = retry else {
        panic!("{verdict:?}");
    };
    let calendar = Calendar::new("Asia/Tokyo", CalendarUnit::Year).expect("a zone");
    let expected = calendar.boundary_from(before).since(before);
    assert!(
        wait <= expected && expected.get() - wait.get() < 10_000_000,
        "{wait:?} {expected:?}"
    );
}

#[tokio::test]
async fn a_row_that_changes_only_numbers_keeps_the_usage() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = Arc::new(fixture.options().open());
    for algorithm in COUNTING {
        let text = format!("rules:\n- {{ id: {algorithm}, per: user, algorithm: {algorithm}, limit: 100/365day }}\n");
        let mut limiter = RuleLimiter::new(rule_set(&text), Arc::clone(&store));
        // Years, so that no unit returns meanwhile. Debt of gcra is time, so a higher rate makes less of it.
        for (terms, cost, expected) in [
            (None, 40, &[60][..]),
            (
                Some("200/365day"),
                10,
                if algorithm == "gcra" { &[110] } else { &[150] },
            ),
            (
                Some("[200/365day, 70/300day]"),
                5,
                if algorithm == "gcra" { &[105, 65] } else { &[145, 65] },
            ),
            (Some("0/min"), 1, &[0]),
            (Some("unlimited"), 1, &[]),
            (None, 0, if algorithm == "gcra" { &[52] } else { &[45] }),
        ] {
            let edit = RowEdit::new(Attempt::DOMAIN, algorithm, [("user", "u")], terms);
            let (next, problems) = limiter.amended(&[edit], &[]);
            assert_eq!(problems, EditProblems::default());
            limiter = next;
            let user = [Attribute {
                name: "user",
                value: b"u",
            }];
            let attempt = Attempt {
                attributes: &user,
                cost: Cost::new(cost).expect("in range"),
                ..attempt()
            };
            let remaining = remaining_of(&limiter, &attempt).await;
            assert_eq!(remaining, expected, "{algorithm} {terms:?}");
        }
    }
}
