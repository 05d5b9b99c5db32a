//! What happens when things break: nodes, a store, load, one fault, and figures that must hold. See docs/reliability.md.
//!
//! The suite moves itself into a network and a mount namespace of its own before it starts anything, so that no packet of
//! it can leave and no rule of it can touch the machine. A row is a function in `rows/`; what it says is in its figures.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::float_arithmetic,
    reason = "all of it is a test that measures, and the lints know only the functions that are marked as one"
)]

mod admin;
mod audit;
mod envelope;
mod harness;
mod load;
mod measurements;
mod namespace;
mod node;
mod plan;
mod proxy;
mod report;
mod resp;
mod rows;

use measurements::Measurements;
use plan::{Pace, Plan};
use rows::Row;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let plan = match Plan::read(&arguments) {
        Ok(plan) => plan,
        Err(help) => {
            eprintln!("{help}");
            return ExitCode::from(2);
        }
    };
    if plan.lists {
        for row in rows::ALL.iter().filter(|row| plan.selects(row)) {
            println!("{}: test", row.title());
        }
        return ExitCode::SUCCESS;
    }
    if let Some(code) = namespace::enter(&arguments) {
        return code;
    }
    let results: Vec<report::Result> = rows::ALL
        .iter()
        .filter(|row| plan.selects(row))
        .map(|row| {
            let result = report::Result {
                row,
                figures: run_with_retries(row, &plan),
            };
            print!("{result}");
            result
        })
        .collect();
    report::end(&plan, &results)
}

/// Runs a row, again if only its latencies are not what they should be: on a machine that does other things too, two runs
/// of three must be good. Counts must hold every time.
fn run_with_retries(row: &Row, plan: &Plan) -> Measurements {
    let run_row = row.run;
    let mut good = 0;
    let mut last = Measurements::default();
    for attempt in 1..=RUNS {
        let outcome = catch_unwind(AssertUnwindSafe(|| run_row(&plan.for_row(row, attempt))));
        last = outcome.unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            Measurements::panicked(
                message
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("a panic"),
            )
        });
        if plan.pace == Pace::Fast {
            last.drop_latencies();
            break;
        }
        if !last.counts_hold() {
            break;
        }
        good += u32::from(last.latencies_hold());
        if good >= RUNS_GOOD_MIN || attempt - good > RUNS - RUNS_GOOD_MIN || (attempt == 1 && good == 1) {
            // Good at once is good enough; what was not must be good twice.
            break;
        }
    }
    last
}

const RUNS: u32 = 3;
const RUNS_GOOD_MIN: u32 = 2;
