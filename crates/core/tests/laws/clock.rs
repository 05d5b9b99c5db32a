//! A clock that moves both ways grants nothing twice and locks no key out.

use crate::keys::{Key, START, any_limit, capacity, span};
use proptest::prelude::*;
use tollgate_core::{Cost, Limit, Now};

/// A move of the clock before a request.
#[derive(Clone, Copy, Debug)]
struct ClockMove {
    us: i64,
    cost: u64,
}

fn clock_moves(limit: Limit) -> impl Strategy<Value = Vec<ClockMove>> {
    let span = span(&limit) as i64;
    let us = prop_oneof![
        2 => Just(0),
        3 => 0..=span / 4,
        2 => 0..=span,
        1 => -1_000_000i64..0,
        2 => -(span / 2 + 2_000_000)..0,
        1 => Just(-1_000_001),
        1 => Just(1_000_001),
        1 => Just(span),
    ];
    let cost = prop_oneof![3 => Just(1), 2 => 1..=capacity(&limit)];
    proptest::collection::vec((us, cost).prop_map(|(us, cost)| ClockMove { us, cost }), 1..80)
}

/// What a limit admits at the most when its clock has moved forward by so much in all: times its period or whole time.
fn admitted_max(limit: &Limit, forward: u64) -> (u128, u128) {
    let forward = u128::from(forward);
    let envelope = |units: u64, period: u64, burst: u64| {
        let (units, period, burst) = (u128::from(units), u128::from(period), u128::from(burst));
        (burst * period + units * forward, period)
    };
    match limit {
        Limit::TokenBucket(it) => envelope(it.rate().units(), it.rate().period().get(), it.burst()),
        Limit::Gcra(it) => envelope(it.rate().units(), it.rate().period().get(), it.burst()),
        Limit::LeakyBucket(it) => envelope(it.rate().units(), it.rate().period().get(), it.depth()),
        // A window and the rest of the one it began in.
        Limit::FixedWindow(it) => envelope(it.rate().units(), it.rate().period().get(), 2 * it.rate().units()),
        Limit::SlidingCounter(it) => envelope(it.rate().units(), it.rate().period().get(), 2 * it.rate().units()),
        Limit::SlidingLog(it) => envelope(it.rate().units(), it.rate().period().get(), it.rate().units()),
        // Nothing is released here, so slots are free only as leases expire.
        Limit::Concurrency(it) => envelope(it.slots(), it.lease_ttl().get(), it.slots()),
        Limit::Cell(it) => {
            let mut key = Key::new(*limit);
            key.take(it.limit(), START);
            let whole = key.peek(0, START).decision.standing().reset_after.get();
            envelope(it.limit(), whole - 1, it.limit() + 1)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn admits_at_most_burst_and_rate_times_forward_movement(
        (limit, moves) in any_limit().prop_flat_map(|limit| (Just(limit), clock_moves(limit)))
    ) {
        let (mut key, mut us) = (Key::new(limit), START);
        let (mut forward, mut admitted) = (0, 0u128);
        for ClockMove { us: by, cost } in moves {
            us = us.saturating_add_signed(by);
            forward += u64::try_from(by).unwrap_or(0);
            if key.take(cost, us).is_allow() {
                admitted += u128::from(cost);
            }
            let (max, period) = admitted_max(&limit, forward);
            prop_assert!(admitted * period <= max, "{admitted} after {forward} us forward");
        }
    }

    #[test]
    fn locks_nobody_out_for_longer_than_the_limit_takes_to_fill(
        (limit, moves) in any_limit().prop_flat_map(|limit| (Just(limit), clock_moves(limit)))
    ) {
        // A window that was set back keeps its time and lasts on to a boundary: two periods at most.
        let mut full = Key::new(limit);
        full.take(capacity(&limit), START + 1);
        let filling = full.peek(0, START + 1).decision.standing().reset_after.get();
        let longest = match limit {
            Limit::FixedWindow(_) | Limit::SlidingCounter(_) => 2 * span(&limit),
            _ => filling,
        };
        let (mut key, mut us) = (Key::new(limit), START);
        for ClockMove { us: by, cost } in moves {
            us = us.saturating_add_signed(by);
            let reset_after = key.take(cost, us).standing().reset_after.get();
            prop_assert!(reset_after <= longest, "resets in {reset_after} us, full after {longest}");
            // The reset counts from the later of now and the last write, which is within the slack.
            let later = us + reset_after + Now::SLACK.get();
            prop_assert_eq!(key.peek(0, later).decision, Key::new(limit).peek(0, later).decision);
        }
    }

    #[test]
    fn a_step_back_is_written_back_even_by_a_refusal_and_keeps_what_was_used(
        (limit, cost) in any_limit().prop_flat_map(|limit| (Just(limit), 1..=capacity(&limit))), back in 1_000_001u64..10_000_000_000
    ) {
        let mut key = Key::new(limit);
        key.take(cost, START);
        let before = *key.peek(0, START).decision.standing();
        let us = START - back;
        let refused = capacity(&limit) + 1;
        prop_assert!(!key.take(refused, us).is_allow());
        let after = key.limit.decide(key.state.as_ref(), Cost::ZERO, crate::keys::now(us));
        prop_assert!(after.repair.is_none(), "repaired once");
        prop_assert_eq!(after.decision.standing().remaining, before.remaining);
        prop_assert!(after.decision.standing().reset_after >= before.reset_after);
        if !matches!(limit, Limit::FixedWindow(_)) {
            prop_assert_eq!(after.decision.standing(), &before);
        }
    }

    #[test]
    fn within_the_slack_time_stands_still(
        (limit, cost) in any_limit().prop_flat_map(|limit| (Just(limit), 1..=capacity(&limit))), back in 0u64..=1_000_000
    ) {
        let mut key = Key::new(limit);
        key.take(cost, START);
        prop_assert_eq!(key.peek(1, START - back).decision, key.peek(1, START).decision);
        prop_assert!(key.peek(1, START - back).repair.is_none());
    }
}
