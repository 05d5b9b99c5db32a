//! Rules and rows on their way through a shared store, between processes.

use crate::program::ControlServer;
use tollgate_limiter::testing::admin::{connect, query};
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::TestFolder;
use tollgate_test_kit::eventually;

const SECRET: &str = "control.secret=0123456789abcdef0123456789abcdef";
const RULES: &str = "rules:\n  - { id: plan, per: merchant, limit: 100/min }\n";

/// A control service and two instances without a database, each in a folder of its own.
struct Fleet {
    store: Server,
    service: (TestFolder, ControlServer),
    followers: Vec<(TestFolder, ControlServer)>,
}

impl Fleet {
    fn start() -> Self {
        let store = Server::start(ServerKind::Redis70);
        let folder = TestFolder::new();
        folder.write("rules/plan.yaml", RULES);
        let mut service = start(&folder, &store, "data_dir");
        service.set_up(&folder, "ops");
        service.succeed(&folder, &["rules", "apply", "rules", "--yes", "--reason", "first"]);
        let followers = (0..2).map(|_| {
            let folder = TestFolder::new();
            let server = start(&folder, &store, "none");
            (folder, server)
        });
        Self {
            followers: followers.collect(),
            store,
            service: (folder, service),
        }
    }

    fn override_to(&self, limit: &str) {
        let (folder, service) = &self.service;
        let set = [
            "overrides",
            "set",
            "plan",
            "merchant=m_42",
            "--limit",
            limit,
            "--reason",
            "sale",
        ];
        service.succeed(folder, &set);
    }

    /// Waits until all instances answer with a limit.
    fn all_have(&self, limit: &str) {
        has(&self.service.1, &self.service.0, limit);
        for (folder, follower) in &self.followers {
            has(follower, folder, limit);
        }
    }
}

fn start(folder: &TestFolder, store: &Server, database: &str) -> ControlServer {
    // The deadline of decisions is none of this test's business, on a busy machine.
    let url = format!("store={{ url: '{}', deadline: 500ms }}", store.url());
    let database = format!("control.database={database}");
    ControlServer::start_with(folder, &[&url, &database, SECRET])
}

fn has(server: &ControlServer, folder: &TestFolder, limit: &str) {
    eventually(limit, || {
        server.run(folder, &["explain", "merchant=m_42"]).stdout.contains(limit)
    });
}

#[test]
fn rows_and_sets_reach_all_instances_with_and_without_messages() {
    let fleet = Fleet::start();
    fleet.all_have("100 per 1min");
    fleet.override_to("20000/min");
    fleet.all_have("20000 per 1min");
    let mut connection = connect(&fleet.store);
    let _: i64 = query(&mut connection, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    fleet.override_to("30000/min");
    fleet.all_have("30000 per 1min");
    let (folder, service) = &fleet.service;
    service.succeed(
        folder,
        &["overrides", "delete", "plan", "merchant=m_42", "--reason", "over"],
    );
    folder.write("rules/plan.yaml", &RULES.replace("100/min", "60/min"));
    service.succeed(folder, &["rules", "apply", "rules", "--yes", "--reason", "stricter"]);
    fleet.all_have("60 per 1min");
}

#[test]
fn instances_start_and_continue_without_what_is_away() {
    let mut fleet = Fleet::start();
    fleet.override_to("20000/min");
    fleet.all_have("20000 per 1min");
    // The store is empty, and is filled again.
    let mut connection = connect(&fleet.store);
    let _: () = query(&mut connection, &["FLUSHALL"]);
    eventually("a head", || {
        query::<i64>(&mut connection, &["EXISTS", "tg:{cfg}:head"]) == 1
    });
    fleet.override_to("30000/min");
    fleet.all_have("30000 per 1min");
    // The control service is gone: a new instance starts from the cache.
    let (_folder, service) = fleet.service;
    drop(service);
    let folder = TestFolder::new();
    let late = start(&folder, &fleet.store, "none");
    let ready = late.run(&folder, &["explain", "merchant=m_42"]);
    assert!(ready.stdout.contains("30000 per 1min"), "{ready:?}");
    // The store is gone as well: it continues, and starts again from its disk.
    fleet.store.kill();
    has(&late, &folder, "30000 per 1min");
    drop(late);
    let late = start(&folder, &fleet.store, "none");
    has(&late, &folder, "30000 per 1min");
}

#[test]
fn a_forged_head_is_refused() {
    let fleet = Fleet::start();
    fleet.override_to("20000/min");
    fleet.all_have("20000 per 1min");
    let mut connection = connect(&fleet.store);
    let head: String = query(&mut connection, &["GET", "tg:{cfg}:head"]);
    let mut fields: Vec<String> = head.split(' ').map(str::to_owned).collect();
    let epoch: u64 = fields[2].parse().unwrap();
    fields[2] = (epoch + 1).to_string();
    let forged = fields.join(" ");
    let _: String = query(&mut connection, &["SET", "tg:{cfg}:head", &forged, "PX", "60000"]);
    fleet.override_to("30000/min");
    fleet.all_have("30000 per 1min");
}

#[test]
fn of_two_databases_one_is_written() {
    let store = Server::start(ServerKind::Redis70);
    let folders = [TestFolder::new(), TestFolder::new()];
    let mut servers: Vec<ControlServer> = folders.iter().map(|folder| start(folder, &store, "data_dir")).collect();
    servers[0].set_up(&folders[0], "ops");
    let refused = servers[1].run(
        &folders[1],
        &["token", "add", "ops", "--setup", &servers[1].setup_code()],
    );
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains("database"), "{refused:?}");
    assert!(!folders[1].path().join("data/control.db").exists());
}
