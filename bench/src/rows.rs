//! Override rows: what an edit, a lookup and a row cost, with as many rows as a large customer base has; and what it costs
//! to compile as many rules as a set may have.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- rows
//! ```
//!
//! Ten rules of two tiers, as in `planning`, and rows of the last one. Limiters without rows, with rows of other merchants
//! and with rows of these merchants alternate round by round: compare ratios within one run. All but single edits is CPU
//! time, because other load on the machine would count as time that a thread waits.

mod compile;
pub(crate) mod served;

use self::compile::Compiled;
use crate::measurement::median;
use crate::planning::ATTEMPTS;
use serde_json::{Value, json};
use std::fmt::Write;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tollgate_core::rules::{Attempt, Attribute, RowEdit};
use tollgate_core::testing::random::Random;
use tollgate_core::testing::rules::{attempt, rule_set};
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::store::memory::Memory;

/// Measures override rows.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo run --profile dist -p tollgate-bench -- rows --rows 1000000")]
pub(crate) struct Args {
    /// The number of rows.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rows: u32,
    /// The number of different limits that they have.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limits: u32,
    /// Rounds of loading and planning; the best load and the median of planning are reported.
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The bounds at 100,000 rows.
const EDIT_US_MAX: f64 = 50.0;
const RATIO_MAX: f64 = 1.2;
const BYTES_MAX: f64 = 200.0;
const LOAD_MS_MAX: f64 = 500.0;
/// Rows that are edited one by one.
const EDITS: usize = 2_000;
/// The maximum number of loads: each is as long as many rounds of planning.
const LOADS_MAX: u32 = 5;
/// Passes over the attempts of a round.
const PASSES: usize = 8;

/// The results of one run.
struct Report {
    rows: u32,
    load_ms: f64,
    bytes_per_row: f64,
    /// Of rows that were applied one by one.
    bytes_per_edited_row: f64,
    edit_us: f64,
    edit_p99_us: f64,
    plan_ns: [f64; 3],
    ratios: [f64; 2],
    compiled: Vec<Compiled>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let report = measure(args);
    if args.json {
        println!("{:#}", report.as_json());
    } else {
        print!("{}", report.as_table());
    }
    if report.is_within_bounds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn measure(args: &Args) -> Report {
    let empty = rule_set(&two_tiers(10));
    let edits: Vec<RowEdit> = (0..args.rows).map(|number| row("m", number, args)).collect();
    // Before anything else has left memory to reuse.
    let before = resident();
    let (mut rows, problems) = empty.amend(&edits);
    let bytes_per_row = (resident() - before) as f64 / f64::from(args.rows);
    assert!(
        problems.is_empty() && rows.row_count() == edits.len(),
        "every row applies"
    );
    let before = resident();
    let others = (0..args.rows).fold(empty.clone(), |rules, number| {
        rules.amend(&[row("other", number, args)]).0
    });
    let bytes_per_edited_row = (resident() - before) as f64 / f64::from(args.rows);
    let loads = (0..args.rounds.min(LOADS_MAX)).map(|_| {
        let started = cpu_ms();
        black_box(empty.amend(&edits));
        cpu_ms() - started
    });
    let load_ms = loads.min_by(f64::total_cmp).unwrap_or_default();
    let mut random = Random::new(7);
    let mut edit_us: Vec<f64> = (0..EDITS)
        .map(|_| {
            let edit = row("m", random.below(args.rows.into()) as u32, args);
            let started = Instant::now();
            // With the end of the set before it, whose shard nobody uses any more.
            rows = rows.amend(std::slice::from_ref(&edit)).0;
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    edit_us.sort_by(f64::total_cmp);
    let edit_p99_us = edit_us.get(EDITS * 99 / 100).copied().unwrap_or_default();
    let limiters = [empty, others, rows].map(|rules| RuleLimiter::new(rules, Arc::new(Memory::default())));
    let merchants: Vec<String> = (0..ATTEMPTS)
        .map(|_| format!("m_{}", random.below(args.rows.into())))
        .collect();
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for _ in 0..args.rounds {
        for (limiter, times) in limiters.iter().zip(&mut rounds) {
            times.push(plan_ns(limiter, &merchants));
        }
    }
    let [without, missed, found] = rounds;
    let ratio = |times: &[f64]| median(times.iter().zip(&without).map(|(ns, base)| ns / base));
    Report {
        rows: args.rows,
        load_ms,
        bytes_per_row,
        bytes_per_edited_row,
        edit_us: median(edit_us),
        edit_p99_us,
        ratios: [ratio(&missed), ratio(&found)],
        plan_ns: [median(without), median(missed), median(found)],
        compiled: compile::measure(),
    }
}

/// Plans an attempt of each merchant.
fn plan_ns(limiter: &RuleLimiter, merchants: &[String]) -> f64 {
    let started = cpu_ms();
    for merchant in std::iter::repeat_n(merchants, PASSES).flatten() {
        let attribute = |name, value| Attribute { name, value };
        let attributes = [
            attribute("merchant", merchant.as_bytes()),
            attribute("endpoint", b"/v1/endpoint-4".as_slice()),
            attribute("tier", b"free".as_slice()),
        ];
        black_box(limiter.plan(&attempt(&attributes)));
    }
    (cpu_ms() - started) * 1e6 / (merchants.len() * PASSES) as f64
}

/// A row of the last rule.
fn row(prefix: &str, number: u32, args: &Args) -> RowEdit {
    RowEdit {
        domain: Attempt::DOMAIN.into(),
        rule: "m4".into(),
        subject: [("merchant".into(), format!("{prefix}_{number}").into())].into(),
        terms: Some(format!("{}/min burst 500", 1_000 + number % args.limits).into()),
    }
}

/// A ceiling and a limit per merchant for each endpoint.
fn two_tiers(rules: usize) -> String {
    let mut text = String::from("rules:\n");
    for number in 0..rules / 2 {
        writeln!(
            text,
            "- {{id: c{number}, when: {{endpoint: /v1/endpoint-{number}}}, limit: 10000/s}}\n\
             - id: m{number}\n  when: {{endpoint: /v1/endpoint-{number}}}\n  per: merchant\n  limit: 100/min\n  \
             by: {{tier: {{free: 100/min, enterprise: 5000/min burst 500}}}}"
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// The CPU time of this thread so far.
fn cpu_ms() -> f64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the time of threads");
    let ns = times.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
    ns.expect("the first number is the time on a CPU") as f64 / 1e6
}

fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<i64>().ok());
    kib.expect("the resident set is given in kB") * 1_024
}

impl Report {
    fn is_within_bounds(&self) -> bool {
        self.load_ms <= LOAD_MS_MAX
            && self.bytes_per_row <= BYTES_MAX
            && self.bytes_per_edited_row <= BYTES_MAX
            && self.compiled.iter().all(Compiled::is_within_bound)
            && self.edit_us <= EDIT_US_MAX
            && self.ratios.iter().all(|ratio| *ratio <= RATIO_MAX)
    }

    fn as_json(&self) -> Value {
        let [without, missed, found] = self.plan_ns.map(f64::round);
        json!({
            "rows": self.rows,
            "load_ms": self.load_ms, "load_ms_max": LOAD_MS_MAX,
            "bytes_per_row": self.bytes_per_row, "bytes_per_row_max": BYTES_MAX,
            "bytes_per_edited_row": self.bytes_per_edited_row,
            "edit_us": self.edit_us, "edit_p99_us": self.edit_p99_us, "edit_us_max": EDIT_US_MAX,
            "plan_ns": { "without": without, "missed": missed, "found": found },
            "ratios": self.ratios, "ratio_max": RATIO_MAX,
            "compiled": self.compiled.iter().map(Compiled::as_json).collect::<Vec<Value>>(),
        })
    }

    fn as_table(&self) -> String {
        let [without, missed, found] = self.plan_ns;
        let [missed_ratio, found_ratio] = self.ratios;
        let compiled: String = self.compiled.iter().map(Compiled::as_table_row).collect();
        format!(
            "{} rows of one rule.\n\n\
             | cost | measured | bound |\n|---|---:|---:|\n\
             | load all rows | {:.0} ms | {LOAD_MS_MAX} ms |\n\
             | memory per row, loaded at once | {:.0} B | {BYTES_MAX} B |\n\
             | memory per row, applied one by one | {:.0} B | {BYTES_MAX} B |\n\
             | apply one row, median | {:.1} us | {EDIT_US_MAX} us |\n\
             | apply one row, p99 | {:.1} us | - |\n\
             | plan without rows | {without:.0} ns | - |\n\
             | plan, no row matches | {missed:.0} ns, x {missed_ratio:.2} | x {RATIO_MAX} |\n\
             | plan, a row matches | {found:.0} ns, x {found_ratio:.2} | x {RATIO_MAX} |\n\
             {compiled}",
            self.rows, self.load_ms, self.bytes_per_row, self.bytes_per_edited_row, self.edit_us, self.edit_p99_us,
        )
    }
}
