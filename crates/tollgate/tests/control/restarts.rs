//! Starts with managed rules: from the database, from the disk while the database is unavailable, and without either.

use crate::http::get;
use crate::program::{ControlServer, output, serve};
use serde_json::Value;
use tollgate_test_kit::TestFolder;
use tollgate_test_kit::eventually;
use tollgate_test_kit::postgres::Postgres;

/// `rules` of `/readyz`.
fn rules(server: &ControlServer) -> Value {
    let ready = get(server.line("http: "), "/readyz", "").json();
    ready.get("rules").cloned().expect("rules on /readyz")
}

/// A server with one published rule and one override row.
fn publish(folder: &TestFolder, flags: &[&str]) -> ControlServer {
    folder.write(
        "rules/plans.yaml",
        "rules: [{ id: plan, per: merchant, limit: 100/min }]\n",
    );
    let mut server = ControlServer::start_with_flags(folder, flags);
    server.set_up(folder, "ops");
    server.succeed(folder, &["rules", "apply", "rules", "--yes", "--reason", "plans"]);
    server.succeed(
        folder,
        &[
            "overrides",
            "set",
            "plan",
            "merchant=m_42",
            "--limit",
            "7/min",
            "--reason",
            "sale",
        ],
    );
    assert_published(folder, &server);
    server
}

fn assert_published(folder: &TestFolder, server: &ControlServer) {
    for (merchant, limit) in [("merchant=m_1", "100 per 1min"), ("merchant=m_42", "7 per 1min")] {
        let explained = server.succeed(folder, &["explain", merchant]);
        assert!(explained.contains(limit), "{explained}");
    }
}

#[test]
fn managed_rules_outlast_a_restart() {
    let folder = TestFolder::new();
    let flags = ["--set", "data_dir=data"];
    let mut server = publish(&folder, &flags);
    let before = rules(&server);
    assert_eq!(
        (&before["version"], &before["revision"]),
        (&1.into(), &2.into()),
        "{before}"
    );
    let metrics = get(server.line("http: "), "/metrics", "").body;
    for line in [
        "tollgate_rules_version 1",
        "tollgate_rules_revision 2",
        "tollgate_override_rows 1",
        "tollgate_control_database_up 1",
        "tollgate_rules_source{source=\"database\"} 1",
        "tollgate_control_writes_total{result=\"done\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    server.stop();

    let server = ControlServer::start_with_flags(&folder, &flags);
    assert_published(&folder, &server);
    let after = rules(&server);
    for name in ["version", "revision", "digest", "source", "rejected_rows"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    // The check to try fits the managed rules.
    assert!(server.line("try: ").contains("merchant"), "{}", server.banner);

    // A configured folder belongs to one server.
    let second = output(&mut serve(
        &folder,
        &["--set", "server.admin=127.0.0.1:0", "--set", "data_dir=data"],
    ));
    assert_eq!(second.code, Some(2), "{second:?}");
    assert!(second.stderr.contains("has locked"), "{second:?}");
}

#[test]
fn a_second_server_in_the_default_folder_runs_without_its_database() {
    let folder = TestFolder::new();
    let first = publish(&folder, &[]);
    let second = ControlServer::start_with_flags(&folder, &[]);
    assert_eq!(rules(&second)["source"], "file");
    assert!(!second.banner.contains("setup: "), "{}", second.banner);
    assert_eq!(rules(&first)["version"], 1);
}

#[test]
fn while_postgres_is_away_a_server_starts_from_its_disk_or_waits() {
    let mut postgres = Postgres::start();
    let url = format!("control.database={}", postgres.create_database());
    let flags = [
        "--set",
        "data_dir=data",
        "--set",
        url.as_str(),
        "--set",
        "control.database_poll=200ms",
    ];
    let folder = TestFolder::new();
    let mut server = publish(&folder, &flags);
    let before = rules(&server);
    server.stop();
    postgres.kill();

    let mut server = ControlServer::start_with_flags(&folder, &flags);
    assert_published(&folder, &server);
    let after = rules(&server);
    assert_eq!(after["source"], "disk");
    for name in ["version", "revision", "digest"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    // No code is printed: the database may have principals.
    assert!(!server.banner.contains('#'), "{}", server.banner);
    server.stop();

    // With nothing on disk it has no rules to serve.
    let empty = TestFolder::new();
    let mut waiting = ControlServer::spawn(serve(
        &empty,
        &[&["--set", "server.admin=127.0.0.1:0"], &flags[..]].concat(),
    ));
    waiting.read_until("try: ");
    let ready = get(waiting.line("http: "), "/readyz", "");
    assert_eq!(ready.status, 503, "{ready:?}");
    let error = ready.json()["rules"]["error"].clone();
    assert!(
        error
            .as_str()
            .is_some_and(|error| error.starts_with("waiting for rules: ")),
        "{ready:?}"
    );
    assert!(!waiting.banner.contains("ready"), "{}", waiting.banner);
    let mut asked = ControlServer::start_with_flags(
        &TestFolder::new(),
        &[&flags[..], &["--set", "control.start_without=true"]].concat(),
    );
    assert_eq!(get(asked.line("http: "), "/readyz", "").status, 200);
    asked.stop();

    // It becomes ready by itself.
    postgres.revive();
    waiting.read_until("ready");
    let found = rules(&waiting);
    assert_eq!(
        (&found["source"], &found["error"]),
        (&"database".into(), &Value::Null),
        "{found}"
    );
    for name in ["version", "revision", "digest"] {
        assert_eq!(found[name], before[name], "{name}");
    }
    eventually("the database is up", || {
        let metrics = get(waiting.line("http: "), "/metrics", "").body;
        metrics.contains("tollgate_control_database_up 1\n")
    });
}
