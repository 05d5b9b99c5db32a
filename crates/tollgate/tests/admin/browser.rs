//! Protection of browsers: hosts, origins, cookies, headers; and that reading changes nothing.

use crate::access::{PASSWORD, login};
use crate::client::{cookie_of, document};
use crate::fixture::{ADMIN, AdminServer, Storage};
use crate::rules::add_rule;
use crate::tables::set_row;
use serde_json::json;
use tollgate::server::admin::ExternalUrl;
use tollgate_test_kit::http::Client;

#[test]
fn another_host_reaches_nothing_not_even_what_does_not_exist() {
    let server = AdminServer::start();
    let port = server.address.port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        "127.0.0.1:1".to_owned(),
        format!("10.0.0.1:{port}"),
        String::new(),
    ] {
        for (method, path) in [
            ("GET", "/"),
            ("GET", "/v1/status"),
            ("GET", "/v1/livez"),
            ("GET", "/nowhere"),
            ("PATCH", "/v1/rule"),
            ("POST", "/v1/setup"),
        ] {
            let answer = server
                .request(method, path)
                .header("Host", &host)
                .token(ADMIN)
                .send_unchecked();
            assert_eq!(
                (answer.status, answer.json()["code"].clone()),
                (403, json!("host")),
                "{host} {method} {path}"
            );
        }
    }
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        format!("LOCALHOST:{port}"),
    ] {
        server.get("/v1/status").header("Host", &host).expect(200);
        let answer = server.request("GET", "/nowhere").header("Host", &host).send_unchecked();
        assert_eq!(
            (answer.status, answer.json()["code"].clone()),
            (404, json!("not-found"))
        );
        let answer = server
            .request("PATCH", "/v1/rule")
            .header("Host", &host)
            .send_unchecked();
        assert_eq!((answer.status, answer.json()["code"].clone()), (405, json!("method")));
        assert!(
            answer.header("allow").is_some_and(|methods| methods.contains("PUT")),
            "{:?}",
            answer.headers
        );
    }
    let twice = server
        .get("/v1/status")
        .header("Host", &format!("localhost:{port}"))
        .header("Host", "evil.example");
    assert!([400, 403].contains(&twice.send_unchecked().status));
}

#[test]
fn behind_a_proxy_its_name_is_known_and_cookies_are_secure() {
    let server = AdminServer::with(&Storage::Sqlite, |options| {
        options.settings.external_url = Some(ExternalUrl {
            is_https: true,
            authority: "gate.example".to_owned(),
        });
    });
    let body = json!({ "code": server.links.setup, "name": "anna", "password": PASSWORD });
    let setup = server
        .request("POST", "/v1/setup")
        .header("Host", "gate.example")
        .header("X-Tollgate", "1");
    setup
        .clone()
        .header("Origin", "http://gate.example")
        .json(&body)
        .refused(403, "origin");
    let done = setup.header("Origin", "https://gate.example").json(&body).expect(201);
    let cookie = done.header("set-cookie").unwrap();
    assert!(cookie.starts_with("__Host-tollgate="), "{cookie}");
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Secure"] {
        assert!(cookie.split("; ").any(|part| part == attribute), "{cookie}");
    }
    assert!(!cookie.contains("Domain"), "{cookie}");
    server
        .request("GET", "/v1/me")
        .header("Host", "gate.example")
        .page(&cookie_of(&done))
        .expect(200);
}

#[test]
fn without_tls_the_cookie_is_of_this_port_and_strict() {
    let server = AdminServer::fresh();
    let body = json!({ "code": server.links.setup, "name": "anna", "password": PASSWORD });
    let done = server.request("POST", "/v1/setup").page("").json(&body).expect(201);
    let cookie = done.header("set-cookie").unwrap();
    assert!(
        cookie.starts_with(&format!("tollgate_{}=", server.address.port())),
        "{cookie}"
    );
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure") && !cookie.contains("Domain"), "{cookie}");
}

#[test]
fn a_change_by_a_session_needs_our_own_page() {
    let server = AdminServer::start();
    let user = json!({ "name": "anna", "role": "admin", "password": PASSWORD });
    server.by_admin("POST", "/v1/users").json(&user).expect(201);
    let cookie = login(&server, "anna");
    let state = server.state();
    let own = format!("http://{}", server.address);
    let put = || {
        let request = server
            .request("PUT", "/v1/override?rule=plan&merchant=m_1")
            .if_absent()
            .json(&json!({ "terms": "5/min" }));
        request.header("Cookie", &cookie)
    };
    put().refused(403, "origin");
    put().header("X-Tollgate", "1").refused(403, "origin");
    put().header("Origin", &own).refused(403, "origin");
    put()
        .header("Origin", "http://evil.example")
        .header("X-Tollgate", "1")
        .refused(403, "origin");
    put()
        .header("Origin", "null")
        .header("X-Tollgate", "1")
        .refused(403, "origin");
    put()
        .header("Origin", &own)
        .header("X-Tollgate", "0")
        .refused(403, "origin");
    for site in ["cross-site", "same-site", "none"] {
        put()
            .header("Sec-Fetch-Site", site)
            .header("Origin", &own)
            .header("X-Tollgate", "1")
            .refused(403, "origin");
    }
    // Not even logins: they would log a victim in as somebody else.
    server.request("POST", "/v1/session").json(&user).refused(403, "origin");
    server
        .request("DELETE", "/v1/session")
        .header("Cookie", &cookie)
        .refused(403, "origin");
    assert_eq!(server.state(), state);
    put().header("Origin", &own).header("X-Tollgate", "1").expect(201);
}

