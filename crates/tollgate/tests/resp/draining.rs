//! The end of a server.

use std::time::Duration;
use tollgate::server::gate::Phase;
use tollgate::server::resp::RespSettings;
use tollgate_test_kit::resp::{RespServer, command};

#[test]
fn what_has_arrived_is_answered_and_connections_end() {
    for mut server in RespServer::both("") {
        let mut client = server.connect();
        let mut half = server.connect();
        half.send("*1\r\n$4\r\nPI");
        client.expect("CL.THROTTLE k 15 30 60", "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
        server.stop();
        assert_eq!((client.rest(), half.rest()), (String::new(), String::new()));
        server.wait();
    }
}

#[test]
fn commands_that_the_store_takes_its_time_for_are_answered_too() {
    // Longer than a connection is kept for commands that may still come, and shorter than the server drains.
    let deadline = Duration::from_secs(2);
    let mut server = RespServer::start_shared_with("", RespSettings::default(), deadline);
    let mut client = server.connect();
    client.expect("CL.THROTTLE k 15 30 60", "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
    server.redis.as_ref().unwrap().freeze();
    server.stop();
    while server.gate.phase() != Phase::Draining {
        std::thread::yield_now();
    }
    // Each reply comes from a turn of the connection, so that after two of them it has heard of it.
    client.expect("PING", "+PONG\r\n");
    client.expect("PING", "+PONG\r\n");
    client.send("CL.THROTTLE k 15 30 60\r\n");
    let reply = client.rest();
    assert!(reply.starts_with("*5\r\n"), "{reply:?}");
    server.wait();
}

#[test]
fn commands_that_are_just_being_sent_are_answered() {
    for mut server in RespServer::both("") {
        let mut client = server.connect();
        client.expect("PING", "+PONG\r\n");
        let call = command(&["CL.THROTTLE", "k", "100000", "1", "60"]);
        client.send(call.repeat(2_000));
        server.stop();
        while server.gate.phase() != Phase::Draining {
            std::thread::yield_now();
        }
        client.send(call.repeat(10));
        let replies = client.rest();
        assert_eq!(replies.matches("*5\r\n").count(), 2_010);
        server.wait();
    }
}
