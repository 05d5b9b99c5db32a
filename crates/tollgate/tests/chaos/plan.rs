//! What is to be run, and how long its phases last.

use crate::rows::Row;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) pace: Pace,
    pub(crate) seed: u64,
    /// Says what there is instead of running it.
    pub(crate) lists: bool,
    /// A file whose part between two marks is to be the table.
    pub(crate) write: Option<String>,
    rows: Vec<u8>,
    filters: Vec<String>,
}

/// How much is asked of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// A few seconds, for every change: counts, over-admission and audits, no latencies.
    Fast,
    /// As the table of failures has it, latencies too.
    Full,
}

impl Plan {
    /// What was asked for on the command line. The options of the usual test harness that cargo may pass are understood
    /// or passed over.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self {
            pace: Pace::Fast,
            seed: 1,
            lists: false,
            write: None,
            rows: Vec::new(),
            filters: Vec::new(),
        };
        let mut arguments = arguments.iter();
        while let Some(word) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .ok_or_else(|| format!("{word} needs a value\n\n{HELP}"))
            };
            match word.as_str() {
                "--full" => plan.pace = Pace::Full,
                "--list" => plan.lists = true,
                "--row" => {
                    let value = value()?;
                    let row = value.parse().map_err(|_| format!("{value} is no row\n\n{HELP}"))?;
                    plan.rows.push(row);
                }
                "--seed" => {
                    let value = value()?;
                    plan.seed = value.parse().map_err(|_| format!("{value} is no seed\n\n{HELP}"))?;
                }
                "--write" => plan.write = Some(value()?.clone()),
                "--help" | "-h" => return Err(HELP.to_owned()),
                "--test-threads" | "--format" | "--color" | "--skip" => drop(value()?),
                option if option.starts_with('-') => {}
                name => plan.filters.push(name.to_owned()),
            }
        }
        Ok(plan)
    }

    /// Whether a row is to be run: by its number, by a word in its title, else all that belong to the pace.
    pub(crate) fn selects(&self, row: &Row) -> bool {
        let is_named = self.filters.is_empty() || self.filters.iter().any(|word| row.title().contains(word.as_str()));
        let is_wanted = match self.rows.as_slice() {
            [] => self.pace == Pace::Full || row.is_fast(),
            rows => rows.contains(&row.number),
        };
        is_wanted && is_named
    }

    /// The same for one run of a row, with a seed of its own.
    pub(crate) fn for_row(&self, row: &Row, attempt: u32) -> Self {
        Self {
            seed: self.seed.wrapping_mul(1_000_003) ^ (u64::from(row.number) << 8) ^ u64::from(attempt),
            ..self.clone()
        }
    }

    /// The same for one of several runs within a row.
    pub(crate) fn again(&self, number: u32) -> Self {
        Self {
            seed: self.seed ^ u64::from(number) << 40,
            ..self.clone()
        }
    }

    /// One of two lengths.
    pub(crate) fn seconds(&self, fast: f64, full: f64) -> Duration {
        Duration::from_secs_f64(self.pick(fast, full))
    }

    pub(crate) fn pick<T>(&self, fast: T, full: T) -> T {
        match self.pace {
            Pace::Fast => fast,
            Pace::Full => full,
        }
    }
}

const HELP: &str = "\
Breaks things and shows that what should hold does.

usage: chaos [--full] [--row N]... [--seed S] [--write FILE] [--list] [WORD]...

  --full        all rows with full phases, latencies too; without it the fast ones with short phases
  --row N       only this row
  --seed S      the seed of loads and schedules (1)
  --write FILE  puts the table into FILE, between its marks
  --list        says what there is
  WORD          only rows with this in their title

example:
  ./scripts/chaos --row 1 --seed 7";
