//! What can be typed after `tollgate`, and what each command answers to the shell.

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
    /// Answers checks over the network until it is stopped
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(serve::Serve),
    /// Asks a running server whether an attempt may go on: exit code 0 yes, 1 no, 2 trouble
    #[command(after_help = "Example:\n  tollgate check merchant=m_1 endpoint=/v1/charges --cost 2")]
    Check(check::Check),
    /// Tells why an attempt would be allowed or denied, rule by rule; takes nothing
    #[command(after_help = "Example:\n  tollgate explain merchant=m_1 endpoint=/v1/charges")]
    Explain(explain::Explain),
    /// Clears the counters of one subject, to unblock a customer
    #[command(after_help = "Example:\n  tollgate forget merchant=m_1 --rule merchant-plan")]
    Forget(forget::Forget),
    /// Checks rules, says how they are written, and converts those of envoyproxy/ratelimit
    #[command(after_help = "Example:\n  tollgate rules check rules/*.yaml")]
    Rules(rules::Rules),
}

impl Cli {
    /// Does what was asked. The code is 0 for done, 1 for no, and 2 for trouble the person at the keyboard can see to.
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Forget(forget) => forget.run(),
            Command::Rules(rules) => rules.run(),
        }
    }
}

/// Says what stops a command.
fn fail(reason: &str) -> ExitCode {
    // Whoever closed stderr does not want to hear; the code still tells.
    let _ = writeln!(io::stderr(), "tollgate: {reason}");
    ExitCode::from(EXIT_ERROR)
}

const EXIT_OK: u8 = 0;
/// The exit code clap gives a mistyped command, and ours for whatever else stops a command.
const EXIT_ERROR: u8 = 2;

const SERVE_EXAMPLE: &str = "\
Settings come from the file, then from variables such as TOLLGATE_SERVER__HTTP, then from flags; the later wins.
With RUNTIME_ROOT set, the variables of envoyproxy/ratelimit are settings too, below all of them.

Examples:
  tollgate serve
  tollgate serve --config tollgate.yaml --set server.http=127.0.0.1:9000 --set drain=5s";
