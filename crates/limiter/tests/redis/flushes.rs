//! Scripts and functions that are gone again and again: they are sent along, and nothing is charged twice.

use crate::fixture::{Fixture, query, rate, settle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate_core::{Limit, Micros, SlidingLog};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::Functions;
use tollgate_limiter::testing::servers::ServerKind;

/// Enough for all that is asked, so that what is left tells what was taken.
const UNITS: u64 = 1_000_000;

async fn survives(kind: ServerKind, functions: Functions, flush: &[&str]) {
    let fixture = Fixture::start(kind);
    let limit = Limit::from(SlidingLog::new(rate(UNITS, Micros::from_secs(86_400))).expect("in range"));
    let stores: Vec<_> = (0..2)
        .map(|_| Arc::new(fixture.options().functions(functions).open()))
        .collect();
    let key = fixture.counter(&stores[0], &limit, "hot");
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for store in &stores {
        for _ in 0..16 {
            let (store, is_over) = (Arc::clone(store), Arc::clone(&is_over));
            tasks.push(tokio::spawn(async move {
                let mut passed = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let settlement = settle(&*store, key, &limit, 1).await;
                    assert!(settlement.allowed, "{settlement:?}");
                    passed += 1;
                }
                passed
            }));
        }
    }
    let mut admin = fixture.admin();
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        query::<()>(&mut admin, flush);
    }
    is_over.store(true, Ordering::Relaxed);
    let mut passed = 0;
    for task in tasks {
        passed += task.await.expect("no error");
    }
    let remaining = stores[0].peek(&[crate::fixture::charge(key, &limit, 0)]).await;
    let standing = *remaining.outcomes[0].expect("an answer").decision.standing();
    assert_eq!(UNITS - standing.remaining, passed);
    let loads: u64 = stores.iter().map(|store| store.metrics().script_loads.get()).sum();
    assert!(loads >= 15, "{loads} times it was sent along");
    let errors: u64 = stores
        .iter()
        .flat_map(|store| store.metrics().errors())
        .map(|(_, n)| n)
        .sum();
    assert_eq!(errors, 0);
    assert_eq!(fixture.audit(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_may_be_flushed_on_redis() {
    survives(ServerKind::Redis70, Functions::Off, &["SCRIPT", "FLUSH"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_may_be_flushed_on_the_oldest_redis() {
    survives(ServerKind::Redis62, Functions::Auto, &["SCRIPT", "FLUSH"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_may_be_flushed_on_redis() {
    survives(ServerKind::Redis70, Functions::On, &["FUNCTION", "FLUSH"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_may_be_flushed_on_valkey() {
    survives(ServerKind::Valkey, Functions::On, &["FUNCTION", "FLUSH"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_of_the_library_stays_and_both_work() {
    const OLDER: &str = "#!lua name=tollgate_0123456789abcdef\n\
        redis.register_function('tollgate_0123456789abcdef', function(keys, args) return 'older' end)\n";
    let fixture = Fixture::start(ServerKind::Redis70);
    fixture.query::<String>(&["FUNCTION", "LOAD", OLDER]);
    let store = fixture.options().functions(Functions::On).open();
    let limit = Limit::from(SlidingLog::new(rate(9, Micros::from_secs(60))).expect("in range"));
    let key = fixture.counter(&store, &limit, "anybody");
    assert!(settle(&store, key, &limit, 1).await.allowed);
    let answer: String = fixture.query(&["FCALL", "tollgate_0123456789abcdef", "0"]);
    assert_eq!(answer, "older");
    let libraries: Vec<redis::Value> = fixture.query(&["FUNCTION", "LIST"]);
    assert_eq!(libraries.len(), 2);
    // A second instance finds the library loaded and leaves it as it is.
    let second = fixture.options().functions(Functions::On).open();
    assert!(settle(&second, key, &limit, 1).await.allowed);
    let libraries: Vec<redis::Value> = fixture.query(&["FUNCTION", "LIST"]);
    assert_eq!((libraries.len(), second.metrics().script_loads.get()), (2, 0));
    assert_eq!(fixture.audit(), 1);
}
