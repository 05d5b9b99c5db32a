//! A clock that moves both ways gives nothing twice and locks nobody out.

use crate::keys::{Key, START, any_limit, capacity, span};
use proptest::prelude::*;
use tollgate_core::{Cost, Limit, Now};

/// A move of the clock before a request.
#[derive(Clone, Copy, Debug)]
struct Move {
    us: i64,
    cost: u64,
}

fn moves(limit: Limit) -> impl Strategy<Value = Vec<Move>> {
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
    proptest::collection::vec((us, cost).prop_map(|(us, cost)| Move { us, cost }), 1..80)
}

/// What a limit admits at the most when its clock has moved forward by so much in all: times its period or whole time.
fn most(limit: &Limit, forward: u64) -> (u128, u128) {
    let forward = u128::from(forward);
    let of = |units: u64, period: u64, burst: u64| {
        let (units, period, burst) = (u128::from(units), u128::from(period), u128::from(burst));
        (burst * period + units * forward, period)
    };
    match limit {
        Limit::TokenBucket(it) => of(it.rate().units(), it.rate().period().get(), it.burst()),
        Limit::Gcra(it) => of(it.rate().units(), it.rate().period().get(), it.burst()),
        Limit::LeakyBucket(it) => of(it.rate().units(), it.rate().period().get(), it.depth()),
        // A window and the rest of the one it began in.
        Limit::FixedWindow(it) => of(it.rate().units(), it.rate().period().get(), 2 * it.rate().units()),
        Limit::SlidingCounter(it) => of(it.rate().units(), it.rate().period().get(), 2 * it.rate().units()),
        Limit::SlidingLog(it) => of(it.rate().units(), it.rate().period().get(), it.rate().units()),
        // Nothing is given back here, so slots come back only as leases run out.
        Limit::Concurrency(it) => of(it.slots(), it.lease_ttl().get(), it.slots()),
        Limit::Cell(it) => {
            let mut key = Key::new(*limit);
            key.ask(it.limit(), START);
            let whole = key.look(0, START).decision.standing().reset_after.get();
            of(it.limit(), whole - 1, it.limit() + 1)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn admits_at_most_burst_and_rate_times_forward_movement(
        (limit, moves) in any_limit().prop_flat_map(|limit| (Just(limit), moves(limit)))
    ) {
        let (mut key, mut us) = (Key::new(limit), START);
        let (mut forward, mut admitted) = (0, 0u128);
        for Move { us: by, cost } in moves {
            us = us.saturating_add_signed(by);
            forward += u64::try_from(by).unwrap_or(0);
            if key.ask(cost, us).is_allow() {
                admitted += u128::from(cost);
            }
            let (most, period) = most(&limit, forward);
            prop_assert!(admitted * period <= most, "{admitted} after {forward} us forward");
        }
    }

    #[test]
    fn locks_nobody_out_for_longer_than_the_limit_takes_to_fill(
        (limit, moves) in any_limit().prop_flat_map(|limit| (Just(limit), moves(limit)))
    ) {
        // A window that was set back keeps its time and lasts on to a seam: two periods at the most.
        let mut full = Key::new(limit);
        full.ask(capacity(&limit), START + 1);
        let filling = full.look(0, START + 1).decision.standing().reset_after.get();
        let longest = match limit {
            Limit::FixedWindow(_) | Limit::SlidingCounter(_) => 2 * span(&limit),
            _ => filling,
        };
        let (mut key, mut us) = (Key::new(limit), START);
        for Move { us: by, cost } in moves {
            us = us.saturating_add_signed(by);
            let told = key.ask(cost, us).standing().reset_after.get();
            prop_assert!(told <= longest, "told {told} us, full after {longest}");
            // What was told holds from the later of now and the last write on, which is within the slack.
            let later = us + told + Now::SLACK.get();
            prop_assert_eq!(key.look(0, later).decision, Key::new(limit).look(0, later).decision);
        }
    }

    #[test]
    fn a_step_back_is_written_back_even_by_a_refusal_and_keeps_what_was_used(
        (limit, cost) in any_limit().prop_flat_map(|limit| (Just(limit), 1..=capacity(&limit))), back in 1_000_001u64..10_000_000_000
    ) {
        let mut key = Key::new(limit);
        key.ask(cost, START);
        let before = *key.look(0, START).decision.standing();
        let us = START - back;
        let refused = capacity(&limit) + 1;
        prop_assert!(!key.ask(refused, us).is_allow());
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
        key.ask(cost, START);
        prop_assert_eq!(key.look(1, START - back).decision, key.look(1, START).decision);
        prop_assert!(key.look(1, START - back).repair.is_none());
    }
}
