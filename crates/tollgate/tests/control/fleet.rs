//! Several servers of one fleet: nothing is live anywhere before all of them have compiled it.

use crate::program::{CommandOutput, ControlServer};
use serde_json::Value;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::TestFolder;
use tollgate_test_kit::eventually;
use tollgate_test_kit::postgres::Postgres;

pub(crate) const TOKEN: &str = "tgt_fleet_0123456789abcdef0123456789abcdef";
pub(crate) const TOKEN_SHA256: &str = "0a64d8f19789152ddb0ff08120008561078897d5dea29d605cad181c21bd480a";
const SET: &str = "rules:\n  - id: extra\n    per: merchant\n    limit: 5/min\n";
const OTHER_SET: &str = "rules:\n  - id: extra\n    per: merchant\n    limit: 6/min\n";
const COLLIDING: &str = "rules:\n  - id: extra\n    per: user\n    limit: 1/min\n";

/// A member of a fleet, with the folder it runs in.
struct Member {
    folder: TestFolder,
    server: ControlServer,
}

impl Member {
    /// `settings` are YAML, and `file_layer` the rules of its own file.
    fn start(settings: &str, file_layer: &str) -> Self {
        let folder = TestFolder::new();
        let tokens = format!("admin:\n  tokens: [{{ name: ci, sha256: \"{TOKEN_SHA256}\", role: admin }}]\n");
        folder.write("tollgate.yaml", &format!("{settings}{tokens}{file_layer}"));
        let mut server = ControlServer::start(&folder);
        server.token = TOKEN.to_owned();
        Self { folder, server }
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        self.server.run(&self.folder, args)
    }

    fn publish(&self, text: &str) -> CommandOutput {
        self.folder.write("rules/extra.yaml", text);
        self.run(&["rules", "apply", "rules", "--yes", "--reason", "test", "--json"])
    }

    /// The state of its fleet, as it sees it.
    fn instances(&self) -> Vec<Value> {
        let status = self.run(&["control", "status", "--json"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap_or_else(|error| panic!("{error}: {status:?}"));
        status
            .get("instances")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    }

    fn own_id(&self) -> String {
        let own = self.instances().into_iter().find(|instance| instance["self"] == true);
        let id = own.and_then(|own| own.get("id")?.as_str().map(str::to_owned));
        id.expect("it sees itself")
    }

    fn sees(&self, count: usize) {
        eventually("all instances", || self.instances().len() == count);
    }

    /// The limit of the published rule, as a caller meets it.
    fn limit(&self) -> Option<&'static str> {
        let explained = self.run(&["explain", "merchant=m_42"]).stdout;
        ["5 per 1min", "6 per 1min"]
            .into_iter()
            .find(|limit| explained.contains(limit))
    }
}

fn shared(server: &Server, control: &str) -> String {
    format!(
        "store: {}\ncontrol:\n  secret: a secret of more than 32 characters\n  prepare_timeout: 6s\n{control}",
        server.url()
    )
}

/// A control service, and instances that follow the shared store, each with its file layer.
fn fleet(server: &Server, file_layers: &[&str]) -> (Member, Vec<Member>) {
    let publisher = Member::start(&shared(server, ""), "");
    let settings = shared(server, "  database: none\n  start_without: true\n");
    let followers = file_layers.iter().map(|layer| Member::start(&settings, layer));
    let followers: Vec<Member> = followers.collect();
    publisher.sees(followers.len() + 1);
    (publisher, followers)
}

#[test]
fn a_publish_is_compiled_on_all_and_then_live_on_all() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, mut followers) = fleet(&server, &["", ""]);
    let published = publisher.publish(SET);
    assert_eq!(published.code, Some(0), "{published:?}");
    let answer: Value =
        serde_json::from_str(&published.stdout).unwrap_or_else(|error| panic!("{error}: {published:?}"));
    let text = answer.to_string();
    assert!(text.contains("\"prepared\":3"), "{text}");
    for member in followers.iter().chain([&publisher]) {
        eventually("the rule", || member.limit() == Some("5 per 1min"));
    }
    // All report the same, and one that leaves is gone at once.
    eventually("one digest", || {
        let instances = publisher.instances();
        instances.len() == 3
            && instances
                .iter()
                .all(|instance| instance["digest"] == instances[0]["digest"])
    });
    let mut left = followers.pop().expect("a follower");
    let id = left.own_id();
    left.server.stop();
    assert!(
        publisher
            .instances()
            .iter()
            .all(|instance| instance["id"] != id.as_str()),
        "it has left"
    );
    // One that starts now compiles it before it serves.
    let joined = Member::start(&shared(&server, "  database: none\n"), "");
    assert_eq!(joined.limit(), Some("5 per 1min"));
    publisher.sees(3);
    assert_eq!(publisher.publish(OTHER_SET).code, Some(0));
    eventually("the next rule", || joined.limit() == Some("6 per 1min"));
}

#[test]
fn one_file_layer_that_collides_refuses_it_for_all() {
    let server = Server::start(ServerKind::Valkey);
    let (publisher, followers) = fleet(&server, &["", COLLIDING]);
    let refused = publisher.publish(SET);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let text = format!("{}{}", refused.stdout, refused.stderr);
    assert!(
        text.contains("prepare-rejected") || text.contains("cannot use the rules"),
        "{text}"
    );
    assert!(text.contains(&followers[1].own_id()), "{text}");
    for member in [&publisher, &followers[0]] {
        assert_eq!(member.limit(), None);
    }
}

#[test]
fn one_that_is_killed_while_it_is_asked_is_named() {
    let server = Server::start(ServerKind::Redis70);
    let (publisher, mut followers) = fleet(&server, &[""]);
    let id = followers[0].own_id();
    // Killed, without a word.
    drop(followers.pop());
    // Its status is there for some more seconds: it may be partitioned, and come back with the old rules.
    let refused = publisher.publish(SET);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let text = format!("{}{}", refused.stdout, refused.stderr);
    assert!(text.contains(&id), "{text}");
    assert_eq!(publisher.limit(), None);
    publisher.sees(1);
    assert_eq!(publisher.publish(SET).code, Some(0));
    eventually("the rule", || publisher.limit() == Some("5 per 1min"));
}

#[test]
fn without_a_shared_store_they_meet_in_the_database_and_are_warned() {
    let postgres = Postgres::shared();
    let settings = format!(
        "control:\n  database: {}\n  database_poll: 1s\n",
        postgres.create_database()
    );
    let publisher = Member::start(&settings, "");
    let other = Member::start(&settings, "");
    let published = publisher.publish(SET);
    assert_eq!(published.code, Some(0), "{published:?}");
    assert!(
        published.stdout.contains("\"prepared\":2") || published.stdout.contains("\"prepared\": 2"),
        "{published:?}"
    );
    eventually("the rule", || other.limit() == Some("5 per 1min"));
    publisher.sees(2);
    eventually("the warning", || {
        let status = publisher.run(&["control", "status"]);
        status.code == Some(1) && status.stdout.contains("store.url")
    });
    // It cannot use what is live already, and says so; without this setting it would not serve at all.
    let _colliding = Member::start(&format!("{settings}  start_without: true\n"), COLLIDING);
    publisher.sees(3);
    let refused = publisher.publish(OTHER_SET);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(other.limit(), Some("5 per 1min"));
}
