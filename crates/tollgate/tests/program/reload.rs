//! Rules that change under a running server.

use crate::shared_store::eventually;
use crate::test_server::TestServer;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_test_kit::TestFolder;

/// What the log says each time changed rules are taken.
const RELOADED: &str = "rules reloaded";
const RELOAD_FAILED: &str = "rule reload failed";

/// Rules with one limit for all, as a rules file.
fn rules(limit: &str) -> String {
    format!("rules: [{{ id: all, {limit} }}]\n")
}

fn remaining(server: &TestServer) -> u64 {
    let answer = server.post("/v1/check", r#"{"attributes":{},"cost":0}"#);
    let left = answer.json().get("remaining").and_then(serde_json::Value::as_u64);
    left.unwrap_or_else(|| panic!("{}", answer.body))
}

/// Waits until it has reloaded so often, and asserts what is left then.
#[track_caller]
fn assert_reloaded(server: &TestServer, times: usize, left: u64) {
    server.wait_for(RELOADED, times);
    assert_eq!(remaining(server), left);
}

/// A server whose rules are in `rules.yaml`.
fn start(limit: &str) -> (TestFolder, TestServer) {
    let folder = TestFolder::with("tollgate.yaml", "rules_files: [rules.yaml]\n");
    folder.write("rules.yaml", &rules(limit));
    let server = TestServer::start(&folder, &[]);
    (folder, server)
}

#[test]
fn what_was_used_stays_used_when_only_numbers_change() {
    for algorithm in [
        "token_bucket",
        "sliding_log",
        "sliding_counter",
        "fixed_window",
        "leaky_bucket",
    ] {
        // A day, so that nothing is given back while the test runs.
        let (folder, server) = start(&format!("algorithm: {algorithm}, limit: 100/day"));
        let answer = server.post("/v1/check", r#"{"attributes":{},"cost":100}"#);
        assert_eq!((answer.status, remaining(&server)), (200, 0), "{algorithm}");
        folder.replace(
            "rules.yaml",
            &rules(&format!("algorithm: {algorithm}, limit: 1000/day")),
        );
        server.wait_for(RELOADED, 1);
        assert_eq!(remaining(&server), 900, "{algorithm}");
    }
}

#[test]
fn a_window_of_another_period_is_another_counter() {
    let (folder, server) = start("algorithm: fixed_window, limit: 5/day");
    server.post("/v1/check", r#"{"attributes":{},"cost":5}"#);
    assert_eq!(remaining(&server), 0);
    folder.replace("rules.yaml", &rules("algorithm: fixed_window, limit: 5/week"));
    assert_reloaded(&server, 1, 5);
    // And the old one is still there when it comes back.
    folder.replace("rules.yaml", &rules("algorithm: fixed_window, limit: 5/day"));
    assert_reloaded(&server, 2, 0);
}

#[test]
fn a_file_may_be_written_in_place_replaced_or_reached_by_another_link() {
    let folder = TestFolder::with("tollgate.yaml", "rules_files: [mounted/*.yaml]\n");
    // As Kubernetes mounts a ConfigMap: files are links into `..data`, which is a link to the folder of the day.
    folder.write("mounted/..monday/rules.yaml", &rules("limit: 10/day"));
    let mounted = folder.path().join("mounted");
    symlink("..monday", mounted.join("..data")).unwrap();
    symlink("..data/rules.yaml", mounted.join("rules.yaml")).unwrap();
    let server = TestServer::start(&folder, &[]);
    assert_eq!(remaining(&server), 10);

    folder.write("mounted/..tuesday/rules.yaml", &rules("limit: 20/day"));
    symlink("..tuesday", mounted.join("..new")).unwrap();
    fs::rename(mounted.join("..new"), mounted.join("..data")).unwrap();
    assert_reloaded(&server, 1, 20);

    folder.write("mounted/..tuesday/rules.yaml", &rules("limit: 30/day"));
    assert_reloaded(&server, 2, 30);

    folder.replace("mounted/rules.yaml", &rules("limit: 40/day"));
    assert_reloaded(&server, 3, 40);

    // A file more, and one less.
    folder.write("mounted/more.yaml", "rules: [{ id: less, limit: 5/day }]\n");
    assert_reloaded(&server, 4, 5);
    fs::remove_file(mounted.join("more.yaml")).unwrap();
    assert_reloaded(&server, 5, 40);
}

#[test]
fn a_broken_edit_keeps_what_ran_and_shows_until_it_is_mended() {
    let (folder, server) = start("limit: 10/day");
    assert_eq!(
        server.get("/readyz").json()["status"],
        "ready",
        "{}",
        server.get("/readyz").body
    );
    let errors = |server: &TestServer| {
        let metrics = server.get("/metrics").body;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("tollgate_rules_reload_errors_total "))
            .map(str::to_owned);
        line.unwrap_or_else(|| panic!("not in {metrics}"))
    };
    assert!(errors(&server).ends_with(" 0"));

    folder.replace("rules.yaml", "rules: [{ id: all, limt: 20/day }]\n");
    server.wait_for(RELOAD_FAILED, 1);
    assert_eq!(remaining(&server), 10);
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(
        ready.body.contains("rules.yaml:1:") && ready.body.contains("limt"),
        "{}",
        ready.body
    );
    assert!(errors(&server).ends_with(" 1"));
    assert!(server.log().contains("did you mean `limit`?"), "{}", server.log());

    // Half written, and then gone: still the old rules.
    folder.replace("rules.yaml", "rules: [{ id: all, lim");
    server.wait_for(RELOAD_FAILED, 2);
    fs::remove_file(folder.path().join("rules.yaml")).unwrap();
    server.wait_for(RELOAD_FAILED, 3);
    assert_eq!(remaining(&server), 10);

    folder.replace("rules.yaml", &rules("limit: 20/day"));
    assert_reloaded(&server, 1, 20);
    assert!(!server.get("/readyz").body.contains("limt"));
}

#[test]
fn rules_in_the_settings_are_watched_too_and_other_settings_ask_for_a_restart() {
    let (folder, server) = TestServer::with_settings("drain: 1s\nrules: [{ id: all, limit: 10/day }]\n");
    folder.replace(
        "tollgate.yaml",
        "drain: 2s\nheaders: none\nrules: [{ id: all, limit: 20/day }]\n",
    );
    assert_reloaded(&server, 1, 20);
    let log = server.log();
    assert!(
        log.contains("only after a restart") && log.contains("drain, headers"),
        "{log}"
    );
    assert!(
        server.check("{}").header("ratelimit").is_some(),
        "what needs a restart waits for it"
    );
    // Settings that mean nothing are a fault as well, and one that is gone is not a reason to limit by defaults.
    folder.replace("tollgate.yaml", "darin: 2s\nrules: [{ id: all, limit: 30/day }]\n");
    server.wait_for(RELOAD_FAILED, 1);
    fs::remove_file(folder.path().join("tollgate.yaml")).unwrap();
    server.wait_for(RELOAD_FAILED, 2);
    assert_eq!(remaining(&server), 19);
}

#[test]
fn a_signal_reads_them_again_changed_or_not() {
    let (_folder, server) = start("limit: 10/day");
    server.signal("HUP");
    server.wait_for(RELOADED, 1);
    server.signal("HUP");
    assert_reloaded(&server, 2, 10);
    assert!(server.stop().success());
}

#[test]
fn no_request_is_dropped_or_sees_a_mixture_while_rules_are_swapped() {
    let set = |name: &str| {
        let rule = |n: u8| format!("{{ id: {name}{n}, limit: 1000000/day }}");
        format!("rules: [{}, {}, {}]\n", rule(1), rule(2), rule(3))
    };
    let folder = TestFolder::with("tollgate.yaml", "rules_files: [rules.yaml]\n");
    folder.write("rules.yaml", &set("a"));
    let server = TestServer::start(&folder, &[]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut sent = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        let answer = server.check("{}");
                        assert_eq!(answer.status, 200, "{}", answer.body);
                        let limits = answer.json()["limits"].clone();
                        let names: String = limits
                            .as_array()
                            .expect("a list")
                            .iter()
                            .map(|limit| limit["rule"].as_str().expect("a name"))
                            .collect();
                        assert!(names == "a1a2a3" || names == "b1b2b3", "{names}");
                        sent += 1;
                    }
                    sent
                })
            })
            .collect();
        for (swap, name) in (1..=6).zip(["b", "a"].into_iter().cycle()) {
            folder.replace("rules.yaml", &set(name));
            server.wait_for(RELOADED, swap);
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("no asker panics") > 0);
        }
    });
}

