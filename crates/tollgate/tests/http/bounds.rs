//! What a client may use up: time, headers, connections.

use std::time::Duration;
use tollgate::server::http::{HttpLimits, HttpSettings};
use tollgate_test_kit::http::{Client, HttpServer, assert_starts_with, post, settings};

const RULES: &str = "- { id: plan, limit: 100/min }\n";
const SHORT: Duration = Duration::from_millis(40);
const LONG: Duration = Duration::from_secs(3_600);

fn bounded(bounds: HttpLimits) -> HttpServer {
    HttpServer::start_with(
        RULES,
        HttpSettings {
            limits: bounds,
            ..settings()
        },
    )
}

fn with_timeouts(header_timeout: Duration, idle_timeout: Duration) -> HttpServer {
    bounded(HttpLimits {
        header_timeout,
        idle_timeout,
        ..HttpLimits::default()
    })
}

#[test]
fn who_says_nothing_is_cut_off() {
    let server = with_timeouts(SHORT, LONG);
    assert!(server.connect().is_closed());
}

#[test]
fn who_drips_a_request_is_cut_off() {
    let server = with_timeouts(SHORT, LONG);
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nHos");
    assert!(client.is_closed());
    // The second request on a connection, too.
    let mut client = server.connect();
    assert_eq!(client.check("").status, 200);
    client.send("P");
    assert!(client.is_closed());
}

#[test]
fn who_is_idle_between_requests_is_cut_off_later() {
    let server = with_timeouts(LONG, SHORT);
    let mut client = server.connect();
    assert_eq!(client.check("").status, 200);
    assert!(client.is_closed());
}

#[test]
fn too_many_or_too_long_headers_are_431() {
    let server = HttpServer::start(RULES);
    let with = |headers: &str| {
        let mut client = server.connect();
        client.send(format!(
            "GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n"
        ));
        client.rest()
    };
    let many = |count: usize| -> String { (0..count).map(|number| format!("X-{number}: a\r\n")).collect() };
    assert_starts_with(&with(&many(98)), "HTTP/1.1 200 OK\r\n");
    assert_starts_with(&with(&many(99)), "HTTP/1.1 431 Request Header Fields Too Large\r\n");
    let long = |bytes: usize| format!("X-Long: {}\r\n", "a".repeat(bytes));
    assert_starts_with(&with(&long(15 * 1024)), "HTTP/1.1 200 OK\r\n");
    assert_starts_with(
        &with(&long(17 * 1024)),
        "HTTP/1.1 431 Request Header Fields Too Large\r\n",
    );
}

#[test]
fn beyond_the_cap_a_connection_waits_for_one_to_end() {
    let server = bounded(HttpLimits {
        connections: 2,
        ..HttpLimits::default()
    });
    let mut first = server.connect();
    let mut second = server.connect();
    assert_eq!(first.check("").status, 200);
    assert_eq!(second.check("").status, 200);
    let mut third = server.connect();
    third.send(post("/v1/check", br#"{"attributes":{}}"#));
    // While both are there, only they are served.
    for _ in 0..10 {
        assert_eq!(first.check("").status, 200);
        assert_eq!(server.gate.metrics().connections.get(), 2);
    }
    drop(first);
    assert_eq!(third.answer().status, 200);
    assert_eq!(second.check("").status, 200);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let mut requests = Vec::new();
    for cost in 1..=5 {
        let body = format!(r#"{{"attributes":{{}},"cost":{cost}}}"#);
        requests.extend(post("/v1/check", body.as_bytes()));
    }
    client.send(&requests);
    for remaining in [99, 97, 94, 90, 85] {
        assert_eq!(client.answer().json()["remaining"], remaining);
    }
}

#[test]
fn who_closes_early_leaves_nothing_behind() {
    let server = HttpServer::start(RULES);
    for _ in 0..100 {
        let mut client = server.connect();
        client.send("POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{");
    }
    let mut client = server.connect();
    while server.gate.metrics().connections.get() > 1 {
        assert_eq!(client.get("/healthz").status, 200);
    }
    assert_eq!(client.check_cost("", 0).json()["remaining"], 100);
}

#[test]
fn large_bodies_of_all_clients_together_have_a_bound() {
    let server = bounded(HttpLimits {
        body_timeout: LONG,
        ..HttpLimits::default()
    });
    let length = 1024 * 1024;
    let begin = format!("POST /v1/check/batch HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n[");
    let blank = " ".repeat(length - 2);
    // All but the last byte, of more than there is room for.
    let mut clients: Vec<_> = (0..70)
        .map(|_| {
            let mut client = server.connect();
            client.send(format!("{begin}{blank}"));
            client
        })
        .collect();
    // Not all can wait for their last byte: one is answered before.
    while !clients.iter().any(Client::has_answer) {
        std::thread::yield_now();
    }
    // What is small passes all the while.
    assert_eq!(server.connect().check("").status, 200);
    let mut refused = 0;
    for client in &mut clients {
        client.send("]");
        let answer = client.answer();
        if answer.status == 503 {
            refused += 1;
            assert_eq!(answer.header("retry-after"), Some("1"));
        } else {
            assert_eq!((answer.status, &*answer.body), (200, "[]"));
        }
    }
    assert!((1..20).contains(&refused), "{refused} of 70 MiB were refused");
    // What has been answered takes no room any more.
    let mut client = server.connect();
    client.send(format!("{begin}{blank}]"));
    assert_eq!(client.answer().status, 200);
}
