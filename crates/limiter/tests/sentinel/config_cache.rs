//! The cache of the control plane where sentinels choose the primary.

use crate::fixture::{connection, is_primary, query, until};
use std::time::Duration;
use tollgate_limiter::store::redis::{CacheWrite, ConfigCache, LogId, Redis};
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::ServerKind;
use tollgate_limiter::testing::{eventually, receive_hint};

const TTL: Duration = Duration::from_secs(60);

fn cache(watched: &SentinelGroup) -> ConfigCache {
    ConfigCache::new(Redis::options(&watched.url()).expect("a URL"))
}

async fn set(cache: &ConfigCache, value: &str) -> bool {
    let (name, value) = ("head", value.as_bytes());
    let set = CacheWrite::Set { name, value, ttl: TTL };
    cache.write(&[set]).await.is_ok()
}

async fn get(cache: &ConfigCache) -> Option<String> {
    let value = cache.read(&["head"]).await.ok()?.pop()??;
    String::from_utf8(value).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_messages_go_on_with_the_new_primary() {
    for kind in [ServerKind::Redis70, ServerKind::Valkey] {
        let mut watched = SentinelGroup::start(kind);
        let (cache, other) = (cache(&watched), cache(&watched));
        let mut messages = other.messages();
        eventually("a first write", async || set(&cache, "before").await).await;
        receive_hint(&cache, &mut messages, "before").await;
        let replicated = || {
            let value: Option<String> = query(&mut connection(&watched.servers[1]), &["GET", "tg:{cfg}:head"]);
            value.as_deref() == Some("before")
        };
        until("a replica that has it", replicated).await;
        watched.servers[0].kill();
        eventually("a write to the new primary", async || set(&cache, "after").await).await;
        let new = watched.servers[1..].iter().find(|server| is_primary(server));
        let held: String = query(&mut connection(new.expect("a primary")), &["GET", "tg:{cfg}:head"]);
        assert_eq!(held, "after", "{kind:?}");
        eventually("the value elsewhere", async || {
            get(&other).await.as_deref() == Some("after")
        })
        .await;
        receive_hint(&cache, &mut messages, "after").await;
        let append = CacheWrite::Append {
            id: LogId { epoch: 1, revision: 1 },
            value: b"c",
            length_max: 10,
            ttl: TTL,
        };
        eventually("a change", async || cache.write(&[append]).await.is_ok()).await;
        assert_eq!(other.log_last().await.expect("read").expect("an entry").value, b"c");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_too_late_is_not_written_to() {
    let watched = SentinelGroup::start(ServerKind::Redis70);
    let cache = cache(&watched);
    eventually("a first write", async || set(&cache, "before").await).await;
    let zombie = &watched.servers[0];
    let mut sentinels = watched.subscribe("+switch-master");
    zombie.freeze();
    until("the switch", || sentinels.has_message()).await;
    eventually("a write to the new primary", async || set(&cache, "after").await).await;
    zombie.thaw();
    for _ in 0..50 {
        assert!(set(&cache, "later").await);
    }
    let held: String = query(&mut connection(zombie), &["GET", "tg:{cfg}:head"]);
    assert_eq!(held, "before");
}