#[test]
fn tokens_are_taken_anew_when_their_file_changes_and_a_broken_one_keeps_those_that_hold() {
    let (old, new) = ("token-that-holds-first", "token-that-comes-later");
    let file = |token: &str| format!("tokens: [{{ name: shop, token: {token} }}]\n");
    let folder = TestFolder::with(
        "tollgate.yaml",
        "auth: { tokens_file: tokens.yaml }\nrules: [{ id: all, limit: 10/day }]\n",
    );
    folder.write("tokens.yaml", &file(old));
    let server = TestServer::start(&folder, &[]);
    let status = |token: &str| {
        let shown = format!("authorization: Bearer {token}\r\n");
        server.post_with("/v1/check", r#"{"attributes":{}}"#, &shown).status
    };
    assert_eq!((status(old), status(new)), (200, 401));
    folder.replace("tokens.yaml", &file(new));
    server.wait_for("tokens reloaded", 1);
    assert_eq!((status(old), status(new)), (401, 200));

    folder.replace("tokens.yaml", "tokens: [{ name: shop, token: hunter2 }]\n");
    server.wait_for(RELOAD_FAILED, 1);
    assert_eq!((status(old), status(new)), (401, 200));
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.body.contains("tokens.yaml:1:"), "{}", ready.body);
    assert!(!ready.body.contains("hunter2") && !server.log().contains("hunter2"));
    fs::remove_file(folder.path().join("tokens.yaml")).unwrap();
    server.wait_for(RELOAD_FAILED, 2);
    assert_eq!((status(old), status(new)), (401, 200));

    // Back again, unchanged: the signal reads it whether it has changed or not.
    folder.replace("tokens.yaml", &file(old));
    server.signal("HUP");
    server.wait_for("tokens reloaded", 2);
    assert_eq!((status(old), status(new)), (200, 401));
    assert!(!server.log().contains("only after a restart"), "{}", server.log());
    // The rules of the same update are installed after the tokens.
    eventually("no error", || !server.get("/readyz").body.contains("tokens.yaml"));
}

