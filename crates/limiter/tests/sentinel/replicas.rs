//! Looks at the replicas of whoever is the primary.

use crate::fixture::{charge, is_primary, limit, role, until};
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{ReadFrom, Redis};
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{Server, ServerKind};

fn peeks(server: &Server) -> u64 {
    crate::fixture::calls_by(server, &["fcall_ro", "evalsha_ro"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_go_to_all_replicas_in_turn_and_follow_a_failover() {
    let mut watched = SentinelGroup::start(ServerKind::Redis70);
    let options = Redis::options(&watched.url()).expect("a URL");
    let options = options.deadline(Duration::from_secs(2)).near_cache(false);
    let store = options.read_from(ReadFrom::Replica).open();
    assert_eq!(
        store.diagnose().await.expect("a primary").warnings,
        Vec::<String>::new()
    );
    let charge = charge(&store, &limit());
    let peek = async || store.peek(&[charge]).await.outcomes[0].expect("an answer");
    // Both are connected to by now, or soon.
    for replica in [1, 2] {
        let before = peeks(&watched.servers[replica]);
        while peeks(&watched.servers[replica]) < before + 10 {
            peek().await;
        }
    }
    let wrote = crate::fixture::calls(&watched.servers[0]);
    let before = [0, 1, 2].map(|server| peeks(&watched.servers[server]));
    for _ in 0..100 {
        peek().await;
    }
    let after = [0, 1, 2].map(|server| peeks(&watched.servers[server]));
    assert_eq!(
        [after[0] - before[0], after[1] - before[1], after[2] - before[2]],
        [0, 50, 50]
    );
    assert_eq!(crate::fixture::calls(&watched.servers[0]), wrote);
    assert_eq!(
        crate::fixture::calls(&watched.servers[1]) + crate::fixture::calls(&watched.servers[2]),
        0
    );
    watched.servers[0].kill();
    let follows = |other: &Server, new: &Server| {
        let port = redis::Value::Int(new.port().into());
        let connected = redis::Value::BulkString(b"connected".to_vec());
        is_primary(new) && matches!(&role(other)[..], [_, _, of, state, ..] if *of == port && *state == connected)
    };
    let [one, two] = [&watched.servers[1], &watched.servers[2]];
    until("a new primary and its replica", || {
        follows(one, two) || follows(two, one)
    })
    .await;
    let other = if is_primary(one) { two } else { one };
    loop {
        // The first may find that the connections are broken.
        if store.settle(&[charge], LeaseId::default()).await.allowed {
            break;
        }
    }
    // It may have been the primary for a moment, when sentinels did not agree at once.
    let wrote = crate::fixture::calls(other);
    let before = peeks(other);
    while peeks(other) < before + 10 {
        peek().await;
    }
    assert_eq!(crate::fixture::calls(other), wrote);
}
