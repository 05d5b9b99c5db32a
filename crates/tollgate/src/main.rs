//! The `tollgate` program: parses the command line and runs the command.

mod cli;

use clap::Parser;
use std::process::ExitCode;

/// Small allocations take half the instructions of the system allocator's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
