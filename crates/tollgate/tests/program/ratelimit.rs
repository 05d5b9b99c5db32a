//! In the place of envoyproxy/ratelimit: started by nothing but its environment and a folder of its files.

use crate::shared_store::eventually;
use crate::test_server::{Response, TestServer, tollgate};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;
use tollgate::server::rls::rate_limit_response::Code;
use tollgate::server::rls::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, rate_limit_descriptor};
use tollgate_limiter::testing::relay::Relay;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::TestFolder;

/// What its log says each time changed files are taken, or are not.
const RELOADED: &str = "rules reloaded";
const RELOAD_FAILED: &str = "rule reload failed";

fn file(requests: u32) -> String {
    format!("domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{ unit: day, requests_per_unit: {requests} }}\n")
}

/// `tollgate serve` with these variables, on free ports of this machine, and no other settings.
fn command(folder: &TestFolder, variables: &[(&str, &str)]) -> Command {
    let mut command = tollgate(folder, &["serve"]);
    for listener in ["GRPC", "RESP", "DEBUG"] {
        command.env_remove(format!("TOLLGATE_SERVER__{listener}"));
    }
    for listener in ["", "GRPC_", "DEBUG_"] {
        command.env(format!("{listener}HOST"), "127.0.0.1");
        command.env(format!("{listener}PORT"), "0");
    }
    command.env("RUNTIME_ROOT", folder.path().join("data"));
    command.envs(variables.iter().copied());
    command
}

fn start(folder: &TestFolder, variables: &[(&str, &str)]) -> TestServer {
    TestServer::spawn(command(folder, variables))
}

/// A server with one file.
fn started(variables: &[(&str, &str)]) -> (TestFolder, TestServer) {
    let folder = TestFolder::with("data/config/shop.yaml", &file(2));
    let server = start(&folder, variables);
    (folder, server)
}

/// Where a listener is: 127.0.0.1:port.
fn address<'s>(server: &'s TestServer, listener: &str) -> &'s str {
    let line = server.banner.lines().find_map(|line| line.strip_prefix(listener));
    let address = line.and_then(|line| line.strip_prefix(": "));
    let address = address.unwrap_or_else(|| panic!("no {listener} in {}", server.banner));
    address.trim_start_matches("http://")
}

/// What the debug port answers.
fn debug(server: &TestServer, path: &str) -> Response {
    let mut stream = TcpStream::connect(address(server, "debug")).expect("the port is open");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("it reads");
    Response::read(&mut stream)
}

fn json(server: &TestServer, user: &str) -> Response {
    let body = format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"user","value":"{user}"}}]}}]}}"#);
    server.post("/json", &body)
}

/// One call over gRPC, to a service and with a message.
fn call(server: &TestServer, path: &str, message: &[u8]) -> Bytes {
    let address = address(server, "grpc").to_owned();
    let path = format!("http://{address}{path}");
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.len().try_into().expect("it is short"));
    body.put_slice(message);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&address)
            .await
            .expect("the port is open");
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let request = Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = request.body(Full::new(body.freeze())).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer").into_body();
        let answer = answer.collect().await.expect("all of it").to_bytes();
        connection.abort();
        answer.slice(5.min(answer.len())..)
    })
}

fn grpc(server: &TestServer, user: &str) -> RateLimitResponse {
    let entry = rate_limit_descriptor::Entry {
        key: "user".into(),
        value: user.to_owned().into(),
    };
    let request = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    };
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    RateLimitResponse::decode(call(server, path, &request.encode_to_vec())).expect("a response")
}

