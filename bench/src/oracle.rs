//! Random steps of every algorithm compared with a brute-force oracle.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tollgate_core::Limit;
use tollgate_core::testing::oracle::{self, Difference, OracleReport};

/// Runs each algorithm and its oracle through the same random requests, refunds, edits and clock steps, and compares every
/// field of every decision. Stops an algorithm at its first difference and ends with code 1 if there was any.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- oracle\n  cargo run --profile dist -p tollgate-bench -- oracle --steps 1000000 --seed 7 --algorithm gcra --algorithm cell"
)]
pub(crate) struct Args {
    /// Steps per algorithm.
    #[arg(long, default_value_t = 10_000_000)]
    steps: u64,
    /// The seed; the same seed gives the same steps.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this algorithm; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(Limit::ALGORITHMS))]
    algorithm: Vec<String>,
    /// Print one JSON object per algorithm instead of a table.
    #[arg(long)]
    json: bool,
}

/// The result of one algorithm.
struct Row {
    algorithm: &'static str,
    outcome: Result<OracleReport, Box<Difference>>,
    seconds: f64,
}

/// Algorithms that run concurrently, and the interval of progress output.
const WORKERS: usize = 2;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &Args) -> ExitCode {
    let chosen: Vec<&'static str> = Limit::ALGORITHMS
        .into_iter()
        .filter(|&name| args.algorithm.is_empty() || args.algorithm.iter().any(|asked| asked == name))
        .collect();
    let mut rows = compare(&chosen, args.steps, args.seed);
    rows.sort_by_key(|row| chosen.iter().position(|&name| name == row.algorithm));
    if args.json {
        for row in &rows {
            println!("{}", json(row, args));
        }
    } else {
        table(&rows, args);
    }
    if rows.iter().all(|row| row.outcome.is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs all algorithms, a few at a time, with progress output.
fn compare(chosen: &[&'static str], steps: u64, seed: u64) -> Vec<Row> {
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    let all = steps.saturating_mul(chosen.len() as u64);
    let mut rows = Vec::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..WORKERS.min(chosen.len()) {
            let sender = sender.clone();
            let (next, done) = (&next, &done);
            scope.spawn(move || {
                while let Some(&algorithm) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let mut told = 0;
                    let outcome = oracle::run_with_progress(algorithm, steps, seed, |report| {
                        done.fetch_add(report.steps - told, Ordering::Relaxed);
                        told = report.steps;
                    });
                    let seconds = begun.elapsed().as_secs_f64();
                    let row = Row {
                        algorithm,
                        outcome,
                        seconds,
                    };
                    if sender.send(row).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(PROGRESS_INTERVAL) {
                Ok(row) => rows.push(row),
                Err(RecvTimeoutError::Timeout) => {
                    print_progress(done.load(Ordering::Relaxed), all, rows.len(), chosen.len());
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    rows
}

#[expect(
    clippy::print_stderr,
    reason = "progress is for the person who waits, not for the output"
)]
fn print_progress(steps: u64, all: u64, finished: usize, chosen: usize) {
    eprintln!("{steps} of {all} steps, {finished} of {chosen} algorithms done");
}

fn table(rows: &[Row], args: &Args) {
    println!(
        "{} random steps per algorithm against its oracle, seed {}",
        args.steps, args.seed
    );
    println!(
        "{:<16} {:>11} {:>10} {:>10} {:>9} {:>9} {:>11} {:>9} {:>8} {:>11}",
        "algorithm",
        "steps",
        "allowed",
        "denied",
        "returns",
        "edits",
        "clock steps",
        "promises",
        "seconds",
        "differences"
    );
    for row in rows {
        match &row.outcome {
            Ok(report) => {
                let [steps, allowed, denied, returns, edits, clock_steps, promises] = counts(report);
                println!(
                    "{:<16} {steps:>11} {allowed:>10} {denied:>10} {returns:>9} {edits:>9} {clock_steps:>11} {promises:>9} {:>8.1} {:>11}",
                    row.algorithm, row.seconds, 0
                );
            }
            Err(difference) => println!("{:<16} differs: {difference}", row.algorithm),
        }
    }
}

/// Steps, allowed and denied requests, refunds, edits, clock steps and promises.
const fn counts(report: &OracleReport) -> [u64; 7] {
    [
        report.steps,
        report.allowed,
        report.denied,
        report.returns,
        report.edits,
        report.clock_steps,
        report.promises,
    ]
}

fn json(row: &Row, args: &Args) -> String {
    let Row {
        algorithm,
        outcome,
        seconds,
    } = row;
    let seed = args.seed;
    match outcome {
        Ok(report) => {
            let [steps, allowed, denied, returns, edits, clock_steps, promises] = counts(report);
            format!(
                r#"{{"algorithm":"{algorithm}","seed":{seed},"steps":{steps},"allowed":{allowed},"denied":{denied},"returns":{returns},"edits":{edits},"clock_steps":{clock_steps},"promises":{promises},"seconds":{seconds:.3},"differences":0}}"#,
            )
        }
        Err(difference) => {
            let text: String = difference.to_string().chars().flat_map(escaped).collect();
            format!(
                r#"{{"algorithm":"{algorithm}","seed":{seed},"steps":{},"seconds":{seconds:.3},"differences":1,"difference":"{text}"}}"#,
                difference.step
            )
        }
    }
}

/// A character inside a JSON string.
fn escaped(letter: char) -> Vec<char> {
    match letter {
        '\n' => vec!['\\', 'n'],
        '"' | '\\' => vec!['\\', letter],
        letter => vec![letter],
    }
}
