//! What an answer says comes true: remaining, retry and reset.

use crate::keys::{Key, Request, any_divisible, any_limit, any_rate, requests, span, wait};
use crate::keys::{START, capacity};
use proptest::prelude::*;
use tollgate_core::{Decision, Limit, Micros, Now, Outcome, Retry, SlidingCounter, Source};

/// A limit after some requests, and the time it then is.
pub(crate) fn used_key(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = (Key, u64)> {
    limits
        .prop_flat_map(|limit| (Just(limit), requests(limit, 40), 0..=span(&limit) / 8))
        .prop_map(|(limit, requests, idle)| {
            let (mut key, mut us) = (Key::new(limit), START);
            for Request { gap_us, cost } in requests {
                us += gap_us;
                key.take(cost, us);
            }
            (key, us + idle)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn is_denied_until_the_promised_moment_and_allowed_at_it((key, us) in used_key(any_limit()), cost in 1u64..2_100) {
        let decision = key.peek(cost, us).decision;
        match decision.retry() {
            None => prop_assert!(cost <= capacity(&key.limit)),
            Some(Retry::Never) => prop_assert!(cost > capacity(&key.limit)),
            Some(Retry::Unknown) => {
                let held = matches!(key.limit, Limit::Concurrency(_)) && cost <= capacity(&key.limit);
                prop_assert!(held, "only a holder can say");
            }
            Some(Retry::After(after)) => {
                prop_assert!(after.get() > 0, "a wait of nothing is not a refusal");
                prop_assert!(!key.peek(cost, us + after.get() - 1).decision.is_allow());
                prop_assert!(key.peek(cost, us + after.get()).decision.is_allow());
            }
        }
    }

    #[test]
    fn remaining_is_the_largest_cost_that_would_pass((key, us) in used_key(any_limit())) {
        let remaining = key.remaining(us);
        prop_assert!(remaining <= capacity(&key.limit));
        prop_assert!(key.peek(remaining, us).decision.is_allow());
        prop_assert!(!key.peek(remaining + 1, us).decision.is_allow());
    }

    #[test]
    fn the_remaining_an_allowed_request_is_told_is_what_is_left_for_the_next(
        (mut key, us) in used_key(any_limit()), cost in 0u64..20
    ) {
        let standing = *key.take(cost, us).standing();
        prop_assert_eq!(standing, *key.peek(0, us).decision.standing());
    }

    #[test]
    fn a_refusal_and_a_look_change_nothing((mut key, us) in used_key(any_limit()), cost in 1u64..2_100) {
        let before = key.clone();
        prop_assert!(key.peek(0, us).next.is_none());
        key.take(0, us);
        prop_assert_eq!(&key.state, &before.state);
        if !key.take(cost, us).is_allow() {
            prop_assert_eq!(&key.state, &before.state);
        }
    }

    #[test]
    fn at_reset_the_key_equals_one_never_seen_and_a_microsecond_before_it_does_not(
        (key, us) in used_key(any_limit()), cost in 0u64..2_100, later in 0u64..1_000_000
    ) {
        let step = key.peek(0, us);
        let reset = step.decision.standing().reset_after.get();
        // The clock itself ends at 2^52 µs.
        prop_assume!(us + reset + later < Now::MAX.as_micros());
        let fresh = Key::new(key.limit);
        let same = |us| (key.peek(cost, us).decision, key.peek(0, us).decision)
            == (fresh.peek(cost, us).decision, fresh.peek(0, us).decision);
        prop_assert!(same(us + reset));
        prop_assert!(same(us + reset + later));
        if reset > 0 {
            prop_assert_ne!(key.peek(0, us + reset - 1).decision, fresh.peek(0, us + reset - 1).decision);
            prop_assert_eq!(step.fresh_at.as_micros(), us + reset);
        }
    }

    #[test]
    fn the_next_unit_of_a_sliding_counter_is_free_at_the_time_given_and_not_a_microsecond_before(
        (mut key, us) in used_key(any_rate().prop_map(|rate| SlidingCounter::new(rate).into())), cost in 0u64..20
    ) {
        let (decision, receipt) = key.charge(cost, us);
        let Some(receipt) = receipt else { return Ok(()) };
        let outcome = Outcome { decision, receipt, source: Source::Memory };
        let before = key.remaining(us);
        match key.limit.next_unit_after(&outcome) {
            Some(Micros::ZERO) => prop_assert_eq!(before, capacity(&key.limit)),
            Some(wait) => {
                prop_assert_eq!(key.remaining(us + wait.get() - 1), before);
                prop_assert!(key.remaining(us + wait.get()) > before);
            }
            None => prop_assert!(before == 0 && cost == 0, "known but for a peek at nothing remaining"),
        }
    }

    #[test]
    fn a_cost_takes_what_as_many_ones_would_take((key, us) in used_key(any_divisible()), cost in 1u64..60) {
        let (mut whole, mut single) = (key.clone(), key.clone());
        let passed = whole.take(cost, us).is_allow();
        let ones = (0..cost).filter(|_| single.take(1, us).is_allow()).count() as u64;
        prop_assert_eq!(passed, ones == cost);
        prop_assert_eq!(ones, cost.min(key.remaining(us)));
        if passed {
            // Leases apart, both leave the same behind, now and later.
            for later in [0, 1, span(&key.limit) / 3, span(&key.limit)] {
                prop_assert_eq!(whole.peek(1, us + later).decision, single.peek(1, us + later).decision);
            }
        }
    }

    #[test]
    fn of_equal_requests_at_one_instant_as_many_pass_as_fit(
        (mut key, us) in used_key(any_divisible()), cost in 1u64..20, count in 1u64..50
    ) {
        let fit = (key.remaining(us) / cost).min(count);
        let passed = (0..count).filter(|_| key.take(cost, us).is_allow()).count() as u64;
        prop_assert_eq!(passed, fit);
    }

    #[test]
    fn only_a_queue_tells_its_callers_to_wait((key, us) in used_key(any_limit()), cost in 0u64..20) {
        if let Decision::Allow { delay, .. } = key.peek(cost, us).decision {
            prop_assert_eq!(delay.get(), 0);
        }
        prop_assert!(wait(&key.peek(cost, us).decision).is_none_or(|wait| wait > 0));
    }
}
