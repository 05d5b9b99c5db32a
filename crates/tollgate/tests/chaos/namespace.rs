//! A network and a mount namespace of its own: what is sent here goes nowhere else, and what is mounted is seen nowhere else.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU16, Ordering};

/// Starts this program again inside, unless this is inside already. The result of that run is the result.
pub(crate) fn enter(arguments: &[String]) -> Option<ExitCode> {
    if arguments.iter().any(|word| word == INSIDE) {
        run_program("ip", &["link", "set", "lo", "up"]);
        run_program(
            "nft",
            &["add table inet chaos; add chain inet chaos in { type filter hook input priority 0; }"],
        );
        return None;
    }
    let program = std::env::current_exe().unwrap();
    // Without rights of its own, whoever it is is root of the new user namespace only. There is no other user in that one, and
    // PostgreSQL does not run as root, so root stays in the namespace it is in.
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let user: &[&str] = if is_root { &[] } else { &["--map-root-user"] };
    let status = Command::new("unshare")
        .args(user)
        .args(["--net", "--mount", "--"])
        .arg(program)
        .args(arguments)
        .arg(INSIDE)
        .status();
    match status {
        Ok(status) => Some(ExitCode::from(u8::try_from(status.code().unwrap_or(2)).unwrap_or(2))),
        Err(error) => {
            eprintln!("the chaos suite needs `unshare` of util-linux: {error}");
            Some(ExitCode::from(2))
        }
    }
}

/// A rule for what arrives at a port, in the words of nft; none takes all rules away.
pub(crate) fn set_input_filter(rule: Option<&str>) {
    match rule {
        Some(rule) => run_program("nft", &[&format!("add rule inet chaos in {rule}")]),
        None => run_program("nft", &["flush chain inet chaos in"]),
    }
}

/// How many packets rules with a counter have dropped, since there are any.
pub(crate) fn dropped() -> f64 {
    let arguments = ["list", "chain", "inet", "chaos", "in"];
    let listed = Command::new("nft").args(arguments).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let parts = listed.split("packets ").skip(1);
    let numbers = parts.filter_map(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    numbers.sum()
}

/// A file system in memory of so many bytes, at a folder, seen in here only.
pub(crate) fn mount_small(folder: &Path, bytes: u32) {
    let size = format!("size={bytes}");
    run_program(
        "mount",
        &["-t", "tmpfs", "-o", &size, "tmpfs", &folder.to_string_lossy()],
    );
}

/// A port that nobody has: below those that the system gives to clients, and nobody else is in here.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How many connections to a port are there, other than those that are over.
pub(crate) fn connections_to(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let wanted = format!(":{port:04X}");
    let rows = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[2].ends_with(&wanted) && row[3] != TIME_WAIT && row[3] != CLOSED)
        .count()
}

pub(crate) fn run_program(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("the chaos suite needs `{program}`: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
}

const INSIDE: &str = "--inside";
const TIME_WAIT: &str = "06";
const CLOSED: &str = "07";
