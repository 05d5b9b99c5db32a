//! The only file that reads a clock for decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_core::{Micros, Timestamp};

/// A clock that never steps: the wall clock when it was started, plus the monotonic time since.
///
/// A wall clock set forward or back while the program runs changes nothing here, so no limit refills at once and none
/// locks up. The price is that it drifts from the wall clock, by what the machine's oscillator drifts.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Running {
        clock: quanta::Clock,
        started_ticks: u64,
        origin_us: u64,
        /// Microseconds per tick, times 2^64.
        us_per_tick: u64,
    },
    Manual(Arc<AtomicU64>),
    Wall,
}

impl Clock {
    /// Starts at the wall clock's time, or at `not_before` if that is later.
    pub fn start(not_before: Timestamp) -> Self {
        let wall = wall();
        let clock = quanta::Clock::new();
        let started_ticks = clock.raw();
        // Asked over 2^40 ticks, some minutes: the nanosecond that may be cut off then is a microsecond in days.
        const TICKS: u32 = 40;
        let us_per_tick = (u128::from(clock.delta_as_nanos(0, 1 << TICKS)) << (u64::BITS - TICKS)) / 1_000;
        Self(Kind::Running {
            clock,
            started_ticks,
            origin_us: wall.as_micros().max(not_before.as_micros()),
            us_per_tick: u64::try_from(us_per_tick).expect("a tick is far shorter than a microsecond"),
        })
    }

    /// The machine's wall clock, also where it is set while the program runs: for counting together with others who go by
    /// theirs.
    pub const fn wall() -> Self {
        Self(Kind::Wall)
    }

    /// A clock that stands still until it is moved: for tests and simulations.
    pub fn manual(at: Timestamp) -> Self {
        Self(Kind::Manual(Arc::new(AtomicU64::new(at.as_micros()))))
    }

    /// The same clock, started anew if it stands before `moment`: a stopped one is moved there.
    pub(crate) fn not_before(self, time: Timestamp) -> Self {
        match &self.0 {
            Kind::Running { .. } => Self::start(time),
            Kind::Manual(us) => {
                us.fetch_max(time.as_micros(), Ordering::SeqCst);
                self
            }
            Kind::Wall => self,
        }
    }

    /// Sets a stopped clock, back too: what a thread sees that read the time and then had to wait.
    #[cfg(test)]
    pub(crate) fn set(&self, at: Timestamp) {
        if let Kind::Manual(us) = &self.0 {
            us.store(at.as_micros(), Ordering::SeqCst);
        }
    }

    /// Moves a stopped clock on; one that runs is left alone.
    pub fn advance(&self, by: Micros) {
        if let Kind::Manual(us) = &self.0 {
            us.fetch_add(by.get(), Ordering::SeqCst);
        }
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::Running {
                clock,
                started_ticks: began,
                origin_us,
                us_per_tick,
            } => {
                // One product, where the clock's own way to microseconds takes two and a shift by a variable.
                let ticks = clock.raw().saturating_sub(*began);
                let elapsed_us = ((u128::from(ticks) * u128::from(*us_per_tick)) >> u64::BITS) as u64;
                Timestamp::from_micros(origin_us.saturating_add(elapsed_us))
            }
            Kind::Manual(us) => Timestamp::from_micros(us.load(Ordering::SeqCst)),
            Kind::Wall => wall(),
        }
    }
}

/// What the machine's wall clock shows. It may be set at any time.
#[expect(
    clippy::disallowed_methods,
    reason = "here, and nowhere else, the wall clock is asked"
)]
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::EPOCH + since.map_or(Micros::ZERO, Micros::from)
}

/// Measures how long something took: for figures, never for decisions.
#[derive(Clone, Debug)]
pub struct Stopwatch(quanta::Clock);

/// When a stopwatch was started.
#[derive(Clone, Copy, Debug)]
pub struct StartTime(u64);

impl Stopwatch {
    /// One to be kept and started often.
    pub fn new() -> Self {
        Self(quanta::Clock::new())
    }

    /// Starts.
    #[inline]
    pub fn start(&self) -> StartTime {
        StartTime(self.0.raw())
    }

    /// How long ago that was, in nanoseconds.
    #[inline]
    pub fn elapsed_ns(&self, started: StartTime) -> u64 {
        self.0.delta_as_nanos(started.0, self.0.raw())
    }
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_on_from_the_wall_clock_or_from_where_it_was() {
        let early = Clock::start(Timestamp::EPOCH).now();
        let late = early + Micros::from_secs(3_600);
        assert!(early > Timestamp::from_micros(1_700_000_000_000_000));
        assert!(Clock::start(late).now() >= late);
    }

    #[test]
    fn runs_as_fast_as_the_clock_it_reads() {
        let Clock(Kind::Running { clock, us_per_tick, .. }) = Clock::start(Timestamp::EPOCH) else {
            panic!("a started clock runs");
        };
        for ticks in [1, 1_000, 1 << 30, 1 << 40, 1 << 55] {
            let theirs = clock.delta_as_nanos(0, ticks) / 1_000;
            let ours = ((u128::from(ticks) * u128::from(us_per_tick)) >> 64) as u64;
            // Behind by one for rounding, and by a thousand millionth.
            assert!(
                ours <= theirs && theirs - ours <= 1 + theirs / 1_000_000_000,
                "{ours} and {theirs} us"
            );
        }
    }

    #[test]
    fn never_runs_back() {
        let clock = Clock::start(Timestamp::EPOCH);
        let times: Vec<Timestamp> = (0..100_000).map(|_| clock.now()).collect();
        assert!(times.is_sorted());
    }

    #[test]
    fn stands_still_until_it_is_moved() {
        let clock = Clock::manual(Timestamp::from_micros(5));
        let other = clock.clone();
        assert_eq!(clock.now(), other.now());
        other.advance(Micros::ONE);
        assert_eq!(clock.now(), Timestamp::from_micros(6));
    }
}
