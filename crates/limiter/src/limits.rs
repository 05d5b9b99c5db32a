//! Limits as a program writes them: `TokenBucket::per_minute(100).burst(20)`.
//!
//! Each is a builder: its numbers are checked when a limit is made of it, so there is one place to handle an error.

use std::time::Duration;
use tollgate_core::{self as core, Limit, LimitError, Micros, Rate};

/// A value that a limit can be made of.
pub trait IntoLimit {
    /// Returns the limit.
    ///
    /// # Errors
    /// Numbers out of range.
    fn into_limit(self) -> Result<Limit, LimitError>;
}

impl<L: Into<Limit>> IntoLimit for L {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(self.into())
    }
}

/// `units` per `period`.
#[derive(Clone, Copy, Debug)]
struct Per {
    units: u64,
    period: Micros,
}

impl Per {
    fn rate(self) -> Result<Rate, LimitError> {
        Rate::new(self.units, self.period)
    }
}

/// The constructors by a rate.
macro_rules! rates {
    ($draft:ident { $($field:ident: $default:expr),* }) => {
        impl $draft {
            /// `units` in each second.
            pub const fn per_second(units: u64) -> Self {
                Self::per(units, Duration::from_secs(1))
            }

            /// `units` in each minute.
            pub const fn per_minute(units: u64) -> Self {
                Self::per(units, Duration::from_secs(60))
            }

            /// `units` in each hour.
            pub const fn per_hour(units: u64) -> Self {
                Self::per(units, Duration::from_secs(3_600))
            }

            /// `units` in each day.
            pub const fn per_day(units: u64) -> Self {
                Self::per(units, Duration::from_secs(86_400))
            }

            /// `units` in each `period`, counted in whole microseconds.
            pub const fn per(units: u64, period: Duration) -> Self {
                let us = period.as_micros();
                let us = if us > u64::MAX as u128 { u64::MAX } else { us as u64 };
                Self { per: Per { units, period: Micros::new(us) }, $($field: $default),* }
            }
        }
    };
}

/// A token bucket: see [`core::TokenBucket`].
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    per: Per,
    burst: Option<u64>,
}

rates!(TokenBucket { burst: None });

impl TokenBucket {
    /// The capacity. By default the units of one period.
    pub const fn burst(self, units: u64) -> Self {
        Self {
            burst: Some(units),
            ..self
        }
    }
}

impl IntoLimit for TokenBucket {
    fn into_limit(self) -> Result<Limit, LimitError> {
        let bucket = core::TokenBucket::new(self.per.rate()?);
        self.burst
            .map_or(Ok(bucket), |burst| bucket.with_burst(burst))
            .map(Limit::from)
    }
}

/// GCRA: see [`core::Gcra`].
#[derive(Clone, Copy, Debug)]
pub struct Gcra {
    per: Per,
    burst: Option<u64>,
}

rates!(Gcra { burst: None });

impl Gcra {
    /// The largest burst. By default the units of one period.
    pub const fn burst(self, units: u64) -> Self {
        Self {
            burst: Some(units),
            ..self
        }
    }
}

impl IntoLimit for Gcra {
    fn into_limit(self) -> Result<Limit, LimitError> {
        let gcra = core::Gcra::new(self.per.rate()?);
        self.burst
            .map_or(Ok(gcra), |burst| gcra.with_burst(burst))
            .map(Limit::from)
    }
}

/// A leaky bucket: see [`core::LeakyBucket`].
#[derive(Clone, Copy, Debug)]
pub struct LeakyBucket {
    per: Per,
    depth: Option<u64>,
    shaping: bool,
}

rates!(LeakyBucket {
    depth: None,
    shaping: false
});

impl LeakyBucket {
    /// The capacity. By default the units of one period.
    pub const fn depth(self, units: u64) -> Self {
        Self {
            depth: Some(units),
            ..self
        }
    }

    /// Shapes requests: an allowed request gets a delay to wait for.
    pub const fn shaping(self) -> Self {
        Self { shaping: true, ..self }
    }
}

impl IntoLimit for LeakyBucket {
    fn into_limit(self) -> Result<Limit, LimitError> {
        let bucket = core::LeakyBucket::new(self.per.rate()?);
        let bucket = self.depth.map_or(Ok(bucket), |depth| bucket.with_depth(depth))?;
        Ok(if self.shaping { bucket.shaping() } else { bucket }.into())
    }
}

/// A fixed window: see [`core::FixedWindow`].
#[derive(Clone, Copy, Debug)]
pub struct FixedWindow {
    per: Per,
}

rates!(FixedWindow {});

impl IntoLimit for FixedWindow {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(core::FixedWindow::new(self.per.rate()?).into())
    }
}

/// A sliding window counter: see [`core::SlidingCounter`].
#[derive(Clone, Copy, Debug)]
pub struct SlidingCounter {
    per: Per,
}

rates!(SlidingCounter {});

impl IntoLimit for SlidingCounter {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(core::SlidingCounter::new(self.per.rate()?).into())
    }
}

/// A sliding window log: see [`core::SlidingLog`].
#[derive(Clone, Copy, Debug)]
pub struct SlidingLog {
    per: Per,
    min_interval: Duration,
}

rates!(SlidingLog {
    min_interval: Duration::ZERO
});

impl SlidingLog {
    /// The shortest time between two allowed requests.
    pub const fn min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }
}

impl IntoLimit for SlidingLog {
    fn into_limit(self) -> Result<Limit, LimitError> {
        let log = core::SlidingLog::new(self.per.rate()?)?;
        log.with_min_interval(self.min_interval.into()).map(Limit::from)
    }
}

/// A concurrency limit: see [`core::Concurrency`].
#[derive(Clone, Copy, Debug)]
pub struct Concurrency {
    slots: u64,
    lease_ttl: Duration,
}

impl Concurrency {
    /// At most `slots` in flight.
    pub const fn at_most(slots: u64) -> Self {
        Self {
            slots,
            lease_ttl: Duration::from_secs(60),
        }
    }

    /// The lifetime of a lease that is neither released nor renewed. 60 seconds by default.
    pub const fn lease_ttl(self, lease_ttl: Duration) -> Self {
        Self { lease_ttl, ..self }
    }
}

impl IntoLimit for Concurrency {
    fn into_limit(self) -> Result<Limit, LimitError> {
        core::Concurrency::new(self.slots, self.lease_ttl.into()).map(Limit::from)
    }
}
