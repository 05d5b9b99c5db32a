//! Instances that count each other: who stops is not counted, nor who fails to start.

use crate::shared_store::{eventually, instance, instances};
use crate::test_server::{TestServer, run};
use std::io::Write;
use std::time::Duration;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::TestFolder;

/// The number of instances that a server counts.
fn counted(server: &TestServer) -> u64 {
    let ready = server.get("/readyz").json();
    ready
        .get("instances")
        .and_then(serde_json::Value::as_u64)
        .expect("a number")
}

#[test]
fn an_instance_that_is_stopped_is_not_counted_any_more() {
    const RULES: &str = "rules: [{ id: r, limit: 10/h }]\n";
    let redis = Redis::start(ServerKind::Redis70);
    let (folder, instances) = instances::<4>(&redis.url(), RULES);
    eventually("four instances", || instances.iter().all(|one| counted(one) == 4));
    let [one, two, three, four] = instances;
    assert!(four.stop().success());
    eventually("three instances", || {
        [&one, &two, &three].iter().all(|one| counted(one) == 3)
    });
    // One takes its place.
    let five = instance(&folder, &redis.url());
    eventually("four instances", || {
        [&one, &two, &three, &five].iter().all(|one| counted(one) == 4)
    });
    // It leaves when it begins to drain, and not when the last request is over.
    let mut request = three.connect();
    request
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: test\r\ncontent-length: 17\r\n\r\n{\"attrib")
        .expect("it reads");
    std::thread::park_timeout(Duration::from_millis(100));
    three.signal("TERM");
    three.wait_for("draining", 1);
    eventually("three instances", || [&one, &two].iter().all(|one| counted(one) == 3));
    assert!(!three.log().contains("stopped"), "{}", three.log());
    request.write_all(b"utes\":{}}").expect("it reads");
    assert!(three.end().success());
}

#[test]
fn an_instance_leaves_a_cluster_and_the_primary_of_sentinels_too() {
    const RULES: &str = "rules: [{ id: r, limit: 10/h }]\n";
    let (cluster, sentinels) = (
        Cluster::start(ServerKind::Redis70),
        SentinelGroup::start(ServerKind::Redis70),
    );
    for url in [cluster.url(), sentinels.url()] {
        let (_folder, [stays, leaves]) = instances::<2>(&url, RULES);
        eventually("two instances", || counted(&stays) == 2 && counted(&leaves) == 2);
        assert!(leaves.stop().success());
        eventually("one instance", || counted(&stays) == 1);
    }
}

#[test]
fn a_start_that_fails_is_not_counted() {
    let redis = Redis::start(ServerKind::Redis70);
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 10/h }]\n");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let http = format!("server.http={}", taken.local_addr().expect("it is bound"));
    let store = format!("store.url={}", redis.url());
    let stays = instance(&folder, &redis.url());
    for _ in 0..5 {
        let (code, _, stderr) = run(&folder, &["serve", "--set", &http, "--set", &store]);
        assert_eq!(code, Some(2), "{stderr}");
    }
    // Two heartbeats later.
    std::thread::park_timeout(Duration::from_millis(3_200));
    assert_eq!(counted(&stays), 1);
}
