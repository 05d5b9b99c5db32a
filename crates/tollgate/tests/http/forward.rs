//! Forward-auth by its bytes: what a gateway sends, and what it gets to hear.

use std::sync::Arc;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::http::{Forward, Gateway, HttpSettings, RequestField, UnknownDomainPolicy};
use tollgate_test_kit::http::{Answer, Client, HttpServer, assert_starts_with, settings};

/// Two of each address in `default`, one of each path in `paths`.
const RULES: &str = "
- { id: each, per: ip, limit: 2/min }
- { id: page, domain: paths, per: [path, method, host], limit: 1/min }
";

fn settings_for(gateway: Gateway) -> HttpSettings {
    HttpSettings {
        forward: Some(Forward {
            gateway,
            attributes: Forward::default_attributes(),
            trusted_proxies: ["127.0.0.1/32".parse().unwrap()].into_iter().collect(),
            unknown_domain: UnknownDomainPolicy::Deny,
        }),
        ..settings()
    }
}

fn server(gateway: Gateway) -> HttpServer {
    HttpServer::start_with(RULES, settings_for(gateway))
}

/// A question with these header lines, each with its end.
fn request(client: &mut Client, line: &str, headers: &str) -> Answer {
    client.send(format!("{line} HTTP/1.1\r\nHost: test\r\n{headers}\r\n"));
    client.answer()
}

fn lines(answer: &Answer) -> Vec<String> {
    let headers = answer.headers.iter();
    headers.map(|(name, value)| format!("{name}: {value}")).collect()
}

const CLIENT: &str = "X-Forwarded-For: 192.0.2.7\r\n";

#[test]
fn an_allowed_request_is_200_and_nothing_else() {
    let server = server(Gateway::Traefik);
    let answer = request(&mut server.connect(), "GET /v1/forward/default", CLIENT);
    assert_eq!((answer.status, &*answer.body), (200, ""));
    assert_eq!(
        lines(&answer),
        [
            "content-length: 0",
            r#"ratelimit: "each";r=1;t=30"#,
            r#"ratelimit-policy: "each";q=2;w=60"#,
            "x-ratelimit-limit: 2",
            "x-ratelimit-remaining: 1",
            "x-ratelimit-reset: 30",
        ]
    );
}

#[test]
fn a_domain_without_rules_is_404_unless_it_is_allowed() {
    let server = server(Gateway::Traefik);
    for path in ["/v1/forward/defualt", "/v1/forward-403/defualt"] {
        let answer = request(&mut server.connect(), &format!("GET {path}"), CLIENT);
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        // Clients of the gateway may see it: it names no other domain.
        assert_eq!(answer.json()["detail"], "domain `defualt` has no rules");
    }
    let metrics = server.gate.metrics_text();
    let count = r#"tollgate_unmatched_total{protocol="forward",reason="unknown_domain"} 2"#;
    assert!(metrics.contains(count), "{metrics}");

    let mut settings = settings_for(Gateway::Traefik);
    let forward = settings.forward.as_mut().expect("it has a gateway");
    forward.unknown_domain = UnknownDomainPolicy::Allow;
    let server = HttpServer::start_with(RULES, settings);
    let answer = request(&mut server.connect(), "GET /v1/forward/defualt", CLIENT);
    // No rule met, no headers.
    assert_eq!(
        (answer.status, lines(&answer)),
        (200, vec!["content-length: 0".to_owned()])
    );
    let metrics = server.gate.metrics_text();
    let count = r#"tollgate_unmatched_total{protocol="forward",reason="unknown_domain"} 1"#;
    assert!(metrics.contains(count), "{metrics}");
}

