//! Primaries that go, stand still and come back.

use crate::fixture::{Load, Observation, calls, charge, connection, is_primary, limit, open, query, until, used};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::{LeaseId, Micros};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::ServerKind;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_followed_by_another() {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_millis(200)));
    let load = Load::on(Arc::clone(&store));
    until("a first answer", || load.shared() > 100).await;
    watched.servers[0].kill();
    let (_, replicas) = watched.servers.split_at(1);
    let new = || replicas.iter().find(|server| is_primary(server));
    until("a primary that takes writes", || new().is_some()).await;
    let new = new().expect("it is");
    let before = load.shared();
    let took = until("an answer of the new one", || load.shared() > before + 100).await;
    println!("shared again {took:?} after the new primary took writes");
    assert!(took < Duration::from_secs(1), "{took:?}");
    let Observation { passed, failed } = load.end().await;
    assert!(failed > 0, "the fault did not bite");
    assert!(calls(new) > 100);
    // What the new one was never told of is what was answered for last, and nothing is counted twice.
    let (passed_count, used) = (passed.len() as u64, used(&store, &limit()).await);
    assert!(used <= passed_count + failed, "{used} used, {passed_count} passed");
    let gap = passed.windows(2).map(|two| two[1].since(two[0])).max();
    let last = passed.windows(2).position(|two| Some(two[1].since(two[0])) == gap);
    let last = last.expect("a gap while there was no primary");
    let lost = passed_count.saturating_sub(used) as usize;
    assert!(lost <= last, "{lost} lost");
    let time = passed[last].since(passed[last - lost]);
    println!("{lost} charges of the last {time} lost");
    assert!(time < Micros::from_secs(1), "{lost} charges of the last {time} lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_too_late_is_not_asked() {
    let watched = SentinelGroup::start(ServerKind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_millis(200)));
    let load = Load::on(Arc::clone(&store));
    until("a first answer", || load.shared() > 100).await;
    let zombie = &watched.servers[0];
    let mut sentinels = watched.subscribe("+switch-master");
    // It stands still until another has its place, and knows nothing of it when it goes on.
    zombie.freeze();
    until("the switch", || sentinels.has_message()).await;
    zombie.thaw();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let at_first = calls(zombie);
    // Sentinels leave it as it is for another while.
    assert!(is_primary(zombie));
    let before = load.shared();
    until("more answers", || load.shared() > before + 2_000).await;
    assert_eq!(calls(zombie), at_first);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_are_away_stop_nobody() {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let store = Arc::new(open(&watched, Duration::from_secs(5)));
    let charge = charge(&store, &limit());
    let first = store.settle(&[charge], LeaseId::default()).await;
    assert!(first.allowed, "{first:?}");
    for sentinel in &mut watched.sentinels {
        sentinel.kill();
    }
    // Also not when the connection breaks: the primary is where it was.
    let connect_attempts = store.metrics().connect_attempts.get();
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    let killed: i64 = query(&mut connection(&watched.servers[0]), &kill);
    assert!(killed > 0);
    let dialled = || store.metrics().connect_attempts.get() > connect_attempts;
    until("a new connection", || {
        dialled() && store.status().connection_error.is_none()
    })
    .await;
    let second = store.settle(&[charge], LeaseId::default()).await;
    assert!(second.allowed, "{second:?}");
    // Another that starts now knows it from whoever was told.
    let kept = store.primary().expect("sentinels have named it");
    let primary = format!(" 127.0.0.1:{}", watched.servers[0].port());
    assert!(kept.starts_with("mymaster ") && kept.ends_with(&primary), "{kept}");
    let options = Redis::options(&watched.url()).expect("a URL");
    let another = options.deadline(Duration::from_secs(5)).last_primary(&kept).open();
    let third = another.settle(&[charge], LeaseId::default()).await;
    assert!(third.allowed, "{third:?}");
}
