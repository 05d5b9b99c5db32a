//! Sample limits.

use crate::{
    Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, Limit, Micros, Rate, SlidingCounter, SlidingLog, TokenBucket,
};

/// The algorithms that count units, by name.
pub const COUNTING: [&str; 6] = [
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "fixed_window",
    "sliding_counter",
    "sliding_log",
];

/// Time zones whose days and months begin at unusual times.
pub const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "America/Havana",
    "America/St_Johns",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Africa/Monrovia",
];

/// A period in which nothing refills while a test runs.
const YEAR: Micros = Micros::from_secs(365 * 86_400);

/// A rate.
///
/// # Panics
/// Out of range.
pub fn rate(units: u64, period: Micros) -> Rate {
    Rate::new(units, period).expect("a rate in range")
}

/// A token bucket.
///
/// # Panics
/// Out of range.
pub fn token_bucket(units: u64, period: Micros) -> Limit {
    TokenBucket::new(rate(units, period)).into()
}

/// A fixed window of a year: units that are missing were consumed.
///
/// # Panics
/// Out of range.
pub fn yearly_window(units: u64) -> Limit {
    FixedWindow::new(rate(units, YEAR)).into()
}

/// One limit of each algorithm with this capacity and period, in the order of [`Limit::ALGORITHMS`].
///
/// # Panics
/// Out of range.
pub fn every_limit(units: u64, period: Micros) -> [Limit; 8] {
    let rate = rate(units, period);
    let seconds = period.get().div_ceil(1_000_000);
    [
        TokenBucket::new(rate).into(),
        Gcra::new(rate).into(),
        FixedWindow::new(rate).into(),
        SlidingCounter::new(rate).into(),
        SlidingLog::new(rate).expect("a log in range").into(),
        LeakyBucket::new(rate).into(),
        Concurrency::new(units, period).expect("slots in range").into(),
        Cell::new(units - 1, units, seconds).expect("a cell in range").into(),
    ]
}
