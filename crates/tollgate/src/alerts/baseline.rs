//! Baselines: how far a count of one minute is from what is usual, in integers.
//!
//! Counts are made comparable by y = 2√(x + 3/8), which gives a Poisson count the same spread at every size. The distance from the
//! median is measured in spreads: 1.4826 times the median of the absolute deviations, and at least that of a Poisson count.

/// The usual counts of one window of minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Baseline {
    /// The median count.
    count: u64,
    /// The median, in units of y.
    center: u64,
    /// The spread, in units of y.
    spread: u64,
}

/// A count that was compared with its baselines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Comparison {
    /// The count.
    pub count: u64,
    /// The median of the closest baseline.
    pub baseline: u64,
    /// The distance above the closest baseline, in thousandths of its spread; below it negative.
    pub z_milli: i64,
    /// True if the count is a jump: far above every baseline, at least twice its median, and by at least [`RISE_MIN`].
    pub is_jump: bool,
}

/// Units of y per 1.
const UNIT: u64 = 1 << 10;
/// The highest count that differs from a higher one: its y is exact in 64 bits.
const COUNT_MAX: u64 = 1 << 40;
/// A count is a jump from this distance on.
pub(super) const JUMP_Z: i64 = 6;
/// A count below this distance is usual again.
pub(super) const CLEAR_Z: i64 = 2;
/// The least rise of a jump.
pub(super) const RISE_MIN: u64 = 50;

impl Baseline {
    /// The baseline of the counts of a window; none without counts. Their order is lost.
    pub(super) fn new(counts: &mut [u64]) -> Option<Self> {
        let count = median(counts)?;
        let center = stabilized(count);
        let mut deviations: Vec<u64> = counts.iter().map(|&count| stabilized(count).abs_diff(center)).collect();
        let deviation = median(&mut deviations)?;
        Some(Self {
            count,
            center,
            spread: (deviation.saturating_mul(14_826) / 10_000).max(UNIT),
        })
    }

    fn z_milli(&self, count: u64) -> i64 {
        let y = i64::try_from(stabilized(count)).unwrap_or(i64::MAX);
        let center = i64::try_from(self.center).unwrap_or(i64::MAX);
        let spread = i64::try_from(self.spread).unwrap_or(i64::MAX);
        y.saturating_sub(center).saturating_mul(1_000) / spread
    }

    fn is_far_below(&self, count: u64) -> bool {
        count >= self.count.saturating_mul(2) && count.saturating_sub(self.count) >= RISE_MIN
    }
}

impl Comparison {
    /// Compares a count with its baselines; none without one.
    pub(super) fn new(count: u64, baselines: &[Baseline]) -> Option<Self> {
        let closest = baselines.iter().min_by_key(|baseline| baseline.z_milli(count).abs())?;
        let z_milli = closest.z_milli(count);
        let is_jump = baselines
            .iter()
            .all(|baseline| baseline.z_milli(count) >= JUMP_Z * 1_000 && baseline.is_far_below(count));
        Some(Self {
            count,
            baseline: closest.count,
            z_milli,
            is_jump,
        })
    }

    /// True if the count is usual again, or lower.
    pub(super) const fn is_clear(&self) -> bool {
        self.z_milli < CLEAR_Z * 1_000
    }
}

/// 2√(x + 3/8), in units of [`UNIT`].
fn stabilized(count: u64) -> u64 {
    let square = (count.min(COUNT_MAX) * 8 + 3) * (UNIT * UNIT / 2);
    square.isqrt()
}

/// The median; of an even number the mean of the middle two, rounded down. Sorts as far as it needs.
pub(super) fn median(values: &mut [u64]) -> Option<u64> {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable(middle);
    if !is_even {
        return Some(upper);
    }
    let lower = below.iter().copied().max().unwrap_or(upper);
    Some(lower.midpoint(upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_exact_to_a_thousandth() {
        // 2√(x + 3/8) by another way: the square of the result, and that of its successor, enclose it.
        for count in [0, 1, 2, 3, 10, 99, 1_000, 123_456, 1 << 30, COUNT_MAX] {
            let y = u128::from(stabilized(count));
            let square = u128::from(count * 8 + 3) * u128::from(UNIT * UNIT / 2);
            assert!(y * y <= square && square < (y + 1) * (y + 1), "{count}: {y}");
        }
        assert_eq!(stabilized(u64::MAX), stabilized(COUNT_MAX));
    }

    #[test]
    fn a_median_is_the_middle_value() {
        for (values, expected) in [
            (&[][..], None),
            (&[7], Some(7)),
            (&[1, 4], Some(2)),
            (&[9, 1, 5], Some(5)),
            (&[4, 1, 3, 2], Some(2)),
            (&[8, 2, 8, 2], Some(5)),
        ] {
            assert_eq!(median(&mut values.to_vec()), expected, "{values:?}");
        }
    }

    #[test]
    fn a_quiet_series_has_the_spread_of_a_poisson_count() {
        let baseline = Baseline::new(&mut [100; 58]).expect("it has counts");
        assert_eq!((baseline.count, baseline.spread), (100, UNIT));
        // Ten times √100 above: two spreads of y per √x.
        let jump = Comparison::new(200, &[baseline]).expect("it has a baseline");
        assert_eq!((jump.z_milli / 1_000, jump.is_jump), (8, true));
        // Far enough in spreads, and not twice as much.
        let rise = Comparison::new(190, &[baseline]).expect("it has a baseline");
        assert!(rise.z_milli > 6_000 && !rise.is_jump);
        // Twice as much, and not fifty more.
        let small = Baseline::new(&mut [10; 58]).expect("it has counts");
        let rise = Comparison::new(59, &[small]).expect("it has a baseline");
        assert!(rise.z_milli > 6_000 && !rise.is_jump);
        assert!(Comparison::new(60, &[small]).expect("it has a baseline").is_jump);
    }

    #[test]
    fn the_closer_baseline_decides() {
        let hour = Baseline::new(&mut [100; 58]).expect("it has counts");
        let yesterday = Baseline::new(&mut [500; 11]).expect("it has counts");
        let usual_at_this_time = Comparison::new(510, &[hour, yesterday]).expect("it has baselines");
        assert!(!usual_at_this_time.is_jump && usual_at_this_time.is_clear());
        assert_eq!(usual_at_this_time.baseline, 500);
        let above_both = Comparison::new(1_500, &[hour, yesterday]).expect("it has baselines");
        assert!(above_both.is_jump);
        // Below yesterday's and far above this hour's: not a jump, because one of them is usual.
        let below = Comparison::new(400, &[hour, yesterday]).expect("it has baselines");
        assert!(!below.is_jump && below.is_clear());
    }
}
