//! What a contest is played with: limits at random, and new numbers for them.

use crate::testing::random::Random;
use crate::time::Micros;
use crate::{
    Algorithm, Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, Limit, Rate, SlidingCounter, SlidingLog, TokenBucket,
};

/// The numbers of a limit, whatever its algorithm calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Units per period, or slots.
    pub units: u64,
    /// The period, or how long a lease lasts, in microseconds.
    pub period: u64,
    /// The most at once, for meters.
    pub burst: u64,
    /// The least time between two requests, for the log, in microseconds.
    pub min_interval: u64,
    /// Whether a leaky bucket is a queue.
    pub shaping: bool,
}

const MS: u64 = 1_000;
const S: u64 = 1_000_000;
const DAY: u64 = 86_400 * S;
const YEAR: u64 = 366 * DAY;

/// How long a limit drawn here takes to fill at most: a clock that starts today does not reach its end.
const LONGEST_FILL: u128 = 2_000_000_000_000_000;

/// Numbers for a limit of this algorithm.
pub(in crate::testing) fn numbers(algorithm: &str, random: &mut Random) -> Numbers {
    let (units, period) = match random.below(8) {
        0..=2 => (
            random.between(1, 20),
            random.pick(&[MS, 7 * MS, 100 * MS, S, 10 * S, 60 * S]),
        ),
        3 | 4 => random.pick(&[
            (7, S),
            (1_000, 420 * S),
            (3, YEAR),
            (999_999_937, YEAR),
            (13, 997 * MS),
            (97, 60 * S),
            (1_000_003, 3_600 * S),
            (17, 1_009 * MS),
            (101, DAY),
        ]),
        5 => random.pick(&[
            (1_000_000_000, MS),
            (1_000_000_000, YEAR),
            (999_999_999, S),
            (1_000_000, 7 * S),
        ]),
        6 => (random.between(1, 5_000), random.between(MS, 2 * MS)),
        _ => (spread(random, 1_000_000_000), MS.max(spread(random, YEAR))),
    };
    let burst = match random.below(4) {
        0 => units,
        1 => random.between(1, 20),
        2 => random.pick(&[1, 2, 97, 65_537, 999_999_937, 1_000_000_000]),
        _ => spread(random, 1_000_000_000),
    };
    let min_interval = match random.below(4) {
        0 => period.min(spread(random, period)),
        1 => period / units,
        _ => 0,
    };
    let shaping = random.one_in(2);
    let drawn = Numbers {
        units,
        period,
        burst,
        min_interval,
        shaping,
    };
    fit(algorithm, drawn)
}

/// New numbers for a limit in use: sometimes one of them, sometimes all. A window keeps its period.
pub(in crate::testing) fn edited(algorithm: &str, old: Numbers, random: &mut Random) -> Numbers {
    let new = numbers(algorithm, random);
    let changed = match random.below(6) {
        0 => new,
        1 => Numbers {
            burst: new.burst,
            min_interval: new.min_interval,
            ..old
        },
        2 => Numbers {
            units: new.units,
            min_interval: 0,
            ..old
        },
        3 => Numbers {
            burst: (old.burst / 2).max(1),
            units: (old.units / 2).max(1),
            ..old
        },
        // The same pace in other words.
        4 if old.units <= 1_000_000 && old.period <= DAY => Numbers {
            units: old.units * 3,
            period: old.period * 3,
            ..old
        },
        _ => Numbers {
            units: (old.units * 2).min(1_000_000_000),
            ..old
        },
    };
    let windowed = [FixedWindow::NAME, SlidingCounter::NAME, SlidingLog::NAME].contains(&algorithm);
    let changed = Numbers {
        period: if windowed { old.period } else { changed.period },
        min_interval: changed.min_interval.min(old.period),
        shaping: old.shaping,
        ..changed
    };
    fit(algorithm, changed)
}

/// The nearest numbers the algorithm can be made with.
fn fit(algorithm: &str, numbers: Numbers) -> Numbers {
    let Numbers {
        mut units,
        mut period,
        burst,
        min_interval,
        shaping,
    } = numbers;
    match algorithm {
        SlidingLog::NAME => units = units.min(SlidingLog::UNITS_MAX),
        Concurrency::NAME => units = units.min(Concurrency::SLOTS_MAX),
        Cell::NAME => {
            period = period.next_multiple_of(S);
            units = units.min(period * 1_000);
        }
        _ => (),
    }
    let most = (LONGEST_FILL * u128::from(units) / u128::from(period)).max(1);
    Numbers {
        units,
        period,
        burst: burst.min(u64::try_from(most).unwrap_or(u64::MAX)),
        min_interval,
        shaping: shaping && algorithm == LeakyBucket::NAME,
    }
}

/// The limit with these numbers.
pub(in crate::testing) fn limit(algorithm: &str, numbers: Numbers) -> Limit {
    let Numbers {
        units,
        period,
        burst,
        min_interval,
        shaping,
    } = numbers;
    let rate = Rate::new(units, Micros::new(period));
    let made = match algorithm {
        TokenBucket::NAME => rate
            .and_then(|rate| TokenBucket::new(rate).with_burst(burst))
            .map(Limit::from),
        Gcra::NAME => rate.and_then(|rate| Gcra::new(rate).with_burst(burst)).map(Limit::from),
        LeakyBucket::NAME => rate
            .and_then(|rate| LeakyBucket::new(rate).with_depth(burst))
            .map(|limit| if shaping { limit.shaping() } else { limit }.into()),
        FixedWindow::NAME => rate.map(|rate| FixedWindow::new(rate).into()),
        SlidingCounter::NAME => rate.map(|rate| SlidingCounter::new(rate).into()),
        SlidingLog::NAME => rate
            .and_then(SlidingLog::new)
            .and_then(|log| log.with_min_interval(Micros::new(min_interval)))
            .map(Limit::from),
        Concurrency::NAME => Concurrency::new(units, Micros::new(period)).map(Limit::from),
        _ => Cell::new(burst - 1, units, period / S).map(Limit::from),
    };
    made.expect("numbers drawn here are in range")
}

/// A number from 1 to `most`, every size about as often.
pub(in crate::testing) fn spread(random: &mut Random, most: u64) -> u64 {
    let bits = random.below(u64::from(most.ilog2()) + 1);
    random.between(1, 2 << bits).min(most)
}
