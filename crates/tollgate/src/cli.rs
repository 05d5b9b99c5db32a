//! What can be typed after `tollgate`, and what each command answers to the shell.

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// A distributed rate limiter: may this caller go on, and if not, when?
#[derive(Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  tollgate serve")]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answers checks over the network. Not in this version: says so and exits with 2.
    #[command(after_help = "Example:\n  tollgate serve")]
    Serve,
}

impl Cli {
    /// Does what was asked. The code is 0 for done and 2 for trouble the person at the keyboard can see to.
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Serve => refuse(NO_SERVER),
        }
    }
}

fn refuse(reason: &str) -> ExitCode {
    // Whoever closed stderr does not want to hear; the code still tells.
    let _ = writeln!(io::stderr(), "tollgate: {reason}");
    ExitCode::from(TROUBLE)
}

/// The exit code clap gives a mistyped command, and ours for whatever else stops a command.
const TROUBLE: u8 = 2;

const NO_SERVER: &str = "this version is a library only; there is no server in it yet. \
    To limit inside a Rust program, use tollgate-limiter (README.md has an example)";
