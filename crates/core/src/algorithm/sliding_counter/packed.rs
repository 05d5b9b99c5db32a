//! The counters of a sliding window with the time at which they are fresh, in as few bytes as their numbers need.

use super::State;
use crate::state::numbers::StateNumbers;
use crate::units::rate::{PERIOD_MAX, Rate};
use crate::units::time::{Micros, Now, Timestamp};

/// A [`State`] and its `fresh_at` in 32 bytes, for large tables.
///
/// Its numbers have 250 bits in all: the end 53, the last write 52, both counts 50 each, and 45 for the time from the end
/// to the moment at which the state is fresh, which lie above the other four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedCounters([u64; 4]);

/// Bits of the numbers below, and the first bit of the span that lies above each.
const LAYOUT: [(u32, u32); 4] = [(53, 0), (52, 11), (50, 23), (50, 37)];

// Every state fits.
const _: () = {
    assert!(Timestamp::MAX.as_micros() >> 53 == 0);
    assert!(Now::MAX.as_micros() >> 52 == 0);
    assert!(Rate::UNITS_MAX >> 50 == 0);
    assert!(PERIOD_MAX.get() >> (37 + 14) == 0);
};

impl PackedCounters {
    /// A state that is fresh at `fresh_at`, which is not later than a period after its end.
    #[inline]
    pub fn new(state: &State, fresh_at: Timestamp) -> Self {
        let span = fresh_at.since(state.end).get();
        let numbers = [
            state.end.as_micros(),
            state.at.as_micros(),
            state.previous,
            state.current,
        ];
        let mut words = numbers;
        for (word, (bits, first)) in words.iter_mut().zip(LAYOUT) {
            *word |= span >> first << bits;
        }
        Self(words)
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        let mut numbers = self.0;
        for (number, (bits, _)) in numbers.iter_mut().zip(LAYOUT) {
            *number &= (1 << bits) - 1;
        }
        let [end, at, previous, current] = numbers;
        State {
            end: Timestamp::from_micros(end),
            at: Timestamp::from_micros(at),
            previous,
            current,
        }
    }

    /// The time from which the key equals a fresh one.
    #[inline]
    pub fn fresh_at(&self) -> Timestamp {
        let state = self.state();
        if state.previous == 0 && state.current == 0 {
            return state.at;
        }
        let mut span = 0;
        for (word, (bits, first)) in self.0.iter().zip(LAYOUT) {
            span |= word >> bits << first;
        }
        state.end + Micros::new(span)
    }
}

impl StateNumbers for PackedCounters {
    fn write_numbers(&self, numbers: &mut Vec<u64>) {
        numbers.push(self.fresh_at().as_micros());
        self.state().write_numbers(numbers);
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (&fresh_at, numbers) = numbers.split_first()?;
        let state = State::from_numbers(numbers)?;
        let fresh_at = Timestamp::from_micros(fresh_at);
        (fresh_at.since(state.end) <= PERIOD_MAX).then(|| Self::new(&state, fresh_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_has_the_size_of_the_counters_that_fit_in_four_bytes() {
        assert_eq!(size_of::<PackedCounters>(), 32);
    }

    proptest! {
        #[test]
        fn every_state_is_the_same_unpacked(
            end in 0..=Timestamp::MAX.as_micros(), at in 0..=Now::MAX.as_micros(), span in 0..=PERIOD_MAX.get(),
            previous in 0..=Rate::UNITS_MAX, current in 0..=Rate::UNITS_MAX,
        ) {
            let state = State {
                end: Timestamp::from_micros(end),
                at: Timestamp::from_micros(at),
                previous,
                current,
            };
            let fresh_at = state.end + Micros::new(span);
            let packed = PackedCounters::new(&state, fresh_at);
            prop_assert_eq!(packed.state(), state);
            prop_assert!(packed.fresh_at() == fresh_at || (previous == 0 && current == 0));
        }
    }
}
