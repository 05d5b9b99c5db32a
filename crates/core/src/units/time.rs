//! Time in whole microseconds: always an argument, never read here.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on the store's clock, in microseconds since the Unix epoch.
///
/// Always below 2^53, so that Lua's doubles hold it exactly. Only a store creates one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A length of time in whole microseconds, below 2^53 like [`Timestamp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

/// The moment of one settlement, with the slack that separates a late clock from one that was set back.
///
/// A key has the time of its last write. A `now` before that by no more than the slack counts as that time; one further
/// back is a step of the clock, and the key is moved to the new time with everything that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    at: Timestamp,
    slack: Micros,
}

/// The clock as seen by one key: the time to decide at, and how far the key's own times must be set back first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(crate) now: Timestamp,
    /// Zero unless the clock was set back.
    pub(crate) back: Micros,
}

/// The first value that is out of bounds for times and states.
const END: u64 = 1 << 53;

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last moment: 2^53 − 1 µs.
    pub const MAX: Self = Self(END - 1);

    /// The moment `us` microseconds after the epoch, capped at [`Timestamp::MAX`].
    pub const fn from_micros(us: u64) -> Self {
        if us < END { Self(us) } else { Self::MAX }
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Micros {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// One microsecond, the resolution of every decision.
    pub const ONE: Self = Self(1);
    /// The longest time: 2^53 − 1 µs, about 285 years.
    pub const MAX: Self = Self(END - 1);

    /// `us` microseconds, capped at [`Micros::MAX`].
    pub const fn new(us: u64) -> Self {
        if us < END { Self(us) } else { Self::MAX }
    }

    /// `ms` milliseconds, capped at [`Micros::MAX`].
    pub const fn from_millis(ms: u64) -> Self {
        Self::new(ms.saturating_mul(1_000))
    }

    /// `s` seconds, capped at [`Micros::MAX`].
    pub const fn from_secs(s: u64) -> Self {
        Self::new(s.saturating_mul(1_000_000))
    }

    /// The number of microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The same rounded up for people to read: to milliseconds below ten seconds, otherwise to seconds.
    pub const fn round_for_display(self) -> Self {
        let unit = if self.0 < 10_000_000 { 1_000 } else { 1_000_000 };
        Self::new(self.0.div_ceil(unit) * unit)
    }

    /// Whole milliseconds, rounded up so that a caller who waits that long is not early.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl Now {
    /// The default slack: one second.
    pub const SLACK: Micros = Micros::from_secs(1);
    /// The last `now` to which the longest limit can be added: 2^52 − 1 µs, in the year 2112.
    pub const MAX: Timestamp = Timestamp((1 << 52) - 1);

    /// Now is `at`, capped at [`Now::MAX`], with the default slack.
    pub const fn new(at: Timestamp) -> Self {
        Self {
            at: if at.0 < Self::MAX.0 { at } else { Self::MAX },
            slack: Self::SLACK,
        }
    }

    /// The same moment with another slack, which should be at least the skew tolerated between clocks.
    pub const fn with_slack(self, slack: Micros) -> Self {
        Self { slack, ..self }
    }

    /// The moment.
    pub const fn at(self) -> Timestamp {
        self.at
    }

    /// Reconciles this moment with a key that was last written at `written_at`, or never.
    #[inline]
    pub(crate) fn reconcile(self, written_at: Option<Timestamp>) -> ClockReading {
        let written_at = written_at.unwrap_or(self.at);
        let back = written_at.since(self.at);
        if back > self.slack {
            ClockReading { now: self.at, back }
        } else {
            ClockReading {
                now: self.at.max(written_at),
                back: Micros::ZERO,
            }
        }
    }
}

impl From<Timestamp> for Now {
    fn from(at: Timestamp) -> Self {
        Self::new(at)
    }
}

impl Add<Micros> for Timestamp {
    type Output = Self;

    fn add(self, span: Micros) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Micros> for Timestamp {
    type Output = Self;

    /// Earlier by `span`, but never before the epoch.
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl From<Duration> for Micros {
    /// Rounded up to a whole microsecond, capped at [`Micros::MAX`].
    fn from(duration: Duration) -> Self {
        let us = duration.as_nanos().div_ceil(1_000);
        u64::try_from(us).map_or(Self::MAX, Self::new)
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

impl fmt::Display for Micros {
    /// In the largest unit that divides it: `90s`, `1500us`, `7min`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (86_400_000_000, "day"),
            (3_600_000_000, "h"),
            (60_000_000, "min"),
            (1_000_000, "s"),
            (1_000, "ms"),
        ];
        for (size, name) in UNITS {
            if self.0 >= size && self.0.is_multiple_of(size) {
                return write!(f, "{}{name}", self.0 / size);
            }
        }
        write!(f, "{}us", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Timestamp {
        Timestamp::from_micros(us)
    }

    #[test]
    fn a_little_late_counts_as_the_last_write_and_further_back_is_a_step() {
        let written_at = at(10_000_000);
        let reconcile = |us| Now::new(at(us)).reconcile(Some(written_at));
        let reading = |now, back| ClockReading {
            now: at(now),
            back: Micros::new(back),
        };
        assert_eq!(reconcile(12_000_000), reading(12_000_000, 0));
        assert_eq!(reconcile(9_999_999), reading(10_000_000, 0));
        assert_eq!(reconcile(9_000_000), reading(10_000_000, 0));
        assert_eq!(reconcile(8_999_999), reading(8_999_999, 1_000_001));
    }

    #[test]
    fn nothing_leaves_the_range_of_a_double() {
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX + Micros::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH - Micros::ONE, Timestamp::EPOCH);
        assert_eq!(Micros::from(Duration::MAX), Micros::MAX);
        assert_eq!(Now::new(Timestamp::MAX).at(), Now::MAX);
        assert!(Now::MAX + Micros::new(1 << 52) <= Timestamp::MAX);
        assert_eq!(
            Now::new(at(7)).reconcile(None),
            ClockReading {
                now: at(7),
                back: Micros::ZERO
            }
        );
    }

    #[test]
    fn durations_round_up_and_read_well() {
        assert_eq!(Micros::from(Duration::from_nanos(1)), Micros::ONE);
        assert_eq!(Micros::new(2_001).as_millis_ceil(), 3);
        for (span, text) in [
            (Micros::from_secs(90), "90s"),
            (Micros::from_secs(420), "7min"),
            (Micros::from_secs(86_400), "1day"),
            (Micros::new(1_500), "1500us"),
            (Micros::ZERO, "0us"),
        ] {
            assert_eq!(span.to_string(), text);
        }
    }
}
