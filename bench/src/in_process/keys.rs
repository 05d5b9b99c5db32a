//! The keys of a case: 21-byte strings, made before anything is timed.

use std::fmt::Write;
use tollgate_core::testing::random::Random;

/// How many keys are asked in one go between two looks at anything else. Divides [`MANY`].
pub(crate) const RUN: usize = 64;
/// What "1 M keys" means.
pub(crate) const MANY: usize = 1_000_000;
/// The exponent of the Zipf distribution, in the usual words of benchmarks.
const SKEW: f64 = 0.99;

/// Which keys a case asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    One,
    Uniform,
    Zipf,
}

impl Keys {
    /// How many keys are in the table.
    pub(crate) const fn live(self) -> usize {
        match self {
            Self::One => 1,
            Self::Uniform | Self::Zipf => MANY,
        }
    }

    /// What each of the threads asks for, in order; begun anew at the end.
    ///
    /// The strings lie in memory in the order they are asked for, which is not the order the table was filled in: so
    /// reading a key costs next to nothing, and finding its state costs what it costs.
    pub(crate) fn sequences(self, threads: usize) -> Vec<Vec<String>> {
        match self {
            Self::One => vec![vec![key(0); RUN]; threads],
            Self::Uniform => (0..threads as u64).map(|seed| shuffled(MANY, seed)).collect(),
            Self::Zipf => (0..threads as u64).map(|seed| zipf(MANY, seed)).collect(),
        }
    }
}

/// The key of a number.
pub(crate) fn key(number: usize) -> String {
    let mut key = String::new();
    write_key(&mut key, number);
    key
}

/// The same, in a string that is there already.
pub(crate) fn write_key(key: &mut String, number: usize) {
    key.clear();
    write!(key, "user:{:016x}", Random::new(number as u64).next()).expect("a string takes all that is written");
}

/// All keys below `count`, in random order.
pub(crate) fn shuffled(count: usize, seed: u64) -> Vec<String> {
    order(count, seed).into_iter().map(key).collect()
}

fn order(count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// As many draws as there are keys, a few of them far more often than the rest. Which ones is random, but the same for
/// every thread.
fn zipf(count: usize, seed: u64) -> Vec<String> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            sum += (rank as f64).powf(-SKEW);
            sum
        })
        .collect();
    let order = order(count, u64::MAX);
    let mut random = Random::new(seed);
    let mut draw = || {
        let at = random.next() as f64 / u64::MAX as f64 * sum;
        let rank = sums.partition_point(|&sum| sum < at).min(count - 1);
        key(order.get(rank).copied().unwrap_or_default())
    };
    (0..count).map(|_| draw()).collect()
}
