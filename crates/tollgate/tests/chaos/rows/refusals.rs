//! A server that is there and refuses: full, read-only, without replicas, with another password, crowded.

use super::trial::Trial;
use crate::harness::{CAPACITY, Harness, Outage, Setup, check};
use crate::load::Traffic;
use crate::measurements::Measurements;
use crate::namespace;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::{RespClient, command_ok, info, refused_script_calls, send_command, send_command_with};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// What holds while a server refuses with a code, from one command to another. All of them are asked for a user that had
/// used up a limit before, too.
fn run_refusal(plan: &Plan, server: &Server, code: &str, (before, end): (&[&str], &[&str])) -> Measurements {
    let mut setup = Setup::two_nodes(&server.url());
    setup
        .rules
        .push_str("- { id: spent, when: { kind: spent }, per: user, limit: 3/day }\n");
    setup.traffic = with_one_spent(setup.traffic);
    let mut trial = Trial::start(plan, setup);
    let from_us = trial.now_us();
    for command in before {
        command_ok(server.port(), command);
    }
    trial.pause(Duration::from_secs(1));
    let errors = trial.metric("tollgate_store_errors_total", &format!("\"{code}\""));
    trial.pause(plan.seconds(1.0, 4.0));
    for command in end {
        command_ok(server.port(), command);
    }
    let outage = trial.outage_since(from_us);
    let (result, mut measurements) = trial.settle_over((&[server.port()], 1.0));
    result.common(&mut measurements, plan, outage);
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    measurements.at_least(&format!("errors counted as `{code}` within a second"), errors, 1.0);
    let spent = || result.for_subject(SPENT).filter(|sample| sample.sent_us > from_us);
    measurements.at_least(
        "times a user was asked for that had used up its limit",
        spent().count() as f64,
        10.0,
    );
    let passed = spent().filter(|sample| sample.is_admitted());
    measurements.none("times that one passed", passed.count() as f64);
    measurements
}

/// The subject of the user that has used up its limit.
const SPENT: u16 = 1;

/// One in fifty is of that user.
fn with_one_spent(traffic: Traffic) -> Traffic {
    let next = Arc::clone(&traffic.next);
    Traffic {
        next: Arc::new(move |random: &mut Random| match random.below(50) {
            0 => (SPENT, check("spent", "s0")),
            _ => next(random),
        }),
        ..traffic
    }
}

pub(super) fn full(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let (before, end) = (["CONFIG SET maxmemory 1mb"], ["CONFIG SET maxmemory 0"]);
    run_refusal(plan, &server, "oom", (&before, &end))
}

pub(super) fn no_replicas(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let (before, end) = (
        ["CONFIG SET min-replicas-to-write 1"],
        ["CONFIG SET min-replicas-to-write 0"],
    );
    run_refusal(plan, &server, "noreplicas", (&before, &end))
}

pub(super) fn disk_full(plan: &Plan) -> Measurements {
    let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-disk", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    namespace::mount_small(&folder, 200 << 10);
    std::fs::write(folder.join("filler"), vec![0; 190 << 10]).unwrap();
    let server = Server::start_with(ServerKind::Redis70, &["--dir", &folder.to_string_lossy()]);
    // Only a server that is to save refuses when it cannot.
    send_command_with(server.port(), &["CONFIG", "SET", "save", "3600 1000000"]).unwrap();
    let before = ["BGSAVE"];
    let end = ["CONFIG SET stop-writes-on-bgsave-error no"];
    let measurements = run_refusal(plan, &server, "misconf", (&before, &end));
    drop(server);
    namespace::run_program("umount", &[&folder.to_string_lossy()]);
    let _ = std::fs::remove_dir(&folder);
    measurements
}

