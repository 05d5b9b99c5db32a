//! Random limits, new numbers for them, and random costs and times for a key under them.

use crate::state::meter::Pace;
use crate::testing::random::Random;
use crate::units::time::Micros;
use crate::{
    Algorithm, Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, Limit, Rate, SlidingCounter, SlidingLog, TokenBucket,
};

/// The numbers of a limit, whatever its algorithm calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitNumbers {
    /// Units per period, or slots.
    pub units: u64,
    /// The period, or how long a lease lasts, in microseconds.
    pub period: u64,
    /// The most at once, for meters.
    pub burst: u64,
    /// The least time between two requests, for the log, in microseconds.
    pub min_interval: u64,
    /// True for a leaky bucket that is a queue.
    pub shaping: bool,
}

const MS: u64 = 1_000;
const S: u64 = 1_000_000;
const DAY: u64 = 86_400 * S;
const YEAR: u64 = 366 * DAY;

/// The longest time to fill a limit from here: a clock that starts today does not reach the last timestamp.
const FILL_TIME_MAX: u128 = 2_000_000_000_000_000;

/// Numbers for a limit of this algorithm.
pub(in crate::testing) fn random_numbers(algorithm: &str, random: &mut Random) -> LimitNumbers {
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
            (10_000_000_000, DAY),
            (4_294_967_295, S),
            (999_999_999_999_999, DAY),
            (1_000_000_000_000, 3_600 * S),
        ]),
        6 => (random.between(1, 5_000), random.between(MS, 2 * MS)),
        _ if random.one_in(2) => (log_uniform(random, Rate::UNITS_MAX), S.max(log_uniform(random, DAY))),
        _ => (log_uniform(random, 1_000_000_000), MS.max(log_uniform(random, YEAR))),
    };
    let burst = match random.below(4) {
        0 => units,
        1 => random.between(1, 20),
        2 => random.pick(&[1, 2, 97, 65_537, 999_999_937, 1_000_000_000, 4_294_967_296]),
        // Products of the oracle with a long period are then still below 2^127.
        _ if period <= DAY => log_uniform(random, Rate::UNITS_MAX),
        _ => log_uniform(random, 1_000_000_000),
    };
    let min_interval = match random.below(4) {
        0 => period.min(log_uniform(random, period)),
        1 => period / units,
        _ => 0,
    };
    let shaping = random.one_in(2);
    let unclamped = LimitNumbers {
        units,
        period,
        burst,
        min_interval,
        shaping,
    };
    clamp_numbers(algorithm, unclamped)
}

/// New numbers for a limit in use: sometimes one of them, sometimes all. A window keeps its period.
pub(in crate::testing) fn edit_numbers(algorithm: &str, old: LimitNumbers, random: &mut Random) -> LimitNumbers {
    let new = random_numbers(algorithm, random);
    let changed = match random.below(6) {
        0 => new,
        1 => LimitNumbers {
            burst: new.burst,
            min_interval: new.min_interval,
            ..old
        },
        2 => LimitNumbers {
            units: new.units,
            min_interval: 0,
            ..old
        },
        3 => LimitNumbers {
            burst: (old.burst / 2).max(1),
            units: (old.units / 2).max(1),
            ..old
        },
        // The same pace in other numbers.
        4 if old.units <= 1_000_000 && old.period <= DAY => LimitNumbers {
            units: old.units * 3,
            period: old.period * 3,
            ..old
        },
        _ => LimitNumbers {
            units: (old.units * 2).min(Rate::UNITS_MAX),
            ..old
        },
    };
    let has_window = [FixedWindow::NAME, SlidingCounter::NAME, SlidingLog::NAME].contains(&algorithm);
    let changed = LimitNumbers {
        period: if has_window { old.period } else { changed.period },
        min_interval: changed.min_interval.min(old.period),
        shaping: old.shaping,
        ..changed
    };
    clamp_numbers(algorithm, changed)
}

