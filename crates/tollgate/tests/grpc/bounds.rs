//! What one caller may use up.

use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::grpc::{self, GrpcSettings};
use tollgate::server::net::listen::{Address, Listener};
use tollgate::server::rls::RateLimitRequest;
use tollgate_test_kit::grpc::{Client, GrpcServer, SHOULD_RATE_LIMIT, descriptor, framed, request_for, settings};

const RULES: &str = "- { id: x, limit: 10/min }\n";

fn with(change: impl FnOnce(&mut GrpcSettings)) -> GrpcServer {
    let mut settings = settings();
    change(&mut settings);
    GrpcServer::start_with(RULES, settings)
}

#[test]
fn what_is_too_large_is_refused_and_takes_nothing() {
    let server = GrpcServer::start(RULES);
    let mut client = server.connect();
    let long = |length| "x".repeat(length);
    let refused = [
        request_for((0..65).map(|_| descriptor(&[]))),
        request_for([descriptor(&[("k", "v"); 65])]),
        request_for([descriptor(&[(&long(257), "v")])]),
        request_for([descriptor(&[("k", &long(8 * 1024 + 1))])]),
        RateLimitRequest {
            domain: long(257),
            ..request_for([descriptor(&[])])
        },
    ];
    for request in refused {
        assert_eq!(client.rejected(&request).0, 3, "{request:?}");
    }
    // More than a message may hold, whatever is in it.
    let large = request_for((0..9).map(|_| descriptor(&[("k", &long(8 * 1024))])));
    assert!(client.rejected(&large).0 > 0);
    let taken = request_for([descriptor(&[("k", &long(8 * 1024))])]);
    assert_eq!(client.should_rate_limit(&taken).statuses[0].limit_remaining, 9);
}

#[test]
fn what_is_no_call_is_told_so() {
    let server = GrpcServer::start(RULES);
    let mut client = server.connect();
    let message = request_for([descriptor(&[])]).encode_to_vec();
    for path in [
        "/",
        "/x",
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        "/no.such.Service/Method",
    ] {
        assert_eq!(client.call(path, &message).status, Some(12), "{path}");
    }
    let page = client
        .send(SHOULD_RATE_LIMIT, framed(&message), &[("content-type", "text/html")])
        .unwrap();
    assert_eq!(page.http, 415);
    let proto = [("content-type", "application/grpc+proto")];
    assert_eq!(
        client.try_call(SHOULD_RATE_LIMIT, &message, &proto).unwrap().status,
        Some(0)
    );
    // Nothing, half a message, a message that is shorter than it says, a compressed one.
    for body in [
        &b""[..],
        &[0, 0],
        &[0, 0, 0, 0, 9, 1],
        &[1, 0, 0, 0, 1, 1],
        &[9, 0, 0, 0, 0],
    ] {
        let answer = client
            .send(SHOULD_RATE_LIMIT, Bytes::copy_from_slice(body), &[])
            .unwrap();
        assert!(answer.status.is_some_and(|status| status > 0), "{body:?}: {answer:?}");
    }
}

#[test]
fn headers_that_are_too_large_are_refused() {
    let server = GrpcServer::start(RULES);
    let mut client = server.connect();
    let message = request_for([descriptor(&[])]).encode_to_vec();
    let large = "x".repeat(17 * 1024);
    let refused = client.try_call(SHOULD_RATE_LIMIT, &message, &[("x-large", &large)]);
    assert!(refused.map_or(true, |answer| answer.http == 431), "it was answered");
    assert_eq!(server.connect().call(SHOULD_RATE_LIMIT, &message).status, Some(0));
}

#[test]
fn a_connection_without_calls_is_told_to_go() {
    let server = with(|settings| settings.idle_timeout = Duration::from_millis(50));
    let mut client = server.connect();
    client.should_rate_limit(&request_for([descriptor(&[])]));
    // In good order.
    server.runtime.block_on(client.connection).unwrap().unwrap();
}

