//! The keys of a case: 21-byte strings, made before anything is timed.

use std::fmt::Write;
use tollgate_core::testing::random::Random;

/// Keys checked in one run, between two reads of the clock. Divides [`MANY`].
pub(crate) const RUN: usize = 64;
/// The number of keys in "1 M keys".
pub(crate) const MANY: usize = 1_000_000;
/// The exponent of the Zipf distribution, as usual in benchmarks.
const SKEW: f64 = 0.99;

/// The distribution of the keys of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    One,
    Uniform,
    Zipf,
}

impl Keys {
    /// The number of keys in the table.
    pub(crate) const fn live(self) -> usize {
        match self {
            Self::One => 1,
            Self::Uniform | Self::Zipf => MANY,
        }
    }

    /// The keys of each thread, in order; repeated at the end.
    ///
    /// The strings are in memory in the order of their use, which is not the order in which the table was filled. So
    /// reading a key is cheap, and the lookup of its state has its real cost.
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

/// The same, in an existing string.
pub(crate) fn write_key(key: &mut String, number: usize) {
    key.clear();
    write!(key, "user:{:016x}", Random::new(number as u64).next()).expect("writing to a string cannot fail");
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

/// As many draws as there are keys, a few of them far more frequent than the rest. The frequent ones are random, but the
/// same for every thread.
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
