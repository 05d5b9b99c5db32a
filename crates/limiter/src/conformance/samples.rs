//! Sample limits: every algorithm in every form that decides differently.

use tollgate_core::{
    Cell, Concurrency, FixedWindow, Gcra, LeakyBucket, Limit, LimitError, Micros, Rate, SlidingCounter, SlidingLog,
    TokenBucket,
};

/// An algorithm in one of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    TokenBucket,
    Gcra,
    FixedWindow,
    SlidingCounter,
    SlidingLog,
    LeakyBucket,
    Queue,
    Concurrency,
    Cell,
}

/// The capacity of most samples: it divides no period evenly.
pub(super) const UNITS: u64 = 7;

/// A period in which nothing refills during a step.
pub(super) const LONG: Micros = Micros::from_secs(86_400);

/// A period short enough to wait for.
pub(super) const SHORT: Micros = Micros::from_millis(60);

impl Shape {
    pub(super) const ALL: [Self; 9] = [
        Self::TokenBucket,
        Self::Gcra,
        Self::FixedWindow,
        Self::SlidingCounter,
        Self::SlidingLog,
        Self::LeakyBucket,
        Self::Queue,
        Self::Concurrency,
        Self::Cell,
    ];

    pub(super) fn covers(algorithm: &str) -> bool {
        Self::ALL.iter().any(|shape| {
            let sample = shape.limit(UNITS, LONG);
            sample.is_ok_and(|limit| limit.algorithm() == algorithm)
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::Gcra => "gcra",
            Self::FixedWindow => "fixed_window",
            Self::SlidingCounter => "sliding_counter",
            Self::SlidingLog => "sliding_log",
            Self::LeakyBucket => "leaky_bucket",
            Self::Queue => "leaky_bucket as a queue",
            Self::Concurrency => "concurrency",
            Self::Cell => "cell",
        }
    }

    /// A limit with a capacity of `units`, refilled in `period`.
    pub(super) fn limit(self, units: u64, period: Micros) -> Result<Limit, String> {
        self.build(units, period)
            .map_err(|error| format!("{}: invalid sample: {error}", self.name()))
    }

    fn build(self, units: u64, period: Micros) -> Result<Limit, LimitError> {
        let rate = Rate::new(units, period)?;
        Ok(match self {
            Self::TokenBucket => TokenBucket::new(rate).into(),
            Self::Gcra => Gcra::new(rate).into(),
            Self::FixedWindow => FixedWindow::new(rate).into(),
            Self::SlidingCounter => SlidingCounter::new(rate).into(),
            Self::SlidingLog => SlidingLog::new(rate)?.into(),
            Self::LeakyBucket => LeakyBucket::new(rate).into(),
            Self::Queue => LeakyBucket::new(rate).shaping().into(),
            Self::Concurrency => Concurrency::new(units, period)?.into(),
            Self::Cell => {
                let seconds = (period.get() / 1_000_000).max(1);
                Cell::new(units - 1, units * seconds * 1_000_000 / period.get(), seconds)?.into()
            }
        })
    }

    /// True if a charge can be undone. A shaped one cannot: its promised delay stands.
    pub(super) fn can_undo(self) -> bool {
        self != Self::Queue
    }
}