#[test]
fn its_environment_and_files_are_all_it_takes() {
    let (_folder, server) = started(&[
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
    ]);
    server.wait_for("reading settings from the environment of envoyproxy/ratelimit", 1);
    let first = grpc(&server, "u");
    assert_eq!((first.overall_code(), first.statuses.len()), (Code::Ok, 1));
    let headers: Vec<_> = first
        .response_headers_to_add
        .iter()
        .map(|header| (&*header.key, &*header.value))
        .collect();
    assert_eq!(headers[..2], [("X-Limit", "2"), ("RateLimit-Remaining", "1")]);
    assert_eq!(json(&server, "u").status, 200);
    assert_eq!(grpc(&server, "u").overall_code(), Code::OverLimit);
    assert_eq!(json(&server, "u").status, 429);
    assert_eq!(json(&server, "v").status, 200);

    let health = server.get("/healthcheck");
    assert_eq!((health.status, &*health.body), (200, "OK"));
    let mut named = vec![0x0a, 9];
    named.extend_from_slice(b"ratelimit");
    assert_eq!(call(&server, "/grpc.health.v1.Health/Check", &named)[..], [0x08, 1]);

    assert_eq!(
        debug(&server, "/rlconfig").body,
        "shop.user: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n"
    );
    let stats = debug(&server, "/stats").body;
    let lines: Vec<&str> = stats.lines().collect();
    assert!(lines.is_sorted(), "{stats}");
    for line in [
        "ratelimit.service.config_load_success: 1",
        "ratelimit.service.config_load_error: 0",
        "ratelimit.service.global_shadow_mode: 0",
        "ratelimit_server.ShouldRateLimit.total_requests: 5",
        "ratelimit.service.call.should_rate_limit.redis_error: 0",
        "ratelimit.service.rate_limit.shop.user.total_hits: 5",
    ] {
        assert!(lines.contains(&line), "{line}: {stats}");
    }
    let index = debug(&server, "/").body;
    assert!(index.contains("/rlconfig: ") && index.contains("/stats: "), "{index}");
    assert_eq!(debug(&server, "/v1/check").status, 404);
    assert!(!server.banner.contains("resp:"), "{}", server.banner);
    assert!(server.stop().success());
}

