//! Resident bytes per key: each peer in its own process, so that memory is attributed correctly.

use super::keys::{MANY, write_key};
use super::peers::{ALL, ALLOWED, RATELIMIT};
use super::progress;
use std::process::{Command, ExitCode};

/// Bytes per key of all libraries with keys.
pub(crate) fn measure() -> Vec<(&'static str, f64)> {
    let keeping = ALL.iter().map(|&(name, _)| name).filter(|&name| name != RATELIMIT);
    keeping.map(|name| (name, run_in_child(name))).collect()
}

fn run_in_child(name: &str) -> f64 {
    progress(&format!("bytes_per_key: {name}"));
    let program = std::env::current_exe().expect("a running program has a file");
    let child = Command::new(program).args(["in-process", "--memory", name]).output();
    let output = child.expect("a program can run itself").stdout;
    let printed = String::from_utf8_lossy(&output);
    printed.trim().parse().expect("the child prints one number")
}

/// Runs in the child. The keys are created in one string, so that only the memory of the library grows.
pub(crate) fn run_child(name: &str) -> ExitCode {
    let Some((_, make)) = ALL.iter().find(|(known, _)| *known == name) else {
        progress(&format!("unknown library {name}"));
        return ExitCode::FAILURE;
    };
    let mut key = String::with_capacity(64);
    let before = resident_bytes();
    let contestant = make(ALLOWED, MANY);
    for number in 0..MANY {
        write_key(&mut key, number);
        assert!(contestant.take(&key, ALLOWED.used), "{name} had no room for a new key");
    }
    let after = resident_bytes();
    // Every key must still exist, with most of its usage.
    let too_many = ALLOWED.burst - ALLOWED.used / 2;
    for number in (0..MANY).step_by(997) {
        write_key(&mut key, number);
        assert!(!contestant.take(&key, too_many), "{name} has forgotten a key");
    }
    println!("{:.1}", (after - before) as f64 / MANY as f64);
    ExitCode::SUCCESS
}

fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: i64 = line
        .and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok())
        .expect("the resident set is given in kB");
    kib * 1024
}