#[test]
fn descriptors_of_envoys_files_hold_and_are_taken_anew() {
    let file = |requests: u32| {
        format!(
            "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {{ unit: hour, requests_per_unit: {requests} }}\n"
        )
    };
    let folder = TestFolder::with("tollgate.yaml", "envoy_rules: [envoy/*.yaml]\n");
    std::fs::create_dir(folder.path().join("envoy")).unwrap();
    folder.write("envoy/shop.yaml", &file(2));
    let server = TestServer::start(&folder, &[]);
    let status = || {
        server
            .post("/v1/check", r#"{"domain":"shop","attributes":{"user":"u"}}"#)
            .status
    };
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    folder.replace("envoy/shop.yaml", &file(5));
    server.wait_for("rules reloaded", 1);
    // The one that was refused was counted too.
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    folder.replace(
        "envoy/shop.yaml",
        "domain: shop\ndescriptors: [{ key: user, rate_limits: {} }]\n",
    );
    server.wait_for("unknown key 'rate_limits'", 1);
    assert_eq!(status(), 429);
    server.stop();
}

#[test]
fn a_file_that_is_isolated_keeps_its_limits_while_others_change() {
    let settings = "envoy_rules: { files: 'config/*.yaml', isolate_files: true }\n";
    let folder = TestFolder::with("tollgate.yaml", settings);
    fs::create_dir(folder.path().join("config")).expect("a folder");
    let file = |domain: &str, requests: u32| {
        format!(
            "domain: {domain}\ndescriptors: [{{ key: user, rate_limit: {{ unit: day, requests_per_unit: {requests} }} }}]\n"
        )
    };
    folder.write("config/one.yaml", &file("one", 5));
    folder.write("config/two.yaml", &file("two", 5));
    let server = TestServer::start(&folder, &[]);
    let limits = || {
        ["one", "two"].map(|domain| {
            let body = format!(
                r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"user","value":"u"}}],"hitsAddend":0}}]}}"#
            );
            let answer = server.post("/json", &body).json();
            answer["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
        })
    };
    assert_eq!(limits(), [Some(5), Some(5)]);
    // One at a time: each change may be taken by itself.
    folder.replace("config/one.yaml", "domain: one\ndescriptors: [{ value: x }]\n");
    server.wait_for("descriptor has empty key", 1);
    folder.replace("config/two.yaml", &file("two", 7));
    server.wait_for(RELOADED, 2);
    assert_eq!(limits(), [Some(5), Some(7)]);
    assert!(server.get("/healthcheck").body.contains("descriptor has empty key"));
    assert!(server.get("/metrics").body.contains("\ntollgate_rules_load_failed 1\n"));
    folder.replace("config/one.yaml", &file("one", 9));
    server.wait_for(RELOADED, 3);
    assert_eq!(
        (limits(), server.get("/healthcheck").body),
        ([Some(9), Some(7)], "OK".into())
    );
}

