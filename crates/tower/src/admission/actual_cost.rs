//! The actual cost of a request, known once it has run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_limiter::store::CostCorrection;

/// The actual cost of a request: a cell that the handler sets, in the extensions of requests whose cost was predicted.
///
/// At the end of the response's body the difference to the predicted cost is refunded, or charged up to what remains. While
/// it is not set, the prediction stands. All clones are one cell, so a streamed response can count while it is sent.
///
/// ```
/// use tollgate_tower::ActualCost;
///
/// async fn complete(request: http::Request<()>) {
///     if let Some(cost) = request.extensions().get::<ActualCost>() {
///         cost.set(321);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ActualCost(Arc<AtomicU64>);

/// Sums of corrected costs. All clones are one.
#[derive(Clone, Debug, Default)]
pub struct CostTotals(Arc<Sums>);

#[derive(Debug, Default)]
struct Sums {
    refunded: AtomicU64,
    charged: AtomicU64,
    overrun: AtomicU64,
}

/// The cell is not set.
const UNSET: u64 = u64::MAX;

impl ActualCost {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(UNSET)))
    }

    /// Sets the cost.
    pub fn set(&self, units: u64) {
        self.0.store(units.min(UNSET - 1), Ordering::Release);
    }

    /// Adds to the cost; from zero, if it is not set.
    pub fn add(&self, units: u64) {
        let next = |cost: u64| {
            let cost = if cost == UNSET { 0 } else { cost };
            Some(cost.saturating_add(units).min(UNSET - 1))
        };
        // It never declines.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// The cost, if it is set.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|cost| *cost != UNSET)
    }
}

impl CostTotals {
    /// Units that were charged and refunded.
    pub fn refunded(&self) -> u64 {
        self.0.refunded.load(Ordering::Relaxed)
    }

    /// Units that were charged in addition.
    pub fn charged(&self) -> u64 {
        self.0.charged.load(Ordering::Relaxed)
    }

    /// Units that were consumed and could not be charged.
    pub fn overrun(&self) -> u64 {
        self.0.overrun.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, correction: CostCorrection) {
        self.0.refunded.fetch_add(correction.refunded, Ordering::Relaxed);
        self.0.charged.fetch_add(correction.charged, Ordering::Relaxed);
        self.0.overrun.fetch_add(correction.overrun, Ordering::Relaxed);
    }
}
