//! What a user of the servers must be allowed to do, and what an operator is told.

use crate::fixture::{charge, key, once, open};
use std::time::Duration;
use tollgate_core::LeaseId;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{ReadFrom, Redis};
use tollgate_limiter::testing::admin::calls;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::ServerKind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_documented_is_enough() {
    const DOCS: &str = include_str!("../../../../docs/redis.md");
    const MORE: &str = "+cluster|nodes +asking";
    const READ_COMMANDS: &str = "+role +readonly +fcall_ro +evalsha_ro +eval_ro";
    assert!(DOCS.contains(&format!("`{MORE}` with a cluster")));
    assert!(DOCS.contains(&format!("read from replicas it needs `{READ_COMMANDS}`")));
    for kind in ServerKind::ALL {
        let cluster = Cluster::start(kind);
        for server in 0..cluster.servers.len() {
            let documented = DOCS.lines().filter(|line| line.starts_with("ACL SETUSER tollgate"));
            // The second is for servers that have functions.
            for line in documented.take(if kind == ServerKind::Redis62 { 1 } else { 2 }) {
                cluster.command(server, line).expect("a user");
            }
            let more = match kind {
                ServerKind::Redis62 => MORE.to_owned(),
                ServerKind::Redis70 | ServerKind::Valkey => format!("{MORE} {READ_COMMANDS}"),
            };
            cluster
                .command(server, &format!("ACL SETUSER tollgate {more}"))
                .expect("a user");
        }
        let url = cluster.url().replace("://", "://tollgate:password@");
        let read_from = match kind {
            ServerKind::Redis62 => ReadFrom::Primary,
            ServerKind::Redis70 | ServerKind::Valkey => ReadFrom::Replica,
        };
        let options = Redis::options(&url).expect("a URL").deadline(Duration::from_secs(5));
        let store = options.read_from(read_from).open();
        let survey = store.diagnose().await.expect("a cluster");
        assert_eq!(
            (survey.warnings, survey.is_function),
            (Vec::new(), kind != ServerKind::Redis62)
        );
        let limit = once(1);
        let cross_slot =
            ["a", "b", "c", "d"].map(|user_of| charge(key(&store, "r", &limit, &[user_of.as_bytes()]), &limit));
        let settlement = store.settle(&cross_slot, LeaseId::default()).await;
        assert!(settlement.allowed, "{kind:?} {settlement:?}");
        let peeked = store.peek(&cross_slot).await;
        assert!(peeked.outcomes.iter().all(Result::is_ok), "{kind:?} {peeked:?}");
        let has_replicas = read_from == ReadFrom::Replica;
        assert_eq!(store.metrics().replica_reads.get() > 0, has_replicas, "{kind:?}");
        assert_eq!(store.metrics().replica_misses.get(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_stops_as_a_whole_is_warned_of() {
    let cluster = Cluster::start_with(ServerKind::Redis70, &["--cluster-require-full-coverage", "yes"]);
    let survey = open(&cluster).diagnose().await.expect("a cluster");
    let [first, _, _] = &survey.warnings[..] else {
        panic!("one for each primary: {:?}", survey.warnings)
    };
    assert!(
        first.starts_with("127.0.0.1:") && first.ends_with("set it to no"),
        "{first}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_lets_nobody_in_is_tried_once_a_second() {
    let cluster = Cluster::start_without_replicas(ServerKind::Redis70);
    let url = cluster.url().replace("://", "://nobody:wrong@");
    let store = Redis::options(&url).expect("a URL").open();
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    let error = store.status().connection_error.expect("nobody is let in");
    assert!(!error.contains("wrong"), "{error}");
    for server in &cluster.servers[..3] {
        let tried = calls(server, &["auth", "hello"]);
        assert!((1..=4).contains(&tried), "{tried} times");
    }
}
