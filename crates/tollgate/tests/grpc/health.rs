//! `grpc.health.v1`.

use http_body_util::BodyExt;
use tollgate_test_kit::grpc::{Client, GrpcServer};
use tollgate_test_kit::{one_thread_runtime, rule_set};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const SERVING: [u8; 2] = [0x08, 1];
const NOT_SERVING: [u8; 2] = [0x08, 2];
const NAMES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// `HealthCheckRequest { service }`.
fn request_for(service: &str) -> Vec<u8> {
    if service.is_empty() {
        return Vec::new();
    }
    let mut bytes = vec![0x0a, service.len().try_into().unwrap()];
    bytes.extend_from_slice(service.as_bytes());
    bytes
}

#[test]
fn the_server_and_its_service_are_serving_and_nobody_else_is_known() {
    let server = GrpcServer::start("- { id: x, limit: 10/min }\n");
    let mut client = server.connect();
    for service in NAMES {
        let answer = client.call(CHECK, &request_for(service));
        assert_eq!((answer.status, &*answer.message), (Some(0), &SERVING[..]), "{service}");
    }
    assert_eq!(client.call(CHECK, &request_for("other")).status, Some(5));
}

#[test]
fn who_watches_hears_that_a_draining_server_serves_no_more() {
    let mut server = GrpcServer::start("- { id: x, limit: 10/min }\n");
    let runtime = one_thread_runtime();
    let mut client = Client::connect(&runtime, server.address);
    let mut body = runtime.block_on(async { client.start_call(WATCH, &[]).await.unwrap().into_body() });
    let mut next = || runtime.block_on(async { body.frame().await.unwrap().unwrap().into_data().unwrap() });
    assert_eq!(next()[5..], SERVING);
    server.stop();
    assert_eq!(next()[5..], NOT_SERVING);
    drop((body, client));
    server.wait();
}

#[test]
fn a_server_that_is_healthy_with_rules_only_serves_when_they_have_come() {
    let server = GrpcServer::start_without_rules();
    let mut client = server.connect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut watching = Client::connect(&runtime, server.address);
    let mut body = runtime.block_on(async {
        watching
            .start_call(WATCH, &request_for("ratelimit"))
            .await
            .unwrap()
            .into_body()
    });
    let mut next = || runtime.block_on(async { body.frame().await.unwrap().unwrap().into_data().unwrap() });
    let mut status = |service| client.call(CHECK, &request_for(service)).message.to_vec();
    assert_eq!(next()[5..], NOT_SERVING);
    for service in NAMES {
        assert_eq!(status(service), NOT_SERVING, "{service}");
    }
    server.gate.install_rules(rule_set("- { id: x, limit: 10/min }\n"));
    assert_eq!(next()[5..], SERVING);
    assert_eq!(status("ratelimit"), SERVING);
}