#[test]
fn every_response_has_the_headers_that_protect_browsers_and_none_of_cors() {
    let server = AdminServer::start();
    let origin = "http://evil.example";
    let targets = [
        "/",
        "/a/none/app.js",
        "/v1/status",
        "/v1/openapi.json",
        "/nowhere",
        "/v1/me",
    ];
    let mut answers: Vec<_> = targets
        .map(|path| server.request("GET", path).header("Origin", origin).send_unchecked())
        .into();
    answers.push(
        server
            .request("OPTIONS", "/v1/rule")
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "PUT")
            .send_unchecked(),
    );
    answers.push(
        server
            .request("GET", "/")
            .header("Host", "evil.example")
            .send_unchecked(),
    );
    for answer in &answers {
        let csp = answer.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ] {
            assert!(csp.contains(part), "{csp}");
        }
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cross-origin-opener-policy"), Some("same-origin"));
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"));
        // The page holds nothing of the server: it is kept, and asked for again each time.
        let caching = if answer.body.starts_with("<!doctype html>") {
            "no-cache"
        } else {
            "no-store"
        };
        assert_eq!(answer.header("cache-control"), Some(caching));
        assert!(
            !answer
                .headers
                .iter()
                .any(|(name, _)| name.starts_with("access-control-")),
            "{:?}",
            answer.headers
        );
    }
}

#[test]
fn the_page_needs_nothing_that_its_policy_forbids() {
    let server = AdminServer::fresh();
    let page = server.request("GET", "/").expect(200).body;
    for forbidden in [
        "<script>",
        "<style",
        "style=",
        "onclick",
        "onload",
        "javascript:",
        "http://",
        "https://",
    ] {
        assert!(!page.contains(forbidden), "{forbidden} in {page}");
    }
    let files = files_of(&server, &page);
    assert!(files.iter().any(|(path, _)| path.ends_with("app.css")), "{page}");
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".js")) {
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "new Worker",
            "http://",
            "https://",
        ] {
            // The name of a namespace is no address.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(forbidden), "{forbidden} in {path}");
        }
    }
}

/// The files that a page names, and those that they import, each with its text.
fn files_of(server: &AdminServer, page: &str) -> Vec<(String, String)> {
    let mut paths: Vec<String> = quoted(page).filter(|text| text.starts_with("a/")).collect();
    let mut files: Vec<(String, String)> = Vec::new();
    while let Some(path) = paths.pop() {
        if files.iter().any(|(known, _)| *known == path) {
            continue;
        }
        let text = server.request("GET", &format!("/{path}")).send_unchecked();
        assert_eq!(text.status, 200, "{path}");
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let imported = quoted(&text.body).filter(|name| name.ends_with(".js") && !name.contains(' '));
        paths.extend(
            imported.filter_map(|name| match (name.strip_prefix("./"), name.strip_prefix("../")) {
                (Some(name), _) => Some(format!("{folder}/{name}")),
                (None, Some(name)) => Some(format!("{}/{name}", folder.rsplit_once('/')?.0)),
                (None, None) => None,
            }),
        );
        files.push((path, text.body));
    }
    files
}

