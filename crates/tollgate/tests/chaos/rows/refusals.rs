//! A server that is there and refuses: full, read-only, without replicas, with another password, crowded.

use super::process::{over, settle};
use crate::audit::audit;
use crate::bench::{Bench, CAPACITY, Outage, Setup, check};
use crate::figures::Figures;
use crate::load::Traffic;
use crate::node::Node;
use crate::plan::Plan;
use crate::resp::{Asking, ask, ask_words, info, tell};
use crate::space;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::testing::random::Random;
use tollgate_limiter::testing::servers::{ServerKind, Server};

/// What holds while a server refuses with a code, from one command to another. All of them are asked for a user that had
/// used up a limit before, too.
fn refusing(plan: &Plan, server: &Server, code: &str, (begin, end): (&[&str], &[&str])) -> Figures {
    let mut setup = Setup::over(&server.url());
    setup
        .rules
        .push_str("- { id: spent, when: { kind: spent }, per: user, limit: 3/day }\n");
    setup.traffic = with_one_spent(setup.traffic);
    let (mut bench, baseline) = over(plan, setup);
    let from_us = bench.now_us();
    for command in begin {
        tell(server.port(), command);
    }
    bench.pause(Duration::from_secs(1));
    let errors = bench.metric("tollgate_store_errors_total", &format!("\"{code}\""));
    bench.pause(plan.seconds(1.0, 4.0));
    for command in end {
        tell(server.port(), command);
    }
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    bench.pause(plan.seconds(2.5, 5.0));
    let seen = bench.end_load();
    let mut figures = Figures::default();
    audit(&mut figures, &mut bench, &seen, &baseline, (&[server.port()], 1.0));
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    figures.at_least(&format!("errors counted as `{code}` within a second"), errors, 1.0);
    let spent = || seen.of(SPENT).filter(|sample| sample.sent_us > from_us);
    figures.at_least(
        "times a user was asked for that had used up its limit",
        spent().count() as f64,
        10.0,
    );
    let passed = spent().filter(|sample| sample.is_admitted());
    figures.none("times that one passed", passed.count() as f64);
    figures
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

pub(super) fn full(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let (begin, end) = (["CONFIG SET maxmemory 1mb"], ["CONFIG SET maxmemory 0"]);
    refusing(plan, &server, "oom", (&begin, &end))
}

pub(super) fn no_replicas(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let (begin, end) = (
        ["CONFIG SET min-replicas-to-write 1"],
        ["CONFIG SET min-replicas-to-write 0"],
    );
    refusing(plan, &server, "noreplicas", (&begin, &end))
}

pub(super) fn disk_full(plan: &Plan) -> Figures {
    let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-disk", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    space::mount_small(&folder, 200 << 10);
    std::fs::write(folder.join("filler"), vec![0; 190 << 10]).unwrap();
    let server = Server::start_with(ServerKind::Redis70, &["--dir", &folder.to_string_lossy()]);
    // Only a server that is to save refuses when it cannot.
    ask_words(server.port(), &["CONFIG", "SET", "save", "3600 1000000"]).unwrap();
    let begin = ["BGSAVE"];
    let end = ["CONFIG SET stop-writes-on-bgsave-error no"];
    let figures = refusing(plan, &server, "misconf", (&begin, &end));
    drop(server);
    space::must("umount", &[&folder.to_string_lossy()]);
    let _ = std::fs::remove_dir(&folder);
    figures
}

pub(super) fn evicted(plan: &Plan) -> Figures {
    let server = Server::start_with(
        ServerKind::Redis70,
        &["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"],
    );
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let used = info(server.port(), "memory", "used_memory", None);
    let from_us = bench.now_us();
    // Room for some hundred keys more.
    tell(server.port(), &format!("CONFIG SET maxmemory {}", used + 50_000));
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    figures.none("requests that failed", seen.failed());
    figures.at_least(
        "keys that were evicted",
        info(server.port(), "stats", "evicted_keys", None) as f64,
        1.0,
    );
    let shared = seen.shared(from_us, seen.end_us());
    figures.share("share decided by the store", shared, (0.95, 0.995));
    let warned = bench
        .nodes
        .iter()
        .filter(|node| node.log().contains("allkeys-lru"))
        .count();
    figures.at_least("nodes that warned of it", warned as f64, 2.0);
    // The hot key is used all the time, so that it is hardly ever the one to go.
    figures.at_most("over-admission of the hot key (M8)", seen.excess(), CAPACITY as f64);
    figures
}

pub(super) fn read_only(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let other = Server::start(ServerKind::Redis70);
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let dials = bench.metric("tollgate_store_dials_total", "");
    let from_us = bench.now_us();
    tell(server.port(), &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    bench.pause(plan.seconds(2.0, 5.0));
    tell(server.port(), "REPLICAOF NO ONE");
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let refused = info(server.port(), "errorstats", "errorstat_READONLY", Some("count"));
    let dials = bench.metric("tollgate_store_dials_total", "") - dials + 2.0;
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, outage);
    figures.quick(
        "shared again",
        seen.shared_again(outage.back_us),
        Duration::from_millis(500),
    );
    // It took the other's data, which is none.
    figures.at_most(
        "over-admission (M3 + M8)",
        seen.excess(),
        outage.excess() + CAPACITY as f64,
    );
    figures.at_least("calls that it refused", refused as f64, 1.0);
    figures.at_most("refusals, per connection", refused as f64 / dials, 3.0);
    figures
}

pub(super) fn password(plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    let (new, old) = (format!("{SECRET}-of-others"), SECRET);
    // A user of its own, and the one that all are who name none.
    password_of(
        plan,
        &mut figures,
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
        &mut figures,
        &format!(":{SECRET}"),
        [
            &format!("CONFIG SET requirepass {old}"),
            &format!("CONFIG SET requirepass {new}"),
            "CLIENT KILL TYPE normal SKIPME yes",
            &format!("CONFIG SET requirepass {old}"),
        ],
    );
    figures
}

/// What holds while nodes, which are this user, have the wrong password: what sets it, changes it, has them give it again, and
/// changes it back.
fn password_of(plan: &Plan, figures: &mut Figures, user: &str, [set, change, kick, change_back]: [&str; 4]) {
    let server = Server::start(ServerKind::Redis70);
    let port = server.port();
    // Whoever is in stays in.
    let mut admin = Asking::connect(port).unwrap();
    let mut obey = |command: &str| {
        admin.send(command).unwrap();
        admin.answer().unwrap().unwrap().join("\n")
    };
    obey(set);
    let (mut bench, baseline) = over(plan, Setup::over(&format!("redis://{user}@127.0.0.1:{port}/")));
    let from_us = bench.now_us();
    obey(change);
    obey(kick);
    bench.pause(plan.seconds(2.0, 5.0));
    let said = obey("INFO errorstats");
    obey(change_back);
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    bench.pause(plan.seconds(2.5, 5.0));
    let seen = bench.end_load();
    // For the audit, which is nobody in particular.
    obey("CONFIG SET requirepass ");
    audit(figures, &mut bench, &seen, &baseline, (&[port], 0.0));
    seen.common(figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    let attempts = said
        .lines()
        .find_map(|line| {
            line.strip_prefix("errorstat_WRONGPASS:count=")?
                .trim()
                .parse::<f64>()
                .ok()
        })
        .unwrap_or(0.0);
    figures.at_least("attempts with the wrong password", attempts, 1.0);
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    figures.at_most("such attempts, per node and second", attempts / 2.0 / seconds, 1.0);
    let told = bench.nodes.iter().map(|node| {
        let said = [
            node.log(),
            node.get("/metrics").unwrap_or_default().1,
            node.get("/readyz").unwrap_or_default().1,
        ];
        said.iter().filter(|said| said.contains(SECRET)).count()
    });
    figures.none("places that told the password", told.sum::<usize>() as f64);
}

pub(super) fn crowded(plan: &Plan) -> Figures {
    let server = Server::start(ServerKind::Redis70);
    let port = server.port();
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
    let from_us = bench.now_us();
    let mut admin = Asking::connect(port).unwrap();
    let mut order = |command: &str| {
        admin.send(command).unwrap();
        admin.answer().unwrap().unwrap().join("\n")
    };
    // Fewer than there are: those stay, and nobody else is let in.
    order("CONFIG SET maxclients 1");
    let turned_away = ask(port, "PING").is_err();
    let crowded_us = bench.pause(plan.seconds(1.0, 3.0));
    let dials = bench.metric("tollgate_store_dials_total", "");
    let clients = order("CLIENT LIST");
    let node = clients
        .lines()
        .find(|line| line.contains("cmd=fcall") || line.contains("cmd=evalsha"));
    let id = node
        .and_then(|line| line.strip_prefix("id=")?.split(' ').next())
        .unwrap();
    order(&format!("CLIENT KILL ID {id}"));
    let cut_us = bench.now_us();
    bench.pause(plan.seconds(1.0, 3.0));
    let dials = bench.metric("tollgate_store_dials_total", "") - dials;
    order("CONFIG SET maxclients 10000");
    let back_us = bench.now_us();
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    figures.none("requests that failed", seen.failed());
    let shared = seen.shared(from_us, crowded_us);
    figures.share("share decided over the connections there were", shared, (0.95, 0.995));
    figures.holds("another client is turned away", turned_away);
    let outage = Outage {
        from_us: cut_us,
        back_us,
    };
    seen.common(&mut figures, plan, outage);
    let seconds = (back_us - cut_us) as f64 / 1e6;
    figures.at_most("attempts to connect, per second", dials / seconds, 10.0);
    let cut = CAPACITY as f64 / 2.0 + 50.0 * seconds;
    figures.at_most("over-admission (M4, one of two nodes)", seen.excess(), cut);
    // Nobody asks them for anything now: what they do is to connect.
    order("CONFIG SET maxclients 1");
    order("CLIENT KILL TYPE normal SKIPME yes");
    let (began, spent) = (bench.now(), processing(&bench));
    bench.pause(Duration::from_secs(3));
    let (took, spent) = (bench.now() - began, processing(&bench) - spent);
    let percent = 100.0 * spent.as_secs_f64() / took.as_secs_f64() / 2.0;
    figures.seldom("percent of a processor to connect, per node", percent, 2.0);
    figures.at_most("percent of a processor to connect, at any time", percent, 10.0);
    order("CONFIG SET maxclients 10000");
    figures
}

/// The time that nodes have had a processor.
fn processing(bench: &Bench) -> Duration {
    bench.nodes.iter().map(Node::processing).sum()
}

const SECRET: &str = "canary-4711";
