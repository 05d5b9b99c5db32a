//! What every example must do, and what each gateway does differently.

use crate::fixture::{Example, GatewayFixture, OPEN, Tokens};
use tollgate_test_kit::ENVOY_ARGUMENTS;

const NGINX: Example = Example {
    name: "nginx",
    program: "nginx",
    arguments: &["-p", ".", "-c", "nginx.conf", "-e", "stderr"],
    wrapper: Some((
        "nginx.conf",
        "daemon off; master_process off; pid nginx.pid; error_log stderr;\n\
         events {}\n\
         http {\n\
         access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
         include tollgate.conf;\n\
         }\n",
    )),
    unavailable_status: 500,
    oversized_status: 500,
};
const TRAEFIK: Example = Example {
    name: "traefik",
    program: "traefik",
    arguments: &["--configFile=traefik.yaml"],
    wrapper: None,
    unavailable_status: 500,
    oversized_status: 431,
};
const CADDY: Example = Example {
    name: "caddy",
    program: "caddy",
    arguments: &["run"],
    wrapper: None,
    unavailable_status: 502,
    oversized_status: 431,
};
const HAPROXY: Example = Example {
    name: "haproxy",
    program: "haproxy",
    arguments: &["-db", "-f", "haproxy.cfg"],
    wrapper: None,
    unavailable_status: 503,
    oversized_status: 400,
};
const ENVOY: Example = Example {
    name: "envoy-ext-authz",
    program: "envoy",
    arguments: &ENVOY_ARGUMENTS,
    wrapper: None,
    unavailable_status: 503,
    oversized_status: 200,
};

/// What a client sees on a request that passes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnPass {
    /// The rate limit headers.
    Client,
    /// Nothing: they go to the service, which may pass them on.
    Service,
}

/// A test of each gateway, so that they run side by side.
macro_rules! limits_tests {
    ($($name:ident => $example:ident, $on_pass:expr;)*) => {
        $(#[test]
        fn $name() {
            limits(&$example, $on_pass);
        })*
    };
}

limits_tests! {
    nginx_lets_through_and_refuses => NGINX, OnPass::Client;
    traefik_lets_through_and_refuses => TRAEFIK, OnPass::Service;
    caddy_lets_through_and_refuses => CADDY, OnPass::Client;
    haproxy_lets_through_and_refuses => HAPROXY, OnPass::Client;
    envoy_lets_through_and_refuses => ENVOY, OnPass::Client;
}

/// A test of each gateway that can let requests pass unchecked.
macro_rules! open_tests {
    ($($name:ident => $example:ident;)*) => {
        $(#[test]
        fn $name() {
            opens(&$example);
        })*
    };
}

open_tests! {
    nginx_lets_through_unchecked_with_the_lines_for_it => NGINX;
    caddy_lets_through_unchecked_with_the_lines_for_it => CADDY;
    haproxy_lets_through_unchecked_with_the_lines_for_it => HAPROXY;
    envoy_lets_through_unchecked_with_the_lines_for_it => ENVOY;
}

#[test]
fn traefik_has_no_lines_to_let_requests_through_unchecked() {
    assert!(TRAEFIK.files().iter().all(|(_, text)| !text.contains(OPEN.trim())));
}

/// As shipped while the server responds, and open while it does not.
fn opens(example: &Example) {
    let mut fixture = GatewayFixture::run(example, &example.open_variant(), Tokens::None);
    let name = example.name;
    for _ in 0..5 {
        let response = fixture.send(2, "POST /login", "", "name and password");
        assert_eq!(response.status, 200, "{name}: {response:?} {}", fixture.logs());
    }
    assert_eq!(fixture.send(2, "POST /login", "", "").status, 429, "{name}");
    // The answer of the service is the client's, whatever it is.
    assert_eq!(fixture.send(2, "GET /forbidden", "", "").status, 403, "{name}");

    check_oversized(example, &fixture);

    fixture.tollgate.kill();
    let before = fixture.service.served();
    let response = fixture.send(2, "POST /login?user=a", "", "name and password");
    assert_eq!(response.status, 200, "{name}: {response:?} {}", fixture.logs());
    assert!(
        response.body.starts_with("service: POST /login <name and password>\n"),
        "{name}: {response:?}"
    );
    assert_eq!(fixture.send(2, "GET /forbidden", "", "").status, 403, "{name}");
    assert_eq!(
        fixture.service.served() - before,
        2,
        "{name}: each reaches the service once"
    );
}

