//! A histogram of durations.

use super::AlignedCount;
use prometheus_client::encoding::{MetricEncoder, NoLabelSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Durations counted in buckets. Adding one takes no lock.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One per bound, and one for durations above the last.
    buckets: [AtomicU64; LATENCY_BUCKETS],
    sum_ns: AlignedCount,
}

/// Buckets of a latency histogram.
pub(crate) const LATENCY_BUCKETS: usize = LATENCY_BOUNDS_NS.len() + 1;

/// Upper bounds of the buckets but the last: 1, 2, 5 and so on from a microsecond to a second.
pub(crate) const LATENCY_BOUNDS_NS: [u64; 19] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
];

impl Histogram {
    /// Counts one duration.
    pub(crate) fn add(&self, span_ns: u64) {
        self.add_many(span_ns, 1);
    }

    /// Counts the duration of a batch once for each of its members.
    pub(crate) fn add_many(&self, span_ns: u64, number: u64) {
        let index = LATENCY_BOUNDS_NS
            .iter()
            .position(|bound| span_ns <= *bound)
            .unwrap_or(LATENCY_BOUNDS_NS.len());
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(number, Ordering::Relaxed);
        }
        self.sum_ns.add(span_ns.saturating_mul(number));
    }

    /// The counts of its buckets.
    pub(crate) fn counts(&self) -> [u64; LATENCY_BUCKETS] {
        let mut counts = [0; LATENCY_BUCKETS];
        for (count, bucket) in counts.iter_mut().zip(&self.buckets) {
            *count = bucket.load(Ordering::Relaxed);
        }
        counts
    }

    pub(super) fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = LATENCY_BOUNDS_NS
            .iter()
            .map(|bound| seconds(*bound))
            .chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(seconds(self.sum_ns.get()), count, &buckets, None)
    }
}

#[expect(
    clippy::float_arithmetic,
    reason = "metrics are in seconds by convention; no decision depends on them"
)]
fn seconds(span_ns: u64) -> f64 {
    span_ns as f64 / 1e9
}
