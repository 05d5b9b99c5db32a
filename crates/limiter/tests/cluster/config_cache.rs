//! The cache of the control plane in a cluster: one slot, wherever it is.

use crate::fixture::until;
use std::time::Duration;
use tollgate_limiter::store::redis::script::SCRIPT;
use tollgate_limiter::store::redis::{CacheError, CacheWrite, ConfigCache, LogId, Redis};
use tollgate_limiter::testing::admin;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::receive_hint;
use tollgate_limiter::testing::servers::ServerKind;

const TTL: Duration = Duration::from_secs(60);

fn cache(cluster: &Cluster) -> ConfigCache {
    ConfigCache::new(Redis::options(&cluster.url()).expect("a URL"))
}

fn slot(cluster: &Cluster) -> usize {
    let slot = cluster.command(0, "CLUSTER KEYSLOT tg:{cfg}:head");
    slot.expect("a slot").parse().expect("a number")
}

/// The primary that has the slot at the start.
fn owner(cluster: &Cluster) -> usize {
    slot(cluster) * 3 / 16_384
}

fn must(cluster: &Cluster, server: usize, command: &str) {
    let done = cluster.command(server, command);
    assert!(done.is_ok(), "{command}: {done:?}");
}

const fn set<'a>(name: &'a str, value: &'a [u8]) -> CacheWrite<'a> {
    CacheWrite::Set { name, value, ttl: TTL }
}

const fn append(revision: u64) -> CacheWrite<'static> {
    CacheWrite::Append {
        id: LogId { epoch: 1, revision },
        value: b"c",
        length_max: 1_000,
        ttl: TTL,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_takes_the_cache_along() {
    for kind in ServerKind::ALL {
        let cluster = Cluster::start(kind);
        let (slot, from) = (slot(&cluster), owner(&cluster));
        let to = (from + 1) % 3;
        let cache = cache(&cluster);
        let mut messages = cache.messages();
        let effects = cache.write(&[set("head", b"1"), append(1), set("goes", b"g")]).await;
        assert_eq!(effects, Ok(vec![true; 3]), "{kind:?}");
        let [source, target] = [from, to].map(|server| cluster.id(server));
        must(&cluster, to, &format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
        must(&cluster, from, &format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
        let port = cluster.servers[to].port();
        let migrate = |keys: &str| {
            let command = format!("MIGRATE 127.0.0.1 {port} \"\" 0 1000 KEYS {keys}");
            must(&cluster, from, &command);
        };
        migrate("tg:{cfg}:goes");
        // Some keys are here and some are there: each alone is found, and a new one goes there.
        for (name, value) in [("head", &b"1"[..]), ("goes", b"g")] {
            assert_eq!(
                cache.read(&[name]).await,
                Ok(vec![Some(value.to_vec())]),
                "{kind:?} {name}"
            );
        }
        assert_eq!(cache.read(&["nowhere"]).await, Ok(vec![None]), "{kind:?}");
        assert_eq!(cache.write(&[set("new", b"n")]).await, Ok(vec![true]), "{kind:?}");
        assert_eq!(
            cache.replace("goes", Some(b"g"), b"gone", TTL).await,
            Ok(true),
            "{kind:?}"
        );
        let log = cache.log_last().await.expect("read").expect("an entry");
        assert_eq!(log.id.revision, 1);
        // Of which neither server has all nobody can be asked until the rest has moved.
        let split = cache.write(&[set("head", b"2"), set("goes", b"2")]).await;
        assert!(matches!(split, Err(CacheError::Unavailable(_))), "{kind:?} {split:?}");
        assert_eq!(cache.read(&["head"]).await, Ok(vec![Some(b"1".to_vec())]), "{kind:?}");
        migrate("tg:{cfg}:head tg:{cfg}:log");
        assert!(
            cluster
                .list(from, &format!("CLUSTER GETKEYSINSLOT {slot} 3"))
                .is_empty()
        );
        for server in [to, from, 3 - from - to] {
            must(&cluster, server, &format!("CLUSTER SETSLOT {slot} NODE {target}"));
        }
        let effects = cache.write(&[set("head", b"3"), append(1), append(2)]).await;
        assert_eq!(effects, Ok(vec![true, false, true]), "{kind:?}");
        receive_hint(&cache, &mut messages, "moved").await;
        let mut admin = admin::connect(&cluster.servers[to]);
        for name in ["head", "log", "goes", "new"] {
            let ttl: i64 = admin::query(&mut admin, &["PTTL", &format!("tg:{{cfg}}:{name}")]);
            assert!(ttl > 0, "{kind:?}: {name} has no time to live");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_the_place_of_its_primary_is_written_to() {
    let mut cluster = Cluster::start(ServerKind::Redis70);
    let (cache, other) = (cache(&cluster), cache(&cluster));
    let mut messages = other.messages();
    assert_eq!(cache.write(&[set("head", b"1"), append(1)]).await, Ok(vec![true, true]));
    receive_hint(&cache, &mut messages, "before").await;
    let owner = owner(&cluster);
    cluster.servers[owner].kill();
    until("a write to the replica", async || {
        cache.write(&[set("head", b"2"), append(2)]).await.is_ok()
    })
    .await;
    until("the value elsewhere", async || {
        other.read(&["head"]).await == Ok(vec![Some(b"2".to_vec())])
    })
    .await;
    receive_hint(&cache, &mut messages, "after").await;
    // A failover on purpose, back to the first.
    cluster.servers[owner].revive();
    let is = |role: &str| cluster.has_line(owner, "INFO replication", &format!("role:{role}"));
    until("a replica", async || is("slave")).await;
    until("the first again", async || {
        // Refused until it has caught up, and given up where it takes too long.
        let _ = cluster.command(owner, "CLUSTER FAILOVER");
        is("master")
    })
    .await;
    let mut admin = admin::connect(&cluster.servers[owner]);
    until("the value there", async || {
        cache.write(&[set("head", b"4")]).await.is_ok()
            && admin::query::<Option<String>>(&mut admin, &["GET", "tg:{cfg}:head"]).as_deref() == Some("4")
    })
    .await;
    receive_hint(&cache, &mut messages, "back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_is_kept_on_every_server() {
    let cluster = Cluster::start(ServerKind::Valkey);
    let cache = cache(&cluster);
    let count = cluster.servers.len();
    until("all servers", async || {
        cache.preload().await.is_ok_and(|report| report.servers == count)
    })
    .await;
    let mut admins: Vec<_> = cluster.servers.iter().map(admin::connect).collect();
    let digest: String = admin::query(&mut admins[0], &["SCRIPT", "LOAD", SCRIPT]);
    for admin in &mut admins {
        assert_eq!(admin::query::<Vec<bool>>(admin, &["SCRIPT", "EXISTS", &digest]), [true]);
        admin::query::<()>(admin, &["SCRIPT", "FLUSH"]);
    }
    assert_eq!(cache.preload().await.expect("servers").reloaded.len(), count);
    for admin in &mut admins {
        assert_eq!(admin::query::<Vec<bool>>(admin, &["SCRIPT", "EXISTS", &digest]), [true]);
    }
}
