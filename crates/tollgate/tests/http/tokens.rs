//! Who may do what.

use std::sync::Arc;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::http::HttpSettings;
use tollgate_test_kit::http::{Answer, Client, HttpServer, settings};

const RULES: &str = "- { id: plan, limit: 100/min }\n";
const PATHS: [(&str, &str, &str); 9] = [
    ("/v1/check", r#"{"attributes":{}}"#, "check"),
    ("/v1/check/batch", "[]", "check"),
    ("/v1/release", r#"{"lease":"x"}"#, "check"),
    ("/v1/renew", r#"{"lease":"x"}"#, "check"),
    (
        "/json",
        r#"{"domain":"default","descriptors":[{"hitsAddend":0}]}"#,
        "check",
    ),
    ("/v1/refund", r#"{"attributes":{}}"#, "refund"),
    ("/v1/explain", r#"{"attributes":{}}"#, "explain"),
    ("/v1/forget", r#"{"attributes":{}}"#, "forget"),
    ("/metrics", "", "metrics"),
];

fn token(right: &str) -> String {
    format!("token-with-the-right-to-{right}")
}

fn server() -> HttpServer {
    let mut tokens = Tokens::default();
    for (name, right) in Rights::NAMES {
        tokens.add(name, TokenSecret::Plain(&token(name)), right).unwrap();
    }
    let settings = HttpSettings {
        tokens: Some(Arc::new(Keyring::new(tokens))),
        ..settings()
    };
    HttpServer::start_with(RULES, settings)
}

fn request(client: &mut Client, path: &str, body: &str, authorization: &str) -> Answer {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let length = body.len();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\n{authorization}Content-Length: {length}\r\n\r\n{body}"
    ));
    client.answer()
}

#[test]
fn every_right_opens_its_paths_and_no_other() {
    let server = server();
    let mut client = server.connect();
    for (path, body, needed) in PATHS {
        for (right, _) in Rights::NAMES {
            let answer = request(
                &mut client,
                path,
                body,
                &format!("Authorization: Bearer {}\r\n", token(right)),
            );
            if right == needed {
                assert!(
                    matches!(answer.status, 200 | 404),
                    "{path} with {right}: {}",
                    answer.body
                );
                assert_eq!(answer.status == 404, path == "/v1/renew");
            } else {
                assert_eq!(answer.status, 403, "{path} with {right}");
                let detail = answer.json()["detail"].as_str().unwrap().to_owned();
                assert!(detail.contains(needed), "{detail}");
            }
        }
    }
}

#[test]
fn a_port_that_is_open_to_strangers_refuses_what_they_may_not_do() {
    let settings = HttpSettings {
        anonymous_rights: Rights::CHECK | Rights::METRICS,
        ..settings()
    };
    let server = HttpServer::start_with(RULES, settings);
    let mut client = server.connect();
    for (path, body, needed) in PATHS {
        let answer = request(&mut client, path, body, "Authorization: Bearer no-such-token-here\r\n");
        if matches!(needed, "check" | "metrics") {
            assert!(matches!(answer.status, 200 | 404), "{path}: {}", answer.body);
            continue;
        }
        assert_eq!(answer.status, 403, "{path}");
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(needed) && detail.contains("`auth`"), "{detail}");
    }
}

#[test]
fn without_a_known_token_nothing_opens_but_health() {
    let server = server();
    let mut client = server.connect();
    for (path, body, _) in PATHS {
        for authorization in [
            "",
            "Authorization: Bearer no-such-token-here\r\n",
            "Authorization: Basic eDp5\r\n",
        ] {
            let answer = request(&mut client, path, body, authorization);
            assert_eq!(answer.status, 401, "{path} {authorization}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"tollgate\""));
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        }
    }
    for path in ["/healthz", "/readyz", "/healthcheck", "/openapi.json"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    // Nothing was charged.
    let check = request(
        &mut client,
        "/v1/check",
        r#"{"attributes":{},"cost":0}"#,
        &format!("Authorization: bearer {}\r\n", token("check")),
    );
    assert_eq!(check.json()["remaining"], 100);
}
