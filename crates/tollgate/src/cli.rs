//! The command line: the commands, their help and their exit codes.

mod access;
mod admin;
mod args;
mod attributes;
mod audit;
mod check;
mod client;
mod control;
mod explain;
mod forget;
mod overrides;
mod rules;
mod serve;
mod simulate;

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
    /// Validates rule files; plans, publishes and restores managed rules
    #[command(after_help = "Examples:\n  tollgate rules check rules/*.yaml\n  tollgate rules apply rules/*.yaml")]
    Rules(rules::Rules),
    /// Simulates overload and retry storms with the decisions of this program, beside those that others have published
    #[command(after_help = "Examples:\n  tollgate simulate --scenario storm\n  \
                            tollgate simulate --scenario overload --policy none,codel,ours --load 200,1000 --json")]
    Simulate(simulate::Simulate),
    /// Sets limits of single subjects at a control plane
    #[command(after_help = "Example:\n  tollgate overrides set merchant-plan merchant=m_42 --limit 20000/min")]
    Overrides(overrides::Overrides),
    /// Sets attributes of subjects at a control plane, such as the plan of a customer
    #[command(after_help = "Example:\n  tollgate attributes set merchant=m_42 tier=enterprise")]
    Attributes(attributes::Attributes),
    /// Lists who changed what at a control plane, and verifies that nothing was removed
    #[command(after_help = "Example:\n  tollgate audit --since 24h")]
    Audit(audit::Audit),
    /// Adds, lists and disables people who use the admin API
    #[command(after_help = "Example:\n  tollgate user list")]
    User(access::User),
    /// Adds, lists and revokes tokens for the admin API
    #[command(after_help = "Example:\n  tollgate token list")]
    Token(access::Token),
    /// Shows the state of a control plane and its instances
    #[command(after_help = "Example:\n  tollgate control status")]
    Control(control::Control),
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
            Command::Simulate(simulate) => simulate.run(),
            Command::Overrides(overrides) => overrides.run(),
            Command::Attributes(attributes) => attributes.run(),
            Command::Audit(audit) => audit.run(),
            Command::User(user) => user.run(),
            Command::Token(token) => token.run(),
            Command::Control(control) => control.run(),
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
