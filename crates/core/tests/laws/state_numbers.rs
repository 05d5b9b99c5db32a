//! A state written as numbers is the same state; numbers that no limit wrote are rejected or harmless.

use crate::keys::{Key, any_limit, capacity, span};
use crate::standings::used_key;
use proptest::prelude::*;
use tollgate_core::{Debt, LeaseTable, Limit, Ring, State, StateNumbers, TimeFraction, UnitFraction, algorithm};

fn numbers_of(state: &State) -> Vec<u64> {
    let mut numbers = Vec::new();
    match state {
        State::TokenBucket(it) | State::LeakyBucket(it) => it.write_numbers(&mut numbers),
        State::Gcra(it) => it.write_numbers(&mut numbers),
        State::FixedWindow(it) => it.write_numbers(&mut numbers),
        State::SlidingCounter(it) => it.write_numbers(&mut numbers),
        State::SlidingLog(it) => it.write_numbers(&mut numbers),
        State::Concurrency(it) => it.write_numbers(&mut numbers),
        State::Cell(it) => it.write_numbers(&mut numbers),
    }
    numbers
}

fn state_from(limit: &Limit, numbers: &[u64]) -> Option<State> {
    Some(match limit {
        Limit::TokenBucket(_) => State::TokenBucket(Debt::<UnitFraction>::from_numbers(numbers)?),
        Limit::LeakyBucket(_) => State::LeakyBucket(Debt::<UnitFraction>::from_numbers(numbers)?),
        Limit::Gcra(_) => State::Gcra(Debt::<TimeFraction>::from_numbers(numbers)?),
        Limit::FixedWindow(_) => State::FixedWindow(algorithm::fixed_window::State::from_numbers(numbers)?),
        Limit::SlidingCounter(_) => State::SlidingCounter(algorithm::sliding_counter::State::from_numbers(numbers)?),
        Limit::SlidingLog(_) => State::SlidingLog(Ring::from_numbers(numbers)?),
        Limit::Concurrency(_) => State::Concurrency(LeaseTable::from_numbers(numbers)?),
        Limit::Cell(_) => State::Cell(algorithm::cell::State::from_numbers(numbers)?),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_state_read_back_decides_as_before((key, us) in used_key(any_limit()), cost in 1u64..20) {
        let Some(held) = &key.state else { return Ok(()) };
        let read = state_from(&key.limit, &numbers_of(held));
        prop_assert!(read.is_some());
        let mut read = Key { state: read, ..key.clone() };
        let mut key = key;
        for later in [0, 1, span(&key.limit) / 3, span(&key.limit)] {
            prop_assert_eq!(read.take(cost, us + later), key.take(cost, us + later));
            prop_assert_eq!(read.remaining(us + later), key.remaining(us + later));
        }
    }

    #[test]
    fn every_number_is_below_two_to_the_53_but_for_the_ids_of_leases((key, _) in used_key(any_limit())) {
        let leased = matches!(key.limit, Limit::Concurrency(_));
        for number in key.state.iter().flat_map(numbers_of) {
            prop_assert!(leased || number < 1 << 53);
        }
    }

    #[test]
    fn numbers_from_outside_are_refused_or_harmless(
        (key, us) in used_key(any_limit()), index in 0usize..40, number in prop_oneof![any::<u64>(), 0u64..70, Just(1 << 53)],
        cut in 0usize..4,
    ) {
        let Some(held) = &key.state else { return Ok(()) };
        let mut numbers = numbers_of(held);
        let count = numbers.len();
        numbers.truncate(count - cut.min(count));
        if let Some(slot) = numbers.get_mut(index % count.max(1)) {
            *slot = number;
        }
        let mut altered = Key { state: state_from(&key.limit, &numbers), ..key };
        for later in [0, 1, span(&altered.limit)] {
            prop_assert!(altered.take(1, us + later).standing().remaining <= capacity(&altered.limit));
            altered.refund(1, us + later);
        }
    }

    #[test]
    fn any_numbers_at_all_do_no_harm(
        limit in any_limit(), numbers in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..100], 0..12), us in any::<u64>()
    ) {
        let mut key = Key::new(limit);
        key.state = state_from(&limit, &numbers);
        prop_assert!(key.take(1, us).standing().remaining <= capacity(&limit));
        key.refund(1, us);
        prop_assert!(key.remaining(us) <= capacity(&limit));
    }
}