/// The closest numbers that the algorithm accepts.
fn clamp_numbers(algorithm: &str, numbers: LimitNumbers) -> LimitNumbers {
    let LimitNumbers {
        mut units,
        mut period,
        burst,
        min_interval,
        shaping,
    } = numbers;
    // Products of the oracle with a long period are then still below 2^127.
    let most = if period > DAY { 1_000_000_000 } else { Rate::UNITS_MAX };
    let burst = burst.min(most);
    units = units.min(most).min(period.saturating_mul(1_000_000_000));
    match algorithm {
        SlidingLog::NAME => units = units.min(SlidingLog::UNITS_MAX),
        Concurrency::NAME => units = units.min(Concurrency::SLOTS_MAX),
        Cell::NAME => {
            period = period.next_multiple_of(S);
            // Between a nanosecond and the longest interval that is decided in microseconds.
            units = units.clamp(((period * 1_000) >> 53) + 1, period * 1_000);
        }
        // What a pace holds exactly: not more parts in lowest terms.
        TokenBucket::NAME | Gcra::NAME | LeakyBucket::NAME => {
            let common = units.div_ceil(Pace::PARTS_MAX);
            units -= units % common;
            period = period.next_multiple_of(common);
        }
        _ => (),
    }
    let burst_max = (FILL_TIME_MAX * u128::from(units) / u128::from(period)).max(1);
    LimitNumbers {
        units,
        period,
        burst: burst.min(u64::try_from(burst_max).unwrap_or(u64::MAX)),
        min_interval,
        shaping: shaping && algorithm == LeakyBucket::NAME,
    }
}

/// The limit with these numbers.
pub(in crate::testing) fn build_limit(algorithm: &str, numbers: LimitNumbers) -> Limit {
    let LimitNumbers {
        units,
        period,
        burst,
        min_interval,
        shaping,
    } = numbers;
    let rate = Rate::new(units, Micros::new(period));
    let limit = match algorithm {
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
    limit.expect("generated numbers are in range")
}

/// A number from 1 to `max`, each order of magnitude about equally often.
pub(in crate::testing) fn log_uniform(random: &mut Random, max: u64) -> u64 {
    let bits = random.below(u64::from(max.ilog2()) + 1);
    random.between(1, 2 << bits).min(max)
}

/// A cost at an edge: what remains, one more, the capacity, one more than that; or a random one.
pub(in crate::testing) fn random_cost(random: &mut Random, small: bool, capacity: u64, remaining: u64) -> u64 {
    let cost = if small && !random.one_in(8) {
        random.between(1, 3)
    } else {
        match random.below(12) {
            0..=3 => 1,
            4 => random.between(1, 5),
            5 => remaining,
            6 => remaining + 1,
            7 => remaining / 2,
            8 => random.below(capacity + 2),
            9 => log_uniform(random, capacity),
            10 => capacity + random.below(2),
            _ => log_uniform(random, 1_000_000_000),
        }
    };
    cost.clamp(1, Rate::UNITS_MAX)
}

/// The clock of one key: where it is, and what its next move is measured by.
pub(in crate::testing) struct RandomClock {
    pub(in crate::testing) now: u64,
    /// The time of the last write.
    pub(in crate::testing) written_at: u64,
    /// The time at which the key is fresh.
    pub(in crate::testing) fresh_at: Option<u64>,
    pub(in crate::testing) slack: u64,
}

impl RandomClock {
    /// The next time of the clock: mostly later, sometimes earlier.
    pub(in crate::testing) fn next(&self, random: &mut Random, numbers: LimitNumbers) -> u64 {
        let LimitNumbers {
            units, period, burst, ..
        } = numbers;
        let Self {
            now, written_at, slack, ..
        } = *self;
        let one = (period / units).max(1);
        let fill = u64::try_from(u128::from(burst) * u128::from(period) / u128::from(units)).unwrap_or(period);
        match random.below(20) {
            0 => now + 1,
            1 | 2 => now + random.below(4 * one + 2),
            3 => now + one * random.between(1, 3),
            4 | 5 => now + random.below(period / 8 + 2),
            6 => now + random.below(period + 1),
            7 if random.one_in(3) => now + random.below(3 * period),
            7 => now + log_uniform(random, period),
            8 if random.one_in(3) => now + random.below(fill + 2),
            // A window boundary, and a microsecond to either side.
            9 => (now / period + 1) * period - 1 + random.below(3),
            // The time at which the key is fresh, and a microsecond to either side.
            10 => match self.fresh_at {
                Some(fresh_at) if fresh_at > now => fresh_at - 1 + random.below(3),
                _ => now + 1,
            },
            11 => written_at.saturating_sub(random.below(slack + 1)),
            12 => written_at.saturating_sub(slack),
            13 if random.one_in(4) => written_at.saturating_sub(slack + 1),
            13 if random.one_in(4) => written_at.saturating_sub(slack + random.below(2 * period)),
            14 => now.saturating_sub(random.below(slack / 2 + 1)),
            _ => now,
        }
    }
}