#[test]
fn it_says_loudly_that_others_can_reach_it_and_how_to_close_it() {
    let folder = TestFolder::with("data/config/shop.yaml", &file(2));
    let mut open = command(&folder, &[]);
    for name in ["HOST", "GRPC_HOST", "DEBUG_HOST"] {
        open.env_remove(name);
    }
    let server = TestServer::spawn(open);
    assert!(server.banner.contains("http: http://0.0.0.0:"), "{}", server.banner);
    server.wait_for("ANYONE can call", 3);
    server.wait_for("TOLLGATE_SERVER__DEBUG=127.0.0.1", 1);
    server.wait_for("WARN", 3);
    // And no more than envoyproxy/ratelimit lets everybody do is open: nobody unblocks himself.
    for (path, status) in [
        ("/v1/check", 200),
        ("/v1/refund", 403),
        ("/v1/explain", 403),
        ("/v1/forget", 403),
    ] {
        let answer = server.post(path, r#"{"domain":"shop","attributes":{"user":"u"}}"#);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert_eq!(
            status == 403,
            answer.body.contains("tokens (`auth`)"),
            "{}",
            answer.body
        );
    }
    assert_eq!(json(&server, "u").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    // Of our own settings it is not so.
    let mut native = command(&folder, &[]);
    native.args(["--set", "server.http=0.0.0.0:0"]);
    let refused = native.output().expect("it can be run");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_config_map_that_is_swapped_and_a_file_that_is_written_are_both_seen() {
    let folder = TestFolder::new();
    // As Kubernetes mounts it: files are links into `..data`, which is a link to the folder of the day.
    folder.write("data/config/..monday/shop.yaml", &file(1));
    let mounted = folder.path().join("data/config");
    symlink("..monday", mounted.join("..data")).unwrap();
    symlink("..data/shop.yaml", mounted.join("shop.yaml")).unwrap();
    folder.write("data/config/.hidden.yaml", "not: [a file of its");
    let limits = |server: &TestServer| debug(server, "/rlconfig").body;
    for watch in ["true", "false"] {
        let server = start(&folder, &[("RUNTIME_WATCH_ROOT", watch)]);
        assert!(limits(&server).contains("requests_per_unit=1,"), "{}", limits(&server));
        folder.write("data/config/..tuesday/shop.yaml", &file(20));
        symlink("..tuesday", mounted.join("..new")).unwrap();
        fs::rename(mounted.join("..new"), mounted.join("..data")).unwrap();
        server.wait_for(RELOADED, 1);
        assert!(limits(&server).contains("requests_per_unit=20,"), "{}", limits(&server));
        folder.write("data/config/..tuesday/shop.yaml", &file(300));
        server.wait_for(RELOADED, 2);
        assert!(
            limits(&server).contains("requests_per_unit=300,"),
            "{}",
            limits(&server)
        );
        symlink("..monday", mounted.join("..new")).unwrap();
        fs::rename(mounted.join("..new"), mounted.join("..data")).unwrap();
        server.wait_for(RELOADED, 3);
    }
}

#[test]
fn a_file_without_an_extension_is_read_and_notes_beside_it_are_not() {
    let folder = TestFolder::with("data/config/shop", &file(2));
    folder.write("data/config/README.md", "no limits");
    let server = start(&folder, &[("LOG_FORMAT", "TEXT")]);
    assert!(debug(&server, "/rlconfig").body.contains("requests_per_unit=2,"));
}

#[test]
fn an_invalid_first_load_and_limits_over_xds_do_not_start() {
    for (path, text, variables, expected) in [
        (
            "data/config/shop.yaml",
            "domain: [",
            &[][..],
            "error loading config file",
        ),
        ("data/config/README.md", "", &[], "no file matches this pattern"),
        (
            "data/config/shop.yaml",
            &*file(2),
            &[
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ],
            "limits cannot be read over xDS",
        ),
    ] {
        let folder = TestFolder::with(path, text);
        let output = command(&folder, variables).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn a_root_that_is_a_link_may_be_swapped_too() {
    let folder = TestFolder::new();
    folder.write("one/rl/config/shop.yaml", &file(1));
    folder.write("two/rl/config/shop.yaml", &file(2));
    symlink("one", folder.path().join("data")).unwrap();
    let server = start(&folder, &[("RUNTIME_SUBDIRECTORY", "rl")]);
    symlink("two", folder.path().join("new")).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("data")).unwrap();
    server.wait_for(RELOADED, 1);
    assert!(debug(&server, "/rlconfig").body.contains("requests_per_unit=2,"));
}

#[test]
fn a_broken_file_keeps_the_old_limits_and_shows_until_it_is_mended() {
    let (folder, server) = started(&[]);
    folder.write("data/config/other.yaml", &file(9));
    server.wait_for(RELOAD_FAILED, 1);
    let health = server.get("/healthcheck");
    assert_eq!(health.status, 200);
    assert!(health.body.starts_with("OK\n"), "{}", health.body);
    assert!(
        health.body.contains("duplicate domain 'shop' in config file"),
        "{}",
        health.body
    );
    assert_eq!(
        [
            json(&server, "u").status,
            json(&server, "u").status,
            json(&server, "u").status
        ],
        [200, 200, 429]
    );
    assert!(debug(&server, "/stats").body.contains("config_load_error: 1\n"));
    fs::remove_file(folder.path().join("data/config/other.yaml")).unwrap();
    server.wait_for(RELOADED, 1);
    assert_eq!(server.get("/healthcheck").body, "OK");
    assert!(debug(&server, "/stats").body.contains("config_load_success: 2\n"));
}

#[test]
fn without_files_it_does_not_start_unless_it_is_told_to_and_then_takes_them_when_they_come() {
    let folder = TestFolder::new();
    let refused = command(&folder, &[]).output().expect("it can be run");
    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(
        stderr.contains("RUNTIME_ROOT: error: ") && stderr.contains("no file matches"),
        "{stderr}"
    );

    let force = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let server = start(&folder, &[force, ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    server.wait_for("starting without these files", 1);
    let answer = json(&server, "u");
    assert_eq!((answer.status, server.get("/healthcheck").status), (503, 500));
    assert!(
        answer.body.contains("no rate limit configuration loaded"),
        "{}",
        answer.body
    );
    assert!(debug(&server, "/stats").body.contains("service_error: 1\n"));
    folder.write(
        "data/config/shop.yaml",
        "domain: shop\ndescriptors: [{ key: user, rate_limits: {} }]\n",
    );
    server.wait_for("unknown key 'rate_limits'", 1);
    assert_eq!(server.get("/healthcheck").status, 500);
    folder.write("data/config/shop.yaml", &file(1));
    server.wait_for(RELOADED, 1);
    assert_eq!(server.get("/healthcheck").body, "OK");
    assert_eq!([json(&server, "u").status, json(&server, "u").status], [200, 429]);
    assert!(debug(&server, "/stats").body.contains("config_load_success: 1\n"));
    // What is wrong with other settings keeps it from starting all the same.
    let bad = command(&folder, &[force, ("PORT", "x")])
        .output()
        .expect("it can be run");
    assert_eq!(bad.status.code(), Some(2));
}

#[test]
fn two_of_them_count_together_on_its_redis() {
    let redis = Redis::start_with(ServerKind::Redis70, &["--requirepass", "s/e:cret"]);
    let url = format!("127.0.0.1:{}", redis.port());
    let folder = TestFolder::with("data/config/shop.yaml", &file(2));
    let variables = [
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_TYPE", "SINGLE"),
        ("REDIS_URL", &*url),
        ("REDIS_AUTH", "default:s/e:cret"),
        ("CACHE_KEY_PREFIX", "rl:"),
        ("TOLLGATE_STORE__DEADLINE", "5s"),
    ];
    let [one, other] = [(); 2].map(|()| start(&folder, &variables));
    let answers = [json(&one, "u"), json(&other, "u"), json(&one, "u"), json(&other, "u")];
    assert_eq!(answers.map(|answer| answer.status), [200, 200, 429, 429]);
    assert_eq!(one.get("/readyz").json()["store"]["kind"], "redis");
    // On the key that envoyproxy/ratelimit counts on: the second that the day began is its end.
    let send = |command: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("a server");
        write!(stream, "AUTH s/e:cret\r\n{command}\r\nQUIT\r\n").expect("it reads");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("it answers");
        answers
    };
    let keys = send("KEYS rl:*");
    let key = keys.lines().find(|line| line.starts_with("rl:shop_user_u_"));
    let key = key.unwrap_or_else(|| panic!("{keys}"));
    let window_start: u64 = key.trim_start_matches("rl:shop_user_u_").parse().expect("a second");
    assert_eq!(window_start % 86_400, 0);
    assert!(send(&format!("GET {key}")).contains("$1\r\n4\r\n"));
}

#[test]
fn while_its_redis_is_away_limits_hold_by_a_share_or_calls_fail_as_they_did() {
    let folder = TestFolder::with("data/config/shop.yaml", &file(2));
    // Nobody listens there.
    let away = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "127.0.0.1:1")];
    let server = start(&folder, &away);
    let answers = [(); 3].map(|()| json(&server, "u").status);
    assert!(answers.contains(&200) && answers.contains(&429), "{answers:?}");
    assert_eq!(server.get("/healthcheck").status, 200);

    let server = start(&folder, &[away[0], away[1], ("TOLLGATE_STORE__MODE", "shared_only")]);
    let answer = json(&server, "u");
    assert_eq!((answer.status, server.get("/healthcheck").status), (503, 200));
    assert!(answer.body.contains("store unavailable"), "{}", answer.body);
    assert!(
        debug(&server, "/stats")
            .body
            .contains("should_rate_limit.redis_error: 1\n")
    );
}

#[test]
fn its_timeout_is_the_deadline_and_a_call_that_its_redis_failed_is_a_redis_error() {
    let redis = Redis::start(ServerKind::Redis70);
    let relay = Relay::start(redis.port(), Duration::from_millis(12));
    let folder = TestFolder::with("data/config/shop.yaml", &file(100));
    let slow = ("REDIS_URL", format!("127.0.0.1:{}", relay.port()));
    let slow = [("REDIS_SOCKET_TYPE", "tcp"), (slow.0, &*slow.1)];
    let stats = |server: &TestServer| debug(server, "/stats").body;

    // The default is shorter than the round trip: every call is decided here, and its users hear of it.
    let server = start(&folder, &slow);
    for _ in 0..3 {
        assert_eq!(json(&server, "u").status, 200);
    }
    let counted = stats(&server);
    assert!(counted.contains("should_rate_limit.redis_error: 3\n"), "{counted}");
    server.wait_for("deadline too short", 1);
    assert_eq!(server.get("/healthcheck").status, 200);

    let server = start(&folder, &[slow[0], slow[1], ("REDIS_TIMEOUT", "900ms")]);
    for _ in 0..3 {
        assert_eq!(json(&server, "v").status, 200);
    }
    let counted = stats(&server);
    assert!(counted.contains("should_rate_limit.redis_error: 0\n"), "{counted}");
    assert!(!server.log().contains("REDIS_TIMEOUT"), "{}", server.log());
}

#[test]
fn its_health_check_fails_without_a_connection_where_it_was_told_to() {
    let mut redis = Redis::start(ServerKind::Redis70);
    let url = format!("127.0.0.1:{}", redis.port());
    let (_folder, server) = started(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &*url),
        ("REDIS_TIMEOUT", "500ms"),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
    ]);
    let is_healthy = || server.get("/healthcheck").status == 200;
    let health = || call(&server, "/grpc.health.v1.Health/Check", b"")[..].to_vec();
    // The answer is a message with one field: 1 is SERVING, 2 is NOT_SERVING.
    let (serving, not_serving) = (vec![8, 1], vec![8, 2]);
    assert!(is_healthy());
    assert_eq!(health(), serving);
    redis.kill();
    eventually("an unhealthy server", || !is_healthy() && health() == not_serving);
    redis.revive();
    eventually("a healthy server", || is_healthy() && health() == serving);
}

