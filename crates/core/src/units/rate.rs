//! Rates as people write them (`100 per minute`), and the errors of limits.

use crate::units::time::Micros;
use std::fmt;

/// `units` per `period`, both in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u64,
    period: Micros,
}

/// The reason a limit cannot be created. Each variant names the number that is wrong; the text says what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// The number of units is zero or above what the algorithm holds.
    Units {
        /// The number that was given.
        given: u64,
        /// The largest valid number.
        max: u64,
    },
    /// The burst is zero or above [`Rate::UNITS_MAX`].
    Burst {
        /// The number that was given.
        given: u64,
    },
    /// The period is shorter than 1 ms or longer than 366 days.
    Period {
        /// The number that was given.
        given: Micros,
    },
    /// More than 10^15 units a second.
    TooFast {
        /// The units that were given.
        units: u64,
        /// Their period.
        period: Micros,
    },
    /// Filling the limit from empty takes longer than 2^52 µs.
    Fill {
        /// The burst that was given.
        burst: u64,
        /// The rate it would be filled at.
        rate: Rate,
    },
    /// `min_interval` is longer than the period it lies in.
    MinInterval {
        /// The number that was given.
        given: Micros,
        /// The period of the limit.
        period: Micros,
    },
    /// A lease shorter than 1 ms or longer than 366 days.
    LeaseTtl {
        /// The number that was given.
        given: Micros,
    },
    /// A concurrency limit where no permit would hold its slots.
    WithoutPermit,
    /// A `CL.THROTTLE` rate of zero, or one whose interval is below a nanosecond.
    CellRate,
}

/// The shortest and the longest time a period, a lease or a fill may take.
pub(crate) const PERIOD_MIN: Micros = Micros::from_millis(1);
pub(crate) const PERIOD_MAX: Micros = Micros::from_secs(366 * 86_400);
pub(crate) const FILL_TIME_MAX: Micros = Micros::new(1 << 52);

/// The number if it is from one to `max`.
pub(crate) const fn checked_units(given: u64, max: u64) -> Result<u64, LimitError> {
    if given == 0 || given > max {
        return Err(LimitError::Units { given, max });
    }
    Ok(given)
}

/// True if a period or a lease may last that long.
pub(crate) const fn is_period(span: Micros) -> bool {
    PERIOD_MIN.get() <= span.get() && span.get() <= PERIOD_MAX.get()
}

impl Rate {
    /// The most units a period or a burst may have: as many as an integer of a header field can.
    pub const UNITS_MAX: u64 = 999_999_999_999_999;

    /// The most units a microsecond may have.
    const PER_MICRO_MAX: u64 = 1_000_000_000;

    /// `units` per `period`.
    ///
    /// # Errors
    /// Units outside 1 to [`Rate::UNITS_MAX`], a period outside 1 ms to 366 days, or more than 10^15 units a second.
    pub const fn new(units: u64, period: Micros) -> Result<Self, LimitError> {
        match checked_units(units, Self::UNITS_MAX) {
            Ok(_) if !is_period(period) => Err(LimitError::Period { given: period }),
            Ok(units) if units.div_ceil(Self::PER_MICRO_MAX) > period.get() => {
                Err(LimitError::TooFast { units, period })
            }
            Ok(units) => Ok(Self { units, period }),
            Err(error) => Err(error),
        }
    }

    /// A rate for counting hits, which may have more units than other rates.
    pub(crate) const fn for_hits(units: u64, period: Micros) -> Self {
        Self { units, period }
    }

    /// Units per period.
    pub const fn units(self) -> u64 {
        self.units
    }

    /// The period.
    pub const fn period(self) -> Micros {
        self.period
    }

    /// The same rate if it has at most `most` units, for algorithms that hold fewer.
    pub(crate) const fn at_most(self, max: u64) -> Result<Self, LimitError> {
        if self.units > max {
            return Err(LimitError::Units { given: self.units, max });
        }
        Ok(self)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {}", self.units, self.period)
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Units { given: 0, max } => {
                write!(
                    f,
                    "a limit of 0 allows nothing: give 1 to {max} units (or ban the caller)"
                )
            }
            Self::Units { given, max } => {
                write!(
                    f,
                    "a limit of {given} units is too large for this algorithm: give 1 to {max}"
                )
            }
            Self::Burst { given } => write!(f, "a burst of {given} is out of range: give 1 to {}", Rate::UNITS_MAX),
            Self::Period { given } => {
                write!(
                    f,
                    "a period of {given} is out of range: give {PERIOD_MIN} to {PERIOD_MAX}"
                )
            }
            Self::TooFast { units, period } => write!(
                f,
                "{units} units in {period} are more than 10^15 a second: give fewer units or a longer period"
            ),
            Self::Fill { burst, rate } => write!(
                f,
                "a burst of {burst} at {rate} takes over 142 years to come back: lower the burst or raise the rate"
            ),
            Self::MinInterval { given, period } => {
                write!(
                    f,
                    "a min_interval of {given} is longer than the period of {period}: shorten it"
                )
            }
            Self::LeaseTtl { given } => {
                write!(
                    f,
                    "a lease_ttl of {given} is out of range: give {PERIOD_MIN} to {PERIOD_MAX}"
                )
            }
            Self::WithoutPermit => write!(
                f,
                "a slot of a concurrency limit is held by a permit: make the limit with `concurrency` and call `acquire`"
            ),
            Self::CellRate => write!(f, "a rate must be at least 1 per period and at most 10^9 per second"),
        }
    }
}

impl std::error::Error for LimitError {}
