//! The `tollgate` program: reads what was typed and hands it on.

mod cli;

use clap::Parser;
use std::process::ExitCode;

/// Answers are made of short-lived pieces on many threads, which is what it is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
