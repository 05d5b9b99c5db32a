//! Nanoseconds per decision of each algorithm by number of live keys.

use super::keys::{RUN, key, shuffled, write_key};
use super::{ROUND, progress};
use crate::measurement::median;
use std::time::{Duration, Instant};
use tollgate_core::testing::random::Random;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{self, Cell, Cost, Limit, LimitError, Micros, Timestamp};
use tollgate_limiter::limits::{
    Concurrency, FixedWindow, Gcra, IntoLimit, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket,
};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::testing::counters::named_limit;
use tollgate_limiter::{ConcurrencyLimit, Limiter, NamedLimit};

/// One algorithm at one number of live keys.
pub(crate) struct Growth {
    pub(crate) algorithm: &'static str,
    pub(crate) keys: usize,
    pub(crate) ns: f64,
}

/// Notes on algorithms whose figure is not one allowed decision on the machine's clock.
pub(crate) const NOTES: [(&str, &str); 2] = [
    (
        SLIDING_LOG,
        "100 per minute, 8 in the log, and one leaves for each admitted one: its clock is moved by hand",
    ),
    (
        CONCURRENCY,
        "acquire and release: two steps; one more slot of each key is held",
    ),
];

const SLIDING_LOG: &str = "sliding_log";
const CONCURRENCY: &str = "concurrency";
const ROUNDS: usize = 15;
/// The maximum number of checked keys; with more live keys, a random selection.
const CHECKED_KEYS_MAX: usize = 1_000_000;
/// Entries in a log.
const LOGGED: usize = 8;
const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Micros = Micros::from_secs(60);
/// As with the peers: enough capacity that all are allowed, and enough usage that no key is idle.
const CAPACITY: u64 = 1_000_000_000;
const USED: u64 = 1_000_000;
const SLOTS: u64 = 100;

pub(crate) fn measure(quick: bool) -> Vec<Growth> {
    let largest = if quick { 1_000_000 } else { 10_000_000 };
    let sizes = [1, 1_000, 100_000, largest];
    let mut rows = Vec::new();
    let bucket = TokenBucket::per_second(1).burst(CAPACITY);
    rows.extend(grow("token_bucket", sizes, bucket.into_limit()));
    rows.extend(grow("gcra", sizes, Gcra::per_second(1).burst(CAPACITY).into_limit()));
    rows.extend(grow("fixed_window", sizes, FixedWindow::per_day(CAPACITY).into_limit()));
    let counter = SlidingCounter::per_day(CAPACITY);
    rows.extend(grow("sliding_counter", sizes, counter.into_limit()));
    rows.extend(grow(SLIDING_LOG, sizes, SlidingLog::per_minute(100).into_limit()));
    let bucket = LeakyBucket::per_second(1).depth(CAPACITY);
    rows.extend(grow("leaky_bucket", sizes, bucket.into_limit()));
    let slots = core::Concurrency::new(SLOTS, DAY.into());
    rows.extend(grow(CONCURRENCY, sizes, slots.map(Limit::from)));
    rows.extend(grow("cell", sizes, Cell::new(CAPACITY - 1, 1, 1).map(Limit::from)));
    rows
}

/// Measures all sizes of one algorithm, alternating.
fn grow(algorithm: &'static str, sizes: [usize; 4], limit: Result<Limit, LimitError>) -> Vec<Growth> {
    let limit = limit.expect("the numbers are in range");
    progress(&format!("by_keys: {algorithm}"));
    let mut subjects: Vec<Subject> = sizes.iter().map(|&live| Subject::new(algorithm, live, limit)).collect();
    for _ in 0..ROUNDS {
        for subject in &mut subjects {
            subject.round();
        }
    }
    let rows = subjects.into_iter().map(|subject| Growth {
        algorithm,
        keys: subject.live,
        ns: median(subject.rounds),
    });
    rows.collect()
}