#[test]
fn a_denied_request_is_429_or_403_with_all_that_a_check_says() {
    let server = server(Gateway::Traefik);
    let mut client = server.connect();
    for _ in 0..2 {
        assert_eq!(request(&mut client, "GET /v1/forward/default", CLIENT).status, 200);
    }
    for (path, status) in [("/v1/forward/default", 429), ("/v1/forward-403/default", 403)] {
        let answer = request(&mut client, &format!("GET {path}"), CLIENT);
        assert_eq!(answer.status, status);
        let length = format!("content-length: {}", answer.body.len());
        assert_eq!(
            lines(&answer),
            [
                "cache-control: no-store",
                &length,
                "content-type: application/problem+json",
                r#"ratelimit: "each";r=0;t=30"#,
                r#"ratelimit-policy: "each";q=2;w=60"#,
                "retry-after: 30",
                "x-ratelimit-limit: 2",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 30",
            ]
        );
        assert_starts_with(
            &answer.body,
            &format!(
                r#"{{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":{status},"#
            ),
        );
        assert_eq!(answer.json()["violated-policies"], serde_json::json!(["each"]));
    }
    // Another client has a counter of its own.
    let other = request(
        &mut client,
        "GET /v1/forward-403/default",
        "X-Forwarded-For: 192.0.2.8\r\n",
    );
    assert_eq!(other.status, 200);
}

