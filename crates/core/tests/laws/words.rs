//! A state written as numbers is the same state; numbers that no limit wrote are refused or harmless.

use crate::keys::{Key, any_limit, capacity, span};
use crate::promise::used;
use proptest::prelude::*;
use tollgate_core::{NanoFraction, TimeFraction, UnitFraction, Debt, Limit, Ring, State, StateNumbers, algorithm};

fn words(state: &State) -> Vec<u64> {
    let mut words = Vec::new();
    match state {
        State::TokenBucket(it) | State::LeakyBucket(it) => it.write_numbers(&mut words),
        State::Gcra(it) => it.write_numbers(&mut words),
        State::FixedWindow(it) => it.write_numbers(&mut words),
        State::SlidingCounter(it) => it.write_numbers(&mut words),
        State::SlidingLog(it) | State::Concurrency(it) => it.write_numbers(&mut words),
        State::Cell(it) => it.write_numbers(&mut words),
    }
    words
}

fn state(limit: &Limit, words: &[u64]) -> Option<State> {
    Some(match limit {
        Limit::TokenBucket(_) => State::TokenBucket(Debt::<UnitFraction>::from_numbers(words)?),
        Limit::LeakyBucket(_) => State::LeakyBucket(Debt::<UnitFraction>::from_numbers(words)?),
        Limit::Gcra(_) => State::Gcra(Debt::<TimeFraction>::from_numbers(words)?),
        Limit::FixedWindow(_) => State::FixedWindow(algorithm::fixed_window::State::from_numbers(words)?),
        Limit::SlidingCounter(_) => State::SlidingCounter(algorithm::sliding_counter::State::from_numbers(words)?),
        Limit::SlidingLog(_) => State::SlidingLog(Ring::from_numbers(words)?),
        Limit::Concurrency(_) => State::Concurrency(Ring::from_numbers(words)?),
        Limit::Cell(_) => State::Cell(Debt::<NanoFraction>::from_numbers(words)?),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_state_read_back_decides_as_before((key, us) in used(any_limit()), cost in 1u64..20) {
        let Some(held) = &key.state else { return Ok(()) };
        let read = state(&key.limit, &words(held));
        prop_assert!(read.is_some());
        let mut read = Key { state: read, ..key.clone() };
        let mut key = key;
        for later in [0, 1, span(&key.limit) / 3, span(&key.limit)] {
            prop_assert_eq!(read.ask(cost, us + later), key.ask(cost, us + later));
            prop_assert_eq!(read.remaining(us + later), key.remaining(us + later));
        }
    }

    #[test]
    fn every_number_is_below_two_to_the_53_but_for_the_ids_of_leases((key, _) in used(any_limit())) {
        let leased = matches!(key.limit, Limit::Concurrency(_));
        for number in key.state.iter().flat_map(words) {
            prop_assert!(leased || number < 1 << 53);
        }
    }

    #[test]
    fn numbers_from_outside_are_refused_or_harmless(
        (key, us) in used(any_limit()), place in 0usize..40, number in prop_oneof![any::<u64>(), 0u64..70, Just(1 << 53)],
        cut in 0usize..4,
    ) {
        let Some(held) = &key.state else { return Ok(()) };
        let mut words = words(held);
        let count = words.len();
        words.truncate(count - cut.min(count));
        if let Some(word) = words.get_mut(place % count.max(1)) {
            *word = number;
        }
        let mut odd = Key { state: state(&key.limit, &words), ..key };
        for later in [0, 1, span(&odd.limit)] {
            prop_assert!(odd.ask(1, us + later).standing().remaining <= capacity(&odd.limit));
            odd.refund(1, us + later);
        }
    }

    #[test]
    fn any_numbers_at_all_do_no_harm(
        limit in any_limit(), words in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..100], 0..12), us in any::<u64>()
    ) {
        let mut key = Key::new(limit);
        key.state = state(&limit, &words);
        prop_assert!(key.ask(1, us).standing().remaining <= capacity(&limit));
        key.refund(1, us);
        prop_assert!(key.remaining(us) <= capacity(&limit));
    }
}
