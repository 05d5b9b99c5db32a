//! Codes, passwords, tokens and the secret of the fleet, looked for wherever a server writes.

use crate::http::{get, post};
use crate::program::{ControlServer, serve};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use tollgate_limiter::testing::admin::{connect, query};
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::TestFolder;

const CONTROL_SECRET: &str = "canary-of-the-secret-that-a-fleet-shares";
const PASSWORD: &str = "canary-of-a-password";
const RULES: &str = "rules:\n  - id: search\n    per: merchant\n    limit: 7/min\n";

/// Everything in a folder and below it.
fn files(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("it exists") {
        let path = entry.expect("it can be read").path();
        match path.is_dir() {
            true => text.push_str(&files(&path)),
            // One that is gone by now has a successor.
            false => text.push_str(&String::from_utf8_lossy(&fs::read(&path).unwrap_or_default())),
        }
    }
    text
}

/// Everything that the control plane keeps in a store, parts inflated.
fn values(store: &Server) -> String {
    let mut connection = connect(store);
    let mut text = String::new();
    let keys: Vec<String> = query(&mut connection, &["KEYS", "tg:{cfg}:*"]);
    for key in keys {
        text.push_str(&key);
        let kind: String = query(&mut connection, &["TYPE", &key]);
        match kind.as_str() {
            "string" => {
                let value: Vec<u8> = query(&mut connection, &["GET", &key]);
                text.push_str(&String::from_utf8_lossy(&value));
                let mut inflated = Vec::new();
                // What is not deflated ends at once.
                let _ = flate2::read::DeflateDecoder::new(value.as_slice()).read_to_end(&mut inflated);
                text.push_str(&String::from_utf8_lossy(&inflated));
            }
            "stream" => {
                let entries: redis::Value = query(&mut connection, &["XRANGE", &key, "-", "+"]);
                text.push_str(&format!("{entries:?}"));
            }
            "zset" => {
                let members: Vec<String> = query(&mut connection, &["ZRANGE", &key, "0", "-1"]);
                text.push_str(&members.concat());
            }
            other => panic!("{key} is a {other}"),
        }
    }
    text
}

/// The event stream up to its third event of totals: by then everything that it repeats was sent.
fn stream(url: &str, header: &str) -> String {
    let address = url.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let timeout = stream.set_read_timeout(Some(Duration::from_secs(30)));
    timeout.expect("a timeout can be set");
    let request = format!("GET /v1/stream HTTP/1.1\r\nhost: {address}\r\n{header}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let (mut lines, mut text) = (BufReader::new(stream), String::new());
    while text.matches("event: totals").count() < 3 {
        let read = lines.read_line(&mut text).expect("it sends");
        assert!(read > 0, "the stream has ended: {text}");
    }
    text
}

#[test]
fn secrets_are_in_no_log_file_metric_and_stream_nor_in_the_store() {
    let folder = TestFolder::new();
    let store = Server::start(ServerKind::Redis70);
    folder.write("fleet-secret", CONTROL_SECRET);
    let store_setting = format!("store={}", store.url());
    let flags = [
        "server.admin=127.0.0.1:0",
        "data_dir=data",
        &store_setting,
        "control.secret_file=fleet-secret",
        "log=debug",
    ];
    let flags: Vec<&str> = flags.iter().flat_map(|setting| ["--set", setting]).collect();
    let log = fs::File::create(folder.path().join("log")).expect("there is space for a file");
    let mut server = ControlServer::spawn_logging(serve(&folder, &flags), log);
    server.read_until("ready");
    let url = server.admin_url();
    let link = server.line("admin: ");
    let view = link
        .split_once("#view=")
        .unwrap_or_else(|| panic!("{link}"))
        .1
        .to_owned();
    let setup = server.setup_code();

    // Guesses, with a secret in the place of another one, and what works.
    let guess = json!({ "code": "AAAA-AAAA-AAAA", "name": PASSWORD, "password": PASSWORD });
    assert_eq!(post(&url, "/v1/setup", "", &guess.to_string()).status, 403);
    let first = json!({ "code": setup, "name": "anna", "password": PASSWORD });
    assert_eq!(post(&url, "/v1/setup", "", &first.to_string()).status, 201);
    let login = post(
        &url,
        "/v1/session",
        "",
        &json!({ "name": "anna", "password": PASSWORD }).to_string(),
    );
    let session = login.cookie();
    let misplaced = json!({ "name": PASSWORD, "password": PASSWORD }).to_string();
    assert_eq!(post(&url, "/v1/session", "", &misplaced).status, 401);
    let cookie = format!("cookie: {session}");
    let made = post(
        &url,
        "/v1/tokens",
        &cookie,
        &json!({ "name": "ci", "role": "admin" }).to_string(),
    );
    assert_eq!(made.status, 201, "{made:?}");
    let token = made.json()["token"].as_str().expect("a token").to_owned();
    let bearer = format!("authorization: Bearer {token}");
    server.token.clone_from(&token);
    folder.write("rules.yaml", RULES);
    server.succeed(&folder, &["rules", "apply", "rules.yaml", "--yes", "--reason", "test"]);
    server.succeed(
        &folder,
        &[
            "overrides",
            "set",
            "search",
            "merchant=m_1",
            "--limit",
            "9/min",
            "--reason",
            "test",
        ],
    );

    let streamed = stream(&url, &bearer);
    let metrics = get(server.line("http: "), "/metrics", "").body;
    let readiness = get(server.line("http: "), "/readyz", "").body;
    let stored = values(&store);
    assert!(
        stored.contains("tg:{cfg}:head") && stored.contains("search"),
        "the store has the set: {stored}"
    );
    server.stop();
    let log = folder.read("log");
    assert!(!log.is_empty(), "it logs at the level of everything");
    let saved = files(&folder.path().join("data"));
    assert!(
        saved.contains("m_1") && saved.contains("login.failed"),
        "data_dir has rows and audit entries"
    );
    let secret = token.rsplit('_').next().expect("a secret").to_owned();
    let session = session.split_once('=').expect("a cookie").1.to_owned();
    let places = [
        ("the log", &log),
        ("data_dir", &saved),
        ("the store", &stored),
        ("the stream", &streamed),
        ("metrics", &metrics),
        ("readiness", &readiness),
    ];
    for (place, text) in places {
        for canary in [CONTROL_SECRET, PASSWORD, &view, &setup, &secret, &session] {
            assert!(!text.contains(canary), "{canary} is in {place}");
        }
    }
}
