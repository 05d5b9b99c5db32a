//! The table, for people and for the document.

use crate::measurements::Measurements;
use crate::plan::{Pace, Plan};
use crate::rows::Row;
use std::fmt;
use std::process::{Command, ExitCode};

pub(crate) struct Result<'r> {
    pub(crate) row: &'r Row,
    pub(crate) figures: Measurements,
}

impl Result<'_> {
    fn passed(&self) -> bool {
        self.figures.counts_hold() && self.figures.latencies_hold()
    }
}

impl fmt::Display for Result<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = self.row.title();
        writeln!(f, "{title}")?;
        for measurement in &self.figures.0 {
            let mark = if measurement.passed { "ok" } else { "FAILED" };
            writeln!(
                f,
                "    {:<58} {:>12}   {:<12} {mark}",
                measurement.what, measurement.value, measurement.bound
            )?;
        }
        Ok(())
    }
}

/// Says how many passed, and writes the table where it is wanted.
pub(crate) fn end(plan: &Plan, results: &[Result<'_>]) -> ExitCode {
    let passed = results.iter().filter(|result| result.passed()).count();
    let failed = results.len() - passed;
    println!("\nseed {}: {passed} passed, {failed} failed", plan.seed);
    if let Some(path) = &plan.write {
        write(path, plan, results);
    }
    ExitCode::from(u8::from(failed > 0))
}

/// Puts the table between the marks of a document.
fn write(path: &str, plan: &Plan, results: &[Result<'_>]) {
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(TABLE_START).unwrap();
    let (_, after) = rest.split_once(TABLE_END).unwrap();
    let date = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M UTC"])
        .output()
        .unwrap();
    let date = String::from_utf8_lossy(&date.stdout);
    let pace = match plan.pace {
        Pace::Fast => "short phases, latencies not judged",
        Pace::Full => "full phases",
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut table = format!(
        "\nUntil {}, seed {}, {pace}, on a machine of {processors} processors.\n\n",
        date.trim(),
        plan.seed
    );
    table.push_str("| row | what | figure | value | bound | |\n|---:|---|---|---:|---:|---|\n");
    for result in results {
        let row = result.row;
        let mut name = format!("{} | {}", row.number, row.what);
        for measurement in &result.figures.0 {
            let mark = if measurement.passed { "pass" } else { "**fail**" };
            table.push_str(&format!(
                "| {name} | {} | {} | {} | {mark} |\n",
                measurement.what, measurement.value, measurement.bound
            ));
            name = " | ".to_owned();
        }
    }
    std::fs::write(path, format!("{before}{TABLE_START}\n{table}\n{TABLE_END}{after}")).unwrap();
}

const TABLE_START: &str = "<!-- results -->";
const TABLE_END: &str = "<!-- end of results -->";