/// The texts between double quotes.
fn quoted(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

#[test]
fn files_of_the_dashboard_are_compressed_and_never_change_under_their_address() {
    let server = AdminServer::fresh();
    let page = server.request("GET", "/").expect(200).body;
    let script = quoted(&page).find(|text| text.ends_with("/app.js")).unwrap();
    let digest = script.split('/').nth(1).unwrap();
    assert!(
        digest.len() == 32 && digest.chars().all(|digit| digit.is_ascii_hexdigit()),
        "{script}"
    );
    let plain = server.request("GET", &format!("/{script}")).send_unchecked();
    assert_eq!(plain.header("content-type"), Some("text/javascript; charset=utf-8"));
    assert_eq!(
        plain.header("cache-control"),
        Some("public, max-age=31536000, immutable")
    );
    assert_eq!(plain.header("vary"), Some("accept-encoding"));
    assert_eq!(plain.header("content-encoding"), None);
    assert!(plain.header("content-security-policy").is_some());
    assert!(packed_bytes(&server, &script) * 2 < plain.body.len());
    for path in [
        "/a/0123456789abcdef0123456789abcdef/app.js".to_owned(),
        format!("/a/{digest}/nowhere.js"),
        format!("/a/{digest}/index.html"),
        format!("/a/{digest}/../../Cargo.toml"),
        format!("/a/{digest}/%2e%2e/ui.rs"),
    ] {
        let answer = server.request("GET", &path).send_unchecked();
        assert_eq!(
            (answer.status, answer.json()["code"].clone()),
            (404, json!("not-found")),
            "{path}"
        );
    }
    let post = server.request("POST", &format!("/{script}")).send_unchecked();
    assert_eq!(post.status, 405);
}

/// The length of a file as browsers get it.
fn packed_bytes(server: &AdminServer, path: &str) -> usize {
    let request = server.request("HEAD", &format!("/{path}"));
    let head = request.header("Accept-Encoding", "br, gzip").send_for_head();
    let value = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
    };
    assert_eq!(value("content-encoding").as_deref(), Some("gzip"), "{path}: {head}");
    let length = value("content-length").unwrap_or_else(|| panic!("{path}: {head}"));
    length.parse().unwrap()
}

#[test]
fn the_overview_is_within_its_budget() {
    let server = AdminServer::fresh();
    let page = server.request("GET", "/").expect(200).body;
    let files = files_of(&server, &page);
    let bytes: usize =
        files.iter().map(|(path, _)| packed_bytes(&server, path)).sum::<usize>() + packed_bytes(&server, "");
    assert!(bytes <= 60 << 10, "{bytes} bytes in {} files", files.len());
    // With the page, and six calls of the API.
    assert!(files.len() + 7 <= 15, "{} files", files.len());
}

#[test]
fn reading_changes_nothing_whatever_is_asked() {
    let server = AdminServer::start();
    set_row(&server, "m_1", "5/min");
    add_rule(&server);
    let state = server.state();
    let document = document(server.address);
    let values = [
        "",
        "1",
        "live",
        "plan",
        "true",
        "m_1",
        "%00",
        "%FF",
        "..%2F..",
        "%7B%22merchant%22:%22m_1%22%7D",
        "9999999999999999999999",
        "-1",
        "csv",
        "'%20OR%201=1--",
    ];
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(operation) = item.get("get") else { continue };
        let names: Vec<&str> = operation["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        for value in values {
            let query: Vec<String> = names.iter().map(|name| format!("{name}={value}")).collect();
            for query in [
                query.join("&"),
                query.first().cloned().unwrap_or_default(),
                "nothing=1".to_owned(),
            ] {
                let answer = server.get(&format!("{path}?{query}")).send();
                assert!(answer.status < 500, "{path}?{query}: {}", answer.body);
                count += 1;
            }
        }
        // A body, and a method in a header, make no difference.
        let dressed = server
            .get(path)
            .header("X-HTTP-Method-Override", "DELETE")
            .json(&json!({ "terms": "9/min" }));
        assert!(dressed.send().status < 500);
        let head = server
            .request("HEAD", path)
            .token(ADMIN)
            .header("Connection", "close")
            .send_unchecked_head();
        assert!(head < 500);
    }
    assert!(count > 1_000, "{count}");
    assert_eq!(server.state(), state);
}

#[test]
fn requests_without_a_credential_that_never_finish_leave_room_for_others() {
    let server = AdminServer::start();
    let host = format!("Host: {}\r\nContent-Length: 100\r\n\r\n", server.address);
    let mut slow = Vec::new();
    for _ in 0..40 {
        for head in [
            "GET /v1/livez HTTP/1.1\r\n",
            "GET /v1/status HTTP/1.1\r\n",
            "POST /v1/session HTTP/1.1\r\nSec-Fetch-Site: same-origin\r\nX-Tollgate: 1\r\n",
        ] {
            let mut client = Client::connect(server.address);
            client.send(format!("{head}{host}"));
            slow.push(client);
        }
    }
    for _ in 0..5 {
        server.get("/v1/status").expect(200);
    }
    drop(slow);
}

#[test]
fn a_body_that_no_route_reads_is_rejected() {
    let server = AdminServer::start();
    server.get("/v1/status").body("{}").refused(400, "malformed");
    server
        .by_admin("DELETE", "/v1/rule?id=search")
        .body("{}")
        .refused(400, "malformed");
}

#[test]
fn a_header_that_is_no_accepted_token_does_not_replace_the_origin() {
    let server = AdminServer::start();
    let body = json!({ "name": "anna", "password": PASSWORD });
    for value in ["Bearer x", "Basic eDp5", ADMIN] {
        let login = server.request("POST", "/v1/session").header("Authorization", value);
        login.json(&body).refused(403, "origin");
    }
}