/// A store with a number of live keys under one limit.
struct Subject {
    live: usize,
    limiter: Limiter,
    rule: NamedLimit,
    /// The limit whose slots are acquired.
    slots: ConcurrencyLimit,
    /// The keys to check, in order.
    keys: Vec<String>,
    at: usize,
    operation: fn(&Self, &str) -> bool,
    /// A manual clock, and its step per check.
    clock: Clock,
    step: Micros,
    rounds: Vec<f64>,
}

impl Subject {
    fn new(algorithm: &'static str, live: usize, limit: Limit) -> Self {
        // At least one run, so that few keys are checked in the same way as many.
        let keys = match live {
            1 => vec![key(0); RUN],
            ..=CHECKED_KEYS_MAX => shuffled(live, 1),
            _ => {
                let mut random = Random::new(1);
                (0..CHECKED_KEYS_MAX)
                    .map(|_| key(random.below(live as u64) as usize))
                    .collect()
            }
        };
        let clock = if algorithm == SLIDING_LOG {
            Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
        } else {
            Clock::start(Timestamp::EPOCH)
        };
        let memory = Memory::options().max_memory(16 << 30).clock(clock.clone()).build();
        let limiter = Limiter::new(memory);
        let rule = named_limit(&limiter, "bench", limit);
        let slots = Concurrency::at_most(SLOTS).lease_ttl(DAY);
        let slots = limiter.concurrency("bench", slots).expect("the numbers are in range");
        let distinct = live.min(CHECKED_KEYS_MAX) as u64;
        let subject = Self {
            live,
            limiter,
            rule,
            slots,
            keys,
            at: 0,
            operation: match algorithm {
                SLIDING_LOG => Self::move_clock_and_check,
                CONCURRENCY => Self::acquire_and_release,
                _ => Self::check,
            },
            clock,
            step: Micros::new(MINUTE.get() / LOGGED as u64 / distinct),
            rounds: Vec::new(),
        };
        subject.fill(algorithm);
        subject
    }

    fn check(&self, key: &str) -> bool {
        self.limiter.check(&self.rule, key).is_allow()
    }

    fn move_clock_and_check(&self, key: &str) -> bool {
        self.clock.advance(self.step);
        self.check(key)
    }

    fn acquire_and_release(&self, key: &str) -> bool {
        self.limiter.acquire(&self.slots, key).is_ok()
    }

    /// Charges every key once, so that all are live.
    fn fill(&self, algorithm: &'static str) {
        let used = Cost::new(USED).expect("the numbers are in range");
        let mut key = String::new();
        for number in 0..self.live {
            write_key(&mut key, number);
            let filled = match algorithm {
                SLIDING_LOG => self.check(&key),
                CONCURRENCY => self.limiter.acquire(&self.slots, &key).map(std::mem::forget).is_ok(),
                _ => self.limiter.check_cost(&self.rule, &key, used).is_allow(),
            };
            assert!(filled, "{algorithm} had no room for a new key");
        }
        if algorithm == SLIDING_LOG {
            for key in self.keys.iter().cycle().take(self.keys.len() * LOGGED) {
                assert!(
                    self.move_clock_and_check(key),
                    "{algorithm} refused a key while its log was filled"
                );
            }
        }
        assert_eq!(self.limiter.store().usage().keys, self.live, "live keys of {algorithm}");
    }

    fn round(&mut self) {
        let started = Instant::now();
        let (mut checked, mut allowed) = (0, 0);
        let (ask, runs) = (self.operation, self.keys.len() / RUN);
        while started.elapsed() < ROUND {
            let keys = self.keys.chunks_exact(RUN).nth(self.at % runs).unwrap_or_default();
            allowed += keys.iter().filter(|key| ask(self, key)).count();
            checked += keys.len();
            self.at += 1;
        }
        let ns = started.elapsed().as_nanos() as f64 / checked as f64;
        assert_eq!(allowed, checked, "all decisions are to be allowed");
        self.rounds.push(ns);
    }
}
