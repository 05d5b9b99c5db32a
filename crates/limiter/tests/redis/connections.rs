//! Ways to a server, and what happens when one breaks.

use crate::fixture::{Fixture, query, rate, settle};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::{Limit, Micros, TokenBucket};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::StoreError;
use tollgate_limiter::store::redis::{Functions, Redis, RedisKey};
use tollgate_limiter::testing::admin::calls;
use tollgate_limiter::testing::servers::{Server, ServerKind};

fn limit() -> Limit {
    TokenBucket::new(rate(1_000_000, Micros::from_secs(3_600))).into()
}

/// Asks until it passes, and says how long that took.
async fn settle_until_allowed(fixture: &Fixture, store: &Redis) -> Duration {
    let key = fixture.counter(store, &limit(), "somebody");
    let from = Instant::now();
    while !settle(store, key, &limit(), 1).await.allowed {
        assert!(
            from.elapsed() < Duration::from_secs(10),
            "{:?}",
            store.status().connection_error
        );
        sleep(Duration::from_millis(1)).await;
    }
    from.elapsed()
}

/// A store on a new Redis that has answered, and the key it was asked for.
async fn connected(deadline: Duration) -> (Fixture, Redis, RedisKey) {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().deadline(deadline).open();
    settle_until_allowed(&fixture, &store).await;
    let key = fixture.counter(&store, &limit(), "somebody");
    (fixture, store, key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_is_a_way_too() {
    let path = std::env::temp_dir().join(format!("tollgate-{}.sock", std::process::id()));
    let path = path.to_str().expect("a path in words");
    let fixture = Fixture::on(Server::start_with(ServerKind::Redis70, &["--unixsocket", path]));
    let options = Redis::options(&format!("redis+unix://{path}")).expect("a URL");
    let store = options.deadline(Duration::from_secs(5)).open();
    settle_until_allowed(&fixture, &store).await;
    let clients: String = fixture.query(&["CLIENT", "LIST"]);
    assert!(clients.contains(&format!("addr={path}:0")), "{clients}");
    assert_eq!(fixture.audit(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_database_is_chosen_by_the_url() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let options = Redis::options(&format!("{}3", fixture.server.url())).expect("a URL");
    let store = options.deadline(Duration::from_secs(5)).open();
    settle_until_allowed(&fixture, &store).await;
    let keyspace: String = fixture.query(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db3:keys=1,expires=1"), "{keyspace}");
}

/// Kills all connections but ours again and again while many ask: what is lost is what was in flight.
async fn heals(functions: Functions) {
    const KILLS: u64 = 8;
    const TASKS: u64 = 32;
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = Arc::new(fixture.options().functions(functions).open());
    settle_until_allowed(&fixture, &store).await;
    let key = fixture.counter(&store, &limit(), "many");
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let (store, is_over) = (Arc::clone(&store), Arc::clone(&is_over));
        tasks.push(tokio::spawn(async move {
            let (mut passed, mut lost) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                match settle(&*store, key, &limit(), 1).await.outcomes[0] {
                    Ok(outcome) if outcome.decision.is_allow() => passed += 1,
                    Err(StoreError::ConnectionLost) => lost += 1,
                    other => panic!("{other:?}"),
                }
            }
            (passed, lost)
        }));
    }
    let mut admin = fixture.admin();
    for _ in 0..KILLS {
        sleep(Duration::from_millis(60)).await;
        query::<u64>(&mut admin, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    sleep(Duration::from_millis(60)).await;
    is_over.store(true, Ordering::Relaxed);
    let (mut passed, mut lost) = (0, 0);
    for task in tasks {
        let (more_passed, more_lost) = task.await.expect("no other error");
        (passed, lost) = (passed + more_passed, lost + more_lost);
    }
    assert!(passed > 1_000, "{passed} passed");
    assert!(lost <= KILLS * TASKS, "{lost} lost");
    // Once to begin with, and once for each time.
    assert!(
        store.metrics().connect_attempts.get() <= 1 + 2 * KILLS,
        "{:?}",
        store.metrics()
    );
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_killed_costs_what_was_in_flight() {
    heals(Functions::Off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_does_with_functions() {
    heals(Functions::On).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_killed_while_idle_costs_nothing() {
    let (fixture, store, key) = connected(Duration::from_secs(5)).await;
    for _ in 0..5 {
        let connect_attempts = store.metrics().connect_attempts.get();
        fixture.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        while store.metrics().connect_attempts.get() == connect_attempts {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(settle(&store, key, &limit(), 1).await.allowed);
    }
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_is_found_within_two_seconds() {
    for kind in [ServerKind::Redis70, ServerKind::Redis62] {
        let mut fixture = Fixture::start(kind);
        let store = fixture.options().deadline(Duration::from_millis(100)).open();
        settle_until_allowed(&fixture, &store).await;
        fixture.server.kill();
        let key = fixture.counter(&store, &limit(), "somebody");
        // Long enough for pauses between attempts to become long.
        let from = Instant::now();
        while from.elapsed() < Duration::from_millis(2_500) {
            let failed = settle(&store, key, &limit(), 1).await.outcomes[0];
            let is_away = matches!(
                failed,
                Err(StoreError::Unavailable | StoreError::ConnectionLost | StoreError::BreakerOpen)
            );
            assert!(is_away, "{failed:?}");
        }
        assert!(store.status().connection_error.is_some());
        fixture.server.revive();
        let took = settle_until_allowed(&fixture, &store).await;
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(store.status().connection_error, None);
        fixture.audit();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lets_nobody_in_is_tried_once_a_second_and_not_much_less() {
    let server = Server::start_with(ServerKind::Redis70, &["--requirepass", "other"]);
    let url = format!("redis://:wrong@127.0.0.1:{}/", server.port());
    let store = Redis::options(&url).expect("a URL").open();
    // At once, and after three pauses of 1.0 to 1.2 s.
    sleep(Duration::from_millis(3_900)).await;
    assert_eq!(store.metrics().connect_attempts.get(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_frozen_is_found_again() {
    let (fixture, store, key) = connected(Duration::from_millis(100)).await;
    fixture.server.freeze();
    let from = Instant::now();
    while from.elapsed() < Duration::from_millis(1_500) {
        assert!(!settle(&store, key, &limit(), 1).await.allowed);
    }
    fixture.server.thaw();
    let took = settle_until_allowed(&fixture, &store).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    fixture.audit();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_an_answer_is_late_something_is_sent_behind_the_question() {
    let (fixture, store, key) = connected(Duration::from_secs(2)).await;
    let times = || calls(&fixture.server, &["time"]);
    // The script asks for the time too, once.
    let before = times();
    assert!(settle(&store, key, &limit(), 1).await.allowed);
    assert_eq!(times(), before + 1, "what is answered at once is not asked after");
    fixture.query::<String>(&["CLIENT", "PAUSE", "1400", "ALL"]);
    let settlement = settle(&store, key, &limit(), 1).await;
    assert!(settlement.allowed, "{settlement:?}");
    let knocks = times() - before - 2;
    assert!((1..=3).contains(&knocks), "{knocks}");
    assert_eq!(store.metrics().connect_attempts.get(), 1);
}

/// A port in front of another. Whoever comes second is taken and never answered.
fn swallowing_the_second(behind: u16) -> u16 {
    let front = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = front.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut swallowed = Vec::new();
        for (number, client) in front.incoming().map_while(Result::ok).enumerate() {
            if number == 1 {
                swallowed.push(client);
                continue;
            }
            let server = TcpStream::connect(("127.0.0.1", behind)).expect("a server");
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_place_of_a_connection_that_was_well_two_are_tried() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let front = swallowing_the_second(fixture.server.port());
    let url = format!("redis://127.0.0.1:{front}/");
    let options = Redis::options(&url).expect("a URL");
    // An attempt would be given up after five seconds.
    let store = options.deadline(Duration::from_millis(400)).open();
    settle_until_allowed(&fixture, &store).await;
    let key = fixture.counter(&store, &limit(), "somebody");
    fixture.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let from = Instant::now();
    while !settle(&store, key, &limit(), 1).await.allowed {
        assert!(from.elapsed() < Duration::from_secs(4), "{:?}", store.metrics());
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.metrics().connect_attempts.get(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_leaves_no_connection() {
    let fixture = Fixture::start(ServerKind::Redis70);
    let store = fixture.options().open();
    settle_until_allowed(&fixture, &store).await;
    let connections = || -> usize { fixture.query::<String>(&["CLIENT", "LIST"]).lines().count() };
    assert_eq!(connections(), 2);
    drop(store);
    let from = Instant::now();
    while connections() > 1 {
        assert!(from.elapsed() < Duration::from_secs(5), "it is still there");
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn what_is_no_url_is_said_so_without_its_words() {
    for url in [
        "",
        "redis",
        "http://user:secret@host/",
        "redis://host:port/",
        "redis://host/x",
    ] {
        let error = Redis::options(url).expect_err("no URL of a server");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("secret") && !text.contains("host/x"), "{text}");
    }
}
