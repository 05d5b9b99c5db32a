//! Programs that a test runs to their end.

use std::process::Command;

/// Runs a program that must succeed.
///
/// # Panics
/// With this text and the errors it printed, if it does not.
#[track_caller]
pub fn run_to_end(command: &mut Command, failure: &str) {
    let output = command.output().unwrap_or_else(|error| panic!("{failure}: {error}"));
    assert!(
        output.status.success(),
        "{failure}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