#[test]
fn a_token_in_a_file_of_its_own_is_taken_anew_when_that_file_changes() {
    let (old, new) = ("token-that-holds-first", "token-that-comes-later");
    let folder = TestFolder::with(
        "tollgate.yaml",
        "auth: { tokens_file: secrets/tokens.yaml }\nrules: [{ id: all, limit: 10/day }]\n",
    );
    // Relative to the file that names it.
    folder.write("secrets/tokens.yaml", "tokens: [{ name: shop, token_file: shop }]\n");
    folder.write("secrets/shop", &format!("{old}\n"));
    let server = TestServer::start(&folder, &[]);
    let status = |token: &str| {
        let shown = format!("authorization: Bearer {token}\r\n");
        server.post_with("/v1/check", r#"{"attributes":{}}"#, &shown).status
    };
    assert_eq!((status(old), status(new)), (200, 401));
    folder.replace("secrets/shop", &format!("{new}\n"));
    server.wait_for("tokens reloaded", 1);
    assert_eq!((status(old), status(new)), (401, 200));
    // A missing file is named, and the tokens stay.
    fs::remove_file(folder.path().join("secrets/shop")).unwrap();
    server.wait_for("keeping the previous rules", 1);
    assert_eq!((status(old), status(new)), (401, 200));
    let ready = server.get("/readyz").body;
    assert!(
        ready.contains("`token_file`: ") && ready.contains("secrets/shop"),
        "{ready}"
    );
}

#[test]
fn a_changed_file_of_a_store_password_or_a_key_secret_needs_a_restart_and_is_not_repeated() {
    let folder = TestFolder::with(
        "tollgate.yaml",
        "store: { url: 'redis://127.0.0.1:1', password_file: password }\nkey_secret_file: secret\nrules: []\n",
    );
    folder.write("password", "first-password\n");
    folder.write("secret", "first-secret\n");
    let server = TestServer::start(&folder, &[]);
    folder.replace("password", "other-password\n");
    server.wait_for("only after a restart", 1);
    assert!(server.log().contains("store"), "{}", server.log());
    folder.replace("secret", "other-secret\n");
    server.wait_for("key_secret_file", 1);
    let log = server.log();
    assert!(!log.contains("-password\n") && !log.contains("-secret\n"), "{log}");
}

#[test]
fn a_secret_that_changes_alone_is_all_that_needs_a_restart() {
    let settings = |secret: &str| {
        format!("store: 'redis://127.0.0.1:1'\nkey_secret: {secret}\nenvoy_rules: {{ files: shop.yaml }}\n")
    };
    let folder = TestFolder::with("tollgate.yaml", &settings("one-secret-of-many-bytes"));
    folder.write(
        "shop.yaml",
        "domain: shop\ndescriptors:\n- key: user\n  rate_limit: { unit: hour, requests_per_unit: 1 }\n",
    );
    let server = TestServer::start(&folder, &[]);
    folder.replace("tollgate.yaml", &settings("two-secrets-of-many-bytes"));
    server.wait_for(RELOADED, 1);
    server.wait_for("only after a restart", 1);
    let log = server.log();
    assert!(
        log.contains("key_secret") && !log.contains("envoy_rules.counters"),
        "{log}"
    );
    assert!(!log.contains("secrets-of-many"), "{log}");
}

#[test]
fn of_envoys_files_all_is_taken_anew_but_where_they_are_counted() {
    let settings = |more: &str| format!("store: 'redis://127.0.0.1:1'\nenvoy_rules:\n  files: shop.yaml\n{more}");
    let folder = TestFolder::with("tollgate.yaml", &settings(""));
    folder.write(
        "shop.yaml",
        "domain: shop\ndescriptors:\n- key: user\n  rate_limit: { unit: hour, requests_per_unit: 1 }\n",
    );
    let server = TestServer::start(&folder, &[]);
    let status = || {
        let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}"#;
        server.post("/json", body).status
    };
    let mut statuses = [(); 4].map(|()| status());
    statuses.sort_unstable();
    assert_eq!((statuses[0], statuses[3]), (200, 429));
    folder.replace("tollgate.yaml", &settings("  shadow_mode: true\n"));
    server.wait_for(RELOADED, 1);
    assert_eq!([(); 4].map(|()| status()), [200; 4]);
    assert!(!server.log().contains("only after a restart"), "{}", server.log());
    folder.replace("tollgate.yaml", &settings("  counters: { prefix: a }\n"));
    server.wait_for(RELOADED, 2);
    server.wait_for("only after a restart", 1);
    assert!(server.log().contains("envoy_rules.counters"), "{}", server.log());
}
