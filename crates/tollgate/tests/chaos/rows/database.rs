//! The database of rules: away, locked, on a full disk, restored from a backup.

use crate::admin::{self, AdminResponse, get, position, publish, put_row};
use crate::audit::{broken, survived};
use crate::harness::{Harness, LoadResult, hot_and_many, pause, wait_until};
use crate::measurements::Measurements;
use crate::namespace;
use crate::node::Node;
use crate::plan::Plan;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::postgres::Postgres;

/// A rule that only the database has.
const MANAGED: &str = "rules:\n- { id: managed, when: { kind: hot }, per: user, limit: 100000/s }\n";

/// The database is stopped, frozen or locked.
pub(super) fn away(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    for fault in ["stopped", "frozen", "locked"] {
        postgres_away(plan, &mut measurements, fault);
    }
    sqlite_locked(plan, &mut measurements);
    measurements
}

fn managed_node(database: &str) -> Node {
    let rules = hot_and_many("local");
    Node::start_managed(&format!(
        "store: memory\nlog: info\n{}{rules}",
        admin::settings(database)
    ))
}

fn postgres_away(plan: &Plan, measurements: &mut Measurements, fault: &str) {
    let mut server = Postgres::start();
    let url = server.create_database();
    let (node, mut second) = (managed_node(&url), managed_node(&url));
    expect_done(&publish(&node, MANAGED));
    let mut rows = Rows::default();
    rows.write(&node, plan.pick(5, 50));
    wait_until("the second node has all changes", || {
        position(&second) == position(&node)
    });
    let mut harness = Harness::over(vec![node], plan);
    harness.load_now();
    let from_us = harness.pause(plan.seconds(1.0, 5.0));
    let before = position(&second);
    let mut locking = None;
    match fault {
        "stopped" => server.kill(),
        "frozen" => server.freeze(),
        _ => {
            locking = Some(Locking::postgres(&url));
        }
    }
    let name = |what: &str| format!("{fault}: {what}");
    rejected_writes(measurements, &harness.nodes[0], &name(""), &mut rows, plan.pick(2, 10));
    second.kill();
    let ready = second.restart_timed(Duration::from_secs(10));
    measurements.within(&name("a restarted instance is ready"), ready, plan.seconds(5.0, 2.0));
    measurements.holds(
        &name("with the same revision, chain and digest"),
        position(&second) == before,
    );
    let to_us = harness.pause(plan.seconds(0.5, 5.0));
    drop(locking);
    match fault {
        "stopped" => server.revive(),
        "frozen" => server.thaw(),
        _ => {}
    }
    let back = Instant::now();
    wait_until("writes are done again", || {
        put_row(&harness.nodes[0], "managed", "back", "7/s").is_done()
    });
    measurements.note(
        &name("seconds until writes are done again"),
        back.elapsed().as_secs_f64(),
    );
    let result = harness.end_load();
    unaffected(measurements, &result, &name(""), (from_us, to_us));
    wait_until("both have all changes", || {
        position(&second) == position(&harness.nodes[0])
    });
    measurements.none(&name("acknowledged changes lost"), rows.lost(&second));
    measurements.none(
        &name("panics and dead nodes"),
        broken(&mut harness.nodes[0]) + broken(&mut second),
    );
}

fn sqlite_locked(plan: &Plan, measurements: &mut Measurements) {
    let node = managed_node("data_dir");
    expect_done(&publish(&node, MANAGED));
    let mut rows = Rows::default();
    rows.write(&node, plan.pick(5, 50));
    let mut harness = Harness::over(vec![node], plan);
    harness.load_now();
    let from_us = harness.pause(plan.seconds(1.0, 5.0));
    let locking = Locking::sqlite(&harness.nodes[0].folder().join("data/control.db"));
    rejected_writes(measurements, &harness.nodes[0], "sqlite: ", &mut rows, plan.pick(2, 5));
    let to_us = harness.pause(plan.seconds(0.5, 5.0));
    drop(locking);
    wait_until("writes are done again", || {
        put_row(&harness.nodes[0], "managed", "back", "7/s").is_done()
    });
    let result = harness.end_load();
    unaffected(measurements, &result, "sqlite: ", (from_us, to_us));
    measurements.none("sqlite: acknowledged changes lost", rows.lost(&harness.nodes[0]));
    measurements.none("sqlite: panics and dead nodes", broken(&mut harness.nodes[0]));
}

/// Writes answer 503 in time, and reads are answered.
fn rejected_writes(measurements: &mut Measurements, node: &Node, name: &str, rows: &mut Rows, writes: u32) {
    let (mut slowest, mut unexpected, mut unread) = (Duration::ZERO, 0, 0);
    for _ in 0..writes {
        let response = rows.write_one(node);
        slowest = slowest.max(response.time);
        unexpected += u32::from(response.status != 503);
        for path in ["/v1/status", "/v1/rules", "/v1/overrides?limit=10"] {
            unread += u32::from(get(node, path).status != 200);
        }
    }
    measurements.none(
        &format!("{name}writes with another answer than 503"),
        f64::from(unexpected),
    );
    measurements.within(&format!("{name}slowest 503"), Some(slowest), Duration::from_secs(2));
    measurements.none(&format!("{name}reads without 200"), f64::from(unread));
}

