//! Several instances over one store, and what they do when it is away.

use crate::running::{Folder, Server, run};
use std::time::Duration;
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::servers::{Kind, Server as Redis};

/// An instance over the store at this address, with a deadline that a busy machine keeps.
fn instance(folder: &Folder, store: &str) -> Server {
    let store = format!("store={{ url: '{store}', deadline: 5s }}");
    Server::start(folder, &["--set", &store])
}

#[test]
fn four_instances_keep_one_limit() {
    let redis = Redis::start(Kind::Redis70);
    let folder = Folder::with(
        "tollgate.yaml",
        "rules: [{ id: minute, per: user, limit: 100/min, algorithm: sliding_log }]\n",
    );
    let instances = [(); 4].map(|()| instance(&folder, &redis.url()));
    let passed: usize = std::thread::scope(|scope| {
        let asking = instances.each_ref().map(|instance| {
            scope.spawn(|| {
                let answers = (0..95).map(|_| instance.check(r#"{"user":"u"}"#));
                answers.filter(|answer| answer.status == 200).count()
            })
        });
        asking.map(|asking| asking.join().expect("it asks")).iter().sum()
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
    let cluster = Cluster::start(Kind::Redis70);
    let folder = Folder::with(
        "tollgate.yaml",
        "rules:\n- { id: everybody, limit: 50/h }\n- { id: each, per: user, limit: 4/h }\n",
    );
    let instances = [(); 2].map(|()| instance(&folder, &cluster.url()));
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
            .all(|metrics| metrics.contains("tollgate_store_stranded_total 0\n")),
        "{metrics:?}"
    );
}

#[test]
fn an_answer_says_who_decided_and_every_operation_is_shared() {
    let redis = Redis::start(Kind::Valkey);
    let folder = Folder::with(
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
    let (code, said, _) = run(&folder, &["explain", "user=u", "--url", &one.url()]);
    assert_eq!(code, Some(0));
    assert!(said.contains("tg:{"), "{said}");
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
    let redis = Redis::start(Kind::Redis70);
    let (url, port) = (redis.url(), redis.port().to_string());
    let folder = Folder::with(
        "tollgate.yaml",
        "forward_auth: { gateway: caddy }\nattributes: { to: header:to }\n\
         rules:\n- { id: o, when: { to: open }, limit: 1/h, on_store_failure: open }\n\
         - { id: c, when: { to: closed }, limit: 1/h, on_store_failure: closed }\n",
    );
    let store = format!("store={{ url: '{url}', deadline: 100ms }}");
    let server = Server::start(&folder, &["--set", &store, "--set", "retry_after={ format: date }"]);
    assert_eq!(server.get("/readyz").json()["store"]["reachable"], true);

    drop(redis);
    server.wait_for("the store cannot be reached", 1);
    for _ in 0..3 {
        let open = server.check(r#"{"to":"open"}"#);
        assert_eq!((open.status, &open.json()["source"]), (200, &"open".into()));
    }
    let closed = server.check(r#"{"to":"closed"}"#);
    assert_eq!((closed.status, &closed.json()["source"]), (503, &"closed".into()));
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

    let _redis = Redis::start_with(Kind::Redis70, &["--port", &port]);
    server.wait_for("the store can be reached again", 1);
    let back = server.check(r#"{"to":"closed"}"#);
    assert_eq!((back.status, &back.json()["source"]), (200, &"shared".into()));
}

#[test]
fn it_starts_without_the_store_and_tells_no_secret() {
    let folder = Folder::with(
        "tollgate.yaml",
        "rules: [{ id: r, limit: 1/h, on_store_failure: open }]\n",
    );
    // Nobody listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let free = free.expect("there are free ports").port();
    let server = Server::start(
        &folder,
        &["--store", &format!("redis://tollgate:hunter2@127.0.0.1:{free}/0")],
    );
    assert_eq!(server.check("{}").json()["source"], "open");
    server.wait_for("the store cannot be reached", 1);
    let redis = Redis::start_with(Kind::Redis70, &["--port", &free.to_string(), "--requirepass", "other"]);
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
