//! The control plane against its bounds: changes on their way to eight instances, publishes under load, writers in conflict, the
//! cost of preparing a set, rollbacks, and the cost of the control plane and of open dashboards to decisions.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- control
//! cargo run --profile dist -p tollgate-bench -- control --only visibility --quick
//! ```
//!
//! Every instance is a process of `tollgate serve`; Redis and PostgreSQL are real servers on this machine. Instances, servers and
//! this client share the cores, so times are upper bounds.

mod client;
mod conflicts;
mod fleet;
mod mixture;
mod prepare;
mod report;
mod rollback;
mod visibility;
mod watcher;

pub(crate) use self::client::{TOKEN as ADMIN_TOKEN, TOKEN_SHA256 as ADMIN_TOKEN_SHA256};
pub(crate) use self::fleet::{Instance, InstanceSettings, Rows};
pub(crate) use tollgate_test_kit::postgres::{Durability, Postgres};

use self::report::Report;
use crate::servers::{dashboards, managed, process};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the control plane.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- control\n  cargo run --profile dist -p tollgate-bench -- control --only cost --rounds 15"
)]
pub(crate) struct Args {
    /// Measures one part only.
    #[arg(long)]
    only: Option<Part>,
    /// A short run that shows that everything works; its figures have little weight.
    #[arg(long)]
    quick: bool,
    /// The number of rounds of `cost`; the median of the ratios is reported.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Time from the acknowledgement of a change to the first check that obeys, on each of eight instances.
    Visibility,
    /// Publishes that flip two rules at once, under checks that show both.
    Mixture,
    /// Writers of one item at the same time.
    Conflicts,
    /// CPU time of an instance to prepare a large set.
    Prepare,
    /// Time from the acknowledgement of a rollback to the first check that obeys.
    Rollback,
    /// Checks per CPU-second with and without the control plane.
    Cost,
    /// Checks per CPU-second with and without open dashboards.
    Dashboards,
}

/// A function that measures a part and prints its lines.
type Measure = fn(&Context, &mut Report) -> Result<(), String>;

/// Everything that a part needs.
struct Context {
    tollgate: PathBuf,
    quick: bool,
    rounds: Option<u64>,
}

impl Context {
    /// A number for the full run, or for a quick one.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    crate::exit_code(run_parts(args))
}

/// True if all bounds were met.
fn run_parts(args: &Args) -> Result<bool, String> {
    let context = Context {
        tollgate: process::build_product()?,
        quick: args.quick,
        rounds: args.rounds,
    };
    let mut report = Report::default();
    report.print_head();
    // Last are the parts that pin this process to a core.
    let parts: [(Part, Measure); 7] = [
        (Part::Visibility, visibility::measure),
        (Part::Mixture, mixture::measure),
        (Part::Conflicts, conflicts::measure),
        (Part::Prepare, prepare::measure),
        (Part::Rollback, rollback::measure),
        (Part::Cost, measure_cost),
        (Part::Dashboards, measure_dashboards),
    ];
    for (part, measure) in parts {
        if args.only.is_none_or(|only| only == part) {
            measure(&context, &mut report)?;
        }
    }
    Ok(report.is_met())
}

/// OB5.
fn measure_dashboards(context: &Context, report: &mut Report) -> Result<(), String> {
    let options = managed::CostOptions {
        rounds: context.rounds.unwrap_or_else(|| context.pick(9, 1)),
        seconds: context.pick(4, 2),
    };
    let cost = dashboards::measure(&context.tollgate, &options)?;
    let figure = cost.cpu.to_string();
    let measured = format!("HTTP, {} open dashboards", dashboards::DASHBOARDS);
    let bound = format!(">= x {}", dashboards::GOAL);
    report.bounded("OB5", &measured, figure, &bound, cost.cpu.ratio >= dashboards::GOAL);
    report.note("OB5", "events read by dashboards, KiB", cost.read >> 10);
    Ok(())
}

/// CP11.
fn measure_cost(context: &Context, report: &mut Report) -> Result<(), String> {
    let options = managed::CostOptions {
        rounds: context.rounds.unwrap_or_else(|| context.pick(9, 1)),
        seconds: context.pick(2, 1),
    };
    for cost in managed::measure(&context.tollgate, &options)? {
        let figure = cost.cpu.to_string();
        report.bounded(
            "CP11",
            &cost.load,
            figure,
            &format!(">= x {}", managed::GOAL),
            cost.is_met(),
        );
    }
    Ok(())
}
