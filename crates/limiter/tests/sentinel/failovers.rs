//! Primaries that go, stand still and come back.

use crate::site::{Load, calls, charge, connection, limit, open, until};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::Store;
use tollgate_limiter::testing::sentinel::Watched;
use tollgate_limiter::testing::servers::Kind;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_followed_by_another() {
    let mut watched = Watched::start(Kind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_millis(200)));
    let load = Load::on(Arc::clone(&store));
    until("a first answer", || load.shared() > 100).await;
    watched.servers[0].kill();
    let old = watched.servers[0].port();
    until("another primary", || watched.primary_port() != old).await;
    let new = watched.primary_port();
    let new = watched
        .servers
        .iter()
        .find(|server| server.port() == new)
        .expect("one of the replicas");
    until("a primary that takes writes", || {
        let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection(new)).expect("it tells");
        matches!(&role[0], redis::Value::BulkString(role) if role == b"master")
    })
    .await;
    let before = load.shared();
    let took = until("an answer of the new one", || load.shared() > before + 100).await;
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(load.end().await > 0, "the fault did not bite");
    assert!(calls(new) > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_too_late_is_not_asked() {
    let watched = Watched::start(Kind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_millis(200)));
    let load = Load::on(Arc::clone(&store));
    until("a first answer", || load.shared() > 100).await;
    let (zombie, old) = (&watched.servers[0], watched.servers[0].port());
    // It stands still until another has its place, and knows nothing of it when it goes on.
    zombie.freeze();
    until("another primary", || watched.primary_port() != old).await;
    let before = load.shared();
    until("an answer of the new one", || load.shared() > before + 100).await;
    zombie.thaw();
    let at_first = calls(zombie);
    let before = load.shared();
    until("more answers", || load.shared() > before + 1_000).await;
    assert_eq!(calls(zombie), at_first);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_are_away_stop_nobody() {
    let mut watched = Watched::start(Kind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_secs(5)));
    let charge = charge(&store, &limit());
    let first = store.settle(&[charge], LeaseId::default()).await;
    assert!(first.passes, "{first:?}");
    for sentinel in &mut watched.sentinels {
        sentinel.kill();
    }
    // Also not when the connection breaks: the primary is where it was.
    let killed: i64 = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .query(&mut connection(&watched.servers[0]))
        .expect("it does");
    assert!(killed > 0);
    until("a new connection", || store.fault().is_none()).await;
    let second = store.settle(&[charge], LeaseId::default()).await;
    assert!(second.passes, "{second:?}");
}
