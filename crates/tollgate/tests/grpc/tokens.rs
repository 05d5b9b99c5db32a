//! Who may ask.

use prost::Message;
use std::sync::Arc;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::grpc::GrpcSettings;
use tollgate::server::rls::RateLimitDescriptor;
use tollgate_test_kit::grpc::{Answer, Client, GrpcServer, SHOULD_RATE_LIMIT, descriptor, request_for, settings};

const CHECKS: &str = "token-that-may-check";
const REFUNDS: &str = "token-that-may-do-both";
const READS: &str = "token-that-may-neither";

fn server() -> GrpcServer {
    let mut tokens = Tokens::default();
    for (token, rights) in [
        (CHECKS, Rights::CHECK),
        (REFUNDS, Rights::CHECK | Rights::REFUND),
        (READS, Rights::METRICS),
    ] {
        tokens.add(token, TokenSecret::Plain(token), rights).unwrap();
    }
    GrpcServer::start_with(
        "- { id: x, limit: 10/min }\n",
        GrpcSettings {
            tokens: Some(Arc::new(Keyring::new(tokens))),
            ..settings()
        },
    )
}

fn check(client: &mut Client<'_>, token: Option<&str>, is_negative_hits: bool) -> Answer {
    let descriptor = RateLimitDescriptor {
        is_negative_hits,
        ..descriptor(&[])
    };
    let value = token.map(|token| format!("Bearer {token}"));
    let fields: Vec<(&str, &str)> = value.iter().map(|value| ("authorization", &**value)).collect();
    let message = request_for([descriptor]).encode_to_vec();
    client.try_call(SHOULD_RATE_LIMIT, &message, &fields).unwrap()
}

#[test]
fn a_token_with_the_right_passes_and_giving_back_takes_another() {
    let server = server();
    let mut client = server.connect();
    for (token, gives_back, status) in [
        (None, false, 16),
        (Some("no-such-token-here"), false, 16),
        (Some(READS), false, 7),
        (Some(CHECKS), false, 0),
        (Some(CHECKS), true, 7),
        (Some(REFUNDS), false, 0),
        (Some(REFUNDS), true, 0),
    ] {
        let answer = check(&mut client, token, gives_back);
        assert_eq!(answer.status, Some(status), "{token:?} {gives_back}: {answer:?}");
    }
    // Health is open to everybody.
    assert_eq!(client.call("/grpc.health.v1.Health/Check", &[]).status, Some(0));
}
