//! The envelope of a limit: the bound on the units admitted in any interval.

/// The largest excess of admission times, in ascending microseconds, over `burst + rate * t` in any interval of `t`
/// seconds. In millionths of a unit; negative if the bound is never reached.
pub fn excess_millionths(admitted_us: &[u64], rate: i64, burst: i64) -> i64 {
    let (mut lowest, mut excess) = (i64::MAX, i64::MIN);
    let first_us = admitted_us.first().copied().unwrap_or_default();
    for (index, at_us) in (0_i64..).zip(admitted_us) {
        let due = rate * (at_us - first_us) as i64;
        lowest = lowest.min(index * 1_000_000 - due);
        excess = excess.max((index + 1 - burst) * 1_000_000 - due - lowest);
    }
    excess
}
