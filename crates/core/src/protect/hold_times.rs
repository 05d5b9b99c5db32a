//! The mean time a slot is held, which says how many requests a second a service is able to finish.

use crate::units::time::Micros;

/// The times that slots were held, over the last ten seconds.
#[derive(Clone, Debug, Default)]
pub struct HoldTimes {
    slices: [HoldSlice; SLICES],
}

#[derive(Clone, Copy, Debug, Default)]
struct HoldSlice {
    second: u64,
    count: u64,
    held_us: u64,
}

impl HoldTimes {
    /// Records the end of a slot that was held for `held`.
    pub fn record(&mut self, now: Micros, held: Micros) {
        let second = now.get() / 1_000_000;
        let index = usize::try_from(second % SLICES as u64).unwrap_or(0);
        if let Some(slice) = self.slices.get_mut(index) {
            if slice.second != second {
                *slice = HoldSlice {
                    second,
                    ..HoldSlice::default()
                };
            }
            slice.count += 1;
            slice.held_us = slice.held_us.saturating_add(held.get());
        }
    }

    /// The requests a second that this many slots are able to finish: slots over the mean time one is held. A capacity,
    /// not the most completions seen, which a burst of cheap requests can raise. None without a completion.
    pub fn capacity_per_s(&self, now: Micros, slots: u64) -> Option<u64> {
        let second = now.get() / 1_000_000;
        let recent = second.saturating_sub(SLICES as u64 - 1)..=second;
        let live = self.slices.iter().filter(|slice| recent.contains(&slice.second));
        let (count, held_us) = live.fold((0_u64, 0_u64), |(count, held_us), slice| {
            (count + slice.count, held_us.saturating_add(slice.held_us))
        });
        let per_s = u128::from(slots) * u128::from(count) * 1_000_000 / u128::from(held_us.max(1));
        (count > 0).then(|| u64::try_from(per_s).unwrap_or(u64::MAX))
    }
}

const SLICES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_slots_over_the_mean_time_of_the_last_ten_seconds() {
        let mut times = HoldTimes::default();
        let at = Micros::from_secs;
        assert_eq!(times.capacity_per_s(at(5), 100), None);
        times.record(at(5), Micros::from_millis(40));
        times.record(at(6), Micros::from_millis(60));
        assert_eq!(times.capacity_per_s(at(6), 100), Some(2_000));
        assert_eq!(times.capacity_per_s(at(15), 100), Some(1_666));
        assert_eq!(times.capacity_per_s(at(16), 100), None);
    }
}
