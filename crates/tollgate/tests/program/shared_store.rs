//! Several instances over one store, and what they do when it is away.

use crate::test_server::{TestServer, run, tollgate};
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::TestFolder;

/// An instance over the store at this address, with a deadline that a busy machine keeps.
pub(crate) fn instance(folder: &TestFolder, store: &str) -> TestServer {
    let store = format!("store={{ url: '{store}', deadline: 5s }}");
    TestServer::start(folder, &["--set", &store])
}

/// So many with the same settings.
pub(crate) fn instances<const N: usize>(store: &str, settings: &str) -> (TestFolder, [TestServer; N]) {
    let folder = TestFolder::with("tollgate.yaml", settings);
    let instances = [(); N].map(|()| instance(&folder, store));
    (folder, instances)
}

#[test]
fn four_instances_keep_one_limit() {
    let redis = Redis::start(ServerKind::Redis70);
    let rules = "rules: [{ id: minute, per: user, limit: 100/min, algorithm: sliding_log }]\n";
    let (_folder, instances) = instances::<4>(&redis.url(), rules);
    let passed: usize = std::thread::scope(|scope| {
        let clients = instances.each_ref().map(|instance| {
            scope.spawn(|| {
                let answers = (0..95).map(|_| instance.check(r#"{"user":"u"}"#));
                answers.filter(|answer| answer.status == 200).count()
            })
        });
        clients.map(|client| client.join().expect("it asks")).iter().sum()
    });
    assert_eq!(passed, 100);
    for instance in &instances {
        let answer = instance.check(r#"{"user":"u"}"#);
        assert_eq!(answer.status, 429);
        assert!(answer.header("retry-after").is_some());
    }
}

#[test]
fn two_instances_keep_limits_on_a_cluster() {
    let cluster = Cluster::start(ServerKind::Redis70);
    let rules = "rules:\n- { id: everybody, limit: 50/h }\n- { id: each, per: user, limit: 4/h }\n";
    let (_folder, instances) = instances::<2>(&cluster.url(), rules);
    let mut passed = 0;
    for user in 0..20 {
        for attempt in 0..3 {
            let answer = instances[attempt % 2].check(&format!(r#"{{"user":"u{user}"}}"#));
            passed += usize::from(answer.status == 200);
        }
    }
    assert_eq!(passed, 50);
    let metrics = instances.each_ref().map(|instance| instance.get("/metrics").body);
    assert!(
        metrics
            .iter()
            .all(|metrics| metrics.contains("tollgate_store_uncompensated_charges_total 0\n")),
        "{metrics:?}"
    );
}

#[test]
fn a_server_that_starts_while_no_sentinel_answers_knows_the_primary() {
    let mut sentinels = SentinelGroup::start(ServerKind::Redis70);
    let folder = TestFolder::with(
        "tollgate.yaml",
        "data_dir: data\nrules: [{ id: each, per: user, limit: 100/h }]\n",
    );
    let first = instance(&folder, &sentinels.url());
    first.wait_for("sentinels report the primary", 1);
    assert_eq!(first.check(r#"{"user":"u"}"#).json()["remaining"], 99);
    let primary_file = std::fs::read_to_string(folder.path().join("data/primary")).expect("a file");
    let primary = format!(" 127.0.0.1:{}\n", sentinels.primary_port());
    assert!(
        primary_file.starts_with("mymaster 127.0.0.1:") && primary_file.ends_with(&primary),
        "{primary_file}"
    );
    assert!(first.stop().success());
    for sentinel in &mut sentinels.sentinels {
        sentinel.kill();
    }
    let second = instance(&folder, &sentinels.url());
    let verdict = second.check(r#"{"user":"u"}"#).json();
    assert_eq!(
        (&verdict["source"], &verdict["remaining"]),
        (&"shared".into(), &98.into())
    );
    let ready = second.get("/readyz").body;
    assert!(ready.contains("no sentinel answers"), "{ready}");
}

#[test]
fn what_is_given_back_while_the_store_is_away_is_given_here() {
    let mut redis = Redis::start(ServerKind::Redis70);
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: each, per: user, limit: 10/h }]\n");
    let server = TestServer::start(&folder, &["--set", &format!("store.url={}", redis.url())]);
    let user = r#"{"user":"u"}"#;
    let refund = || server.post("/v1/refund", r#"{"attributes":{"user":"u"}}"#).json();
    redis.kill();
    while server.get("/readyz").json()["breaker"] != "open" {
        server.check(user);
    }
    let before = server.check(user).json()["remaining"].as_u64().expect("a number");
    let refunded = refund();
    assert_eq!(
        (&refunded["source"], &refunded["remaining"]),
        (&"local".into(), &(before + 1).into())
    );
    server.signal("TERM");
}

#[test]
fn an_answer_says_who_decided_and_every_operation_is_shared() {
    let redis = Redis::start(ServerKind::Valkey);
    let folder = TestFolder::with(
        "tollgate.yaml",
        "rules:\n- { id: r, per: user, limit: 2/h }\n- { id: c, when: { kind: job }, per: user, algorithm: concurrency, limit: 1 }\n",
    );
    let [one, other] = [(); 2].map(|()| instance(&folder, &redis.url()));
    let user = r#"{"user":"u"}"#;
    let first = one.check(user).json();
    assert_eq!((&first["source"], &first["remaining"]), (&"shared".into(), &1.into()));
    let second = other.check(user).json();
    assert_eq!((&second["source"], &second["remaining"]), (&"shared".into(), &0.into()));
    // This one saw nothing left; the other must ask.
    assert_eq!(other.check(user).json()["source"], "near");
    assert_eq!(one.check(user).json()["source"], "shared");
    let refunded = one.post("/v1/refund", r#"{"attributes":{"user":"u"}}"#).json();
    assert_eq!(
        (&refunded["remaining"], &refunded["allowed"]),
        (&1.into(), &true.into())
    );
    assert_eq!(one.check(user).status, 200);
    let (code, stdout, _) = run(&folder, &["explain", "user=u", "--url", &one.url()]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("tg:{"), "{stdout}");
    let forgotten = other.post("/v1/forget", r#"{"attributes":{"user":"u"}}"#).json();
    assert_eq!(forgotten["forgotten"], 1);
    assert_eq!(other.check(user).status, 200);

    let job = r#"{"user":"w","kind":"job"}"#;
    let lease = one.check(job).json()["lease"].as_str().expect("a lease").to_owned();
    assert_eq!(other.check(job).status, 429);
    let lease = format!("{{\"lease\":\"{lease}\"}}");
    assert_eq!(other.post("/v1/renew", &lease).json()["renewed"], true);
    assert_eq!(other.post("/v1/release", &lease).json()["released"], true);
    assert_eq!(other.check(job).status, 200);
}

#[test]
fn a_rule_says_what_holds_while_the_store_is_away() {
    let redis = Redis::start(ServerKind::Redis70);
    let (url, port) = (redis.url(), redis.port().to_string());
    let folder = TestFolder::with(
        "tollgate.yaml",
        "forward_auth: { gateway: caddy }\nattributes: { to: header:to }\n\
         rules:\n- { id: o, when: { to: open }, limit: 1/h, on_store_failure: open }\n\
         - { id: c, when: { to: closed }, limit: 1/h, on_store_failure: closed }\n",
    );
    let store = format!("store={{ url: '{url}', deadline: 100ms }}");
    let server = TestServer::start(&folder, &["--set", &store, "--set", "retry_after={ format: date }"]);
    assert_eq!(server.get("/readyz").json()["store"]["reachable"], true);

    drop(redis);
    server.wait_for("store unavailable", 1);
    for _ in 0..3 {
        let open = server.check(r#"{"to":"open"}"#);
        assert_eq!((open.status, &open.json()["source"]), (200, &"open".into()));
    }
    let closed = server.check(r#"{"to":"closed"}"#);
    assert_eq!((closed.status, &closed.json()["source"]), (503, &"closed".into()));
    // The commands say why, in the server's words.
    let (code, stdout, _) = run(&folder, &["check", "to=closed", "--url", &server.url()]);
    let denied = "denied by c: store unavailable, and a matching rule has on_store_failure: closed\n";
    assert_eq!((code, &*stdout), (Some(1), denied));
    let forget = ["forget", "to=closed", "--rule", "c", "--url", &server.url()];
    let (code, _, stderr) = run(&folder, &forget);
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("server error 503: ") && !stderr.contains("draining"),
        "{stderr}"
    );
    // The store cannot say what time it is; this machine can.
    let after = closed.header("retry-after").expect("a time to come back");
    assert!(!after.contains(" 1970 "), "{after}");
    // A gateway hears the same.
    for (path, to, status) in [
        ("/v1/forward/default", "open", 200),
        ("/v1/forward/default", "closed", 503),
        ("/v1/forward-403/default", "open", 200),
        ("/v1/forward-403/default", "closed", 403),
    ] {
        let answer = server.post_with(path, "", &format!("to: {to}\r\n"));
        assert_eq!(answer.status, status, "{path} {to}");
        assert_eq!(answer.header("retry-after").is_some(), status != 200);
        assert!(status == 200 || answer.json()["status"] == status);
    }
    let ready = server.get("/readyz");
    assert_eq!(
        (ready.status, &ready.json()["store"]["reachable"]),
        (200, &false.into())
    );
    assert!(ready.json()["store"]["error"].is_string());
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("tollgate_store_connected 0"), "{metrics}");

    let _redis = Redis::start_with(ServerKind::Redis70, &["--port", &port]);
    server.wait_for("store available again", 1);
    let back = server.check(r#"{"to":"closed"}"#);
    assert_eq!((back.status, &back.json()["source"]), (200, &"shared".into()));
}

/// Tells a server something, in words without spaces, and waits until it has answered.
fn send_command(redis: &Redis, command: &str) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", redis.port())).expect("a server");
    stream.write_all(format!("{command}\r\n").as_bytes()).expect("a write");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("an answer");
    assert_eq!(answer, "+OK\r\n", "{command}");
}

#[test]
fn what_only_some_requests_fail_by_is_told_everywhere() {
    let redis = Redis::start(ServerKind::Redis70);
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, per: user, limit: 10/h }]\n");
    let server = instance(&folder, &redis.url());
    assert_eq!(
        server.get("/readyz").json()["store"]["last_error"],
        serde_json::Value::Null
    );
    let (_, stdout, _) = run(&folder, &["explain", "user=u", "--url", &server.url()]);
    let key = stdout
        .split_whitespace()
        .find(|word| word.starts_with("tg:{"))
        .expect("a key");
    send_command(&redis, &format!("SET {key} anything"));
    assert_eq!(server.check(r#"{"user":"u"}"#).json()["source"], "local");
    assert_eq!(server.check(r#"{"user":"v"}"#).json()["source"], "shared");

    let ready = server.get("/readyz").json();
    let last = &ready["store"]["last_error"];
    assert_eq!(
        (&last["code"], &ready["breaker"]),
        (&"foreign_value".into(), &"closed".into())
    );
    assert!(
        last["seconds_ago"].as_u64().is_some_and(|seconds| seconds < 60),
        "{ready}"
    );
    assert_eq!(ready["store"]["reachable"], true);
    server.wait_for("store errors since the last report", 1);
    assert!(server.log().contains("foreign_value"), "{}", server.log());
    // Once in a while.
    for _ in 0..10 {
        server.check(r#"{"user":"u"}"#);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(server.log().matches("store errors since the last report").count(), 1);
    assert!(
        server
            .get("/metrics")
            .body
            .contains("tollgate_store_task_restarts_total 0\n")
    );
}

#[test]
fn a_store_that_may_forget_counters_is_told_while_it_runs() {
    let settings = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = Redis::start_with(ServerKind::Redis70, &settings);
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 10/h }]\n");
    let server = instance(&folder, &redis.url());
    server.wait_for("allkeys-lru", 1);
    let ready = server.get("/readyz").json();
    let warning = ready["store"]["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("allkeys-lru"), "{ready}");
}

#[test]
fn the_password_of_the_store_may_stand_in_a_file() {
    let redis = Redis::start_with(ServerKind::Redis70, &["--requirepass", "hunter2"]);
    let url = redis.url();
    let folder = TestFolder::with(
        "tollgate.yaml",
        &format!("store: {{ url: '{url}', password_file: password }}\nrules: [{{ id: r, limit: 9/h }}]\n"),
    );
    folder.write("password", "hunter2\n");
    let server = TestServer::start(&folder, &["--set", "store.deadline=5s"]);
    eventually("a decision of the store", || {
        server.check("{}").json()["source"] == "shared"
    });
    drop(server);
    // The same in the environment, with nothing in the file.
    let folder = TestFolder::with("tollgate.yaml", "rules: [{ id: r, limit: 9/h }]\n");
    folder.write("password", "hunter2\n");
    let mut command = tollgate(
        &folder,
        &[
            "serve",
            "--set",
            "server.http=127.0.0.1:0",
            "--set",
            "store.deadline=5s",
        ],
    );
    command
        .env("TOLLGATE_STORE", &url)
        .env("TOLLGATE_STORE__PASSWORD_FILE", "password");
    let server = TestServer::spawn(command);
    eventually("a decision of the store", || {
        server.check("{}").json()["source"] == "shared"
    });
}

#[test]
fn it_starts_without_the_store_and_tells_no_secret() {
    let folder = TestFolder::with(
        "tollgate.yaml",
        "rules: [{ id: r, limit: 1/h, on_store_failure: open }]\n",
    );
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let free = free.expect("there are free ports").port();
    let server = TestServer::start(
        &folder,
        &["--store", &format!("redis://tollgate:hunter2@127.0.0.1:{free}/0")],
    );
    assert_eq!(server.check("{}").json()["source"], "open");
    server.wait_for("store unavailable", 1);
    let redis = Redis::start_with(
        ServerKind::Redis70,
        &["--port", &free.to_string(), "--requirepass", "other"],
    );
    std::thread::park_timeout(Duration::from_millis(1_500));
    drop(redis);
    let all = format!(
        "{}{}{}",
        server.log(),
        server.get("/readyz").body,
        server.get("/metrics").body
    );
    assert!(!all.contains("hunter2"), "{all}");
}

/// Asks until an answer is as it should be.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    panic!("{what} did not come");
}

#[test]
fn a_local_rule_is_kept_by_a_share_while_the_store_is_away_and_all_of_it_is_told() {
    let mut redis = Redis::start(ServerKind::Redis70);
    let folder = TestFolder::with(
        "tollgate.yaml",
        "rules:\n- { id: r, when: { kind: plain }, per: user, limit: 10/h }\n\
         - { id: c, when: { kind: job }, per: user, algorithm: concurrency, limit: 10 }\n",
    );
    let store = format!("store={{ url: '{}', deadline: 100ms, instances: 2 }}", redis.url());
    let [one, other] = [(); 2].map(|()| TestServer::start(&folder, &["--set", &store]));
    let (plain, job) = (r#"{"kind":"plain","user":"u"}"#, r#"{"kind":"job","user":"u"}"#);
    assert_eq!(one.check(plain).json()["remaining"], 9);
    let shared = one.check(job).json()["lease"].as_str().expect("a lease").to_owned();

    redis.kill();
    // 0.8 of 10 on two instances; of one it is known that a tenth was used.
    let passed = |server: &TestServer| (0..9).filter(|_| server.check(plain).status == 200).count();
    assert_eq!((passed(&one), passed(&other)), (3, 4));
    let denied = one.check(plain);
    assert_eq!((denied.status, &denied.json()["source"]), (429, &"local".into()));
    assert_eq!(denied.json()["limit"], 4);
    eventually("an open breaker", || one.get("/readyz").json()["breaker"] == "open");
    let ready = one.get("/readyz");
    assert_eq!((ready.status, &ready.json()["instances"]), (200, &2.into()));
    assert_eq!(ready.json()["instances_from"], "settings");
    let metrics = one.get("/metrics").body;
    for expected in [
        "tollgate_breaker_state 2\n",
        "tollgate_breaker_transitions_total 1\n",
        "tollgate_instances 2\n",
    ] {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }
    let decided = r#"source="local""#;
    assert!(
        metrics.contains(decided) && !metrics.contains("tollgate_fallback_charges_total 0\n"),
        "{metrics}"
    );

    // A lease that is taken here is released here; of one that the store has nobody knows.
    let local = one.check(job).json()["lease"].as_str().expect("a lease").to_owned();
    let lease = |lease: &str| format!("{{\"lease\":\"{lease}\"}}");
    assert_eq!(one.post("/v1/renew", &lease(&local)).json()["renewed"], true);
    assert_eq!(one.post("/v1/release", &lease(&local)).json()["released"], true);
    for (path, body) in [
        ("/v1/release", lease(&shared)),
        ("/v1/renew", lease(&shared)),
        ("/v1/forget", r#"{"attributes":{"user":"u"}}"#.to_owned()),
    ] {
        let answer = one.post(path, &body);
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (503, Some("1")),
            "{path}: {}",
            answer.body
        );
    }

    redis.revive();
    // It begins anew, and is charged what passed meanwhile.
    eventually("a shared answer", || {
        other.check(r#"{"kind":"plain","user":"v"}"#).json()["source"] == "shared"
    });
    let left = other.check(plain).json();
    assert_eq!((&left["source"], &left["remaining"]), (&"shared".into(), &5.into()));
    assert_eq!(other.get("/readyz").json()["breaker"], "closed");
    let metrics = other.get("/metrics").body;
    assert!(
        !metrics.contains("tollgate_fallback_repaid_units_total 0\n"),
        "{metrics}"
    );
}

#[test]
fn who_decides_is_switched_while_it_runs_and_without_the_store() {
    let settings = |mode: &str| {
        format!(
            "store: {{ url: 'redis://127.0.0.1:1', instances: 1, mode: {mode} }}\nrules: [{{ id: r, limit: 100/h }}]\n"
        )
    };
    let (folder, server) = TestServer::with_settings(&settings("auto"));
    assert_eq!(server.check("{}").json()["source"], "local");
    folder.replace("tollgate.yaml", &settings("shared_only"));
    server.wait_for("rules reloaded", 1);
    let closed = server.check("{}");
    assert_eq!((closed.status, &closed.json()["source"]), (503, &"closed".into()));
    assert_eq!(server.get("/readyz").json()["mode"], "shared_only");
    folder.replace("tollgate.yaml", &settings("local_only"));
    server.wait_for("rules reloaded", 2);
    let local = server.check("{}").json();
    assert_eq!((&local["source"], &local["limit"]), (&"local".into(), &80.into()));
    assert!(!server.log().contains("only after a restart"), "{}", server.log());
}
