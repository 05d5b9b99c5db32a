//! The program as a shell meets it: what was typed, the code it ends with, what it says and where.

use Stream::{Stderr, Stdout};
use std::process::{Command, Output};

#[test]
fn serve_says_that_there_is_no_server_yet() {
    check(&["serve"], 2, Stderr, "there is no server in it yet");
}

#[test]
fn an_unknown_command_is_refused_by_name() {
    check(&["levitate"], 2, Stderr, "levitate");
}

#[test]
fn no_command_at_all_shows_the_help() {
    check(&[], 2, Stderr, "Usage: tollgate");
}

#[test]
fn help_shows_an_example() {
    check(&["--help"], 0, Stdout, "Example:\n  tollgate serve");
    check(&["serve", "--help"], 0, Stdout, "Example:\n  tollgate serve");
}

#[test]
fn version_is_the_one_of_the_manifest() {
    check(
        &["--version"],
        0,
        Stdout,
        concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n"),
    );
}

enum Stream {
    Stdout,
    Stderr,
}

/// The words end with this code, and this text is on this stream and nothing on the other.
fn check(words: &[&str], code: i32, stream: Stream, text: &str) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(words)
        .output()
        .expect("cargo built the program before its tests");
    let (said, silent) = match stream {
        Stdout => (stdout, stderr),
        Stderr => (stderr, stdout),
    };
    let said = String::from_utf8_lossy(&said);
    assert_eq!(status.code(), Some(code), "tollgate {words:?} said: {said}");
    assert!(said.contains(text), "tollgate {words:?} said: {said}");
    assert_eq!(
        String::from_utf8_lossy(&silent),
        "",
        "tollgate {words:?} on the other stream"
    );
}
