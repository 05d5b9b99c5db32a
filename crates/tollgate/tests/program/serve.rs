//! `tollgate serve`: up, asked, stopped; and everything that keeps it from starting.

use crate::test_server::{Response, TestServer, run, tollgate};
use std::io::Write;
use std::net::TcpListener;
use tollgate_test_kit::TestFolder;

#[test]
fn with_nothing_at_all_it_starts_and_its_curl_line_counts_down_to_a_429() {
    let folder = TestFolder::new();
    let server = TestServer::start(&folder, &[]);
    let line = server
        .banner
        .lines()
        .find(|line| line.starts_with("try: curl "))
        .expect("there is something to try");
    let body = line.split('\'').nth(1).expect("the body is in quotes");
    assert!(line.contains(&format!("{}/v1/check", server.url())), "{line}");
    let answers: Vec<Response> = (0..6)
        .map(|_| server.post_with("/v1/check", body, "content-type: application/x-www-form-urlencoded\r\n"))
        .collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let left: Vec<_> = answers
        .iter()
        .map(|answer| answer.header("x-ratelimit-remaining"))
        .collect();
    assert_eq!(left, ["4", "3", "2", "1", "0", "0"].map(Some));
    let wait: u64 = answers[5]
        .header("retry-after")
        .expect("a denial says when")
        .parse()
        .expect("in seconds");
    assert!((1..=14).contains(&wait), "{wait}");
    assert!(server.stop().success());
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("it is there").collect();
    assert!(left.is_empty(), "nothing had to be written: {left:?}");
}

#[test]
fn the_lines_before_ready_are_the_addresses_and_something_to_try() {
    let (_folder, server) = TestServer::with_settings(
        "rules: [{ id: r, domain: shop, per: [merchant], when: { endpoint: /v1 }, limit: 1/h }]",
    );
    let lines: Vec<&str> = server.banner.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[1].contains(r#"{"attributes":{"endpoint":"/v1","merchant":"alice"},"domain":"shop"}"#),
        "{}",
        lines[1]
    );
    assert_eq!(lines[2], "ready");
}

#[test]
fn both_signals_that_stop_it_end_it_well() {
    for signal in ["TERM", "INT"] {
        let server = TestServer::start(&TestFolder::new(), &[]);
        server.signal(signal);
        assert_eq!(server.end().code(), Some(0), "{signal}");
    }
}

#[test]
fn requests_in_flight_are_answered_when_it_is_told_to_stop() {
    let (_folder, server) = TestServer::with_settings("rules: [{ id: all, limit: 1000/h }]");
    let body = r#"{"attributes":{}}"#;
    let (first, second) = body.split_at(7);
    let mut streams: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for stream in &mut streams {
        let length = body.len();
        write!(
            stream,
            "POST /v1/check HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n{first}"
        )
        .expect("it reads");
    }
    // One after another they are all accepted: the last answer says so of those before it.
    assert_eq!(server.check("{}").status, 200);
    server.signal("TERM");
    server.wait_for("draining", 1);
    let mut closes = Vec::new();
    let mut left: Vec<u64> = streams
        .iter_mut()
        .map(|stream| {
            stream.write_all(second.as_bytes()).expect("it still reads");
            // To the end: the connection is closed behind the answer.
            let answer = Response::read(stream);
            assert_eq!(answer.status, 200);
            closes.push(answer.header("connection") == Some("close"));
            answer.json()["remaining"].as_u64().expect("a number")
        })
        .collect();
    // The first may be answered in the very moment the connection learns of it; the last is not.
    assert_eq!(closes.last(), Some(&true), "{closes:?}");
    left.sort_unstable();
    assert_eq!(left, (959..999).collect::<Vec<_>>(), "each was decided once");
    let address = server.address().to_owned();
    assert_eq!(server.end().code(), Some(0));
    assert!(std::net::TcpStream::connect(address).is_err(), "no new connections");
}

