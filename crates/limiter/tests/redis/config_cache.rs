//! The cache of the control plane on one server.

use crate::fixture::{Fixture, query};
use crate::users::documented;
use redis::Commands;
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tollgate_limiter::store::redis::script::SCRIPT;
use tollgate_limiter::store::redis::{
    CACHE_VALUE_MAX, CacheError, CacheWrite, ConfigCache, LogId, Redis, RedisOptions,
};
use tollgate_limiter::testing::eventually;
use tollgate_limiter::testing::relay::Relay;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const TTL: Duration = Duration::from_secs(60);

fn options(server: &Server) -> RedisOptions {
    Redis::options(&server.url()).expect("a URL")
}

fn cache(fixture: &Fixture) -> ConfigCache {
    ConfigCache::new(options(&fixture.server))
}

const fn id(epoch: u64, revision: u64) -> LogId {
    LogId { epoch, revision }
}

const fn set<'a>(name: &'a str, value: &'a [u8]) -> CacheWrite<'a> {
    CacheWrite::Set { name, value, ttl: TTL }
}

const fn append(id: LogId, value: &[u8]) -> CacheWrite<'_> {
    CacheWrite::Append {
        id,
        value,
        length_max: 20_000,
        ttl: TTL,
    }
}

const fn index(member: &str, seen_ms: u64) -> CacheWrite<'_> {
    CacheWrite::Index {
        member,
        seen_ms,
        ttl: TTL,
    }
}

/// Every kind of write there is.
fn every_write() -> [CacheWrite<'static>; 7] {
    [
        set("head", b"h"),
        CacheWrite::SetAbsent {
            name: "database",
            value: b"d",
            ttl: TTL,
        },
        CacheWrite::Touch {
            name: "database",
            ttl: TTL,
        },
        append(id(1, 1), b"change"),
        index("i-1", 5_000),
        CacheWrite::Unindex { member: "nobody" },
        CacheWrite::Delete { name: "nothing" },
    ]
}

/// The keys of the server; each must have a time to live.
fn keys(fixture: &Fixture) -> Vec<String> {
    let mut admin = fixture.admin();
    let mut keys: Vec<String> = admin.scan().expect("a scan").map(|key| key.expect("a key")).collect();
    keys.sort();
    for key in &keys {
        let ttl: i64 = query(&mut admin, &["PTTL", key]);
        assert!(ttl > 0, "{key} has no time to live");
    }
    keys
}

