//! The programs of `examples/`, run as they are.

#[expect(dead_code, reason = "a program's `main` is not called here")]
#[path = "../../examples/axum_service.rs"]
mod axum_service;
#[expect(dead_code, reason = "a program's `main` is not called here")]
#[path = "../../examples/fleet.rs"]
mod fleet;
#[expect(dead_code, reason = "a program's `main` is not called here")]
#[path = "../../examples/tonic_service.rs"]
mod tonic_service;

use super::fixture::{Connection, listener};
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test]
async fn an_axum_service_limits_each_client() {
    let listener = listener().await;
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum_service::serve(listener).await.map_err(|error| error.to_string()) });
    let mut connection = Connection::open(address).await;
    let mut passed = 0;
    for _ in 0..25 {
        passed += u32::from(connection.get("/", &[]).await.status == 200);
    }
    assert!(passed >= 20, "{passed}");
    let mut denied = None;
    for _ in 0..1_000 {
        // A header of a client changes nothing.
        let reply = connection.get("/", &[("x-forwarded-for", "192.0.2.1")]).await;
        if reply.status == 429 {
            denied = Some(reply);
            break;
        }
    }
    let denied = denied.expect("more than ten a second are denied");
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some());
}

#[tokio::test]
async fn an_axum_service_refunds_what_was_not_used() {
    let listener = listener().await;
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum_service::serve(listener).await.map_err(|error| error.to_string()) });
    let mut connection = Connection::open(address).await;
    let key = [("x-api-key", "k_1")];
    let first = connection.get("/complete", &key).await;
    assert_eq!(&first.body[..], b"done\n");
    let tokens = |reply: &super::fixture::Reply| {
        let ratelimit = reply.header("ratelimit").expect("limits").to_owned();
        let item = ratelimit
            .split(", ")
            .find(|item| item.starts_with("\"tokens\""))
            .expect("the limit")
            .to_owned();
        item.split(";r=")
            .nth(1)
            .and_then(|rest| rest.split(';').next())
            .and_then(|r| r.parse::<u64>().ok())
            .expect("r")
    };
    assert_eq!(tokens(&first), 9_500, "500 units were predicted");
    // 380 of them came back.
    let second = connection.get("/complete", &key).await;
    assert!(tokens(&second) >= 10_000 - 120 - 500, "{:?}", second.headers);
}

#[tokio::test]
async fn a_tonic_service_answers_with_a_status() {
    let listener = listener().await;
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { tonic_service::serve(listener).await.map_err(|error| error.to_string()) });
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("a URL");
    let channel = channel.connect().await.expect("the server listens");
    let mut client = HealthClient::new(channel);
    let request = || HealthCheckRequest { service: String::new() };
    for _ in 0..5 {
        client.check(request()).await.expect("allowed");
    }
    let status = client.check(request()).await.expect_err("denied");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Policy \"per-ip\" allows 5 requests per 5 seconds.");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").expect("a wait");
    assert!(pushback.to_str().expect("text").parse::<u64>().is_ok_and(|ms| ms > 0));
}

/// The URL of the shared Redis, for the process that the next test starts.
const FLEET_URL: &str = "TOLLGATE_TOWER_TEST_FLEET_URL";

/// One of the processes of the next test; in any other run it does nothing.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a process of the test gets its arguments so")]
async fn one_process_of_the_fleet() {
    let Ok(url) = std::env::var(FLEET_URL) else { return };
    let listener = listener().await;
    println!("listening on {}", listener.local_addr().expect("it is bound"));
    fleet::serve(&url, listener).await.expect("it serves");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_one_limit_over_redis() {
    let redis = Server::start(ServerKind::Redis70);
    let mut processes = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "examples::one_process_of_the_fleet", "--nocapture"])
            .env(FLEET_URL, redis.url())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let address: SocketAddr = loop {
            let line = lines
                .next_line()
                .await
                .expect("readable")
                .expect("it prints its address");
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.parse().expect("an address");
            }
        };
        addresses.push(address);
        processes.push((process, lines));
    }
    // Until they are connected, each keeps to its share.
    for address in &addresses {
        Connection::open(*address).await.get("/", &[]).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let started = tokio::time::Instant::now();
    let mut passed = 0;
    for address in addresses {
        let mut connection = Connection::open(address).await;
        for _ in 0..100 {
            passed += usize::from(connection.get("/", &[]).await.status == 200);
        }
    }
    let seconds = usize::try_from(started.elapsed().as_millis().div_ceil(1_000)).expect("few");
    assert!((5..=5 + 5 * seconds).contains(&passed), "{passed} in {seconds} s");
}