#[test]
fn who_says_nothing_is_cut_off_long_before() {
    let server = with(|settings| settings.header_timeout = Duration::from_millis(50));
    let mut speaks = server.connect();
    speaks.should_rate_limit(&request_for([descriptor(&[])]));
    for bytes in [&b""[..], b"PRI * HTTP/2.0"] {
        let mut silent = std::net::TcpStream::connect(server.address).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        std::io::Write::write_all(&mut silent, bytes).unwrap();
        std::io::Read::read_to_end(&mut silent, &mut Vec::new()).unwrap();
    }
    speaks.should_rate_limit(&request_for([descriptor(&[])]));
}

#[test]
fn who_calls_nothing_is_told_to_go_long_before() {
    let mut tokens = Tokens::default();
    tokens
        .add("shop", TokenSecret::Plain("0123456789abcdef"), Rights::CHECK)
        .unwrap();
    let server = GrpcServer::start_with(
        RULES,
        GrpcSettings {
            header_timeout: Duration::from_millis(50),
            tokens: Some(Arc::new(Keyring::new(tokens))),
            ..settings()
        },
    );
    let message = request_for([descriptor(&[])]).encode_to_vec();
    // In good order. Calls of somebody whom nobody knows are none.
    let quiet = server.connect();
    server.runtime.block_on(quiet.connection).unwrap().unwrap();
    let mut unknown = server.connect();
    while let Ok(refused) = unknown.try_call(SHOULD_RATE_LIMIT, &message, &[]) {
        assert_eq!(refused.status, Some(16));
    }
}

#[test]
fn a_message_of_as_much_as_is_allowed_is_answered() {
    let server = GrpcServer::start(RULES);
    let mut client = server.connect();
    let value = "x".repeat(8 * 1024);
    // Several frames of HTTP/2, and the last byte that there is room for.
    let of_size = |rest: usize| {
        let descriptors = (0..7).map(|_| descriptor(&[("k", &value)]));
        request_for(descriptors.chain([descriptor(&[("k", &value[..rest])])]))
    };
    let rest = 8 * 1024 - (of_size(8 * 1024).encoded_len() - 64 * 1024);
    let message = of_size(rest).encode_to_vec();
    assert_eq!(message.len(), 64 * 1024);
    assert_eq!(client.call(SHOULD_RATE_LIMIT, &message).status, Some(0));
    let message = of_size(rest + 1).encode_to_vec();
    assert_eq!(client.call(SHOULD_RATE_LIMIT, &message).status, Some(11));
}

#[test]
fn a_call_comes_by_a_unix_socket_too() {
    let server = GrpcServer::start(RULES);
    let path = std::env::temp_dir().join(format!("tollgate-grpc-{}.sock", std::process::id()));
    let listener = server
        .runtime
        .block_on(Listener::bind(&Address::Unix(path.clone())))
        .unwrap();
    let serve = grpc::serve(listener, Arc::clone(&server.gate), settings(), std::future::pending());
    let serving = server.runtime.spawn(serve);
    let stream = server.runtime.block_on(UnixStream::connect(&path)).unwrap();
    let mut client = Client::over(&server.runtime, stream);
    assert_eq!(
        client.should_rate_limit(&request_for([descriptor(&[])])).statuses[0].limit_remaining,
        9
    );
    assert_eq!(
        server
            .connect()
            .should_rate_limit(&request_for([descriptor(&[])]))
            .statuses[0]
            .limit_remaining,
        8
    );
    serving.abort();
}

#[test]
fn a_connection_becomes_only_so_old() {
    let server = GrpcServer::start_with(
        RULES,
        GrpcSettings {
            idle_timeout: Duration::from_millis(20),
            connection_age: Duration::from_millis(200),
            ..settings()
        },
    );
    let mut client = server.connect();
    // Busy all the time, and told to go all the same.
    let message = request_for([descriptor(&[])]).encode_to_vec();
    while client.try_call(SHOULD_RATE_LIMIT, &message, &[]).is_ok() {}
    assert_eq!(server.connect().call(SHOULD_RATE_LIMIT, &message).status, Some(0));
}
