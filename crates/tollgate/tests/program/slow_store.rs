//! A store that comes late, or answers late.

use crate::shared_store::eventually;
use crate::test_server::{TestServer, tollgate};
use std::time::Duration;
use tollgate_limiter::testing::relay::Relay;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::TestFolder;

#[test]
fn the_first_request_is_decided_by_a_store_that_takes_long_to_come() {
    let mut redis = Redis::start(ServerKind::Redis70);
    let url = redis.url();
    redis.kill();
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 10/h }]\n");
    let comes = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(1_200));
        redis.revive();
        redis
    });
    let store = format!("store={{ url: '{url}', deadline: 5s, start_wait: 25s }}");
    let server = TestServer::start(&folder, &["--set", &store]);
    let first = server.check("{}").json();
    assert_eq!(first["source"], "shared");
    // The number of instances is known from the first request on.
    assert_eq!(server.get("/readyz").json()["instances_from"], "heartbeats");
    let _redis = comes.join().expect("it only waits");
}

#[test]
fn a_start_without_its_store_says_so_and_decides_locally() {
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 10/h }]\n");
    for settings in ["", ", start_wait: 3s"] {
        let store = format!("store={{ url: 'redis://127.0.0.1:1'{settings} }}");
        let server = TestServer::start(&folder, &["--set", &store]);
        server.wait_for("has not answered within start_wait", 1);
        assert_eq!(server.check("{}").json()["source"], "local");
    }
    // Nor does it keep it from being stopped.
    let store = "store={ url: 'redis://127.0.0.1:1', start_wait: 10min }";
    let mut child = tollgate(&folder, &["serve", "--set", "server.http=127.0.0.1:0", "--set", store])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program can be run");
    std::thread::park_timeout(Duration::from_millis(700));
    let kill = std::process::Command::new("kill").arg(child.id().to_string()).status();
    assert!(kill.expect("there is a kill").success());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_deadline_that_is_too_short_for_the_store_is_told_with_the_number_to_set() {
    let redis = Redis::start(ServerKind::Redis70);
    let relay = Relay::start(redis.port(), Duration::from_millis(12));
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 10/h }]\n");
    let server = TestServer::start(&folder, &["--store", &relay.url()]);
    assert_eq!(server.check("{}").json()["source"], "local");
    server.wait_for("deadline too short: a round trip to the store takes ", 1);
    let ready = server.get("/readyz").json();
    let warnings = ready["store"]["warnings"].to_string();
    let (_, number) = warnings
        .split_once("set `store.deadline` to ")
        .expect("a number to set");
    let (number, _) = number.split_once("ms or more").expect("milliseconds");
    assert!(number.parse::<u64>().is_ok_and(|ms| ms >= 36), "{warnings}");
    let metrics = server.get("/metrics").body;
    let metric = |name: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        let value = value.unwrap_or_else(|| panic!("no {name}: {metrics}"));
        value.trim().parse::<f64>().expect("a number")
    };
    assert!(metric("tollgate_store_round_trip_seconds ") >= 0.012);
    assert_eq!(metric("tollgate_store_deadline_seconds "), 0.01);
    assert_eq!(server.log().matches("deadline too short").count(), 1);

    let store = format!("store={{ url: '{}', deadline: 2s }}", relay.url());
    let server = TestServer::start(&folder, &["--set", &store]);
    assert_eq!(server.check("{}").json()["source"], "shared");
    let ready = server.get("/readyz").json();
    assert_eq!(ready["store"]["warnings"], serde_json::json!([]));
    assert!(!server.log().contains("deadline too short"), "{}", server.log());
}

#[test]
fn a_single_timeout_is_told_as_one_and_not_as_a_store_that_is_away() {
    let redis = Redis::start(ServerKind::Redis70);
    let relay = Relay::start(redis.port(), Duration::ZERO);
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 10/h }]\n");
    let store = format!("store={{ url: '{}', deadline: 400ms, instances: 1 }}", relay.url());
    let server = TestServer::start(&folder, &["--set", &store]);
    assert_eq!(server.check("{}").json()["source"], "shared");
    relay.set_delay(Duration::from_millis(600));
    assert_eq!(server.check("{}").json()["source"], "local");
    // For a while there is no connection: the handshake takes some round trips.
    relay.set_delay(Duration::from_millis(90));
    server.wait_for("store calls timed out since the last report", 1);
    eventually("a shared answer", || server.check("{}").json()["source"] == "shared");
    std::thread::park_timeout(Duration::from_millis(600));
    let log = server.log();
    assert!(!log.contains("store unavailable") && !log.contains("ERROR"), "{log}");
    assert_eq!(server.get("/readyz").json()["breaker"], "closed");
}
