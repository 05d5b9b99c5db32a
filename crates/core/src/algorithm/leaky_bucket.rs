//! Leaky bucket: fills with each request, leaks at a constant rate, denies what would overflow.
//!
//! As a meter it polices: what fits passes at once. As a queue it shapes: what fits gets a delay, so that the output has a
//! constant rate.

use crate::state::debt::{Debt, DebtLimit, DebtMeter, UnitFraction};
use crate::state::meter::Meter;
use crate::units::rate::{LimitError, Rate};

/// A leaky bucket.
///
/// As a meter it decides as a token bucket of the same numbers does: `depth` units fit, and in any interval of length
/// `t` at most `depth + rate * t` pass. As a queue the same requests are admitted, each with the delay after which
/// everything ahead of it has left; a promised delay cannot be changed, so a queue has neither refund nor undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    rate: Rate,
    meter: Meter,
    fraction: UnitFraction,
    outflow: Outflow,
}

/// The treatment of a request that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outflow {
    /// It passes at once.
    Police,
    /// It gets a delay.
    Shape,
}

/// Units that were used and have not leaked yet.
pub type State = Debt<UnitFraction>;

impl LeakyBucket {
    /// A meter that leaks at `rate` and is one period's worth deep.
    pub fn new(rate: Rate) -> Self {
        let meter = Meter::new(rate, rate.units()).expect("one period's worth takes one period to leak");
        Self {
            rate,
            meter,
            fraction: UnitFraction::new(meter.pace),
            outflow: Outflow::Police,
        }
    }

    /// The same rate with a depth of `depth` units.
    ///
    /// # Errors
    /// A depth outside 1 to [`Rate::UNITS_MAX`], or one that takes longer than 2^52 µs to leak.
    pub fn with_depth(self, depth: u64) -> Result<Self, LimitError> {
        Meter::new(self.rate, depth).map(|meter| Self { meter, ..self })
    }

    /// The same as a queue: each admitted request gets a delay.
    pub const fn shaping(self) -> Self {
        Self {
            outflow: Outflow::Shape,
            ..self
        }
    }

    /// The rate it leaks at.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most units it holds.
    pub const fn depth(&self) -> u64 {
        self.meter.burst
    }

    /// True if admitted requests get a delay.
    pub const fn is_shaping(&self) -> bool {
        matches!(self.outflow, Outflow::Shape)
    }

    pub(crate) const fn numbers(&self) -> [u64; 4] {
        let [parts, span, depth, _] = self.meter.numbers();
        [parts, span, depth, self.is_shaping() as u64]
    }
}

impl DebtLimit for LeakyBucket {
    const NAME: &'static str = "leaky_bucket";
    type Fraction = UnitFraction;

    #[inline]
    fn meter(&self) -> DebtMeter<'_, UnitFraction> {
        let Self { meter, fraction, .. } = self;
        DebtMeter {
            meter,
            fraction: *fraction,
        }
    }

    #[inline]
    fn is_queue(&self) -> bool {
        self.is_shaping()
    }
}
