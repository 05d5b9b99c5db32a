//! Calls that are taken back as soon as they are made.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tollgate::server::rls::rate_limit_response::Code;
use tollgate_test_kit::grpc::{GrpcServer, descriptor, request_for};

/// How HTTP/2 begins.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const GOAWAY: u8 = 7;

/// A frame of HTTP/2.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length: u32 = payload.len().try_into().unwrap();
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[test]
fn a_client_that_does_nothing_else_is_sent_away_and_others_are_served() {
    let server = GrpcServer::start("- { id: x, limit: 10/min }\n");
    let mut attacker = TcpStream::connect(server.address).unwrap();
    attacker.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    for number in 0..5_000 {
        let stream = 2 * number + 1;
        // POST, http, `/`, and an authority of one letter.
        bytes.extend(frame(1, 4, stream, &[0x83, 0x86, 0x84, 0x01, 0x01, b'x']));
        bytes.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    assert!(sent(&mut attacker, &bytes).contains(&GOAWAY));
    assert_eq!(
        server
            .connect()
            .should_rate_limit(&request_for([descriptor(&[])]))
            .overall_code(),
        Code::Ok
    );
}

/// Sends all of it, as far as the server lets it, and says which kinds of frames came back until it hung up or said no more.
fn sent(attacker: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    // The server may have hung up before all of it was written, or not read it before its answers are read.
    let _ = attacker.write_all(bytes);
    let mut received = Vec::new();
    let _ = attacker.read_to_end(&mut received);
    let mut rest = &received[..];
    let mut kinds = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        kinds.push(*kind);
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    kinds
}

#[test]
fn floods_of_frames_end_one_connection_at_most_and_others_are_served() {
    let server = GrpcServer::start("- { id: x, limit: 1000/min }\n");
    let headers = |flags| frame(1, flags, 1, &[0x83, 0x86, 0x84, 0x01, 0x01, b'x']);
    let continued = [headers(0), frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b']).repeat(20_000)].concat();
    let empty = [headers(4), frame(0, 0, 1, &[]).repeat(50_000)].concat();
    for (name, flood, is_ended) in [
        ("PING", frame(6, 0, 0, &[7; 8]).repeat(50_000), false),
        ("SETTINGS", frame(4, 0, 0, &[0, 3, 0, 0, 0, 9]).repeat(50_000), false),
        ("CONTINUATION", continued, true),
        ("DATA", empty, false),
    ] {
        let mut attacker = TcpStream::connect(server.address).unwrap();
        attacker.set_write_timeout(Some(TIMEOUT)).unwrap();
        attacker.set_read_timeout(Some(TIMEOUT)).unwrap();
        let greeting = [PREFACE, &frame(4, 0, 0, &[])].concat();
        let kinds = sent(&mut attacker, &[greeting, flood].concat());
        assert!(!is_ended || kinds.contains(&GOAWAY), "{name}");
        // While it is still there.
        assert_eq!(
            server
                .connect()
                .should_rate_limit(&request_for([descriptor(&[])]))
                .overall_code(),
            Code::Ok,
            "{name}"
        );
    }
}

/// How long a flood may be kept waiting.
const TIMEOUT: Duration = Duration::from_secs(1);
