//! Keys of one request on several servers, and where sentinels say who is to be asked.

use crate::fixture::{attempt, check_all, counters, entries, hit, limiter, query, rules, until};
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::Source;
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::ServerKind;

fn key(value: &str) -> String {
    format!("shop_hour_{value}_1773489600")
}

fn slot(cluster: &Cluster, value: &str) -> usize {
    let slot = cluster.command(3, &format!("CLUSTER KEYSLOT {}", key(value)));
    slot.expect("a slot").parse().expect("a number")
}

/// The primary that has a slot at the start.
fn owner_of(slot: usize) -> usize {
    slot * 3 / 16_384
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_is_counted_where_its_slot_is() {
    for kind in ServerKind::ALL {
        let cluster = Cluster::start(kind);
        let limiter = limiter(&cluster.url(), counters());
        let values: Vec<String> = (0..12).map(|number| (number * 7_919).to_string()).collect();
        let descriptors: Vec<String> = values.iter().map(|value| format!("hour={value}")).collect();
        let all: Vec<&str> = descriptors.iter().map(String::as_str).collect();
        for remaining in [9, 8, 7] {
            assert_eq!(check_all(&limiter, &all).await, (true, vec![remaining; 12]), "{kind:?}");
        }
        let mut servers = [0; 3];
        for value in &values {
            let server = owner_of(slot(&cluster, value));
            servers[server] += 1;
            let held = cluster.command(server, &format!("GET {}", key(value)));
            assert_eq!(held.as_deref(), Ok("3"), "{kind:?}");
        }
        assert!(servers.iter().all(|keys| *keys > 0), "{servers:?}");
        assert_eq!(limiter.store().metrics().redirects.get(), 0, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_goes_elsewhere_is_followed() {
    let cluster = Cluster::start(ServerKind::Redis70);
    let limiter = limiter(&cluster.url(), counters());
    let hours = async |value: &str| hit(&limiter, &[&format!("hour={value}")], 1).await;
    assert_eq!(hours("x").await, (true, 9, Source::Shared));
    let slot = slot(&cluster, "x");
    let from = owner_of(slot);
    let to = (from + 1) % 3;
    let [source, target] = [from, to].map(|server| cluster.id(server));
    let must = |server: usize, command: &str| {
        let done = cluster.command(server, command);
        assert!(done.is_ok(), "{command}: {done:?}");
    };
    must(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
    must(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
    let port = cluster.servers[to].port();
    must(from, &format!("MIGRATE 127.0.0.1 {port} \"\" 0 1000 KEYS {}", key("x")));
    // The key is there, and the slot not yet.
    assert_eq!(hours("x").await, (true, 8, Source::Shared));
    assert_eq!(limiter.store().metrics().redirects.get(), 1);
    for server in [to, from, 3 - from - to] {
        must(server, &format!("CLUSTER SETSLOT {slot} NODE {target}"));
    }
    // Now it is, and who had it says so once; or the map was drawn anew before.
    assert_eq!(hours("x").await, (true, 7, Source::Shared));
    assert!(limiter.store().metrics().redirects.get() <= 2);
    assert_eq!(cluster.command(to, &format!("GET {}", key("x"))).as_deref(), Ok("3"));
    let lifetime = cluster.command(to, &format!("TTL {}", key("x"))).expect("a time");
    assert!(
        (3_500..3_901).contains(&lifetime.parse::<i32>().expect("a number")),
        "{lifetime}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_cluster_only_what_is_away_is_decided_here() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let store = Redis::options(&cluster.url())
        .expect("a URL")
        .ratelimit_counters(counters());
    let store = store.deadline(Duration::from_millis(300)).open();
    let options = FallbackOptions {
        instances: Some(1),
        ..FallbackOptions::default()
    };
    let limiter = RuleLimiter::new(rules(false), Fallback::new(Arc::new(store), options).into());
    let mut values = (0..).map(|number: u32| number.to_string());
    let [stays, target] = [0, 1].map(|server| {
        let is_there = |value: &String| owner_of(slot(&cluster, value)) == server;
        format!("hour={}", values.find(is_there).expect("one of them"))
    });
    until("an answer", async || {
        let [one, other] = [hit(&limiter, &[&stays], 0).await, hit(&limiter, &[&target], 0).await];
        (one.2, other.2) == (Source::Shared, Source::Shared)
    })
    .await;
    // The primary and its replica, so that nobody takes its place.
    for server in [4, 1] {
        cluster.servers[server].kill();
    }
    until("an outage", async || {
        hit(&limiter, &[&target], 0).await.2 == Source::Local
    })
    .await;
    let (allowed, remaining) = check_all(&limiter, &[&stays, &target]).await;
    assert_eq!((allowed, remaining), (true, vec![9, 7]));
    assert_eq!(hit(&limiter, &[&stays], 1).await, (true, 8, Source::Shared));
    assert_eq!(hit(&limiter, &[&target], 1).await, (true, 6, Source::Local));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_that_sentinels_name_is_counted_on() {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let limiter = limiter(&watched.url(), counters());
    assert_eq!(hit(&limiter, &["hour=x"], 4).await, (true, 6, Source::Shared));
    let before = watched.primary_port();
    let primary = watched.servers.iter_mut().find(|server| server.port() == before);
    primary.expect("a primary").kill();
    until("another primary", async || watched.primary_port() != before).await;
    let hour = entries(&["hour=y"]);
    until("a hit that the new one has", async || {
        let source = limiter.check(&attempt(&hour, 1)).await.verdict.source;
        let now = watched.primary_port();
        let server = watched.servers.iter().find(|server| server.port() == now);
        let counted: Option<u64> = query(server.expect("a primary"), &["GET", &key("y")]);
        source == Source::Shared && counted.is_some()
    })
    .await;
}
