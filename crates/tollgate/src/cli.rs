//! The command line: the commands, their help and their exit codes.

mod args;
mod check;
mod client;
mod explain;
mod forget;
mod rules;
mod serve;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// A distributed rate limiter: may this request pass now, and if not, when should the caller retry?
#[derive(Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  tollgate serve")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the server
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(serve::Serve),
    /// Checks an attempt at a running server and consumes its cost; exit code 0 allowed, 1 denied, 2 error
    #[command(after_help = "Example:\n  tollgate check merchant=m_1 endpoint=/v1/charges --cost 2")]
    Check(check::Check),
    /// Explains rule by rule why an attempt would be allowed or denied; consumes nothing
    #[command(after_help = "Example:\n  tollgate explain merchant=m_1 endpoint=/v1/charges")]
    Explain(explain::Explain),
    /// Clears the counters of one subject, to unblock a customer
    #[command(after_help = "Example:\n  tollgate forget merchant=m_1 --rule merchant-plan")]
    Forget(forget::Forget),
    /// Validates rule files, prints their JSON Schema, converts files of envoyproxy/ratelimit
    #[command(after_help = "Example:\n  tollgate rules check rules/*.yaml")]
    Rules(rules::Rules),
}

impl Cli {
    /// Runs the command. Exit code 0 is success, 1 is denied or invalid, 2 is an error that the message explains.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Forget(forget) => forget.run(),
            Command::Rules(rules) => rules.run(),
        }
    }
}

/// Prints the reason why a command failed.
fn fail(reason: &str) -> ExitCode {
    // If stderr is closed, the exit code still says it.
    let _ = writeln!(io::stderr(), "tollgate: {reason}");
    ExitCode::from(EXIT_ERROR)
}

const EXIT_OK: u8 = 0;
/// The exit code of every failure; clap uses the same for a command line it cannot parse.
const EXIT_ERROR: u8 = 2;

const SERVE_EXAMPLE: &str = "\
Settings come from the file, then from variables such as TOLLGATE_SERVER__HTTP, then from flags; later ones win.
With RUNTIME_ROOT set, the variables of envoyproxy/ratelimit are settings too, with the lowest precedence.

Examples:
  tollgate serve
  tollgate serve --config tollgate.yaml --set server.http=127.0.0.1:9000 --set drain=5s";
