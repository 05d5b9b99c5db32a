//! Token bucket: holds `burst` tokens, refills continuously at its rate, takes a cost if it has as many.

use crate::state::debt::{Debt, DebtLimit, DebtMeter, UnitFraction};
use crate::state::meter::Meter;
use crate::units::rate::{LimitError, Rate};

/// A token bucket.
///
/// In any interval of length `t` it admits at most `burst + rate * t`. When its numbers change, used units stay used:
/// 100 per minute, exhausted and raised to 1000 per minute, has 900 left.
///
/// ```
/// use tollgate_core::{Algorithm, Cost, LeaseId, Micros, Now, Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::new(10, Micros::from_secs(1))?).with_burst(2)?;
/// let now = Now::new(Timestamp::from_micros(1_700_000_000_000_000));
/// let mut state = None;
///
/// let step = bucket.decide(state.as_ref(), Cost::ONE, now);
/// assert!(step.decision.is_allow());
/// assert_eq!(step.decision.standing().remaining, 1);
/// if let Some(next) = step.next {
///     bucket.keep(&mut state, next, LeaseId::default());
/// }
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    rate: Rate,
    meter: Meter,
    fraction: UnitFraction,
}

/// Units that were used and have not been refilled yet.
pub type State = Debt<UnitFraction>;

impl TokenBucket {
    /// A bucket that refills at `rate` and holds one period's worth.
    pub fn new(rate: Rate) -> Self {
        let meter = Meter::new(rate, rate.units()).expect("one period's worth takes one period to fill");
        Self {
            rate,
            meter,
            fraction: UnitFraction::new(meter.pace),
        }
    }

    /// The same rate with a capacity of `burst`.
    ///
    /// # Errors
    /// A burst outside 1 to [`Rate::UNITS_MAX`], or one that takes longer than 2^52 µs to fill.
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        Meter::new(self.rate, burst).map(|meter| Self { meter, ..self })
    }

    /// The rate it refills at.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most tokens it holds.
    pub const fn burst(&self) -> u64 {
        self.meter.burst
    }

    pub(crate) const fn numbers(&self) -> [u64; 4] {
        self.meter.numbers()
    }
}

impl DebtLimit for TokenBucket {
    const NAME: &'static str = "token_bucket";
    type Fraction = UnitFraction;

    #[inline]
    fn meter(&self) -> DebtMeter<'_, UnitFraction> {
        let Self { meter, fraction, .. } = self;
        DebtMeter {
            meter,
            fraction: *fraction,
        }
    }
}
