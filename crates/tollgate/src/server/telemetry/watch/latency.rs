//! Latencies of one step, by bucket.

use crate::server::telemetry::{LATENCY_BOUNDS_NS, LATENCY_BUCKETS};

/// Durations counted in the buckets of the latency histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LatencyCounts(pub(crate) [u32; LATENCY_BUCKETS]);

impl LatencyCounts {
    /// The counts between two readings of a histogram.
    pub(crate) fn between(before: &[u64; LATENCY_BUCKETS], after: &[u64; LATENCY_BUCKETS]) -> Self {
        let mut counts = [0; LATENCY_BUCKETS];
        for ((count, before), after) in counts.iter_mut().zip(before).zip(after) {
            *count = u32::try_from(after.saturating_sub(*before)).unwrap_or(u32::MAX);
        }
        Self(counts)
    }

    /// Adds others.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, other) in self.0.iter_mut().zip(&other.0) {
            *count = count.saturating_add(*other);
        }
    }

    /// The duration that this many of a thousand do not exceed, in microseconds, rounded up; interpolated within a bucket. None if
    /// nothing was measured.
    pub(crate) fn percentile_us(&self, per_mille: u64) -> Option<u64> {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        if total == 0 {
            return None;
        }
        let rank = (total * per_mille).div_ceil(1_000).max(1);
        let mut before = 0;
        let mut lower_ns = 0;
        for (index, count) in self.0.iter().enumerate() {
            let count = u64::from(*count);
            // Durations above the last bound count as twice that.
            let upper_ns = LATENCY_BOUNDS_NS.get(index).copied().unwrap_or(lower_ns * 2);
            if before + count >= rank {
                let within_ns = (upper_ns - lower_ns) * (rank - before) / count;
                return Some((lower_ns + within_ns).div_ceil(1_000));
            }
            before += count;
            lower_ns = upper_ns;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::store::CALL_BOUNDS_US;

    #[test]
    fn percentiles_lie_within_the_bucket_of_their_rank() {
        let mut counts = LatencyCounts::default();
        assert_eq!(counts.percentile_us(500), None);
        // Up to 1 us, and 10 to 20 us.
        counts.0[0] = 90;
        counts.0[4] = 10;
        assert_eq!(counts.percentile_us(500), Some(1));
        assert_eq!(counts.percentile_us(990), Some(19));
        assert_eq!(counts.percentile_us(1_000), Some(20));
        let mut slow = LatencyCounts::default();
        slow.0[LATENCY_BUCKETS - 1] = 1;
        assert_eq!(slow.percentile_us(500), Some(2_000_000));
        counts.add(&slow);
        assert_eq!(counts.percentile_us(1_000), Some(2_000_000));
    }

    #[test]
    fn calls_of_the_store_have_the_same_buckets() {
        assert_eq!(CALL_BOUNDS_US.map(|us| us * 1_000), LATENCY_BOUNDS_NS);
    }

    #[test]
    fn a_step_has_what_was_counted_between_two_readings() {
        let (mut before, mut after) = ([0; LATENCY_BUCKETS], [0; LATENCY_BUCKETS]);
        (before[3], after[3], after[5]) = (7, 9, u64::MAX);
        let counts = LatencyCounts::between(&before, &after);
        assert_eq!((counts.0[3], counts.0[5], counts.0[0]), (2, u32::MAX, 0));
    }
}
