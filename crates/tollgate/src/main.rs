//! The `tollgate` program: reads what was typed and hands it on.

mod cli;

use clap::Parser;
use std::process::ExitCode;

/// Gives small pieces of memory in half the instructions of the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