#[test]
fn a_client_that_never_ends_its_request_does_not_keep_it_from_stopping() {
    let server = TestServer::start(&TestFolder::new(), &["--set", "drain=200ms"]);
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/check HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\n{{"
    )
    .expect("it reads");
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_one_clear_message() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let (code, stdout, stderr) = run(
        &TestFolder::new(),
        &["serve", "--set", &format!("server.http={address}")],
    );
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains(&format!("cannot listen on {address}")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn all_that_is_wrong_with_settings_and_rules_is_told_at_once() {
    let folder = TestFolder::with(
        "tollgate.yaml",
        "server:\n  htpt: 127.0.0.1:1\ndrain: soon\nrules:\n- id: r\n  limt: 1/s\nrules_files: [more.yaml]\n",
    );
    folder.write("more.yaml", "rules:\n- id: s\n  limit: 1/fortnight\n");
    let mut command = tollgate(&folder, &["serve", "--set", "log=loud"]);
    command.env("TOLLGATE_HEADERS", "[ieft]");
    let output = command.output().expect("the program can be run");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    for expected in [
        "tollgate.yaml:2:3: error",
        "did you mean `http`?",
        "tollgate.yaml:3:8: error",
        "tollgate.yaml:6:3: error",
        "did you mean `limit`?",
        "more.yaml:3:10: error",
        "--set log: error",
        "TOLLGATE_HEADERS:1:2: error",
        "did you mean `ietf`?",
    ] {
        assert!(stderr.contains(expected), "{expected} in {stderr}");
    }
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let folder = TestFolder::with(
        "conf/own.yaml",
        "headers: [draft06]\nretry_after: { format: none }\nrules: [{ id: r, limit: 1/h }]\n",
    );
    let start = |variables: &[(&str, &str)], args: &[&str]| {
        let mut all = vec!["serve", "--config", "conf/own.yaml"];
        all.extend(args);
        let mut command = tollgate(&folder, &all);
        command.env("TOLLGATE_SERVER__HTTP", "127.0.0.1:0");
        command.envs(variables.iter().copied());
        let server = TestServer::spawn(command);
        server.check("{}");
        server.check("{}")
    };
    let answer = start(&[], &[]);
    assert_eq!(answer.header("ratelimit-limit"), Some("1"));
    assert_eq!(answer.header("retry-after"), None);
    let answer = start(
        &[
            ("TOLLGATE_HEADERS", "draft07"),
            ("TOLLGATE_RETRY_AFTER__FORMAT", "seconds"),
        ],
        &[],
    );
    assert!(
        answer
            .header("ratelimit")
            .is_some_and(|value| value.starts_with("limit=1,")),
        "{answer:?}"
    );
    assert!(answer.header("retry-after").is_some());
    let answer = start(
        &[("TOLLGATE_HEADERS", "draft07")],
        &["--set", "headers=[x-unix]", "--store", "memory"],
    );
    assert_eq!(
        (answer.header("ratelimit"), answer.header("x-ratelimit-used")),
        (None, Some("1"))
    );
}

#[test]
fn off_loopback_it_does_not_start_until_it_knows_whom_to_answer() {
    let folder = TestFolder::with("tokens.yaml", "tokens:\n- { name: shop, token: 0123456789abcdef }\n");
    let (code, _, stderr) = run(&folder, &["serve", "--set", "server.http=0.0.0.0:0"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("other machines can reach") && stderr.contains("tokens_file"),
        "{stderr}"
    );

    let args = [
        "serve",
        "--set",
        "server.http=0.0.0.0:0",
        "--set",
        "auth.tokens_file=tokens.yaml",
    ];
    let server = TestServer::spawn(tollgate(&folder, &args));
    let port = server.address().rsplit(':').next().expect("a port").to_owned();
    let at_home = format!("http://127.0.0.1:{port}");
    let check = |token: &[&str]| run(&folder, &[&["check", "user=x", "--url", &at_home], token].concat());
    assert_eq!(check(&["--token", "0123456789abcdef"]).0, Some(0));
    let (code, _, stderr) = check(&[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("401") && stderr.contains("--token"), "{stderr}");
    let (code, _, stderr) = run(
        &folder,
        &["forget", "user=x", "--url", &at_home, "--token", "0123456789abcdef"],
    );
    assert_eq!(code, Some(2));
    assert!(stderr.contains("403"), "{stderr}");
}

#[test]
fn counters_outlast_a_restart_by_a_snapshot_in_a_folder_that_is_locked() {
    let (folder, first) = TestServer::with_settings(
        "store: { url: memory, snapshot: counters }\ndata_dir: data\nrules: [{ id: r, per: user, limit: 2/h }]\n",
    );
    let statuses = |server: &TestServer| [(); 3].map(|()| server.check(r#"{"user":"u"}"#).status);
    assert_eq!(statuses(&first), [200, 200, 429]);

    let (code, _, stderr) = run(&folder, &["serve", "--set", "server.http=127.0.0.1:0"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("another tollgate (process") && stderr.contains("data_dir"),
        "{stderr}"
    );

    assert!(first.stop().success());
    assert!(folder.path().join("data/counters").is_file());
    let second = TestServer::start(&folder, &[]);
    assert_eq!(statuses(&second), [429, 429, 429]);
    assert!(second.stop().success());

    folder.write("data/counters", "nonsense");
    let (code, _, stderr) = run(&folder, &["serve", "--set", "server.http=127.0.0.1:0"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("move it away"), "{stderr}");
}

#[test]
fn it_listens_on_a_socket_of_the_file_system_too() {
    let folder = TestFolder::new();
    let server = TestServer::spawn(tollgate(&folder, &["serve", "--set", "server.http=unix:gate.sock"]));
    assert!(server.banner.starts_with("http: unix:gate.sock\n"), "{}", server.banner);
    let (code, stdout, _) = run(&folder, &["check", "user=x", "--url", "unix:gate.sock"]);
    assert_eq!(code, Some(0));
    assert!(
        stdout.starts_with("allowed by quickstart: 4 of 5 remaining"),
        "{stdout}"
    );
    assert!(server.stop().success());
    assert!(!folder.path().join("gate.sock").exists());
}