#[test]
fn any_method_is_taken_and_no_body_is_waited_for() {
    for method in [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "M-SEARCH",
    ] {
        let server = server(Gateway::Envoy);
        let mut client = server.connect();
        client.send(format!(
            "{method} /v1/forward/default/a HTTP/1.1\r\nHost: test\r\n{CLIENT}Content-Length: 1000\r\n\r\n"
        ));
        assert_eq!(client.answer().status, 200, "{method}");
    }
    let server = server(Gateway::Envoy);
    let mut client = server.connect();
    client.send(format!(
        "POST /v1/forward/default HTTP/1.1\r\nHost: test\r\n{CLIENT}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    ));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_connection_is_kept_for_the_next_question() {
    let server = server(Gateway::Envoy);
    let mut client = server.connect();
    for expected in [200, 200, 429, 429] {
        let line = "POST /v1/forward/default/a";
        let answer = request(&mut client, line, &format!("{CLIENT}Content-Length: 0\r\n"));
        assert_eq!(answer.status, expected);
    }
}

#[test]
fn nothing_a_client_sends_chooses_the_rules_or_the_cost() {
    let server = server(Gateway::Caddy);
    let mut client = server.connect();
    let forged = format!(
        "{CLIENT}X-Tollgate-Cost: 0\r\nX-Tollgate-Domain: nowhere\r\nCost: 0\r\nX-Real-IP: 9.9.9.9\r\n\
         Forwarded: for=9.9.9.9\r\nX-Original-URI: /x\r\nRateLimit: \"each\";r=100\r\nX-HTTP-Method-Override: PURGE\r\n"
    );
    for (line, expected) in [
        ("GET /v1/forward/default?cost=0&domain=nowhere", 200),
        ("GET /v1/forward/default/v1/check?deny_status=200", 200),
        ("GET /v1/forward/default/../nowhere?policy=x", 429),
        ("GET /v1/forward/default//nowhere", 429),
    ] {
        assert_eq!(request(&mut client, line, &forged).status, expected, "{line}");
    }
}

#[test]
fn the_original_request_is_read_where_its_gateway_says_it() {
    let all = "X-Forwarded-Uri: /a\r\nX-Original-URI: /b\r\nX-Forwarded-Method: PUT\r\nX-Original-Method: PUT\r\n\
               X-Forwarded-Host: shop\r\n";
    for (gateway, others) in [(Gateway::Traefik, "/c"), (Gateway::Nginx, "/c"), (Gateway::Envoy, "/c")] {
        let server = server(gateway);
        let mut client = server.connect();
        let mut status = |line: &str, headers: &str| request(&mut client, line, headers).status;
        assert_eq!(status("GET /v1/forward/paths/own", all), 200);
        assert_eq!(status("GET /v1/forward/paths/own", all), 429);
        // Changing one of the three places changes the answer of the gateway whose place it is, and of no other.
        let traefik = status("GET /v1/forward/paths/own", &all.replace("/a", others));
        let nginx = status("GET /v1/forward/paths/own", &all.replace("/b", others));
        let envoy = status(&format!("GET /v1/forward/paths{others}"), all);
        let expected = match gateway {
            Gateway::Traefik => (200, 429, 429),
            Gateway::Nginx => (429, 200, 429),
            _ => (429, 429, 200),
        };
        assert_eq!((traefik, nginx, envoy), expected, "{gateway:?}");
    }
}

#[test]
fn a_part_that_is_said_twice_is_refused_and_charges_nothing() {
    let server = server(Gateway::Traefik);
    let mut client = server.connect();
    let twice = format!("{CLIENT}X-Forwarded-Uri: /a\r\nX-Forwarded-Uri: /b\r\n");
    let answer = request(&mut client, "GET /v1/forward/default", &twice);
    assert_eq!(answer.status, 400);
    assert!(answer.json()["detail"].as_str().unwrap().contains("x-forwarded-uri"));
    for expected in [200, 200, 429] {
        assert_eq!(request(&mut client, "GET /v1/forward/default", CLIENT).status, expected);
    }
}

#[test]
fn a_peer_that_is_not_trusted_has_its_own_address_whatever_it_says() {
    for gateway in [Gateway::Traefik, Gateway::Nginx, Gateway::Envoy] {
        let mut settings = settings_for(gateway);
        settings.forward.as_mut().unwrap().trusted_proxies = ["10.0.0.0/8".parse().unwrap()].into_iter().collect();
        let server = HttpServer::start_with(RULES, settings);
        let mut client = server.connect();
        for (turn, expected) in [(1, 200), (2, 200), (3, 429), (4, 429)] {
            let forged = format!("X-Forwarded-For: 192.0.2.{turn}\r\nX-Real-IP: 192.0.2.{turn}\r\n");
            assert_eq!(
                request(&mut client, "GET /v1/forward/default", &forged).status,
                expected
            );
        }
    }
}

#[test]
fn addresses_of_one_ipv6_network_are_one_client() {
    let server = server(Gateway::Haproxy);
    let mut client = server.connect();
    for (address, expected) in [
        ("2001:db8:0:1::1", 200),
        ("[2001:db8:0:1:ffff::2]:443", 200),
        ("2001:DB8:0:1::3%eth0", 429),
        ("2001:db8:0:2::1", 200),
        ("1.2.3.4", 200),
        ("::ffff:1.2.3.4", 200),
        ("1.2.3.4:80", 429),
    ] {
        let line = format!("X-Forwarded-For: {address}\r\n");
        assert_eq!(
            request(&mut client, "GET /v1/forward/default", &line).status,
            expected,
            "{address}"
        );
    }
}

#[test]
fn without_a_gateway_in_the_settings_there_is_nothing_to_ask() {
    let server = HttpServer::start(RULES);
    let mut client = server.connect();
    let answer = request(&mut client, "GET /v1/forward/default", "");
    assert_eq!(answer.status, 404);
    assert!(answer.json()["detail"].as_str().unwrap().contains("forward_auth"));
    for path in [
        "/v1/forward",
        "/v1/forward/",
        "/v1/forward-403/",
        "/v1/forward-429/default",
    ] {
        let answer = request(&mut client, &format!("GET {path}"), "");
        assert_eq!(answer.status, 404, "{path}");
        assert!(
            answer.json()["detail"]
                .as_str()
                .unwrap()
                .contains("/v1/forward/{domain}")
        );
    }
}

#[test]
fn a_gateway_shows_its_own_token_and_its_clients_do_not_matter() {
    let (gateway, reader) = ("token-of-the-gateway", "token-of-the-reader!");
    let mut tokens = Tokens::default();
    tokens
        .add("gateway", TokenSecret::Plain(gateway), Rights::CHECK)
        .unwrap();
    tokens
        .add("reader", TokenSecret::Plain(reader), Rights::METRICS)
        .unwrap();
    let settings = HttpSettings {
        tokens: Some(Arc::new(Keyring::new(tokens))),
        ..settings_for(Gateway::Traefik)
    };
    let server = HttpServer::start_with(RULES, settings);
    let mut client = server.connect();
    for (headers, expected) in [
        (String::new(), 401),
        // What a client shows to whom it wants to reach is nothing to us, be it right or wrong.
        (format!("Authorization: Bearer {gateway}\r\n"), 401),
        (
            format!("X-Tollgate-Token: {gateway}\r\nAuthorization: Basic eDp5\r\n"),
            200,
        ),
        (format!("X-Tollgate-Token: {reader}\r\n"), 403),
        ("X-Tollgate-Token: no-such-token-here\r\n".to_owned(), 401),
        (
            format!("X-Tollgate-Token: {gateway}\r\nX-Tollgate-Token: {gateway}\r\n"),
            401,
        ),
        (format!("X-Tollgate-Token: {gateway}\r\n"), 200),
    ] {
        for path in ["/v1/forward/paths", "/v1/forward-403/paths"] {
            let answer = request(&mut client, &format!("GET {path}"), &headers);
            assert_eq!(answer.status, expected, "{path} {headers}");
            if expected == 401 {
                assert!(answer.json()["detail"].as_str().unwrap().contains("X-Tollgate-Token"));
            }
        }
    }
    // And it opens nothing else.
    let check = request(
        &mut client,
        "POST /v1/check",
        &format!("X-Tollgate-Token: {gateway}\r\nContent-Length: 0\r\n"),
    );
    assert_eq!(check.status, 401);
}

#[test]
fn gateways_are_counted_by_a_door_of_their_own() {
    let server = server(Gateway::Traefik);
    let mut client = server.connect();
    for _ in 0..3 {
        request(&mut client, "GET /v1/forward/default", CLIENT);
    }
    let metrics = client.get("/metrics").body;
    for line in [
        r#"tollgate_checks_total{result="allow",source="memory",protocol="forward"} 2"#,
        r#"tollgate_decisions_total{rule="each",result="deny",source="memory",protocol="forward"} 1"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[test]
fn attributes_are_those_of_the_settings() {
    let mut settings = settings_for(Gateway::Caddy);
    let of = |name: &str, part: &str| (name.into(), RequestField::from_name(part).unwrap());
    settings.forward.as_mut().unwrap().attributes =
        vec![of("merchant", "header:x-merchant-id"), of("endpoint", "path")];
    let rules = "- { id: plan, per: merchant, when: { endpoint: /v1/charges }, limit: 1/min }\n";
    let server = HttpServer::start_with(rules, settings);
    let mut client = server.connect();
    for (merchant, uri, expected) in [
        ("m_1", "/v1/charges", 200),
        ("m_1", "/v1/charges?x", 429),
        ("m_1", "/v1/%63harges", 429),
        ("m_1", "//v1/./charges", 429),
        ("m_2", "/v1/charges", 200),
        ("m_1", "/v1/refunds", 200),
    ] {
        let headers = format!("X-Merchant-Id: {merchant}\r\nX-Forwarded-Uri: {uri}\r\n");
        let answer = request(&mut client, "GET /v1/forward/default", &headers);
        assert_eq!(answer.status, expected, "{merchant} {uri}");
    }
}

#[test]
fn a_concurrency_rule_answers_with_the_lease_that_the_service_releases() {
    const SLOTS: &str = "- { id: inflight, per: ip, algorithm: concurrency, limit: 1, lease_ttl: 30s }\n";
    let server = HttpServer::start_with(SLOTS, settings_for(Gateway::Traefik));
    let mut client = server.connect();
    let mut forward = |path: &str| request(&mut client, &format!("GET {path}"), CLIENT);
    let allowed = forward("/v1/forward/default");
    let lease = allowed.header("tollgate-lease").expect("a lease").to_owned();
    for path in ["/v1/forward/default", "/v1/forward-403/default"] {
        let denied = forward(path);
        assert!(denied.status > 400 && denied.header("tollgate-lease").is_none());
    }
    let released = server
        .connect()
        .post("/v1/release", format!(r#"{{"lease":"{lease}"}}"#));
    assert_eq!(released.body, r#"{"released":true}"#);
    assert!(forward("/v1/forward-403/default").header("tollgate-lease").is_some());
}
