//! Who may ask.

use std::sync::Arc;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::resp::RespSettings;
use tollgate_test_kit::resp::{Client, RespServer};

const PASSWORD: &str = "correct-horse-battery";
const TOKEN: &str = "token-of-the-shop-0001";
const READER: &str = "token-of-a-reader-0001";

fn keyring(all: &[(&str, &str, Rights)]) -> Arc<Keyring> {
    let mut tokens = Tokens::default();
    for (name, secret, rights) in all {
        tokens.add(name, TokenSecret::Plain(secret), *rights).unwrap();
    }
    Arc::new(Keyring::new(tokens))
}

fn guarded() -> (RespServer, Arc<Keyring>) {
    let tokens = keyring(&[("shop", TOKEN, Rights::CHECK), ("reader", READER, Rights::METRICS)]);
    let settings = RespSettings {
        password: Some(keyring(&[("default", PASSWORD, Rights::CHECK | Rights::REFUND)])),
        tokens: Some(Arc::clone(&tokens)),
        ..RespSettings::default()
    };
    (RespServer::start_with("", settings), tokens)
}

fn authenticated(server: &RespServer, secret: &str) -> Client {
    let mut client = server.connect();
    client.expect(&format!("AUTH {secret}"), "+OK\r\n");
    client
}

#[test]
fn nothing_is_answered_before_a_password_is_shown() {
    let (server, _) = guarded();
    let mut client = server.connect();
    for line in [
        "PING",
        "INFO",
        "CLIENT ID",
        "COMMAND",
        "CL.THROTTLE k 1 1 1",
        "TOLLGATE.CHECK d 1",
        "HELLO 3",
        "GET k",
    ] {
        let reply = client.request(line);
        assert!(reply.starts_with("-NOAUTH "), "{line}: {reply}");
    }
    for line in [
        "AUTH wrong",
        "AUTH default wrong",
        &format!("AUTH shop {PASSWORD}"),
        &format!("AUTH reader {TOKEN}"),
        "HELLO 3 AUTH default wrong",
        "AUTH ''",
    ] {
        let reply = client.request(line);
        assert!(reply.starts_with("-WRONGPASS "), "{line}: {reply}");
    }
    assert!(client.request("PING").starts_with("-NOAUTH "));
}

#[test]
fn a_password_and_a_token_open_the_door() {
    let (server, _) = guarded();
    for line in [
        format!("AUTH {PASSWORD}"),
        format!("AUTH default {PASSWORD}"),
        format!("AUTH {TOKEN}"),
        format!("auth default {TOKEN}"),
        format!("AUTH shop {TOKEN}"),
    ] {
        let mut client = server.connect();
        client.expect(&line, "+OK\r\n");
        client.expect("CL.THROTTLE k 15 30 60 0", "*5\r\n:0\r\n:16\r\n:16\r\n:-1\r\n:0\r\n");
    }
    let mut client = server.connect();
    assert_eq!(
        client.request(&format!("HELLO 3 AUTH default {PASSWORD} SETNAME me")),
        "%7"
    );
}

#[test]
fn a_token_may_do_what_its_rights_say() {
    let (server, _) = guarded();
    let mut client = authenticated(&server, READER);
    client.expect("PING", "+PONG\r\n");
    for line in ["CL.THROTTLE k 1 1 1", "TOLLGATE.CHECK d 1"] {
        let reply = client.request(line);
        assert!(reply.starts_with("-NOPERM this needs the right `check`"), "{reply}");
    }
    client.expect(&format!("AUTH {TOKEN}"), "+OK\r\n");
    let reply = client.request("CL.THROTTLE k 1 1 1 -1");
    assert!(reply.starts_with("-NOPERM this needs the right `refund`"), "{reply}");
    client.expect(&format!("AUTH {PASSWORD}"), "+OK\r\n");
    client.expect("CL.THROTTLE k 1 1 1 -1", "*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n");
}

#[test]
fn a_token_that_holds_no_more_opens_nothing_any_more() {
    let (server, tokens) = guarded();
    let mut shop = authenticated(&server, TOKEN);
    let mut other = authenticated(&server, PASSWORD);
    let mut without = Tokens::default();
    without
        .add("reader", TokenSecret::Plain(READER), Rights::METRICS)
        .unwrap();
    assert!(tokens.replace(without));
    assert!(shop.request("PING").starts_with("-NOAUTH "));
    other.expect("PING", "+PONG\r\n");
}

#[test]
fn reset_forgets_who_it_was() {
    let (server, _) = guarded();
    let mut client = authenticated(&server, PASSWORD);
    client.expect("RESET", "+RESET\r\n");
    assert!(client.request("PING").starts_with("-NOAUTH "));
}

#[test]
fn a_stranger_sends_no_large_commands() {
    let (server, _) = guarded();
    assert_eq!(
        server.exchange("*4\r\n".to_owned() + &format!("$8192\r\n{}\r\n", "a".repeat(8_192)).repeat(3)),
        ""
    );
}