#[test]
fn gateways_show_their_token_whatever_clients_show() {
    for example in [NGINX, TRAEFIK, CADDY, HAPROXY, ENVOY] {
        let fixture = GatewayFixture::start(&example, Tokens::Required);
        for forged in ["", "X-Tollgate-Token: forged\r\nAuthorization: Bearer forged\r\n"] {
            let response = fixture.send(2, "GET /", forged, "");
            assert_eq!(
                response.status,
                200,
                "{}: {response:?} {}",
                example.name,
                fixture.logs()
            );
            // It is between gateway and server, and the service gets what is the client's.
            assert!(
                !response.body.contains("0123456789abcdef"),
                "{}: {response:?}",
                example.name
            );
            assert_eq!(
                response.body.contains("authorization: Bearer forged"),
                !forged.is_empty()
            );
        }
    }
}

#[test]
fn the_first_example_of_the_page_does_what_it_says() {
    let page = include_str!("../../../../docs/forward-auth.md");
    let block = |language: &str| {
        let (_, rest) = page.split_once(&format!("```{language}\n")).expect("the page has one");
        rest.split_once("```").expect("it ends").0.to_owned()
    };
    let files = [("tollgate.yaml", block("yaml")), ("Caddyfile", block("text"))];
    let fixture = GatewayFixture::run(&CADDY, &files.map(|(name, text)| (name.to_owned(), text)), Tokens::None);
    let passed = (0..200)
        .take_while(|_| fixture.send(2, "GET /", "", "").status == 200)
        .count();
    // Some come back while the hundred are used up.
    assert!((100..130).contains(&passed), "{passed}");
    let denied = fixture.send(2, "GET /", "X-Forwarded-For: 9.9.9.9\r\n", "");
    assert_eq!(denied.status, 429);
    for name in ["retry-after", "ratelimit"] {
        assert!(denied.header(name).is_some(), "{denied:?}");
    }
    assert!(denied.body.contains("\"title\":\"Quota Exceeded\""), "{denied:?}");
    assert_eq!(fixture.send(3, "GET /", "", "").status, 200);
}