pub(super) fn evicted(plan: &Plan) -> Measurements {
    let server = Server::start_with(
        ServerKind::Redis70,
        &["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"],
    );
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let used = info(server.port(), "memory", "used_memory", None);
    let from_us = trial.now_us();
    // Room for some hundred keys more.
    command_ok(server.port(), &format!("CONFIG SET maxmemory {}", used + 50_000));
    let (result, mut measurements) = trial.settle(&server);
    measurements.none("requests that failed", result.failed());
    measurements.at_least(
        "keys that were evicted",
        info(server.port(), "stats", "evicted_keys", None) as f64,
        1.0,
    );
    let shared = result.shared(from_us, result.end_us());
    measurements.share("share decided by the store", shared, (0.95, 0.995));
    let warned = trial
        .nodes
        .iter()
        .filter(|node| node.log().contains("allkeys-lru"))
        .count();
    measurements.at_least("nodes that warned of it", warned as f64, 2.0);
    // The hot key is used all the time, so that it is hardly ever the one to go.
    measurements.at_most("over-admission of the hot key (M8)", result.excess(), CAPACITY as f64);
    measurements
}

pub(super) fn read_only(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let other = Server::start(ServerKind::Redis70);
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "");
    let from_us = trial.now_us();
    command_ok(server.port(), &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    trial.pause(plan.seconds(2.0, 5.0));
    command_ok(server.port(), "REPLICAOF NO ONE");
    let outage = trial.outage_since(from_us);
    let refused = refused_script_calls(server.port());
    let connects = trial.metric("tollgate_store_connect_attempts_total", "") - connects + 2.0;
    let (result, mut measurements) = trial.settle(&server);
    result.common(&mut measurements, plan, outage);
    measurements.latency_at_most(
        "shared again",
        result.shared_again(outage.back_us),
        Duration::from_millis(500),
    );
    // It took the other's data, which is none.
    measurements.at_most(
        "over-admission (M3 + M8)",
        result.excess(),
        outage.excess() + CAPACITY as f64,
    );
    measurements.at_least("calls that it refused", refused as f64, 1.0);
    measurements.at_most("refusals, per connection", refused as f64 / connects, 3.0);
    measurements
}

pub(super) fn password(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let (new, old) = (format!("{SECRET}-of-others"), SECRET);
    // A user of its own, and the one that all are who name none.
    password_of(
        plan,
        &mut measurements,
        &format!("lim:{SECRET}"),
        [
            &format!("ACL SETUSER lim on >{old} ~* &* +@all"),
            &format!("ACL SETUSER lim resetpass >{new}"),
            "CLIENT KILL USER lim",
            &format!("ACL SETUSER lim resetpass >{old}"),
        ],
    );
    password_of(
        plan,
        &mut measurements,
        &format!(":{SECRET}"),
        [
            &format!("CONFIG SET requirepass {old}"),
            &format!("CONFIG SET requirepass {new}"),
            "CLIENT KILL TYPE normal SKIPME yes",
            &format!("CONFIG SET requirepass {old}"),
        ],
    );
    measurements
}

/// What holds while nodes, which are this user, have the wrong password: what sets it, changes it, has them give it again, and
/// changes it back.
fn password_of(plan: &Plan, measurements: &mut Measurements, user: &str, [set, change, kick, change_back]: [&str; 4]) {
    let server = Server::start(ServerKind::Redis70);
    let port = server.port();
    // Whoever is in stays in.
    let mut admin = RespClient::connect(port).unwrap();
    let mut obey = |command: &str| {
        admin.send(command).unwrap();
        admin.read_reply().unwrap().unwrap().join("\n")
    };
    obey(set);
    let mut trial = Trial::start(plan, Setup::two_nodes(&format!("redis://{user}@127.0.0.1:{port}/")));
    let from_us = trial.now_us();
    obey(change);
    obey(kick);
    trial.pause(plan.seconds(2.0, 5.0));
    let errorstats = obey("INFO errorstats");
    obey(change_back);
    let outage = trial.outage_since(from_us);
    let result = trial.end_load_after(plan.seconds(2.5, 5.0));
    // For the audit, which is nobody in particular.
    obey("CONFIG SET requirepass ");
    trial.audit(measurements, &result, (&[port], 0.0));
    result.common(measurements, plan, outage);
    measurements.at_most("over-admission (M3)", result.excess(), outage.excess());
    let attempts = errorstats
        .lines()
        .find_map(|line| {
            line.strip_prefix("errorstat_WRONGPASS:count=")?
                .trim()
                .parse::<f64>()
                .ok()
        })
        .unwrap_or(0.0);
    measurements.at_least("attempts with the wrong password", attempts, 1.0);
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    measurements.at_most("such attempts, per node and second", attempts / 2.0 / seconds, 1.0);
    let leaks = trial.nodes.iter().map(|node| {
        let outputs = [
            node.log(),
            node.get("/metrics").unwrap_or_default().1,
            node.get("/readyz").unwrap_or_default().1,
        ];
        outputs.iter().filter(|said| said.contains(SECRET)).count()
    });
    measurements.none("outputs that contain the password", leaks.sum::<usize>() as f64);
}

