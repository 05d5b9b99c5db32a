//! How a server ends.

use serde_json::json;
use std::net::TcpStream;
use std::time::Duration;
use tollgate::server::gate::Phase;
use tollgate::server::http::HttpSettings;
use tollgate_test_kit::http::{Client, HttpServer, settings};

const RULES: &str = "- { id: plan, limit: 100/min }\n";

/// A client whose request is in flight: the server reads its body.
fn in_flight(server: &HttpServer) -> Client {
    let mut client = server.connect();
    assert_eq!(client.get("/healthz").status, 200);
    client.send("POST /v1/check HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 17\r\n\r\n");
    // The server asks for the body, so it has begun with the request.
    assert_eq!(client.answer().status, 100);
    client
}

#[test]
fn what_is_in_flight_is_answered_and_told_to_go() {
    let mut server = HttpServer::start(RULES);
    let mut client = in_flight(&server);
    server.stop();
    while server.gate.phase() != Phase::Draining {
        std::thread::yield_now();
    }
    client.send(r#"{"attributes":{}}"#);
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["remaining"], json!(99));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed());
    server.wait();
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn a_request_that_is_just_being_sent_is_answered_and_who_sends_none_is_closed() {
    let mut server = HttpServer::start(RULES);
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for client in clients.iter_mut().skip(1) {
        assert_eq!(client.get("/healthz").status, 200);
    }
    server.stop();
    while server.gate.phase() != Phase::Draining {
        std::thread::yield_now();
    }
    let [new, busy, idle] = &mut *clients else {
        panic!("three")
    };
    for client in [new, busy] {
        let answer = client.get("/healthz");
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        assert!(client.is_closed());
    }
    assert!(idle.is_closed());
    server.wait();
}

#[test]
fn nobody_keeps_a_server_longer_than_it_may_drain() {
    let settings = HttpSettings {
        drain: Duration::from_millis(50),
        ..settings()
    };
    let mut server = HttpServer::start_with(RULES, settings);
    let mut client = in_flight(&server);
    server.stop();
    server.wait();
    assert!(client.is_closed());
}

#[test]
fn clients_that_speak_http2_and_ask_nothing_are_not_waited_for() {
    let drain = Duration::from_secs(60);
    let mut server = HttpServer::start_with(RULES, HttpSettings { drain, ..settings() });
    let settings_frame = "\0\0\0\u{4}\0\0\0\0\0";
    // The last one does not answer the ping by which a server finds out what was sent before it stopped.
    let greeting = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{settings_frame}");
    let silent = ["PRI * HTTP/2.0\r\n", &greeting].map(|bytes| {
        let mut client = server.connect();
        client.send(bytes);
        client
    });
    assert_eq!(server.connect().get("/healthz").status, 200);
    server.stop();
    server.wait_within(drain / 2);
    drop(silent);
}