#[test]
fn modes_are_its_modes_and_what_cannot_be_done_is_told() {
    let (_folder, server) = started(&[
        ("SHADOW_MODE", "true"),
        ("QUOTA_MODE", "true"),
        ("USE_STATSD", "true"),
        ("LOG_FORMAT", "json"),
        ("LOG_LEVEL", "WARN"),
    ]);
    let answers = [(); 3].map(|()| json(&server, "u"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200; 3]);
    assert_eq!(answers[2].json()["statuses"][0]["code"], "OVER_LIMIT");
    assert!(debug(&server, "/stats").body.contains("global_shadow_mode: 1\n"));
    assert!(debug(&server, "/rlconfig").body.contains("quota_mode: true"));
    server.wait_for("figures are not sent to statsd", 1);
    let log = server.log();
    assert!(!log.contains("reading settings from the environment"), "{log}");
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(line["level"], "warn");
        assert!(line["@message"].is_string() && line["@timestamp"].is_string(), "{line}");
    }
}

#[test]
fn only_grpc_speaks_tls_where_only_grpc_was_to() {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    let folder = TestFolder::with("data/config/shop.yaml", &file(2));
    folder.write("cert.pem", &certificate.cert.pem());
    folder.write("key.pem", &certificate.signing_key.serialize_pem());
    let server = start(
        &folder,
        &[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "cert.pem"),
            ("GRPC_SERVER_TLS_KEY", "key.pem"),
        ],
    );
    assert_eq!(server.get("/healthcheck").body, "OK");
    assert_eq!(debug(&server, "/").status, 200);
    let mut plain = TcpStream::connect(address(&server, "grpc")).expect("the port is open");
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("it reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    // An alert, or nothing at all; certainly no settings of HTTP/2.
    assert!(answer.first().is_none_or(|kind| *kind == 0x15), "{answer:?}");
}

#[test]
fn with_tokens_it_is_no_longer_open_and_the_debug_port_asks_for_one_too() {
    let tokens = "[{ name: operator, token: 0123456789abcdef, rights: [check, metrics] }]";
    let folder = TestFolder::with("data/config/shop.yaml", &file(2));
    let mut closed = command(&folder, &[("TOLLGATE_AUTH__TOKENS", tokens)]);
    closed.env_remove("HOST");
    let server = TestServer::spawn(closed);
    assert_eq!(json(&server, "u").status, 401);
    let stats = |token: &str| {
        let mut stream = TcpStream::connect(address(&server, "debug")).expect("the port is open");
        let request = format!("GET /stats HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        Response::read(&mut stream).status
    };
    assert_eq!(stats(""), 401);
    assert_eq!(stats("authorization: Bearer 0123456789abcdef\r\n"), 200);
    assert_eq!(
        (debug(&server, "/").status, server.get("/healthcheck").status),
        (200, 200)
    );
    assert!(!server.log().contains("ANYONE"), "{}", server.log());
}
