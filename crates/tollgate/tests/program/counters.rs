//! Counters that a server shares with envoyproxy/ratelimit, whose part is played by the bytes that one sends.

use crate::test_server::TestServer;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::TestFolder;

const FILE: &str = "domain: shop\ndescriptors:\n- key: user\n  rate_limit: { unit: year, requests_per_unit: 30 }\n- key: path\n  rate_limit: { unit: second, requests_per_unit: 1000 }\n";

/// Sends commands to a server, and gives so many lines of its answers.
fn send(redis: &Redis, commands: &str, lines: usize) -> Vec<String> {
    let stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("a server");
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(commands.as_bytes()).expect("a write");
    let lines = stream.lines().take(lines);
    lines
        .map(|line| line.expect("a line").trim_start_matches(':').to_owned())
        .collect()
}

/// The settings of a server over a Redis, with a file of envoyproxy/ratelimit.
fn shop(redis: &Redis, mode: &str, counters: &str, file: &str) -> TestFolder {
    let settings = format!(
        "store: {{ url: '{}', deadline: 5s, mode: {mode} }}\nenvoy_rules:\n  files: shop.yaml\n  counters: {{ {counters} }}\n",
        redis.url()
    );
    let folder = TestFolder::with("tollgate.yaml", &settings);
    folder.write("shop.yaml", file);
    folder
}

/// The key that envoyproxy/ratelimit counts a user in now, with a prefix that both are set to.
fn key(redis: &Redis) -> String {
    // Two texts behind their lengths: seconds and microseconds.
    let time = send(redis, "TIME\r\n", 3).pop().expect("a time");
    let now: u64 = time.parse().expect("a number");
    format!("rl:shop_user_u_{}", now - now % 31_536_000)
}

#[test]
fn two_servers_and_envoyproxy_count_on_one_key() {
    let (redis, second) = (Redis::start(ServerKind::Redis70), Redis::start(ServerKind::Valkey));
    let counters = format!("prefix: 'rl:', per_second: '{}'", second.url());
    let folder = shop(&redis, "auto", &counters, FILE);
    let servers = [(); 2].map(|()| TestServer::start(&folder, &[]));
    let body =
        |key: &str| format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{key}","value":"u"}}]}}]}}"#);
    let key = key(&redis);
    let other = format!(
        "*3\r\n$6\r\nINCRBY\r\n${0}\r\n{key}\r\n$1\r\n1\r\n*3\r\n$6\r\nEXPIRE\r\n${0}\r\n{key}\r\n$8\r\n31536100\r\n",
        key.len()
    );
    let mut passed = 0;
    for turn in 0..45 {
        passed += match servers.get(turn % 3) {
            Some(server) => u32::from(server.post("/json", &body("user")).status == 200),
            None => {
                let answers = send(&redis, &other, 2);
                assert_eq!(answers[1], "1");
                u32::from(answers[0].parse::<u32>().expect("a number") <= 30)
            }
        };
    }
    assert_eq!(passed, 30);
    assert_eq!(send(&redis, &format!("GET {key}\r\n"), 2)[1], "45");
    // Windows of a second stand on the other server.
    assert_eq!(servers[0].post("/json", &body("path")).status, 200);
    assert_ne!(send(&second, "DBSIZE\r\n", 1), ["0"]);
    let metrics = servers[0].get("/metrics").body;
    assert!(
        metrics.contains("tollgate_store_errors_total{code=\"timeout\"} 0\n"),
        "{metrics}"
    );
    for server in servers {
        server.stop();
    }
}

/// What is told of a figure, and of a path in the domain `shop`.
fn metric(server: &TestServer, name: &str, path: &str) -> u64 {
    let prefix = format!("tollgate_ratelimit_{name}_total{{domain=\"shop\",path=\"{path}\"}} ");
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no {prefix} in {metrics}"))
}

#[test]
fn what_another_limit_refuses_is_not_near_and_what_is_remembered_is_told() {
    let redis = Redis::start(ServerKind::Redis70);
    let limit = |requests| format!("rate_limit: {{ unit: year, requests_per_unit: {requests} }}");
    let file = format!(
        "domain: shop\ndescriptors: [{{ key: wide, {} }}, {{ key: narrow, {} }}]\n",
        limit(10),
        limit(1)
    );
    let folder = shop(&redis, "auto", "stop_when_over: true, local_cache: 1000", &file);
    let server = TestServer::start(&folder, &[]);
    let hit = |hits: u32, keys: &[&str]| {
        let entries = keys
            .iter()
            .map(|key| format!(r#"{{"entries":[{{"key":"{key}","value":"u"}}]}}"#));
        let entries: Vec<String> = entries.collect();
        let entries = entries.join(",");
        let body = format!(r#"{{"domain":"shop","hitsAddend":{hits},"descriptors":[{entries}]}}"#);
        server.post("/json", &body).status
    };
    assert_eq!((hit(9, &["wide"]), hit(1, &["narrow"])), (200, 200));
    for _ in 0..3 {
        assert_eq!(hit(1, &["wide", "narrow"]), 429);
    }
    let metrics = |path, names: [&str; 5]| names.map(|name| metric(&server, name, path));
    let names = [
        "total_hits",
        "near_limit",
        "within_limit",
        "over_limit",
        "over_limit_with_local_cache",
    ];
    // The ninth was near; those that the other refused brought it no nearer.
    assert_eq!(metrics("wide", names), [12, 1, 12, 0, 0]);
    // The first was asked for, the others were remembered.
    assert_eq!(metrics("narrow", names), [4, 1, 1, 3, 2]);
    server.stop();
}

#[test]
fn what_the_store_did_not_take_back_is_not_counted_as_given() {
    let redis = Redis::start(ServerKind::Redis70);
    let folder = shop(&redis, "shared_only", "prefix: 'rl:'", FILE);
    let server = TestServer::start(&folder, &[]);
    let refund = |more: &str| {
        let entries = r#"[{"key":"user","value":"u"}]"#;
        let body = format!(
            r#"{{"domain":"shop","descriptors":[{{"entries":{entries},"isNegativeHits":true,"hitsAddend":2{more}}}]}}"#
        );
        server.post("/json", &body);
    };
    refund("");
    assert_eq!(metric(&server, "total_negative_hits", "user"), 2);
    // Not a number, so that nothing can be taken off it.
    let key = key(&redis);
    send(&redis, &format!("SET {key} text\r\n"), 1);
    refund("");
    refund(r#","limit":{"requestsPerUnit":30,"unit":"YEAR"}"#);
    assert_eq!(metric(&server, "total_negative_hits", "user"), 2);
    let stats = server.get("/metrics").body;
    assert!(
        !stats.contains("tollgate_ratelimit_total_negative_hits_total{domain=\"shop\",path=\"user_u\"} 2"),
        "{stats}"
    );
    server.stop();
}
