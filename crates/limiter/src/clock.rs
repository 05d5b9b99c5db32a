//! The only file that reads a clock for decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_core::{Micros, Timestamp};

/// A clock that never steps: the wall clock when it was started, plus the monotonic time since.
///
/// A step of the wall clock while the program runs changes nothing here, so no limit refills at once and none locks up.
/// In exchange it drifts from the wall clock, as the machine's oscillator does.
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
        // Measured over 2^40 ticks, some minutes: the truncated nanosecond is then a microsecond in days.
        const TICKS: u32 = 40;
        let us_per_tick = (u128::from(clock.delta_as_nanos(0, 1 << TICKS)) << (u64::BITS - TICKS)) / 1_000;
        Self(Kind::Running {
            clock,
            started_ticks,
            origin_us: wall.as_micros().max(not_before.as_micros()),
            us_per_tick: u64::try_from(us_per_tick).expect("a tick is far shorter than a microsecond"),
        })
    }

    /// The machine's wall clock, steps included: for counts shared with services that use theirs.
    pub const fn wall() -> Self {
        Self(Kind::Wall)
    }

    /// A clock that only moves when advanced, for tests and simulations.
    pub fn manual(at: Timestamp) -> Self {
        Self(Kind::Manual(Arc::new(AtomicU64::new(at.as_micros()))))
    }

    /// The same clock, no earlier than `time`: a running one is started again, a manual one is moved.
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

    /// Sets a manual clock, also backwards: as seen by a thread that read the time and then waited.
    #[cfg(test)]
    pub(crate) fn set(&self, at: Timestamp) {
        if let Kind::Manual(us) = &self.0 {
            us.store(at.as_micros(), Ordering::SeqCst);
        }
    }

    /// Advances a manual clock. Does nothing to any other.
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
                // One multiplication; the conversion of `quanta` takes two and a variable shift.
                let ticks = clock.raw().saturating_sub(*began);
                let elapsed_us = ((u128::from(ticks) * u128::from(*us_per_tick)) >> u64::BITS) as u64;
                Timestamp::from_micros(origin_us.saturating_add(elapsed_us))
            }
            Kind::Manual(us) => Timestamp::from_micros(us.load(Ordering::SeqCst)),
            Kind::Wall => wall(),
        }
    }
}

/// The time of the machine's wall clock, which may step at any time.
#[expect(clippy::disallowed_methods, reason = "the only place that reads the wall clock")]
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::EPOCH + since.map_or(Micros::ZERO, Micros::from)
}

/// Measures durations: for metrics, never for decisions.
#[derive(Clone, Debug)]
pub struct Stopwatch(quanta::Clock);

/// The start of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct StartTime(u64);

impl Stopwatch {
    /// A stopwatch, to be kept and started often.
    pub fn new() -> Self {
        Self(quanta::Clock::new())
    }

    /// Starts a measurement.
    #[inline]
    pub fn start(&self) -> StartTime {
        StartTime(self.0.raw())
    }

    /// The nanoseconds since then.
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
            // Behind by one for rounding, and by 10^-9.
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
