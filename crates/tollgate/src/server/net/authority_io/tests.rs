//! Authorities of HTTP/2 clients, in pieces of any length, and a call that has one.

use super::*;
use crate::server::gate::{Gate, Phase};
use crate::server::grpc::{self, GrpcSettings};
use crate::server::net::listen::{Address, Listener};
use crate::server::rls::{RateLimitDescriptor, RateLimitRequest, SHOULD_RATE_LIMIT_PATH};
use prost::Message;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tollgate_limiter::core::testing::rules::rule_set;
use tollgate_limiter::store::memory::Memory;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A literal field, as gRPC's C core writes it: into the table, and without Huffman coding.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    match name {
        ":authority" => [&[0x41, length(value)], value.as_bytes()].concat(),
        ":path" => [&[0x44, length(value)], value.as_bytes()].concat(),
        name => [
            &[0x40, length(name)],
            name.as_bytes(),
            &[length(value)],
            value.as_bytes(),
        ]
        .concat(),
    }
}

fn headers(authority: &str, flags: u8) -> Vec<u8> {
    let mut block = match flags & PADDED {
        0 => Vec::new(),
        _ => vec![3],
    };
    // :scheme http, :method POST.
    block.extend([0x86, 0x83]);
    block.extend(literal(":path", SHOULD_RATE_LIMIT_PATH));
    block.extend(literal(":authority", authority));
    block.extend(literal("te", "trailers"));
    block.extend(literal("content-type", "application/grpc"));
    block.extend(vec![0; if flags & PADDED == 0 { 0 } else { 3 }]);
    frame(HEADERS, 0x4 | flags, 1, &block)
}

async fn received(sent: &[u8], piece: usize) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(piece);
    let sent = sent.to_vec();
    tokio::spawn(async move { client.write_all(&sent).await });
    let mut bytes = Vec::new();
    AuthorityIo::new(server).read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn a_path_becomes_a_name_of_the_same_length_and_all_else_is_as_it_was() {
    for (sent, expected) in [
        ("/run/tollgate.sock", "-run-tollgate.sock"),
        ("%2Frun%2Ftollgate.sock", "-2Frun-2Ftollgate.sock"),
        ("unix:/run/x", "unix--run-x"),
        ("localhost:8081", "localhost:8081"),
        ("[::1]:8081", "[::1]:8081"),
    ] {
        for flags in [0, PADDED] {
            let stream = |authority| {
                let settings = frame(4, 0, 0, &[]);
                let data = frame(0, 1, 1, b"/a%b");
                [
                    PREFACE,
                    &settings[..],
                    &headers(authority, flags),
                    &data,
                    &headers(authority, flags),
                ]
                .concat()
            };
            for piece in [1, 7, 1000] {
                assert_eq!(
                    received(&stream(sent), piece).await,
                    stream(expected),
                    "{sent} by {piece}"
                );
            }
        }
    }
}

#[tokio::test]
async fn another_protocol_and_broken_frames_pass_unchanged() {
    let cut = [PREFACE, &headers("/x", 0)[..20]].concat();
    let wild = [
        PREFACE,
        &frame(HEADERS, 0, 1, &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])[..],
    ]
    .concat();
    for sent in [
        &b"*1\r\n$4\r\nPING\r\n"[..],
        b"PRI * HTTP/1.1\r\n",
        b"P",
        b"",
        &cut,
        &wild,
    ] {
        assert_eq!(received(sent, 5).await, sent);
    }
}

#[tokio::test]
async fn a_call_whose_authority_is_the_path_of_the_socket_is_answered() {
    let path = std::env::temp_dir().join(format!("tollgate-authority-{}.sock", std::process::id()));
    let listener = Listener::bind(&Address::Unix(path.clone())).await.unwrap();
    let rules = rule_set("rules: [{ id: plan, limit: 100/min }]");
    let gate = Arc::new(Gate::new(rules, Arc::new(Memory::options().build())));
    gate.advance_phase(Phase::Ready);
    tokio::spawn(grpc::serve(
        listener,
        gate,
        GrpcSettings::default(),
        std::future::pending(),
    ));
    let message = RateLimitRequest {
        domain: "default".into(),
        descriptors: vec![RateLimitDescriptor::default()],
        hits_addend: 0,
    }
    .encode_to_vec();
    let framed = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat();
    let mut client = UnixStream::connect(&path).await.unwrap();
    let authority = path.to_str().unwrap().replace('/', "%2F");
    let call = [
        PREFACE,
        &frame(4, 0, 0, &[])[..],
        &headers(&authority, 0),
        &frame(0, 1, 1, &framed),
    ]
    .concat();
    client.write_all(&call).await.unwrap();
    loop {
        let mut head = [0; FRAME_HEAD_BYTES];
        client.read_exact(&mut head).await.expect("the connection stays");
        let frame = FrameHead::read(&head).unwrap();
        let mut payload = vec![0; frame.length];
        client.read_exact(&mut payload).await.unwrap();
        assert_ne!(frame.kind, 3, "the stream is reset: {payload:?}");
        // The message of the response.
        if frame.kind == 0 && head[8] == 1 {
            assert!(payload.len() > 5, "{payload:?}");
            break;
        }
    }
}
