//! Changes on their way to a fleet over Sentinel, over a cluster and from two control services. The user of the shared store has
//! the rights that docs/redis.md lists, and no others.

use crate::fleet::{TOKEN, TOKEN_SHA256};
use crate::http::{Response, get, post, request};
use crate::program::ControlServer;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tollgate_limiter::testing::admin::{connect, query};
use tollgate_limiter::testing::cluster::Cluster;
use tollgate_limiter::testing::sentinel::SentinelGroup;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::postgres::Postgres;
use tollgate_test_kit::{TestFolder, eventually, eventually_within};

const DOCS: &str = include_str!("../../../../docs/redis.md");

/// The longest failover: sentinels whose machine stood still for two seconds do nothing for the next thirty.
const FAILOVER: Duration = Duration::from_secs(75);

/// An interval of polls that is longer than a test: such an instance has hints alone.
const BY_HINTS: &str = "60s";
const BY_POLL: &str = "1s";

/// Rows that are tried one by one, of all that were written.
const TRIED: usize = 20;

/// Makes the user `tollgate` on a server: the documented rights, and those for this kind of deployment.
fn allow(server: &Server, kind: ServerKind, more: &str) {
    let lines: Vec<&str> = DOCS
        .lines()
        .filter(|line| line.starts_with("ACL SETUSER tollgate"))
        .collect();
    let [for_all, with_functions, for_control_plane] = lines[..] else {
        panic!("three commands are documented: {lines:?}")
    };
    let mut connection = connect(server);
    let mut run = |line: &str| query::<()>(&mut connection, &line.split(' ').collect::<Vec<_>>());
    run(for_all);
    if kind != ServerKind::Redis62 {
        run(with_functions);
    }
    run(for_control_plane);
    if !more.is_empty() {
        run(&format!("ACL SETUSER tollgate {more}"));
    }
}

/// The URL for that user.
fn as_user(url: &str) -> String {
    url.replace("://", "://tollgate:password@")
}

/// The commands that were refused.
fn refused(server: &Server) -> BTreeSet<String> {
    let entries: Vec<HashMap<String, redis::Value>> = query(&mut connect(server), &["ACL", "LOG"]);
    let text = |value: &redis::Value| match value {
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    };
    entries.iter().map(|entry| text(&entry["object"])).collect()
}

/// Nothing was refused but what is tried only because it may be allowed: checks of the script, the name of the driver.
fn assert_rights_suffice(server: &Server, optional: &[&str]) {
    let refused = refused(server);
    let unexpected: Vec<&String> = refused
        .iter()
        .filter(|name| !optional.contains(&name.as_str()))
        .collect();
    assert!(unexpected.is_empty(), "refused: {unexpected:?}");
}

/// A server with the folder it runs in.
struct Instance {
    server: ControlServer,
    _folder: TestFolder,
}

impl Instance {
    fn start(store: &str, database: &str, poll: &str) -> Self {
        let folder = TestFolder::new();
        let settings = format!(
            "store: {{ url: '{store}', deadline: 500ms }}\n\
             control:\n  database: {database}\n  secret: a secret of more than 32 characters\n  poll: {poll}\n\
             admin:\n  tokens: [{{ name: ci, sha256: \"{TOKEN_SHA256}\", role: admin }}]\n"
        );
        folder.write("tollgate.yaml", &settings);
        Self {
            server: ControlServer::start(&folder),
            _folder: folder,
        }
    }

    fn call(&self, method: &str, path: &str, condition: &str, body: &Value) -> Response {
        let header = format!("authorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n{condition}\r\n");
        request(&self.server.admin_url(), method, path, &header, &body.to_string())
    }

    fn get(&self, path: &str) -> Value {
        let header = format!("authorization: Bearer {TOKEN}");
        get(&self.server.admin_url(), path, &header).json()
    }

    /// Writes a row that is not there yet. It must be done, whatever is unavailable.
    fn add_row(&self, number: usize) {
        let path = format!("/v1/override?rule=plan&merchant=m_{number}");
        let body = json!({ "terms": terms(number) });
        let written = self.call("PUT", &path, "if-none-match: *", &body);
        assert_eq!(written.status, 201, "{written:?}");
    }

    fn publish(&self, limit: u32, instances: usize) {
        let text = format!("rules: [{{ id: plan, per: merchant, limit: {limit}/min }}]\n");
        let body = json!({ "files": [{ "path": "plan.yaml", "grammar": "own", "text": text }], "reason": "test" });
        let published = self.call("POST", "/v1/publish?wait=2s", "if-match: *", &body);
        assert_eq!(published.status, 200, "{published:?}");
        assert_eq!(field(&published.json(), "prepared"), instances, "{published:?}");
    }

    /// The position and the digest of what is applied.
    fn position(&self) -> Vec<Value> {
        let status = self.get("/v1/status");
        ["epoch", "revision", "chain", "digest", "override_rows"]
            .map(|name| field(&status, name))
            .to_vec()
    }

