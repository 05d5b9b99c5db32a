//! The layer of `tollgate-tower` and that of tower_governor around one service that does nothing, without a server.
//!
//! The contestants of a case alternate round by round, and the median of the rounds is reported. What a layer costs is its
//! time over that of the bare service. Both layers take the key from the peer's address in the request's extensions, and
//! write no headers. Every response is checked.

mod contestants;
mod report;

use self::contestants::{Contestant, Kind};
use crate::measurement::median;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo run --profile dist -p tollgate-bench -- tower
  cargo run --profile dist -p tollgate-bench -- tower --seconds-per-case 30 --json

Exit code: 1 if a goal is missed: 250 ns and no allocation with one key, 1.5 times tower_governor with a million.")]
pub(crate) struct Args {
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Seconds per case, shared by all its contestants.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds_per_case: u64,
}

/// The number of addresses of each case.
const CASES: [(&str, u32); 2] = [("hot", 1), ("uniform_1m", 1_000_000)];
/// Requests between two reads of the clock.
const RUN: u32 = 20_000;
const ROUNDS_MIN: usize = 5;

/// The figures of one contestant in a case.
pub(crate) struct Figures {
    pub(crate) kind: Kind,
    /// Nanoseconds per request, the service included.
    pub(crate) ns: f64,
    pub(crate) allocations: f64,
}

/// One case with its contestants: the bare service first.
pub(crate) struct CaseFigures {
    pub(crate) name: &'static str,
    pub(crate) figures: Vec<Figures>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let time = Duration::from_secs(args.seconds_per_case);
    let cases: Vec<CaseFigures> = CASES.iter().map(|(name, keys)| measure(name, *keys, time)).collect();
    let is_met = report::is_met(&cases);
    if args.json {
        report::print_json(&cases);
    } else {
        report::print_table(&cases);
    }
    crate::exit_code(Ok(is_met))
}

fn measure(name: &'static str, keys: u32, time: Duration) -> CaseFigures {
    let mut contestants: Vec<Contestant> = Kind::ALL.iter().map(|kind| Contestant::new(*kind, keys)).collect();
    for contestant in &mut contestants {
        // Every key has its entry.
        contestant.run(keys.max(RUN));
    }
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
    let until = Instant::now() + time;
    while rounds.iter().any(|rounds| rounds.len() < ROUNDS_MIN) || Instant::now() < until {
        for (contestant, rounds) in contestants.iter_mut().zip(&mut rounds) {
            let started = Instant::now();
            contestant.run(RUN);
            rounds.push(started.elapsed().as_nanos() as f64 / f64::from(RUN));
        }
    }
    let figures = contestants.into_iter().zip(rounds).map(|(mut contestant, rounds)| {
        let counted = allocation_counter::measure(|| contestant.run(RUN));
        Figures {
            kind: contestant.kind(),
            ns: median(rounds),
            allocations: counted.count_total as f64 / f64::from(RUN),
        }
    });
    CaseFigures {
        name,
        figures: figures.collect(),
    }
}