fn invalid<T: std::fmt::Debug>(result: Result<T, CacheError>) -> String {
    match result {
        Err(CacheError::Invalid(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// The next message; those that were missed are not waited for.
async fn next(messages: &mut Receiver<String>) -> String {
    loop {
        match messages.recv().await {
            Ok(message) => return message,
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => panic!("the cache is there"),
        }
    }
}

/// Publishes until a message arrives: hints may be lost while a subscription is opened.
async fn receive_hint(cache: &ConfigCache, messages: &mut Receiver<String>, hint: &str) {
    let publishing = async {
        loop {
            let _ = cache.publish(hint).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let receiving = async { while next(messages).await != hint {} };
    let receive_hint = async {
        tokio::select! {
            () = publishing => {}
            () = receiving => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(20), receive_hint)
        .await
        .expect("a message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_written_is_read_again_and_expires() {
    for kind in ServerKind::ALL {
        let fixture = Fixture::start(kind);
        let cache = cache(&fixture);
        let effects = cache.write(&every_write()).await.expect("written");
        assert_eq!(effects, [true, true, true, true, true, false, false], "{kind:?}");
        // An empty value reads as none, and is replaced as one.
        query::<()>(&mut fixture.admin(), &["SET", "tg:{cfg}:claim", ""]);
        assert_eq!(cache.read(&["claim"]).await, Ok(vec![None]));
        assert!(cache.replace("claim", None, b"1", TTL).await.expect("replaced"));
        assert_eq!(
            keys(&fixture),
            ["claim", "database", "head", "instances", "log"].map(|name| format!("tg:{{cfg}}:{name}"))
        );
        let again = cache.write(&every_write()).await.expect("written");
        assert_eq!(again, [true, false, true, false, false, false, false], "{kind:?}");
        let values = cache.read(&["head", "nothing", "database"]).await.expect("read");
        assert_eq!(values, [Some(b"h".to_vec()), None, Some(b"d".to_vec())]);
        let last = cache.log_last().await.expect("read").expect("an entry");
        assert_eq!((last.id, &last.value[..]), (id(1, 1), &b"change"[..]));
        let deleted = cache.write(&[CacheWrite::Delete { name: "head" }]).await;
        assert_eq!(deleted, Ok(vec![true]));
        assert_eq!(cache.read(&["head"]).await, Ok(vec![None]));
        // Others have the same server and another prefix.
        let other = ConfigCache::new(options(&fixture.server).prefix("other"));
        assert_eq!(other.read(&["database"]).await, Ok(vec![None]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_in_order_whoever_appends_them() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let cache = cache(&fixture);
    assert_eq!(cache.log_last().await, Ok(None));
    assert_eq!(cache.log_after(LogId::default(), 10).await, Ok(Vec::new()));
    let mut expected = Vec::new();
    // A gap, and another epoch whose revisions begin lower.
    for at in [id(1, 1), id(1, 2), id(1, 5), id(2, 3), id(2, 4)] {
        let value = at.to_string().into_bytes();
        assert_eq!(cache.write(&[append(at, &value)]).await, Ok(vec![true]));
        expected.push(at);
    }
    for late in [id(1, 3), id(1, 6), id(2, 3), id(2, 4), id(0, 0)] {
        let effects = cache.write(&[set("head", b"h"), append(late, b"late")]).await;
        assert_eq!(effects, Ok(vec![true, false]), "{late}");
    }
    let log = cache.log_after(LogId::default(), 100).await.expect("read");
    assert_eq!(log.iter().map(|entry| entry.id).collect::<Vec<_>>(), expected);
    assert!(log.iter().all(|entry| entry.value == entry.id.to_string().into_bytes()));
    let behind = cache.log_after(id(1, 2), 2).await.expect("read");
    assert_eq!(
        behind.iter().map(|entry| entry.id).collect::<Vec<_>>(),
        [id(1, 5), id(2, 3)]
    );
    assert_eq!(cache.log_after(id(2, 4), 9).await, Ok(Vec::new()));
    assert_eq!(cache.log_after(id(u64::MAX, u64::MAX), 9).await, Ok(Vec::new()));
    // Large ones come in several replies.
    let large = vec![b'x'; CACHE_VALUE_MAX];
    for revision in 10..30 {
        let effects = cache.write(&[append(id(2, revision), &large)]).await;
        assert_eq!(effects, Ok(vec![true]));
    }
    let (mut at, mut seen) = (id(2, 4), Vec::new());
    loop {
        let page = cache.log_after(at, 100).await.expect("read");
        assert!(page.len() <= 9, "{} large entries in one reply", page.len());
        let Some(last) = page.last() else { break };
        at = last.id;
        seen.extend(page.iter().map(|entry| entry.id.revision));
    }
    assert_eq!(seen, (10..30).collect::<Vec<u64>>());
    // A short one is cut at its beginning, about.
    for revision in 100..400 {
        let write = CacheWrite::Append {
            id: id(2, revision),
            value: b"c",
            length_max: 100,
            ttl: TTL,
        };
        assert_eq!(cache.write(&[write]).await, Ok(vec![true]));
    }
    let left = cache.log_after(LogId::default(), 10_000).await.expect("read");
    assert!((100..300).contains(&left.len()), "{} are left", left.len());
    keys(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixteen_writers_one_wins_each_round() {
    let fixture = Fixture::start(ServerKind::Valkey);
    let mut expected: Option<Vec<u8>> = None;
    let caches: Vec<ConfigCache> = (0..16).map(|_| cache(&fixture)).collect();
    for round in 0..20 {
        let writers = caches.iter().enumerate().map(|(writer, cache)| {
            let (cache, expected) = (cache.clone(), expected.clone());
            tokio::spawn(async move {
                let value = format!("{round} {writer}").into_bytes();
                let won = cache.replace("database", expected.as_deref(), &value, TTL).await;
                won.expect("an answer").then_some(value)
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut winners = Vec::new();
        for writer in writers {
            winners.extend(writer.await.expect("no panic"));
        }
        let [winner] = &winners[..] else {
            panic!("{} winners", winners.len())
        };
        assert_eq!(caches[0].read(&["database"]).await, Ok(vec![Some(winner.clone())]));
        expected = Some(winner.clone());
        keys(&fixture);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_whose_connection_dies_is_done_or_not() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let cache = cache(&fixture);
    let (mut done, mut lost) = (0, 0);
    let killing = tokio::spawn({
        let url = fixture.server.url();
        async move {
            let client = redis::Client::open(url).expect("a URL");
            let mut connection = client.get_multiplexed_async_connection().await.expect("a server");
            loop {
                let mut kill = redis::cmd("CLIENT");
                kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
                let _: i64 = kill.query_async(&mut connection).await.expect("killed");
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
    });
    let padding = vec![b'x'; 200_000];
    for round in 1..=400_u64 {
        let text = round.to_string();
        let writes = [
            set("one", text.as_bytes()),
            set("padding", &padding),
            append(id(1, round), text.as_bytes()),
            set("two", text.as_bytes()),
        ];
        match cache.write(&writes).await {
            Ok(effects) => {
                assert_eq!(effects, [true; 4]);
                done += 1;
            }
            Err(CacheError::Unavailable(_)) => lost += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    killing.abort();
    assert!(done > 0 && lost > 0, "{done} done, {lost} lost");
    eventually("an answer", async || cache.read(&["one", "two"]).await.is_ok()).await;
    let values = cache.read(&["one", "two"]).await.expect("read");
    let last = cache.log_last().await.expect("read").expect("an entry");
    assert!(values[0].is_some() && values[0] == values[1], "{values:?}");
    assert_eq!(values[0].as_ref(), Some(&last.value));
    keys(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_were_not_seen_for_long_are_left_out_and_removed() {
    let fixture = Fixture::start(ServerKind::Redis62);
    let cache = cache(&fixture);
    assert_eq!(cache.instances(0).await, Ok(Vec::new()));
    for (member, seen_ms) in [("a", 1_000), ("b", 2_000), ("c", 3_000)] {
        cache.write(&[index(member, seen_ms)]).await.expect("written");
    }
    assert_eq!(cache.instances(2_000).await, Ok(vec!["b".to_owned(), "c".to_owned()]));
    let left: Vec<String> = fixture.query(&["ZRANGE", "tg:{cfg}:instances", "0", "-1"]);
    assert_eq!(left, ["b", "c"]);
    // Seen again, and gone.
    cache
        .write(&[index("b", 9_000), CacheWrite::Unindex { member: "c" }])
        .await
        .expect("written");
    assert_eq!(cache.instances(0).await, Ok(vec!["b".to_owned()]));
    keys(&fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_on_when_the_subscription_was_killed_or_the_server_restarted() {
    let mut fixture = Fixture::start(ServerKind::Redis70);
    let (cache, other) = (cache(&fixture), cache(&fixture));
    let mut messages = [cache.messages(), other.messages()];
    for receiver in &mut messages {
        receive_hint(&cache, receiver, "revision 1").await;
    }
    for round in 0..3 {
        let killed: i64 = fixture.query(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(killed, 2, "both subscribe");
        for receiver in &mut messages {
            receive_hint(&other, receiver, &format!("killed {round}")).await;
        }
    }
    fixture.server.kill();
    eventually("an error", async || cache.subscription_error().is_some()).await;
    assert!(matches!(cache.publish("x").await, Err(CacheError::Unavailable(_))));
    fixture.server.revive();
    for receiver in &mut messages {
        receive_hint(&cache, receiver, "revived").await;
    }
    assert_eq!(cache.subscription_error(), None);
    // What is too long, or no text, is nobody's hint.
    let long = "x".repeat(2_000);
    fixture.query::<()>(&["PUBLISH", "tg:{cfg}:invalidate", &long]);
    receive_hint(&cache, &mut messages[0], "after").await;
    invalid(cache.publish(&long).await);
    // A cache that is dropped leaves no connection behind.
    drop((cache, other, messages));
    eventually("closed connections", async || {
        let clients: String = fixture.query(&["CLIENT", "LIST"]);
        clients.lines().count() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_wrote_is_an_error_and_nothing_else() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let cache = cache(&fixture);
    let mut admin = fixture.admin();
    let huge = vec![b'x'; CACHE_VALUE_MAX + 1];
    let _: () = admin.set_ex("tg:{cfg}:huge", &huge, 60).expect("set");
    assert!(invalid(cache.read(&["huge"]).await).contains("huge"));
    let fits = &huge[1..];
    cache.write(&[set("fits", fits)]).await.expect("written");
    assert_eq!(cache.read(&["fits"]).await, Ok(vec![Some(fits.to_vec())]));
    invalid(cache.write(&[set("huge", &huge)]).await);
    invalid(cache.write(&[set("empty", b"")]).await);
    invalid(cache.read(&[&"n".repeat(257)]).await);
    invalid(cache.read(&vec!["n"; 257]).await);
    // Values of other types.
    for (key, command) in [
        ("head", &["LPUSH", "tg:{cfg}:head", "x"][..]),
        ("log", &["SET", "tg:{cfg}:log", "x", "EX", "60"]),
        ("instances", &["SADD", "tg:{cfg}:instances", "x"]),
    ] {
        query::<redis::Value>(&mut admin, command);
        let text = match key {
            "head" => invalid(cache.read(&["fits", "head"]).await),
            "log" => {
                invalid(cache.log_last().await);
                invalid(cache.log_after(LogId::default(), 5).await)
            }
            _ => invalid(cache.instances(0).await),
        };
        assert!(text.contains("WRONGTYPE"), "{text}");
    }
    invalid(cache.replace("head", Some(b"x"), b"y", TTL).await);
    invalid(cache.write(&[append(id(1, 1), b"c")]).await);
    invalid(cache.write(&[index("i", 1)]).await);
    // What was there before got a time to live at least.
    query::<()>(&mut admin, &["DEL", "tg:{cfg}:head"]);
    keys(&fixture);
    // Entries of others, and one that is too large; those before it are read.
    for (entry, name) in [(&["a", "b"][..], "field"), (&["c", "v", "c", "w"], "fields")] {
        query::<()>(&mut admin, &["DEL", "tg:{cfg}:log"]);
        let command = [&["XADD", "tg:{cfg}:log", "2-2"][..], entry].concat();
        query::<String>(&mut admin, &command);
        assert!(invalid(cache.log_last().await).contains("2-2"), "{name}");
    }
    query::<()>(&mut admin, &["DEL", "tg:{cfg}:log"]);
    cache.write(&[append(id(1, 1), b"c")]).await.expect("written");
    let mut large = redis::cmd("XADD");
    large.arg("tg:{cfg}:log").arg("2-2").arg("c").arg(&huge);
    large.query::<String>(&mut admin).expect("added");
    let log = cache.log_after(LogId::default(), 5).await.expect("what is before it");
    assert_eq!(log.len(), 1);
    assert!(invalid(cache.log_after(id(1, 1), 5).await).contains("2-2"));
    // Members that are no names.
    query::<()>(&mut admin, &["DEL", "tg:{cfg}:instances"]);
    for member in [&b"\xff\xfe"[..], &[b'm'; 10_000]] {
        let _: i64 = admin.zadd("tg:{cfg}:instances", member, 7).expect("added");
    }
    cache.write(&[index("i", 8)]).await.expect("written");
    assert_eq!(cache.instances(1).await, Ok(vec!["i".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_silent_or_away_is_waited_for_two_seconds() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let relay = Relay::start(fixture.server.port(), Duration::ZERO);
    let cache = ConfigCache::new(Redis::options(&relay.url()).expect("a URL"));
    cache.write(&[set("head", b"h")]).await.expect("written");
    fixture.server.freeze();
    let call = async || tokio::time::timeout(Duration::from_secs(10), cache.read(&["head"])).await;
    for _ in 0..2 {
        let read = call().await.expect("an answer in time");
        assert!(matches!(read, Err(CacheError::Unavailable(_))), "{read:?}");
    }
    fixture.server.thaw();
    eventually("an answer", async || cache.read(&["head"]).await.is_ok()).await;
    let nobody = ConfigCache::new(Redis::options("redis://127.0.0.1:1/").expect("a URL"));
    let read = nobody.read(&["head"]).await;
    assert!(matches!(read, Err(CacheError::Unavailable(_))), "{read:?}");
}

/// The words of the documented command that are rights.
fn rights(command: &[&'static str]) -> Vec<&'static str> {
    let is_right = |word: &&&str| word.starts_with(['+', '&']);
    command.iter().filter(is_right).copied().collect()
}

/// Does everything and returns the errors.
async fn everything(cache: &ConfigCache) -> Vec<CacheError> {
    let mut errors = Vec::new();
    errors.extend(cache.write(&every_write()).await.err());
    errors.extend(cache.read(&["head"]).await.err());
    errors.extend(cache.read(&["head", "database"]).await.err());
    errors.extend(cache.replace("database", Some(b"d"), b"e", TTL).await.err());
    errors.extend(cache.log_after(LogId::default(), 10).await.err());
    errors.extend(cache.log_last().await.err());
    errors.extend(cache.instances(6_000).await.err());
    errors.extend(cache.publish("revision 1").await.err());
    errors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_documented_is_enough_and_what_is_missing_is_named() {
    for kind in ServerKind::ALL {
        let fixture = Fixture::start(kind);
        let [for_all, _, for_control_plane] = documented();
        let cache = || {
            let url = format!("redis://tollgate:password@127.0.0.1:{}/", fixture.server.port());
            ConfigCache::new(Redis::options(&url).expect("a URL"))
        };
        fixture.query::<()>(&for_all);
        fixture.query::<()>(&for_control_plane);
        let with_all = cache();
        let mut messages = with_all.messages();
        assert_eq!(everything(&with_all).await, [], "{kind:?}");
        receive_hint(&with_all, &mut messages, "revision 2").await;
        let report = with_all.preload().await.expect("a server");
        assert_eq!((report.servers, &report.failed[..]), (1, &[][..]));
        for missing in rights(&for_control_plane) {
            fixture.query::<()>(&["ACL", "DELUSER", "tollgate"]);
            fixture.query::<()>(&for_all);
            let others = for_control_plane.iter().filter(|word| **word != missing);
            fixture.query::<()>(&others.copied().collect::<Vec<_>>());
            let without = cache();
            if missing == "+subscribe" {
                let _messages = without.messages();
                eventually("the reason", async || {
                    without
                        .subscription_error()
                        .is_some_and(|error| error.contains("+subscribe"))
                })
                .await;
                continue;
            }
            let errors = everything(&without).await;
            let names = |error: &CacheError| matches!(error, CacheError::Denied(text) if text.contains(missing));
            assert!(
                !errors.is_empty() && errors.iter().all(names),
                "{kind:?} {missing}: {errors:?}"
            );
        }
        keys(&fixture);
    }
}

/// The digest of the script.
fn digest(fixture: &Fixture) -> String {
    let digest = fixture.query(&["SCRIPT", "LOAD", SCRIPT]);
    fixture.query::<()>(&["SCRIPT", "FLUSH"]);
    digest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_was_flushed_is_back_on_primary_and_replica_without_traffic() {
    for kind in ServerKind::ALL {
        let primary = Fixture::start(kind);
        let port = primary.server.port().to_string();
        let replica = Fixture::on(Server::start_with(kind, &["--replicaof", "127.0.0.1", &port]));
        let digest = digest(&primary);
        let has_script = |fixture: &Fixture| fixture.query::<Vec<bool>>(&["SCRIPT", "EXISTS", &digest]) == [true];
        let cache = cache(&primary);
        eventually("both servers", async || {
            cache.preload().await.is_ok_and(|report| report.servers == 2)
        })
        .await;
        assert!(has_script(&primary) && has_script(&replica), "{kind:?}");
        assert_eq!(cache.preload().await.expect("servers").reloaded, Vec::<String>::new());
        for fixture in [&primary, &replica] {
            fixture.query::<()>(&["SCRIPT", "FLUSH"]);
        }
        let report = cache.preload().await.expect("servers");
        let reloaded: HashSet<String> = report.reloaded.into_iter().collect();
        let ports = [&primary, &replica].map(|fixture| format!("127.0.0.1:{}", fixture.server.port()));
        assert_eq!(reloaded, ports.into_iter().collect(), "{kind:?}");
        assert!(has_script(&primary) && has_script(&replica), "{kind:?}");
        if kind != ServerKind::Redis62 {
            primary.query::<()>(&["FUNCTION", "FLUSH"]);
            // Its replica flushes too, and may be asked before the library has come back to it.
            let reloaded = cache.preload().await.expect("servers").reloaded;
            let address = format!("127.0.0.1:{}", primary.server.port());
            assert!(reloaded.contains(&address), "{kind:?}: {reloaded:?}");
            let libraries: Vec<redis::Value> = primary.query(&["FUNCTION", "LIST"]);
            assert_eq!(libraries.len(), 1);
        }
    }
}