/// Decisions are as before.
fn unaffected(measurements: &mut Measurements, result: &LoadResult, name: &str, (from_us, to_us): (u64, u64)) {
    let failed = format!("{name}requests that failed");
    let p99 = format!("{name}p99, against 1.05 x or + 0.2 ms of before");
    result.undisturbed(measurements, (&failed, &p99), (from_us, to_us), |before| {
        before.mul_f64(1.05).max(before + Duration::from_micros(200))
    });
}

/// Rows of users that were acknowledged.
#[derive(Default)]
pub(super) struct Rows {
    acknowledged: Vec<String>,
    written: u32,
}

impl Rows {
    pub(super) fn write(&mut self, node: &Node, count: u32) {
        for _ in 0..count {
            expect_done(&self.write_one(node));
        }
    }

    pub(super) fn write_one(&mut self, node: &Node) -> AdminResponse {
        let user = format!("u{}", self.written);
        self.written += 1;
        let response = put_row(node, "managed", &user, "5/s");
        if response.is_done() {
            self.acknowledged.push(user);
        }
        response
    }

    /// The acknowledged rows that a node does not have.
    pub(super) fn lost(&self, node: &Node) -> f64 {
        let missing = self.acknowledged.iter().filter(|user| {
            let path = format!("/v1/override?domain=default&rule=managed&subject=%7B%22user%22%3A%22{user}%22%7D");
            get(node, &path).status != 200
        });
        missing.count() as f64
    }
}

pub(super) fn expect_done(response: &AdminResponse) {
    assert!(response.is_done(), "the admin API answers {response:?}");
}

/// A process that holds a lock in a database. The lock goes with it.
struct Locking(Child);

impl Locking {
    fn postgres(url: &str) -> Self {
        let lock = "BEGIN; LOCK TABLE head, change, override_row, version IN ACCESS EXCLUSIVE MODE; SELECT 'locked';\n";
        Self::of(
            Command::new("psql").args(["--quiet", "--no-align", "--tuples-only", url]),
            lock,
        )
    }

    fn sqlite(path: &Path) -> Self {
        let script = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                      db.execute('BEGIN EXCLUSIVE')\nprint('locked', flush=True)\nsys.stdin.read()\n";
        Self::of(Command::new("python3").args(["-c", script]).arg(path), "")
    }

    fn of(command: &mut Command, input: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        assert!(lines.any(|line| line == "locked"), "the database cannot be locked");
        Self(child)
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file system of `data_dir` is full.
pub(super) fn disk_full(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let folder = SmallDisk::mount(2 << 20);
    let settings =
        admin::settings("data_dir").replace("data_dir: data\n", &format!("data_dir: '{}'\n", folder.0.display()));
    let node = Node::start_managed(&format!(
        "store: memory\nlog: info\n{settings}{}",
        hot_and_many("local")
    ));
    expect_done(&publish(&node, MANAGED));
    let mut rows = Rows::default();
    rows.write(&node, 5);
    let mut harness = Harness::over(vec![node], plan);
    harness.load_now();
    let from_us = harness.pause(plan.seconds(1.0, 5.0));
    folder.fill();
    let mut codes: Vec<u16> = Vec::new();
    for _ in 0..plan.pick(10, 50) {
        codes.push(rows.write_one(&harness.nodes[0]).status);
    }
    // What fits into the pages that are there is written all the same.
    let refused = codes.iter().filter(|code| **code == 507).count();
    let others = codes.iter().filter(|code| **code != 507 && **code >= 300).count();
    measurements.at_least("writes refused with 507", refused as f64, 1.0);
    measurements.none("writes refused with another code", others as f64);
    let to_us = harness.pause(plan.seconds(0.5, 5.0));
    folder.empty();
    let freed = Instant::now();
    wait_until("writes are done again", || rows.write_one(&harness.nodes[0]).is_done());
    measurements.within("writes are done again", Some(freed.elapsed()), plan.seconds(3.0, 1.0));
    let result = harness.end_load();
    unaffected(&mut measurements, &result, "", (from_us, to_us));
    // Rows reach the journal at most a second later.
    pause(Duration::from_millis(1_500));
    let before = position(&harness.nodes[0]);
    harness.nodes[0].kill();
    measurements.holds("integrity_check", is_intact(&folder.0.join("control.db")));
    tear_journal(&folder.0);
    let ready = harness.nodes[0].restart_timed(Duration::from_secs(10));
    measurements.within("ready after kill -9 and a torn journal", ready, Duration::from_secs(5));
    measurements.holds(
        "with the same revision, chain and digest",
        position(&harness.nodes[0]) == before,
    );
    measurements.none("acknowledged changes lost", rows.lost(&harness.nodes[0]));
    survived(measurements, [&mut harness.nodes[0]])
}

/// A file system of its own that can be filled.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(bytes: u32) -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-data", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        namespace::mount_small(&folder, bytes);
        Self(folder)
    }

    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[0; 512]).is_ok() {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["--lazy", &self.0.to_string_lossy()])
            .status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn is_intact(path: &Path) -> bool {
    let script =
        "import sqlite3, sys\nprint(sqlite3.connect(sys.argv[1]).execute('PRAGMA integrity_check').fetchone()[0])";
    let output = Command::new("python3").args(["-c", script]).arg(path).output().unwrap();
    output.stdout == b"ok\n"
}

