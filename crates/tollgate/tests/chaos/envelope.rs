//! How much more passed than a bucket of capacity B and rate r allows: the worst over all stretches of time.
//!
//! Only when a request was sent and when its answer came are known; it was decided in between. So a stretch counts those
//! that were both sent and answered within it, and what is found is never more than what happened.

use crate::load::Sample;

/// The over-admission of the admitted among these, in units.
pub(crate) fn over_admission<'s>(samples: impl Iterator<Item = &'s Sample>, rate: u64, capacity: u64) -> f64 {
    let mut admitted: Vec<(u64, u64)> = samples
        .filter(|sample| sample.is_admitted())
        .map(|sample| (sample.sent_us, sample.received_us))
        .collect();
    // By the answer; a stretch begins when one of them was sent.
    admitted.sort_unstable_by_key(|&(_, received)| received);
    let mut worst = 0_i128;
    for &(from, _) in &admitted {
        let mut count = 0_i128;
        for &(sent, received) in &admitted {
            if sent >= from {
                count += 1;
                let refilled = i128::from(rate) * i128::from(received - from);
                // In millionths of a unit.
                worst = worst.max((count - i128::from(capacity)) * 1_000_000 - refilled);
            }
        }
    }
    worst as f64 / 1e6
}
