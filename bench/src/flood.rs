//! A flood of new keys at full speed, watched for three things: memory stays within its cap, no decision takes long, and
//! a key that is exhausted stays exhausted.
//!
//! ```text
//! cargo run --release -p tollgate-bench -- flood
//! cargo run --release -p tollgate-bench -- flood --keys 20000000 --max-memory 256MiB
//! ```
//!
//! Ends with code 1 if the store took more than its cap or let the exhausted key through.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::TokenBucket;
use tollgate_limiter::store::memory::{Memory, MemoryUsage};

/// Sends new keys as fast as they are decided, and prints how the store stands after each slice of them.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --release -p tollgate-bench -- flood\n  cargo run --release -p tollgate-bench -- flood --keys 20000000 --max-memory 256MiB"
)]
pub(crate) struct Args {
    /// How many new keys come.
    #[arg(long, default_value_t = 20_000_000)]
    keys: u64,
    /// The most memory of the store, in bytes or with KiB, MiB or GiB behind.
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    max_memory: usize,
    /// After how many keys a line is printed.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    slice: u64,
}

/// How often the exhausted key is asked for, and the memory read.
const EXHAUSTED_KEY_INTERVAL: u64 = 10_000;

/// Longer than any decision, in nanoseconds: the last place of the histogram.
const SLOTS: usize = 64 * STEPS;

/// Places of the histogram per doubling: a figure is at most a sixteenth too high.
const STEPS: usize = 16;

/// How long decisions took, in places that grow with the value.
struct Histogram {
    counts: Vec<u64>,
    all: u64,
    max: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let limiter = Limiter::new(Memory::options().max_memory(args.max_memory).build());
    // An hour to come back: nothing that is taken here is as good as new before the end.
    let rule = limiter
        .limit("flood", TokenBucket::per_hour(10).burst(10))
        .expect("a limit in range");
    while limiter.check(&rule, "exhausted").is_allow() {}
    println!(
        "{} new keys, at most {} of memory",
        args.keys,
        size(args.max_memory as u64)
    );
    println!(
        "{:>11} {:>11} {:>11} {:>11} {:>8} {:>8} {:>8} {:>9} {:>12} {:>8}",
        "keys sent", "keys live", "bytes", "resident", "p50 ns", "p99 ns", "p99.9 ns", "max us", "overflowed", "M/s"
    );
    let (mut let_through, mut most_bytes) = (0_u64, 0);
    let mut histogram = Histogram::new();
    let mut started = Instant::now();
    let mut name = *b"user:00000000000";
    for sent in 1..=args.keys {
        count_up(&mut name);
        let before = Instant::now();
        std::hint::black_box(limiter.check(&rule, name));
        histogram.add(before.elapsed());
        if sent.is_multiple_of(EXHAUSTED_KEY_INTERVAL) {
            let_through += u64::from(limiter.check(&rule, "exhausted").is_allow());
            most_bytes = most_bytes.max(limiter.store().usage().bytes);
        }
        if sent.is_multiple_of(args.slice) || sent == args.keys {
            let seconds = started.elapsed().as_secs_f64();
            let usage = limiter.store().usage();
            most_bytes = most_bytes.max(usage.bytes);
            line(sent, &usage, &histogram, seconds);
            histogram = Histogram::new();
            started = Instant::now();
        }
    }
    println!(
        "the exhausted key was asked for {} times and let through {let_through} times; the store took at most {}",
        args.keys / EXHAUSTED_KEY_INTERVAL,
        size(most_bytes as u64)
    );
    if let_through > 0 || most_bytes > args.max_memory {
        println!("FAILED");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn line(sent: u64, usage: &MemoryUsage, histogram: &Histogram, seconds: f64) {
    println!(
        "{sent:>11} {:>11} {:>11} {:>11} {:>8} {:>8} {:>8} {:>9} {:>12} {:>8.2}",
        usage.keys,
        size(usage.bytes as u64),
        resident().map_or_else(|| "?".to_owned(), size),
        histogram.at(500),
        histogram.at(990),
        histogram.at(999),
        histogram.max / 1_000,
        usage.overflowed,
        histogram.all as f64 / seconds / 1e6,
    );
}

/// The next name: a decimal number counted up in place, so that making names takes no time worth measuring.
fn count_up(name: &mut [u8]) {
    for digit in name.iter_mut().rev() {
        if *digit != b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
}

impl Histogram {
    fn new() -> Self {
        Self {
            counts: vec![0; SLOTS],
            all: 0,
            max: 0,
        }
    }

    fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.all += 1;
        self.max = self.max.max(ns);
        if let Some(count) = self.counts.get_mut(Self::slot(ns)) {
            *count += 1;
        }
    }

    /// One to one below [`STEPS`], then [`STEPS`] places for each doubling.
    fn slot(ns: u64) -> usize {
        let steps = STEPS as u64;
        if ns < steps {
            return ns as usize;
        }
        let shift = ns.ilog2() - steps.ilog2();
        (u64::from(shift) * steps + (ns >> shift)) as usize
    }

    /// The largest value of a place.
    fn top(slot: usize) -> u64 {
        if slot < 2 * STEPS {
            return slot as u64;
        }
        let shift = slot / STEPS - 1;
        let lead = (slot % STEPS + STEPS + 1) as u64;
        (lead << shift) - 1
    }

    /// What so many of a thousand took at most.
    fn at(&self, per_mille: u64) -> u64 {
        let wanted = self.all.saturating_mul(per_mille).div_ceil(1_000);
        let mut sum = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= wanted {
                return Self::top(slot).min(self.max);
            }
        }
        self.max
    }
}

/// The memory of this process, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024)
}

fn bytes(text: &str) -> Result<usize, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let found = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    let (number, unit) = found.unwrap_or((text, 1));
    let number: usize = number
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is no size: write 256MiB, say"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("{text} is more than fits"))
}

fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_the_histogram_is_at_most_a_sixteenth_too_high() {
        for ns in (0..100_000).chain([1 << 40, u64::MAX >> 1]) {
            let top = Histogram::top(Histogram::slot(ns));
            assert!(top >= ns && top - ns <= ns / 16, "{ns} is told as {top}");
        }
    }

    #[test]
    fn names_count_up() {
        let mut name = *b"user:00099";
        count_up(&mut name);
        assert_eq!(&name, b"user:00100");
    }

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert_eq!(bytes("4096"), Ok(4_096));
        assert!(bytes("many").is_err());
    }
}
