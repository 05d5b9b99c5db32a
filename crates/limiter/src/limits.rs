//! Limits as a program writes them: `TokenBucket::per_minute(100).burst(20)`.
//!
//! Each is a builder: its numbers are checked when a limit is made of it, so there is one place to handle an error.

use std::time::Duration;
use tollgate_core::{self as core, Limit, LimitError, Micros, Rate};

/// A value that a limit can be made of. [`Concurrency`] is not one: [`Limiter::concurrency`](crate::Limiter::concurrency)
/// takes it, because a slot is held by a permit.
pub trait IntoLimit {
    /// Returns the limit.
    ///
    /// # Errors
    /// Numbers out of range.
    fn into_limit(self) -> Result<Limit, LimitError>;
}

/// A limit chosen at run time. One of concurrency is an error: its slots need a permit.
impl IntoLimit for Limit {
    fn into_limit(self) -> Result<Limit, LimitError> {
        match self {
            Self::Concurrency(_) => Err(LimitError::WithoutPermit),
            limit => Ok(limit),
        }
    }
}

macro_rules! core_limits {
    ($($limit:ident),*) => {
        $(impl IntoLimit for core::$limit {
            fn into_limit(self) -> Result<Limit, LimitError> {
                Ok(self.into())
            }
        })*
    };
}

core_limits!(
    TokenBucket,
    Gcra,
    LeakyBucket,
    FixedWindow,
    SlidingCounter,
    SlidingLog,
    Cell
);

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

/// A limit by a rate and a burst.
macro_rules! burst_limit {
    ($(#[$doc:meta])* $draft:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $draft {
            per: Per,
            burst: Option<u64>,
        }

        rates!($draft { burst: None });

        impl $draft {
            /// The largest burst, which is the capacity. By default the units of one period.
            pub const fn burst(self, units: u64) -> Self {
                Self { burst: Some(units), ..self }
            }
        }

        impl IntoLimit for $draft {
            fn into_limit(self) -> Result<Limit, LimitError> {
                let limit = core::$draft::new(self.per.rate()?);
                Ok(match self.burst {
                    Some(burst) => limit.with_burst(burst)?.into(),
                    None => limit.into(),
                })
            }
        }
    };
}

burst_limit! {
    /// A token bucket: see [`core::TokenBucket`].
    TokenBucket
}

burst_limit! {
    /// GCRA: see [`core::Gcra`].
    Gcra
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

/// A limit by a rate alone.
macro_rules! rate_limit {
    ($(#[$doc:meta])* $draft:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $draft {
            per: Per,
        }

        rates!($draft {});

        impl IntoLimit for $draft {
            fn into_limit(self) -> Result<Limit, LimitError> {
                Ok(core::$draft::new(self.per.rate()?).into())
            }
        }
    };
}

rate_limit! {
    /// A fixed window: see [`core::FixedWindow`].
    FixedWindow
}

rate_limit! {
    /// A sliding window counter: see [`core::SlidingCounter`].
    SlidingCounter
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

/// A value that a limit of any kind can be made of: for those who hold the permit of a slot themselves.
pub trait IntoAnyLimit {
    /// Returns the limit, or the concurrency limit to make.
    ///
    /// # Errors
    /// Numbers out of range.
    fn into_any_limit(self) -> Result<AnyLimit, LimitError>;
}

/// A limit of any kind.
#[derive(Clone, Copy, Debug)]
pub enum AnyLimit {
    /// A limit that is charged.
    Charged(Limit),
    /// A limit whose slots are held.
    Held(Concurrency),
}

impl<T: IntoLimit> IntoAnyLimit for T {
    fn into_any_limit(self) -> Result<AnyLimit, LimitError> {
        self.into_limit().map(AnyLimit::Charged)
    }
}

impl IntoAnyLimit for Concurrency {
    fn into_any_limit(self) -> Result<AnyLimit, LimitError> {
        Ok(AnyLimit::Held(self))
    }
}

impl Concurrency {
    pub(crate) fn build(self) -> Result<Limit, LimitError> {
        core::Concurrency::new(self.slots, self.lease_ttl.into()).map(Limit::from)
    }
}