/// Leaves half a line at the end of the journal, as a crash does.
fn tear_journal(folder: &Path) {
    let path = folder.join("rules/journal");
    if let Ok(mut journal) = std::fs::OpenOptions::new().append(true).open(path) {
        journal.write_all(b"{\"revision\":99").unwrap();
    }
}

/// The database is put back to an older state, while instances have a newer one; or to one with another last commit, as after a
/// failover that lost one.
pub(super) fn restored(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    restored_to(plan, &mut measurements, "older");
    restored_to(plan, &mut measurements, "forked");
    measurements
}

fn restored_to(plan: &Plan, measurements: &mut Measurements, state: &str) {
    let store = Server::start(ServerKind::Redis70);
    let shared = |database: &str| {
        let rules = hot_and_many("local");
        format!(
            "store: '{}'\nlog: info\n{}{rules}",
            store.url(),
            admin::settings(database)
        )
    };
    let name = |what: &str| format!("{state}: {what}");
    let mut node = Node::start_managed(&shared("data_dir"));
    expect_done(&publish(&node, MANAGED));
    let mut follower = Node::start_managed(&shared("none"));
    let mut rows = Rows::default();
    rows.write(&node, 5);
    let database = node.folder().join("data/control.db");
    let backup = node.folder().join("backup.db");
    copy_database(&database, &backup);
    match state {
        "older" => rows.write(&node, plan.pick(5, 50)),
        _ => rows.write(&node, 1),
    }
    let newest = position(&node);
    wait_until("the follower has all changes", || position(&follower) == newest);
    node.kill();
    if state == "forked" {
        add_other_commit(&backup);
    }
    replace_database(&backup, &database);
    node.restart();
    let restarted = Instant::now();
    let is_noticed = || {
        let status = get(&node, "/v1/status").body;
        match state {
            "older" => status["regressed"].is_string(),
            _ => status["forked"] == true,
        }
    };
    wait_until("the other state is noticed", is_noticed);
    measurements.within(&name("noticed"), Some(restarted.elapsed()), Duration::from_secs(10));
    let write = put_row(&node, "managed", "late", "5/s");
    measurements.holds(&name("writes are refused with 409"), write.status == 409);
    pause(plan.seconds(1.0, 5.0));
    measurements.holds(
        &name("nothing goes back"),
        position(&node) == newest && position(&follower) == newest,
    );
    let adopted = admin::call(
        &node,
        "POST",
        "/v1/adopt",
        "",
        Some(&serde_json::json!({ "reason": "restored" })),
    );
    measurements.holds(&name("adopt is done"), adopted.is_done());
    let since = Instant::now();
    wait_until("the follower is at the adopted state", || {
        position(&node).0 > newest.0 && position(&follower) == position(&node)
    });
    measurements.within(
        &name("equal after adopt"),
        Some(since.elapsed()),
        Duration::from_secs(5),
    );
    measurements.holds(
        &name("writes are done again"),
        put_row(&node, "managed", "again", "5/s").is_done(),
    );
    measurements.none(
        &name("panics and dead nodes"),
        broken(&mut node) + broken(&mut follower),
    );
}

/// Commits a row to a database that no instance has.
fn add_other_commit(path: &Path) {
    let mut alone = managed_node("data_dir");
    alone.kill();
    let database = alone.folder().join("data/control.db");
    std::fs::create_dir_all(alone.folder().join("data")).unwrap();
    replace_database(path, &database);
    alone.restart();
    expect_done(&put_row(&alone, "managed", "other", "5/s"));
    std::fs::remove_file(path).unwrap();
    copy_database(&database, path);
}

fn replace_database(from: &Path, to: &Path) {
    for extension in ["db", "db-wal", "db-shm"] {
        let _ = std::fs::remove_file(to.with_extension(extension));
    }
    std::fs::copy(from, to).unwrap();
}

fn copy_database(from: &Path, to: &Path) {
    let script = "import sqlite3, sys\nsqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', (sys.argv[2],))";
    let output = Command::new("python3")
        .args(["-c", script])
        .args([from, to])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
