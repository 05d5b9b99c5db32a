//! Requests that cannot be answered: each is told what is wrong, and none is charged.

use serde_json::json;
use std::time::Duration;
use tollgate::server::http::{HttpLimits, HttpSettings};
use tollgate_test_kit::http::{Answer, HttpServer, assert_starts_with, settings};

const RULES: &str = "- { id: plan, limit: 5/min }\n";

fn is_problem(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.json()["status"], status);
    assert_eq!(answer.json()["type"], "about:blank");
}

#[test]
fn bad_bodies_are_400_and_name_the_field() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    for (path, body, field) in [
        ("/v1/check", "", json!(null)),
        ("/v1/check", "null", json!(null)),
        ("/v1/check", "{}", json!("attributes")),
        ("/v1/check", r#"{"attributes":{"a":null}}"#, json!("attributes.a")),
        ("/v1/check", r#"{"attributes":{},"cost":1.5}"#, json!("cost")),
        ("/v1/check", r#"{"attributes":{},"extra":1}"#, json!("extra")),
        ("/v1/check", r#"{"domain":"","attributes":{}}"#, json!("domain")),
        ("/v1/check", r#"{"domain":"","attributes":{"a":"\n"}}"#, json!("domain")),
        ("/v1/refund", r#"{"domain":"","attributes":{}}"#, json!("domain")),
        ("/v1/explain", r#"{"domain":"","attributes":{}}"#, json!("domain")),
        ("/v1/forget", r#"{"domain":"","attributes":{}}"#, json!("domain")),
        ("/v1/forget", r#"{"domain":"defualt","attributes":{}}"#, json!("domain")),
        (
            "/v1/check/batch",
            r#"[{"attributes":{}},{"domain":"","attributes":{}}]"#,
            json!("domain"),
        ),
        ("/v1/refund", r#"{"attributes":{},"cost":-1}"#, json!("cost")),
        ("/v1/explain", r#"{"attributes":[]}"#, json!("attributes")),
        ("/v1/forget", r#"{"attributes":{},"rule":1}"#, json!("rule")),
        ("/v1/forget", r#"{"attributes":{},"rule":"pln"}"#, json!("rule")),
        ("/v1/release", r#"{"lease":1}"#, json!("lease")),
        ("/v1/renew", "{}", json!("lease")),
        ("/v1/check/batch", "{}", json!(null)),
    ] {
        let answer = client.post(path, body);
        is_problem(&answer, 400);
        assert_eq!(answer.json()["field"], field, "{path} {body}");
    }
    let batch = client.post(
        "/v1/check/batch",
        r#"[{"attributes":{}},{"domain":"","attributes":{}}]"#,
    );
    assert_eq!(batch.json()["index"], 1);
    is_problem(&client.post("/v1/check", b"{\"attributes\":{\"\xff\":1}}"), 400);
    assert_eq!(client.check_cost("", 0).json()["remaining"], 5);
}

#[test]
fn an_unknown_path_is_404_with_a_hint() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    for (path, hint) in [
        ("/", "/v1/check"),
        ("/check", "/v1/check"),
        ("/v1/check/", "did you mean /v1/check?"),
        ("/v1/healthz", "did you mean /healthz?"),
    ] {
        let answer = client.get(path);
        is_problem(&answer, 404);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(hint), "{path}: {detail}");
    }
}

#[test]
fn a_wrong_method_is_405_and_told_the_right_one() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let answer = client.get("/v1/check");
    is_problem(&answer, 405);
    assert_eq!(answer.header("allow"), Some("POST"));
    let answer = client.post("/healthz", "");
    is_problem(&answer, 405);
    assert_eq!(answer.header("allow"), Some("GET, HEAD"));
    client.send("HEAD /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    assert!(client.rest().starts_with("HTTP/1.1 200 OK\r\n"));
}

/// A check whose body has `bytes` bytes and is sound.
fn check_of(bytes: usize) -> String {
    let (begin, end) = (r#"{"attributes":{}"#, "}");
    format!("{begin}{}{end}", " ".repeat(bytes - begin.len() - end.len()))
}

#[test]
fn a_body_over_the_bound_is_413_whether_it_says_so_or_not() {
    let server = HttpServer::start(RULES);
    assert_eq!(server.connect().post("/v1/check", check_of(64 * 1024)).status, 200);
    let mut client = server.connect();
    let answer = client.post("/v1/check", check_of(64 * 1024 + 1));
    is_problem(&answer, 413);
    assert!(client.is_closed());
    // It says that it is huge, and nothing more comes.
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999999\r\n\r\n");
    is_problem(&client.answer(), 413);
    // It does not say how long it is.
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..9 {
        client.send(format!("2000\r\n{}\r\n", " ".repeat(0x2000)));
    }
    is_problem(&client.answer(), 413);
    // A batch may be longer.
    let batch = format!("[{}]", check_of(1024 * 1024 - 2));
    assert_eq!(server.connect().post("/v1/check/batch", batch).status, 200);
    let batch = format!("[{}]", check_of(1024 * 1024 - 1));
    is_problem(&server.connect().post("/v1/check/batch", batch), 413);
}

#[test]
fn a_body_in_chunks_is_put_together() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n");
    for chunk in ["{\"attri", "butes\":", "{}}"] {
        client.send(format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_body_that_does_not_come_is_408() {
    let settings = HttpSettings {
        limits: HttpLimits {
            body_timeout: Duration::from_millis(50),
            ..HttpLimits::default()
        },
        ..settings()
    };
    let server = HttpServer::start_with(RULES, settings);
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: 17\r\n\r\n{\"attri");
    let answer = client.answer();
    is_problem(&answer, 408);
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed());
    assert_eq!(server.connect().check_cost("", 0).json()["remaining"], 5);
}

#[test]
fn what_is_no_http_is_refused() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    client.send("\x16\x03\x01 hello\r\n\r\n");
    assert_starts_with(&client.rest(), "HTTP/1.1 400 Bad Request\r\n");
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}");
    assert_starts_with(&client.rest(), "HTTP/1.1 400 Bad Request\r\n");
}

#[test]
fn a_request_names_one_host() {
    let server = HttpServer::start(RULES);
    let status = |head: &str| {
        let mut client = server.connect();
        client.send(format!("{head}Connection: close\r\n\r\n"));
        client.rest().split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for (head, expected) in [
        ("GET /healthz HTTP/1.1\r\nHost: test\r\n", "200"),
        ("GET /healthz HTTP/1.1\r\nHost: [::1]:8080\r\n", "200"),
        ("GET /healthz HTTP/1.1\r\nHost:\r\n", "200"),
        ("GET /healthz HTTP/1.0\r\n", "200"),
        ("GET /healthz HTTP/1.1\r\n", "400"),
        ("GET http://test/healthz HTTP/1.1\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nHost: a\r\nHost: a\r\n", "400"),
        ("GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nHost: a, b\r\n", "400"),
        ("GET /healthz HTTP/1.1\r\nHost: a/b\r\n", "400"),
        ("GET /nowhere HTTP/1.1\r\n", "400"),
    ] {
        assert_eq!(status(head), expected, "{head}");
    }
    let mut client = server.connect();
    client.send("POST /v1/check HTTP/1.1\r\nContent-Length: 17\r\n\r\n{\"attributes\":{}}");
    let answer = client.answer();
    is_problem(&answer, 400);
    assert!(answer.body.contains("Host"), "{}", answer.body);
    assert!(client.is_closed());
    assert_eq!(
        server.connect().check_cost("", 0).json()["remaining"],
        5,
        "nothing was charged"
    );
}
