//! Servers in trouble: what an operator is warned of, and what callers are told.

use crate::fixture::{Fixture, charge, every_limit, lease};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_core::Micros;
use tollgate_limiter::store::redis::Functions;
use tollgate_limiter::store::{Keyspace, RedisErrorCode, Store, StoreError};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// The only warning that a survey of this server has.
async fn warning(fixture: &Fixture) -> String {
    let survey = fixture.options().open().diagnose().await.expect("a server");
    let [warning] = &survey.warnings[..] else {
        panic!("{:?}", survey.warnings)
    };
    warning.clone()
}

/// Each algorithm is refused with this error, each way that the script can be called.
async fn all_fail(fixture: &Fixture, kind: ServerKind, code: RedisErrorCode) {
    for functions in [Functions::Off, Functions::On] {
        if kind == ServerKind::Redis62 && functions == Functions::On {
            continue;
        }
        for limit in every_limit(5, Micros::from_secs(60)) {
            // One that was refused pauses before it dials again.
            let store = fixture.options().functions(functions).open();
            let key = fixture.counter(&store, &limit, "refused");
            let settlement = store.settle(&[charge(key, &limit, 1)], lease()).await;
            assert_eq!(
                settlement.outcomes,
                [Err(StoreError::Server(code))],
                "{kind:?} {limit:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_forget_counters_is_warned_of() {
    let settings = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    for kind in ServerKind::ALL {
        let fixture = Fixture::on(Server::start_with(kind, &settings));
        assert!(warning(&fixture).await.contains("allkeys-lru"));
        fixture.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        let survey = fixture.options().open().diagnose().await.expect("a server");
        assert_eq!(survey.warnings, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_warned_of_and_refuses() {
    for kind in ServerKind::ALL {
        let primary = Fixture::start(kind);
        let port = primary.server.port().to_string();
        // A function must be there before it can be called; a replica takes none.
        assert_eq!(
            primary.options().open().diagnose().await.expect("a server").warnings,
            Vec::<String>::new()
        );
        let replica = Fixture::on(Server::start_with(kind, &["--replicaof", "127.0.0.1", &port]));
        let from = Instant::now();
        while !replica
            .query::<String>(&["INFO", "replication"])
            .contains("master_link_status:up")
        {
            assert!(from.elapsed() < Duration::from_secs(10), "it does not follow");
            sleep(Duration::from_millis(10)).await;
        }
        let survey = replica.options().open().diagnose().await.expect("a server");
        let is_warned = survey
            .warnings
            .iter()
            .any(|warning| warning.contains("URL of its primary"));
        assert!(is_warned, "{:?}", survey.warnings);
        all_fail(&replica, kind, RedisErrorCode::ReadOnly).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_is_not_dialled_for_each_call() {
    let mut primary = Server::start(ServerKind::Redis70);
    primary.kill();
    let port = primary.port().to_string();
    let fixture = Fixture::on(Server::start_with(
        ServerKind::Redis70,
        &["--replicaof", "127.0.0.1", &port],
    ));
    let store = fixture
        .options()
        .functions(Functions::Off)
        .deadline(Duration::from_millis(20))
        .open();
    let limit = every_limit(5, Micros::from_secs(60))[0];
    let key = fixture.counter(&store, &limit, "refused");
    let from = Instant::now();
    while from.elapsed() < Duration::from_secs(2) {
        assert!(store.settle(&[charge(key, &limit, 1)], lease()).await.outcomes[0].is_err());
    }
    // At once, and after pauses of 25 ms, 50 ms, 100 ms and then 125 ms at least.
    let connect_attempts = store.metrics().connect_attempts.get();
    assert!((3..=18).contains(&connect_attempts), "{connect_attempts} times");
    // It may be written to again: that is found out within a second.
    fixture.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    let from = Instant::now();
    while !store.settle(&[charge(key, &limit, 1)], lease()).await.allowed {
        assert!(
            from.elapsed() < Duration::from_secs(3),
            "{:?}",
            store.status().connection_error
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_says_so() {
    for kind in ServerKind::ALL {
        let fixture = Fixture::on(Server::start_with(kind, &["--maxmemory-policy", "noeviction"]));
        // The script is loaded while there is room for it.
        fixture.options().open().diagnose().await.expect("a server");
        fixture
            .options()
            .functions(Functions::Off)
            .open()
            .diagnose()
            .await
            .expect("a server");
        fixture.query::<()>(&["CONFIG", "SET", "maxmemory", "100kb"]);
        all_fail(&fixture, kind, RedisErrorCode::OutOfMemory).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_somebody_else_is_told_and_left_alone() {
    for kind in ServerKind::ALL {
        let fixture = Fixture::start(kind);
        let store = fixture.options().open();
        let healthy = every_limit(7, Micros::from_secs(60))[0];
        let mut foreign = 0;
        for limit in every_limit(5, Micros::from_secs(60)) {
            for (subject, make, read_command) in [
                ("list", &["RPUSH", "", "a", "b"][..], &["LRANGE", "", "0", "-1"][..]),
                ("text", &["SET", "", "of somebody else"], &["GET", ""]),
            ] {
                let key = fixture.counter(&store, &limit, subject);
                let text = store.key_text(&key);
                let with_key = |arguments: &[&str]| -> Vec<String> {
                    arguments
                        .iter()
                        .map(|word| {
                            if word.is_empty() {
                                text.clone()
                            } else {
                                (*word).to_owned()
                            }
                        })
                        .collect()
                };
                let run = |arguments: &[&str]| -> redis::Value {
                    let arguments = with_key(arguments);
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    fixture.query(&arguments)
                };
                run(make);
                let before = run(read_command);
                let this = charge(key, &limit, 1);
                let single = store.settle(&[this], lease()).await;
                assert_eq!(single.outcomes, [Err(StoreError::ForeignValue)], "{limit:?} {subject}");
                // Beside another, which is settled all the same.
                let other = fixture.counter(&store, &healthy, &format!("beside {subject} {}", limit.algorithm()));
                let both = store.settle(&[this, charge(other, &healthy, 1)], lease()).await;
                assert_eq!(both.outcomes[0], Err(StoreError::ForeignValue), "{limit:?} {subject}");
                assert!(both.outcomes[1].is_ok() && both.allowed);
                let refunded = store.refund(&this).await;
                assert_eq!(refunded, Err(StoreError::ForeignValue), "{limit:?} {subject}");
                let receipt = both.outcomes[1].expect("checked").receipt;
                let undone = store.undo(key, &limit, &receipt).await;
                assert_eq!(undone, Err(StoreError::ForeignValue), "{limit:?} {subject}");
                foreign += 4;
                assert_eq!(run(read_command), before, "{limit:?} {subject}");
                assert_eq!(fixture.query::<i64>(&["PTTL", &text]), -1);
            }
        }
        let counted = store.metrics().errors().find(|(name, _)| *name == "foreign_value");
        assert_eq!(counted, Some(("foreign_value", foreign)));
    }
}
