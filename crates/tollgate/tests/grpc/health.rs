//! `grpc.health.v1`.

use crate::server::Server;

const CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: [u8; 2] = [0x08, 1];

/// `HealthCheckRequest { service }`.
fn asks(service: &str) -> Vec<u8> {
    if service.is_empty() {
        return Vec::new();
    }
    let mut bytes = vec![0x0a, service.len().try_into().unwrap()];
    bytes.extend_from_slice(service.as_bytes());
    bytes
}

#[test]
fn the_server_and_its_service_are_serving_and_nobody_else_is_known() {
    let server = Server::start("- { id: x, limit: 10/min }\n");
    let mut client = server.connect();
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let answer = client.call(CHECK, &asks(service));
        assert_eq!((answer.status, &*answer.message), (Some(0), &SERVING[..]), "{service}");
    }
    assert_eq!(client.call(CHECK, &asks("other")).status, Some(5));
}
