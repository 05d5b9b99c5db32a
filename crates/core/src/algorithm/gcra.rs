//! GCRA: one time per key, the theoretical arrival time of the next request; early by more than the burst is denied.

use crate::state::debt::{Debt, DebtLimit, DebtMeter, TimeFraction};
use crate::state::meter::Meter;
use crate::units::rate::{LimitError, Rate};

/// The generic cell rate algorithm.
///
/// Admits what a token bucket of the same numbers does. They differ when the numbers change: GCRA keeps its debt in
/// time, so a caller who had to wait ten seconds still waits ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    rate: Rate,
    meter: Meter,
    fraction: TimeFraction,
}

/// The theoretical arrival time of the next request.
pub type State = Debt<TimeFraction>;

impl Gcra {
    /// One unit every `period / units`, and one period's worth at once.
    pub fn new(rate: Rate) -> Self {
        let meter = Meter::new(rate, rate.units()).expect("one period's worth takes one period");
        Self {
            rate,
            meter,
            fraction: TimeFraction::new(meter.pace),
        }
    }

    /// The same rate with at most `burst` units at once.
    ///
    /// # Errors
    /// A burst outside 1 to [`Rate::UNITS_MAX`], or one that takes longer than 2^52 µs to come back.
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        Meter::new(self.rate, burst).map(|meter| Self { meter, ..self })
    }

    /// The sustained rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most units at once.
    pub const fn burst(&self) -> u64 {
        self.meter.burst
    }

    pub(crate) const fn numbers(&self) -> [u64; 4] {
        self.meter.numbers()
    }
}

impl DebtLimit for Gcra {
    const NAME: &'static str = "gcra";
    type Fraction = TimeFraction;

    #[inline]
    fn meter(&self) -> DebtMeter<'_, TimeFraction> {
        let Self { meter, fraction, .. } = self;
        DebtMeter {
            meter,
            fraction: *fraction,
        }
    }
}