    fn revision(&self) -> u64 {
        field(&self.get("/v1/status"), "revision").as_u64().expect("a revision")
    }

    /// The limit of a merchant, as the shared store enforces it.
    fn limit(&self, merchant: &str) -> Option<u64> {
        let body = json!({ "attributes": { "merchant": merchant } });
        let verdict = post(self.server.line("http: "), "/v1/check", "", &body.to_string()).json();
        field(&verdict, "limit")
            .as_u64()
            .filter(|_| field(&verdict, "source") == "shared")
    }
}

/// A member of a response; null if it is not there.
fn field(value: &Value, name: &str) -> Value {
    value.get(name).cloned().unwrap_or_default()
}

fn terms(number: usize) -> String {
    format!("{}/min", 1_000 + number)
}

/// A control service and two instances without a database, of which one polls and one does not.
struct Fleet {
    service: Instance,
    followers: [Instance; 2],
    rows: usize,
}

impl Fleet {
    fn over(store: &str) -> Self {
        let service = Instance::start(store, "data_dir", BY_POLL);
        service.publish(100, 1);
        let followers = [BY_POLL, BY_HINTS].map(|poll| Instance::start(store, "none", poll));
        let mut fleet = Self {
            service,
            followers,
            rows: 0,
        };
        fleet.write(10);
        fleet.wait_converged();
        fleet
    }

    fn write(&mut self, rows: usize) {
        for _ in 0..rows {
            self.service.add_row(self.rows);
            self.rows += 1;
        }
    }

    /// Writes until all instances have what was written after this.
    fn write_until_all_follow(&mut self) {
        let revision = self.service.revision();
        eventually_within("changes on all instances", FAILOVER, || {
            self.write(1);
            self.followers.iter().all(|follower| follower.revision() > revision)
        });
    }

    /// Waits until all instances are at one position, with all rows: no acknowledged one is lost.
    fn wait_converged(&self) {
        eventually_within("one position with all rows", FAILOVER, || {
            let expected = self.service.position();
            expected.get(4).is_some_and(|rows| *rows == self.rows)
                && self.followers.iter().all(|follower| follower.position() == expected)
        });
        for follower in &self.followers {
            for number in (0..self.rows).rev().take(TRIED) {
                let merchant = format!("m_{number}");
                eventually(&merchant, || follower.limit(&merchant) == Some(1_000 + number as u64));
            }
        }
    }

    /// Publishes with the consent of all, once the service sees them.
    fn publish(&self, limit: u32) {
        eventually_within("all instances", FAILOVER, || {
            let seen = self.service.get("/v1/instances");
            field(&seen, "items").as_array().map(Vec::len) == Some(3) && field(&seen, "error").is_null()
        });
        self.service.publish(limit, 3);
        for instance in self.followers.iter().chain([&self.service]) {
            eventually("the published limit", || instance.limit("other") == Some(limit.into()));
        }
    }
}

/// A fleet whose user has the rights that the documentation names, and those that it adds for a case.
fn documented_fleet(servers: &[Server], kind: ServerKind, url: &str, (more, case): (&str, &str)) -> Fleet {
    assert!(DOCS.contains(&format!("`{more}` {case}")));
    for server in servers {
        allow(server, kind, more);
    }
    Fleet::over(&as_user(url))
}

#[test]
fn changes_go_on_while_sentinels_replace_the_primary() {
    let kind = ServerKind::Redis70;
    let mut group = SentinelGroup::start(kind);
    let mut fleet = documented_fleet(&group.servers, kind, &group.url(), ("+role", "with sentinels"));
    let old = group.primary_port();
    fleet.write(10);
    group.servers[0].kill();
    eventually_within("another primary", FAILOVER, || {
        fleet.write(1);
        group.primary_port() != old
    });
    fleet.write_until_all_follow();
    fleet.wait_converged();
    fleet.publish(60);
    fleet.wait_converged();
    for server in &group.servers[1..] {
        assert_rights_suffice(server, &["script|exists", "client|setinfo"]);
    }
}

#[test]
fn changes_go_on_while_a_replica_of_a_cluster_takes_over() {
    let kind = ServerKind::Valkey;
    let mut cluster = Cluster::start(kind);
    let more = ("+cluster|nodes +asking", "with a cluster");
    let mut fleet = documented_fleet(&cluster.servers, kind, &cluster.url(), more);
    let slot = cluster.command(0, "CLUSTER KEYSLOT tg:{cfg}:head").expect("a slot");
    let owner = slot.parse::<usize>().expect("a number") * 3 / 16_384;
    let replica = owner + 3;
    fleet.write(10);
    cluster.servers[owner].kill();
    eventually_within("the replica is the primary", FAILOVER, || {
        fleet.write(1);
        cluster.has_line(replica, "INFO replication", "role:master")
    });
    fleet.write_until_all_follow();
    fleet.wait_converged();
    fleet.publish(60);
    fleet.wait_converged();
    for (index, server) in cluster.servers.iter().enumerate() {
        if index != owner {
            assert_rights_suffice(server, &["script|exists", "config|get", "client|setinfo"]);
        }
    }
}