pub(super) fn crowded(plan: &Plan) -> Measurements {
    let server = Server::start(ServerKind::Redis70);
    let port = server.port();
    let mut trial = Trial::start(plan, Setup::two_nodes(&server.url()));
    let from_us = trial.now_us();
    let mut admin = RespClient::connect(port).unwrap();
    let mut order = |command: &str| {
        admin.send(command).unwrap();
        admin.read_reply().unwrap().unwrap().join("\n")
    };
    // Fewer than there are: those stay, and nobody else is let in.
    order("CONFIG SET maxclients 1");
    let turned_away = send_command(port, "PING").is_err();
    let crowded_us = trial.pause(plan.seconds(1.0, 3.0));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "");
    let clients = order("CLIENT LIST");
    let node = clients
        .lines()
        // The connection of a node: its last command is the script, or a keepalive behind a late reply.
        .find(|line| {
            ["cmd=fcall", "cmd=evalsha", "cmd=time"]
                .iter()
                .any(|command| line.contains(command))
        });
    let id = node
        .and_then(|line| line.strip_prefix("id=")?.split(' ').next())
        .unwrap();
    order(&format!("CLIENT KILL ID {id}"));
    let cut_us = trial.now_us();
    trial.pause(plan.seconds(1.0, 3.0));
    let connects = trial.metric("tollgate_store_connect_attempts_total", "") - connects;
    order("CONFIG SET maxclients 10000");
    let back_us = trial.now_us();
    let (result, mut measurements) = trial.settle(&server);
    measurements.none("requests that failed", result.failed());
    let shared = result.shared(from_us, crowded_us);
    measurements.share("share decided over the connections there were", shared, (0.95, 0.995));
    measurements.holds("another client is turned away", turned_away);
    let outage = Outage {
        from_us: cut_us,
        back_us,
    };
    result.common(&mut measurements, plan, outage);
    let seconds = (back_us - cut_us) as f64 / 1e6;
    measurements.at_most("attempts to connect, per second", connects / seconds, 10.0);
    let cut = CAPACITY as f64 / 2.0 + 50.0 * seconds;
    measurements.at_most("over-admission (M4, one of two nodes)", result.excess(), cut);
    // Nobody asks them for anything now: what they do is to connect.
    order("CONFIG SET maxclients 1");
    order("CLIENT KILL TYPE normal SKIPME yes");
    let (started, spent) = (trial.now(), processing(&trial));
    trial.pause(Duration::from_secs(3));
    let (took, spent) = (trial.now() - started, processing(&trial) - spent);
    let percent = 100.0 * spent.as_secs_f64() / took.as_secs_f64() / 2.0;
    measurements.timed_at_most("percent of a processor to connect, per node", percent, 2.0);
    measurements.at_most("percent of a processor to connect, at any time", percent, 10.0);
    order("CONFIG SET maxclients 10000");
    measurements
}

/// The time that nodes have had a processor.
fn processing(harness: &Harness) -> Duration {
    harness.nodes.iter().map(Node::processing).sum()
}

const SECRET: &str = "canary-4711";
