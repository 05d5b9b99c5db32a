//! A server that is there and refuses: full, read-only, without replicas, with another password, crowded.

use super::process::{over, settle};
use crate::bench::{CAPACITY, Outage, Setup};
use crate::figures::Figures;
use crate::plan::Plan;
use crate::resp::{Asking, ask, ask_words, info, tell};
use crate::space;
use std::time::Duration;
use tollgate_limiter::testing::servers::{Kind, Server};

/// What holds while a server refuses with a code, from one command to another.
fn refusing(plan: &Plan, server: &Server, code: &str, (begin, end): (&[&str], &[&str])) -> Figures {
    let (mut bench, baseline) = over(plan, Setup::over(&server.url()));
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
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, server);
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    figures.at_least(&format!("errors counted as `{code}` within a second"), errors, 1.0);
    figures
}

pub(super) fn full(plan: &Plan) -> Figures {
    let server = Server::start(Kind::Redis70);
    let (begin, end) = (["CONFIG SET maxmemory 1mb"], ["CONFIG SET maxmemory 0"]);
    refusing(plan, &server, "oom", (&begin, &end))
}

pub(super) fn no_replicas(plan: &Plan) -> Figures {
    let server = Server::start(Kind::Redis70);
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
    let server = Server::start_with(Kind::Redis70, &["--dir", &folder.to_string_lossy()]);
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
        Kind::Redis70,
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
    let server = Server::start(Kind::Redis70);
    let other = Server::start(Kind::Redis70);
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
    let server = Server::start(Kind::Redis70);
    let port = server.port();
    tell(port, &format!("ACL SETUSER lim on >{SECRET} ~* &* +@all"));
    let url = format!("redis://lim:{SECRET}@127.0.0.1:{port}/");
    let (mut bench, baseline) = over(plan, Setup::over(&url));
    let from_us = bench.now_us();
    tell(port, &format!("ACL SETUSER lim resetpass >{SECRET}-of-others"));
    tell(port, "CLIENT KILL USER lim");
    tell(port, "ACL LOG RESET");
    bench.pause(plan.seconds(2.0, 5.0));
    let attempts = info(port, "errorstats", "errorstat_WRONGPASS", Some("count"));
    tell(port, &format!("ACL SETUSER lim resetpass >{SECRET}"));
    let outage = Outage {
        from_us,
        back_us: bench.now_us(),
    };
    let mut figures = Figures::default();
    let seen = settle(plan, &mut figures, &mut bench, &baseline, &server);
    seen.common(&mut figures, plan, outage);
    figures.at_most("over-admission (M3)", seen.excess(), outage.excess());
    figures.at_least("attempts with the wrong password", attempts as f64, 1.0);
    let seconds = (outage.back_us - from_us) as f64 / 1e6;
    figures.at_most(
        "such attempts, per node and second",
        attempts as f64 / 2.0 / seconds,
        1.0,
    );
    let told = bench.nodes.iter().map(|node| {
        let said = [
            node.log(),
            node.get("/metrics").unwrap_or_default().1,
            node.get("/readyz").unwrap_or_default().1,
        ];
        said.iter().filter(|said| said.contains(SECRET)).count()
    });
    figures.none("places that told the password", told.sum::<usize>() as f64);
    figures
}

pub(super) fn crowded(plan: &Plan) -> Figures {
    let server = Server::start(Kind::Redis70);
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
    figures
}

const SECRET: &str = "canary-4711";
