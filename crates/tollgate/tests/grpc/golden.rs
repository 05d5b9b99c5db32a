//! Messages to the byte, as Envoy sends and reads them.

use tollgate_limiter::core::Micros;
use tollgate_test_kit::grpc::{GrpcServer, SHOULD_RATE_LIMIT};

const RULES: &str = "- { id: api, domain: tollgate, per: tenant, limit: 100/min, algorithm: fixed_window }\n";

/// `domain=tollgate, [tenant=acme]`.
const REQUEST: &str = "0a08746f6c6c6761746512100a0e0a0674656e616e74120461636d65";
/// The same with a descriptor's `hits_addend` that is there and 0.
const PEEK: &str = "0a08746f6c6c6761746512120a0e0a0674656e616e74120461636d651a00";
/// The same with three hits given back.
const REFUND: &str = "0a08746f6c6c6761746512160a0e0a0674656e616e74120461636d651a0208032001";
/// `OK, api 100/MINUTE, 42 left, 17 s`.
const OK: &str = "0801121308011209086410021a03617069182a22020811";
/// `OVER_LIMIT, api 100/MINUTE, 0 left, 17 s`.
const OVER_LIMIT: &str = "0802121108021209086410021a0361706922020811";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn requests_and_answers_are_these_bytes() {
    let server = GrpcServer::start(RULES);
    // 22:34:43, which is 17 s before the end of the minute.
    server.clock.advance(Micros::from_secs(38));
    let mut client = server.connect();
    let mut call = |request: &str| {
        let answer = client.call(SHOULD_RATE_LIMIT, &bytes(request));
        assert_eq!((answer.http, answer.status), (200, Some(0)), "{answer:?}");
        answer.message
    };
    for _ in 0..57 {
        call(REQUEST);
    }
    assert_eq!(call(REQUEST), bytes(OK));
    assert_eq!(call(PEEK), bytes(OK));
    for _ in 0..42 {
        call(REQUEST);
    }
    assert_eq!(call(REQUEST), bytes(OVER_LIMIT));
    // Three are given back, and only three.
    call(REFUND);
    for _ in 0..3 {
        assert_eq!(call(REQUEST)[..2], bytes(OK)[..2]);
    }
    assert_eq!(call(REQUEST), bytes(OVER_LIMIT));
}
