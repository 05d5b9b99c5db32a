//! What one caller may use up.

use crate::client::{Client, SHOULD_RATE_LIMIT, asks, framed, of};
use crate::server::{Server, settings};
use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::grpc::{self, GrpcSettings};
use tollgate::server::net::listen::{Address, Listener};
use tollgate::server::rls::RateLimitRequest;

const RULES: &str = "- { id: x, limit: 10/min }\n";

#[test]
fn what_is_too_large_is_refused_and_takes_nothing() {
    let server = Server::start(RULES);
    let mut client = server.connect();
    let long = |length| "x".repeat(length);
    let refused = [
        asks((0..65).map(|_| of(&[]))),
        asks([of(&[("k", "v"); 65])]),
        asks([of(&[(&long(257), "v")])]),
        asks([of(&[("", "v")])]),
        asks([of(&[("k", &long(8 * 1024 + 1))])]),
        RateLimitRequest {
            domain: long(257),
            ..asks([of(&[])])
        },
    ];
    for request in refused {
        assert_eq!(client.refused(&request).0, 3, "{request:?}");
    }
    // More than a message may hold, whatever is in it.
    let large = asks((0..9).map(|_| of(&[("k", &long(8 * 1024))])));
    assert!(client.refused(&large).0 > 0);
    let taken = asks([of(&[("k", &long(8 * 1024))])]);
    assert_eq!(client.ask(&taken).statuses[0].limit_remaining, 9);
}

#[test]
fn what_is_no_call_is_told_so() {
    let server = Server::start(RULES);
    let mut client = server.connect();
    let message = asks([of(&[])]).encode_to_vec();
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
    let server = Server::start(RULES);
    let mut client = server.connect();
    let message = asks([of(&[])]).encode_to_vec();
    let large = "x".repeat(17 * 1024);
    let refused = client.try_call(SHOULD_RATE_LIMIT, &message, &[("x-large", &large)]);
    assert!(refused.map_or(true, |answer| answer.http == 431), "it was answered");
    assert_eq!(server.connect().call(SHOULD_RATE_LIMIT, &message).status, Some(0));
}

#[test]
fn a_connection_without_calls_is_told_to_go() {
    let server = Server::start_with(
        RULES,
        GrpcSettings {
            idle_timeout: Duration::from_millis(50),
            ..settings()
        },
    );
    let mut client = server.connect();
    client.ask(&asks([of(&[])]));
    // In good order.
    server.runtime.block_on(client.connection).unwrap().unwrap();
}

#[test]
fn who_says_nothing_is_cut_off_long_before() {
    let server = Server::start_with(
        RULES,
        GrpcSettings {
            header_timeout: Duration::from_millis(50),
            ..settings()
        },
    );
    let mut speaks = server.connect();
    speaks.ask(&asks([of(&[])]));
    for bytes in [&b""[..], b"PRI * HTTP/2.0"] {
        let mut silent = std::net::TcpStream::connect(server.address).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        std::io::Write::write_all(&mut silent, bytes).unwrap();
        std::io::Read::read_to_end(&mut silent, &mut Vec::new()).unwrap();
    }
    speaks.ask(&asks([of(&[])]));
}

#[test]
fn who_calls_nothing_is_told_to_go_long_before() {
    let mut tokens = Tokens::default();
    tokens
        .add("shop", TokenSecret::Plain("0123456789abcdef"), Rights::CHECK)
        .unwrap();
    let server = Server::start_with(
        RULES,
        GrpcSettings {
            header_timeout: Duration::from_millis(50),
            tokens: Some(Arc::new(Keyring::new(tokens))),
            ..settings()
        },
    );
    let message = asks([of(&[])]).encode_to_vec();
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
    let server = Server::start(RULES);
    let mut client = server.connect();
    let value = "x".repeat(8 * 1024);
    // Several frames of HTTP/2, and the last byte that there is room for.
    let of_size = |rest: usize| {
        let descriptors = (0..7).map(|_| of(&[("k", &value)]));
        asks(descriptors.chain([of(&[("k", &value[..rest])])]))
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
    let server = Server::start(RULES);
    let path = std::env::temp_dir().join(format!("tollgate-grpc-{}.sock", std::process::id()));
    let listener = server
        .runtime
        .block_on(Listener::bind(&Address::Unix(path.clone())))
        .unwrap();
    let serve = grpc::serve(listener, Arc::clone(&server.gate), settings(), std::future::pending());
    let serving = server.runtime.spawn(serve);
    let stream = server.runtime.block_on(UnixStream::connect(&path)).unwrap();
    let mut client = Client::over(&server.runtime, stream);
    assert_eq!(client.ask(&asks([of(&[])])).statuses[0].limit_remaining, 9);
    assert_eq!(server.connect().ask(&asks([of(&[])])).statuses[0].limit_remaining, 8);
    serving.abort();
}

#[test]
fn a_connection_becomes_only_so_old() {
    let server = Server::start_with(
        RULES,
        GrpcSettings {
            idle_timeout: Duration::from_millis(20),
            connection_age: Duration::from_millis(200),
            ..settings()
        },
    );
    let mut client = server.connect();
    // Busy all the time, and told to go all the same.
    let message = asks([of(&[])]).encode_to_vec();
    while client.try_call(SHOULD_RATE_LIMIT, &message, &[]).is_ok() {}
    assert_eq!(server.connect().call(SHOULD_RATE_LIMIT, &message).status, Some(0));
}