#[test]
fn without_the_right_to_publish_hints_changes_arrive_by_polls() {
    let kind = ServerKind::Redis70;
    let store = Server::start(kind);
    allow(&store, kind, "-publish");
    let url = as_user(&store.url());
    let service = Instance::start(&url, "data_dir", BY_POLL);
    // Each hint that failed was a publish that was not prepared.
    service.publish(100, 1);
    let follower = Instance::start(&url, "none", BY_POLL);
    eventually("both instances", || {
        service.get("/v1/instances")["items"].as_array().map(Vec::len) == Some(2)
    });
    service.add_row(0);
    service.publish(60, 2);
    eventually("the published limit", || follower.limit("other") == Some(60));
    eventually("the row", || follower.limit("m_0") == Some(1_000));
    assert!(refused(&store).contains("publish"), "{:?}", refused(&store));
}

#[test]
fn two_control_services_of_one_database_write_at_once() {
    const ROWS: usize = 40;
    let kind = ServerKind::Redis62;
    let store = Server::start(kind);
    allow(&store, kind, "");
    let url = as_user(&store.url());
    let postgres = Postgres::shared();
    let database = postgres.create_database();
    let first = Instance::start(&url, &database, BY_POLL);
    first.publish(100, 1);
    let second = Instance::start(&url, &database, BY_POLL);
    let followers = [BY_POLL, BY_HINTS].map(|poll| Instance::start(&url, "none", poll));
    eventually("all instances", || {
        second.get("/v1/instances")["items"].as_array().map(Vec::len) == Some(4)
    });

    // Rows at both, a publish at one and its rollback at the other.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..ROWS).step_by(2).for_each(|number| first.add_row(number));
            first.publish(80, 4);
        });
        scope.spawn(|| (1..ROWS).step_by(2).for_each(|number| second.add_row(number)));
    });
    let all = [&first, &second, &followers[0], &followers[1]];
    eventually("the published limit", || second.limit("other") == Some(80));
    let rolled_back = second.call(
        "POST",
        "/v1/rollback?wait=2s",
        "if-match: *",
        &json!({ "reason": "test" }),
    );
    assert_eq!(rolled_back.status, 200, "{rolled_back:?}");

    // Of two edits of one row at the same revision one is done, wherever it is made.
    let path = "/v1/override?rule=plan&merchant=both";
    let written = first.call("PUT", path, "if-none-match: *", &json!({ "terms": "9999/min" }));
    let mut tag = written.json()["etag"].as_str().expect("a tag").to_owned();
    for round in 0..10 {
        let edit = |instance: &Instance, limit: u32| {
            let body = json!({ "terms": format!("{limit}/min") });
            instance.call("PUT", path, &format!("if-match: {tag}"), &body)
        };
        let edits = std::thread::scope(|scope| {
            let other = scope.spawn(|| edit(&second, 20_000 + round));
            [edit(&first, 10_000 + round), other.join().expect("it answers")]
        });
        let mut statuses = edits.each_ref().map(|edit| edit.status);
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412], "{edits:?}");
        let [done, refused] = match edits[0].status {
            200 => edits.map(|edit| edit.json()),
            _ => {
                let [refused, done] = edits.map(|edit| edit.json());
                [done, refused]
            }
        };
        assert_eq!(refused["current"]["terms"], done["terms"], "{refused}");
        tag = done["etag"].as_str().expect("a tag").to_owned();
    }

    let converged = |instances: &[&Instance], revision: u64, rows: usize| {
        eventually("one position", || {
            let positions: Vec<Vec<Value>> = instances.iter().map(|at| at.position()).collect();
            let is_expected = |position: &Vec<Value>| position[1] == revision && position[4] == rows;
            positions
                .iter()
                .all(|position| is_expected(position) && *position == positions[0])
        });
    };
    // Every write has its revision: three of sets, those of the rows, and the edits.
    let revision = 3 + ROWS as u64 + 1 + 10;
    converged(&all, revision, ROWS + 1);
    for follower in &followers {
        assert_eq!(follower.limit("other"), Some(100));
        for number in 0..ROWS {
            assert_eq!(follower.limit(&format!("m_{number}")), Some(1_000 + number as u64));
        }
    }

    // One of them is enough.
    drop(first);
    second.add_row(ROWS);
    converged(&[&second, &followers[0], &followers[1]], revision + 1, ROWS + 2);
    // This version logs subcommands by the name of their command.
    assert_rights_suffice(&store, &["script", "client", "role"]);
}
