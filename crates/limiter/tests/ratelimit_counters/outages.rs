//! Counters of hits while the server is unavailable.

use crate::fixture::{attempt, counters, entries, hit, open, query, rules, until};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::Source;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::StoreMode;
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const KEY: &str = "shop_year_x_1766016000";

fn around(server: &Server, mode: StoreMode) -> Arc<Fallback<Redis>> {
    let store = Redis::options(&server.url()).expect("a URL");
    let store = store
        .deadline(Duration::from_millis(200))
        .ratelimit_counters(counters())
        .open();
    let options = FallbackOptions {
        instances: Some(2),
        mode,
        ..FallbackOptions::default()
    };
    Arc::new(Fallback::new(Arc::new(store), options))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_is_away_this_instance_decides_by_its_share_and_nothing_is_paid_back() {
    let mut server = Server::start(ServerKind::Redis70);
    let store = around(&server, StoreMode::Auto);
    let limiter = RuleLimiter::new(rules(false), Arc::clone(&store));
    until("an answer", async || {
        hit(&limiter, &["year=y"], 1).await.2 == Source::Shared
    })
    .await;
    // Four fifths of a hundred, for one of two instances; of what was counted there, this one has its part.
    assert_eq!(hit(&limiter, &["year=x"], 50).await, (true, 50, Source::Shared));
    server.kill();
    until("an outage", async || {
        hit(&limiter, &["year=y"], 0).await.2 == Source::Local
    })
    .await;
    let mut admitted = 0;
    for _ in 0..100 {
        let (is_allowed, _, source) = hit(&limiter, &["year=x"], 1).await;
        assert_eq!(source, Source::Local);
        admitted += u32::from(is_allowed);
    }
    assert_eq!(admitted, 20);
    // A look tells the same.
    let x = entries(&["year=x"]);
    let reply = limiter.explain(&attempt(&x, 1)).await;
    assert_eq!((reply.verdict.allowed, reply.verdict.source), (false, Source::Local));
    // What is given back is given here.
    let first = hit(&limiter, &["year=z"], 5).await;
    let given = limiter.refund(&attempt(&entries(&["year=z"]), 5)).await;
    assert_eq!(given.source, Source::Local);
    assert_eq!(hit(&limiter, &["year=z"], 5).await, first);
    server.revive();
    until("its return", async || {
        hit(&limiter, &["year=y"], 0).await.2 == Source::Shared
    })
    .await;
    // It restarted empty, and what was allowed meanwhile is not repaid.
    assert_eq!(hit(&limiter, &["year=x"], 1).await, (true, 99, Source::Shared));
    assert_eq!(query::<u64>(&server, &["GET", KEY]), 1);
    assert_eq!(store.metrics().repaid_units(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_to_decide_does() {
    let mut server = Server::start(ServerKind::Redis70);
    let store = around(&server, StoreMode::LocalOnly);
    let limiter = RuleLimiter::new(rules(false), Arc::clone(&store));
    assert_eq!(hit(&limiter, &["year=x"], 1).await.2, Source::Local);
    let x = entries(&["year=x"]);
    assert!(limiter.refund(&attempt(&x, 1)).await.allowed);
    assert_eq!(query::<Option<u64>>(&server, &["GET", KEY]), None);
    store.set_mode(StoreMode::SharedOnly);
    let closed = RuleLimiter::new(rules(false).closed_without_store(), Arc::clone(&store));
    until("an answer", async || {
        hit(&closed, &["year=x"], 1).await.2 == Source::Shared
    })
    .await;
    server.kill();
    let attempt = attempt(&x, 1);
    until("an outage", async || {
        closed.check(&attempt).await.verdict.source == Source::Closed
    })
    .await;
    assert!(!closed.check(&attempt).await.verdict.allowed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_costs_a_deadline_and_then_nothing() {
    let server = Server::start(ServerKind::Redis70);
    let limiter = RuleLimiter::new(rules(false), around(&server, StoreMode::Auto));
    until("an answer", async || {
        hit(&limiter, &["year=x"], 1).await.2 == Source::Shared
    })
    .await;
    let shared = limiter.store().inner();
    server.freeze();
    until("left alone", async || {
        hit(&limiter, &["year=x"], 1).await;
        shared.status().breaker.state != tollgate_limiter::store::BreakerState::Closed
    })
    .await;
    assert_eq!(hit(&limiter, &["year=x"], 1).await.2, Source::Local);
    server.thaw();
    until("its return", async || {
        hit(&limiter, &["year=x"], 1).await.2 == Source::Shared
    })
    .await;
    // No hit was sent twice: those that are counted were asked for.
    let sent: u64 = crate::fixture::calls(&server, "incrby");
    assert_eq!(query::<u64>(&server, &["GET", KEY]), sent);
}

/// So many hits at once on a server that is frozen meanwhile, each waited for so long.
async fn many_on_a_frozen_server(hits: usize, deadline: Duration) -> (Server, Arc<RuleLimiter<Redis>>) {
    let server = Server::start(ServerKind::Redis70);
    let store = Redis::options(&server.url()).expect("a URL");
    let store = store.deadline(deadline).ratelimit_counters(counters()).open();
    let limiter = Arc::new(RuleLimiter::new(rules(false), Arc::new(store)));
    let x = entries(&["year=x"]);
    until("an answer", async || {
        limiter.check(&attempt(&x, 1)).await.verdict.source == Source::Shared
    })
    .await;
    server.freeze();
    let tasks: Vec<_> = (0..hits)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.check(&attempt(&entries(&["year=x"]), 1)).await.verdict.source })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.expect("an answer"), Source::Closed);
    }
    (server, limiter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hits_that_wait_for_one_connection_are_one_failure() {
    let (server, limiter) = many_on_a_frozen_server(40, Duration::from_millis(200)).await;
    server.thaw();
    let x = entries(&["year=x"]);
    until("its return", async || {
        limiter.check(&attempt(&x, 1)).await.verdict.source == Source::Shared
    })
    .await;
    assert_eq!(limiter.store().status().breaker.transitions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_many_wait_at_once_and_others_are_told_at_once() {
    let (_server, limiter) = many_on_a_frozen_server(300, Duration::from_secs(2)).await;
    let counted = |code| limiter.store().metrics().errors().find(|(name, _)| *name == code);
    assert_eq!(counted("overloaded"), Some(("overloaded", 44)));
    assert_eq!(counted("timeout"), Some(("timeout", 256)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_is_left() {
    let primary = Server::start(ServerKind::Redis70);
    let server = Server::start(ServerKind::Redis70);
    let limiter = RuleLimiter::new(rules(false), Arc::new(open(&server.url(), counters())));
    assert_eq!(hit(&limiter, &["year=x"], 1).await.2, Source::Shared);
    let connect_attempts = limiter.store().metrics().connect_attempts.get();
    let _: String = query(&server, &["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let checked = limiter.check(&attempt(&entries(&["year=x"]), 1)).await;
    assert_eq!(checked.verdict.source, Source::Closed);
    until("another connection", async || {
        limiter.store().metrics().connect_attempts.get() > connect_attempts
    })
    .await;
}
