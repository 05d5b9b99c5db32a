//! Refund and undo: only what was taken is returned.

use crate::keys::{Key, any_bucket, any_cell, any_limit, any_log, any_queue, any_window, capacity, requests, span};
use crate::standings::used_key;
use proptest::prelude::*;
use tollgate_core::Limit;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_refund_never_lifts_above_full((mut key, us) in used_key(any_limit()), cost in 0u64..3_000, later in 0u64..10_000) {
        let before = key.remaining(us);
        let spaced = matches!(key.limit, Limit::SlidingLog(log) if log.min_interval().get() > 0);
        key.refund(cost, us);
        let after = key.remaining(us);
        prop_assert!(after <= capacity(&key.limit));
        prop_assert!(after >= before);
        // Two windows are weighed by time, and a spaced log may have to wait all the same.
        if !matches!(key.limit, Limit::SlidingCounter(_)) && !spaced {
            prop_assert_eq!(after, (before + cost).min(capacity(&key.limit)));
        }
        prop_assert!(key.remaining(us + later) <= capacity(&key.limit));
    }

    #[test]
    fn refunded_is_as_if_never_taken_at_the_same_instant(
        (key, us) in used_key(prop_oneof![any_bucket(), any_window()]), cost in 1u64..50
    ) {
        let mut other = key.clone();
        if other.take(cost, us).is_allow() {
            other.refund(cost, us);
            for later in [0, 1, span(&key.limit) / 2, span(&key.limit)] {
                prop_assert_eq!(other.peek(1, us + later).decision, key.peek(1, us + later).decision);
            }
        }
    }

    #[test]
    fn undo_leaves_what_would_have_been_without_the_charge(
        (key, us) in used_key(any_limit()), cost in 1u64..50, idle in 0u64..3
    ) {
        let mut other = key.clone();
        if let (_, Some(receipt)) = other.charge(cost, us) {
            let later = us + idle * span(&key.limit) / 2;
            other.undo(&receipt, later);
            for more in [0, 1, span(&key.limit) / 3, span(&key.limit)] {
                prop_assert_eq!(other.peek(1, later + more).decision, key.peek(1, later + more).decision);
                prop_assert_eq!(other.peek(7, later + more).decision, key.peek(7, later + more).decision);
            }
        }
    }

    #[test]
    fn undo_behind_other_charges_gives_back_no_more_than_the_charge_still_holds(
        ((key, us), between) in used_key(prop_oneof![any_bucket(), any_window(), any_log()])
            .prop_flat_map(|(key, us)| (Just((key.clone(), us)), requests(key.limit, 12))),
        cost in 1u64..50,
    ) {
        let (mut with, mut without) = (key.clone(), key);
        let (_, Some(receipt)) = with.charge(cost, us) else { return Ok(()) };
        let mut now = us;
        for request in between {
            now += request.gap_us;
            // Only what passes in both worlds, so that they differ by the charge alone.
            if with.peek(request.cost, now).decision.is_allow() && without.peek(request.cost, now).decision.is_allow() {
                with.take(request.cost, now);
                without.take(request.cost, now);
            }
        }
        let kept = with.remaining(now);
        with.undo(&receipt, now);
        for later in [0, 1, span(&with.limit) / 3, span(&with.limit)] {
            let (undone, ideal) = (with.remaining(now + later), without.remaining(now + later));
            prop_assert!(undone <= ideal, "handed out {} too many", undone - ideal);
            if !matches!(with.limit, Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::LeakyBucket(_)) {
                prop_assert_eq!(undone, ideal);
            }
        }
        prop_assert!(with.remaining(now) >= kept);
    }

    #[test]
    fn undo_in_any_order_never_hands_out_what_others_took(
        (limit, events) in prop_oneof![any_bucket(), any_cell(), any_window(), any_log()].prop_flat_map(|limit| {
            let event = (requests(limit, 2), proptest::option::of(0usize..6));
            (Just(limit), proptest::collection::vec(event, 1..25))
        })
    ) {
        // Two worlds: one without the charges that the other takes back, at any time and in any order.
        let (mut with, mut without) = (Key::new(limit), Key::new(limit));
        let mut us = crate::keys::START;
        let mut pending: Vec<(usize, tollgate_core::Receipt)> = Vec::new();
        for (index, (request, undone_after)) in events.iter().enumerate() {
            us += request[0].gap_us;
            let passes_both = with.peek(request[0].cost, us).decision.is_allow()
                && without.peek(request[0].cost, us).decision.is_allow();
            if passes_both && request[0].cost > 0 {
                let (_, receipt) = with.charge(request[0].cost, us);
                match (undone_after, receipt) {
                    (Some(after), Some(receipt)) => pending.push((index + after, receipt)),
                    _ => drop(without.charge(request[0].cost, us)),
                }
            }
            for (_, receipt) in pending.extract_if(.., |(due, _)| *due <= index) {
                with.undo(&receipt, us);
            }
        }
        for (_, receipt) in pending {
            with.undo(&receipt, us);
        }
        for later in [0, 1, span(&limit) / 3, span(&limit)] {
            let (undone, ideal) = (with.remaining(us + later), without.remaining(us + later));
            prop_assert!(undone <= ideal, "handed out {} too many", undone - ideal);
        }
    }

    #[test]
    fn undo_does_nothing_once_the_charge_is_past((key, us) in used_key(any_limit()), cost in 1u64..50, again in 1u64..5) {
        let mut key = key;
        if let (decision, Some(receipt)) = key.charge(cost, us) {
            // At its reset nothing of the charge is left; a later one must not pay for it.
            let later = us + decision.standing().reset_after.get();
            let taken = key.take(again, later).is_allow();
            let before = key.clone();
            key.undo(&receipt, later);
            prop_assert!(!taken || key.remaining(later) == before.remaining(later));
        }
    }

    #[test]
    fn a_promised_delay_stands(
        queue in any_queue(), costs in proptest::collection::vec(1u64..5, 1..20)
    ) {
        let mut key = Key::new(queue.into());
        for cost in costs {
            if let (_, Some(receipt)) = key.charge(cost, crate::keys::START) {
                let before = key.clone();
                key.refund(cost, crate::keys::START);
                key.undo(&receipt, crate::keys::START);
                prop_assert_eq!(&key.state, &before.state);
            }
        }
    }
}

#[test]
fn undo_across_a_change_of_the_rate_hands_nothing_out() {
    use tollgate_core::{Micros, Rate, TokenBucket};
    let bucket = |units, seconds, burst| {
        let rate = Rate::new(units, Micros::from_secs(seconds)).expect("in range");
        Limit::from(TokenBucket::new(rate).with_burst(burst).expect("in range"))
    };
    let (slow, fast) = (bucket(1, 60, 10), bucket(1_000, 60, 10));
    let mut key = Key::new(slow);
    let start = crate::keys::START;
    key.charge(5, start);
    let (_, receipt) = key.charge(5, start);
    key.limit = fast;
    // A second later all of it is worked off at the new pace.
    assert!(key.take(5, start + 1_000_000).is_allow());
    key.limit = slow;
    key.undo(&receipt.expect("it passed"), start + 1_000_000);
    key.limit = fast;
    assert_eq!(key.remaining(start + 1_000_000), 5);
    // A receipt of another limit's fractions is no harm either.
    key.limit = bucket(7, 1, 10);
    key.undo(&receipt.expect("it passed"), start + 1_000_000);
    assert!(key.remaining(start + 1_000_000) <= 5);
}