/// Five logins an hour for each address, and a hundred requests a minute.
fn limits(example: &Example, on_pass: OnPass) {
    let mut fixture = GatewayFixture::start(example, Tokens::None);
    let name = example.name;
    let before = fixture.service.served();
    for attempt in 1..=5_u32 {
        let response = fixture.send(2, "POST /login?user=a", "", "name and password");
        assert_eq!(response.status, 200, "{name}: {response:?} {}", fixture.logs());
        assert!(
            response.body.starts_with("service: POST /login <name and password>\n"),
            "{name}: {response:?}"
        );
        let standing = format!("\"logins\";r={}", 5 - attempt);
        match on_pass {
            OnPass::Client => {
                let header = response
                    .header("ratelimit")
                    .unwrap_or_else(|| panic!("{name}: {response:?}"));
                assert!(header.contains(&standing), "{name}: {header}");
                assert!(
                    response
                        .header("ratelimit-policy")
                        .is_some_and(|policy| policy.contains("\"logins\";q=5;w=3600"))
                );
            }
            OnPass::Service => assert!(response.body.contains(&standing), "{name}: {response:?}"),
        }
        assert_eq!(response.header("retry-after"), None);
    }
    for (line, headers) in FORGERIES {
        let response = fixture.send(2, line, headers, "");
        let what = format!("{name}: {line} {headers}: {response:?}");
        if *example == ENVOY && headers.starts_with("Connection: close, X-Forwarded-For") {
            assert_eq!(response.status, 400, "{what}: Envoy refuses that by itself");
            continue;
        }
        assert_eq!(response.status, 429, "{what}");
        let header = response.header("ratelimit").unwrap_or_else(|| panic!("{what}"));
        assert!(header.contains("\"logins\";r=0;t="), "{what}");
        assert!(response.header("ratelimit-policy").is_some(), "{what}");
        let after: u32 = response
            .header("retry-after")
            .and_then(|after| after.parse().ok())
            .expect("seconds");
        assert!((600..=900).contains(&after), "{what}");
        assert_eq!(
            response.header("content-type").as_deref(),
            Some("application/problem+json"),
            "{what}"
        );
        assert!(
            response.body.contains("\"title\":\"Quota Exceeded\",\"status\":429"),
            "{what}"
        );
    }
    assert_eq!(
        fixture.service.served() - before,
        5,
        "{name}: what is refused does not reach the service"
    );
    // Other clients, other paths and other methods have limits of their own.
    for (from, line, status) in [
        (3, "POST /login", 200),
        (2, "GET /login", 200),
        (2, "POST /other", 200),
        (2, "HEAD /other", 200),
        (2, "GET /forbidden", 403),
    ] {
        let response = fixture.send(from, line, "", "");
        assert_eq!(
            response.status,
            status,
            "{name}: {from} {line}: {response:?} {}",
            fixture.logs()
        );
        assert!(
            response.body.starts_with("service: ") || line.starts_with("HEAD"),
            "{name}: {response:?}"
        );
    }
    assert!(!fixture.gateway_has_ended());

    check_oversized(example, &fixture);

    // Nobody passes who was not asked about.
    fixture.tollgate.kill();
    let before = fixture.service.served();
    let response = fixture.send(4, "GET /", "", "");
    assert_eq!(response.status, example.unavailable_status, "{name}: {response:?}");
    assert_eq!(fixture.service.served(), before, "{name}");
}

/// More headers than the server reads are no way around it.
fn check_oversized(example: &Example, fixture: &GatewayFixture) {
    let before = fixture.service.served();
    let headers: String = (0..5)
        .map(|number| format!("X-Large-{number}: {}\r\n", "v".repeat(3_500)))
        .collect();
    let response = fixture.send(5, "GET /large", &headers, "");
    assert_eq!(response.status, example.oversized_status, "{}", example.name);
    let has_passed = fixture.service.served() > before;
    assert_eq!(has_passed, response.status == 200, "{}", example.name);
}

/// What a client may try to get another login.
const FORGERIES: [(&str, &str); 14] = [
    ("POST /login", ""),
    ("POST /login", "X-Forwarded-For: 9.9.9.9\r\n"),
    (
        "POST /login",
        "X-Forwarded-For: 9.9.9.9, 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\n",
    ),
    ("POST /login", "X-Real-IP: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\n"),
    ("POST /login", "X-Client-IP: 9.9.9.9\r\nTrue-Client-IP: 9.9.9.9\r\n"),
    ("POST /login", "X-Forwarded-Uri: /other\r\nX-Original-URI: /other\r\n"),
    (
        "POST /login",
        "X-Forwarded-Method: GET\r\nX-Original-Method: GET\r\nX-HTTP-Method-Override: GET\r\n",
    ),
    (
        "POST /login",
        "X-Tollgate-Cost: 0\r\nX-Tollgate-Domain: other\r\nX-Envoy-Original-Path: /other\r\n",
    ),
    ("POST /login", "Connection: close, X-Forwarded-For, X-Real-IP\r\n"),
    (
        "POST /login",
        "Connection: close, X-Forwarded-Uri, X-Original-URI, X-Forwarded-Method, X-Original-Method\r\n",
    ),
    ("POST /login?cost=0&domain=other", ""),
    ("POST /%6cogin", ""),
    ("POST /./login", ""),
    ("POST //login", ""),
];
