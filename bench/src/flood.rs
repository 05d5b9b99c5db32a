//! A flood of new keys at full speed. Three things are checked: memory stays within its cap, decisions stay fast, and an
//! exhausted key stays exhausted.
//!
//! ```text
//! cargo run --profile dist -p tollgate-bench -- flood
//! cargo run --profile dist -p tollgate-bench -- flood --keys 20000000 --max-memory 256MiB
//! ```
//!
//! Ends with code 1 if the store exceeds its cap or allows the exhausted key.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::TokenBucket;
use tollgate_limiter::store::memory::{Memory, MemoryUsage};

/// Sends new keys as fast as they are decided, and prints the state of the store after each slice.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo run --profile dist -p tollgate-bench -- flood\n  cargo run --profile dist -p tollgate-bench -- flood --keys 20000000 --max-memory 256MiB"
)]
pub(crate) struct Args {
    /// The number of new keys.
    #[arg(long, default_value_t = 20_000_000)]
    keys: u64,
    /// The memory cap of the store, in bytes or with the unit KiB, MiB or GiB.
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    max_memory: usize,
    /// Keys per printed line.
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    slice: u64,
}

/// Keys between two checks of the exhausted key and the memory.
const EXHAUSTED_KEY_INTERVAL: u64 = 10_000;

/// Longer than any decision, in nanoseconds: the last slot of the histogram.
const SLOTS: usize = 64 * STEPS;

/// Histogram slots per doubling: a value is at most a sixteenth too high.
const STEPS: usize = 16;

/// Decision times, in slots that grow with the value.
struct Histogram {
    counts: Vec<u64>,
    all: u64,
    max: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let limiter = Limiter::new(Memory::options().max_memory(args.max_memory).build());
    // An hour to refill: no key is fresh again before the end.
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
        "the exhausted key was checked {} times and allowed {let_through} times; the store took at most {}",
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

/// Increments the decimal number in the name in place, so that creating names costs almost no time.
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

    /// One to one below [`STEPS`], then [`STEPS`] slots for each doubling.
    fn slot(ns: u64) -> usize {
        let steps = STEPS as u64;
        if ns < steps {
            return ns as usize;
        }
        let shift = ns.ilog2() - steps.ilog2();
        (u64::from(shift) * steps + (ns >> shift)) as usize
    }

    /// The largest value of a slot.
    fn top(slot: usize) -> u64 {
        if slot < 2 * STEPS {
            return slot as u64;
        }
        let shift = slot / STEPS - 1;
        let lead = (slot % STEPS + STEPS + 1) as u64;
        (lead << shift) - 1
    }

    /// The value that so many per mille do not exceed.
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

/// The resident memory of this process, where the system reports it.
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
        .map_err(|_| format!("`{text}` is not a size: write 256MiB, for example"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
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
            assert!(top >= ns && top - ns <= ns / 16, "{ns} is reported as {top}");
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
