//! The short cut for one unit: it is the long way exactly, or it says and writes nothing.

use crate::keys::{
    Key, START, any_cell, any_concurrency, any_log, any_queue, any_rate, any_spaced_log, any_window, capacity, now,
    span,
};
use proptest::prelude::*;
use tollgate_core::{
    Algorithm, Cell, Cost, Debt, Decision, Gcra, LeakyBucket, LeaseId, Limit, Mark, Micros, Now, PackedDebt, Rate,
    State, TokenBucket,
};

/// What happens to a key, and under which of its limits.
#[derive(Clone, Copy, Debug)]
struct Event {
    limit: usize,
    us: i64,
    cost: u64,
    then: Then,
}

/// What becomes of a charge, so that keys reach every state there is.
#[derive(Clone, Copy, Debug)]
enum Then {
    Keep,
    /// Kept whether it passes or not.
    Count,
    Undo,
    Refund,
}

/// Limits of one algorithm that take turns on one key.
fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    let several = |limits: BoxedStrategy<Limit>| proptest::collection::vec(limits, 1..4);
    let bucket = |make: fn(Rate, u64) -> Option<Limit>| {
        let sizes = (any_rate_at_all(), any_burst_at_all());
        sizes.prop_filter_map("fills too slowly", move |(rate, burst)| make(rate, burst))
    };
    prop_oneof![
        4 => several(bucket(|rate, burst| TokenBucket::new(rate).with_burst(burst).ok().map(Limit::from)).boxed()),
        2 => several(bucket(|rate, burst| Gcra::new(rate).with_burst(burst).ok().map(Limit::from)).boxed()),
        2 => several(bucket(|rate, depth| LeakyBucket::new(rate).with_depth(depth).ok().map(Limit::from)).boxed()),
        2 => several(any_queue().prop_map(Limit::from).boxed()),
        2 => several(prop_oneof![any_cell(), any_cell_at_all()].boxed()),
        1 => several(any_window().boxed()).prop_map(keep_one_algorithm),
        1 => several(prop_oneof![any_log(), any_spaced_log()].boxed()),
        1 => several(any_concurrency().boxed()),
    ]
}

fn keep_one_algorithm(limits: Vec<Limit>) -> Vec<Limit> {
    let name = limits.first().map(Limit::algorithm);
    limits
        .into_iter()
        .filter(|limit| Some(limit.algorithm()) == name)
        .collect()
}

/// Rates as the other laws use them, and the extremes.
fn any_rate_at_all() -> impl Strategy<Value = Rate> {
    let longest = 366 * 86_400 * 1_000_000;
    let units = prop_oneof![
        Just(1),
        Just(7),
        Just(999_999_937),
        Just(Rate::UNITS_MAX),
        1..=Rate::UNITS_MAX
    ];
    let period = prop_oneof![
        Just(1_000),
        Just(1_000_003),
        Just(longest),
        Just(longest - 1),
        1_000..=longest
    ];
    let extreme =
        (units, period).prop_filter_map("too fast", |(units, period)| Rate::new(units, Micros::new(period)).ok());
    prop_oneof![any_rate(), extreme]
}

fn any_burst_at_all() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(1), 3 => 1u64..20, 2 => 1u64..2_000, 2 => Just(Rate::UNITS_MAX), 2 => 1..=Rate::UNITS_MAX]
}

fn any_cell_at_all() -> impl Strategy<Value = Limit> {
    let units = || prop_oneof![1_u64..=1_000_000_000, 1_u64..=Rate::UNITS_MAX];
    (units(), units(), 1u64..10_000_000).prop_filter_map("fills too slowly", |(limit, count, period)| {
        let cell = Cell::new(limit - 1, count, period).ok()?;
        let full = cell.decide(None, Cost::from_quantity(limit), now(START)).decision;
        // Those with larger numbers have no such path.
        cell.is_exact(full.standing()).then(|| cell.into())
    })
}

fn events(limits: &[Limit]) -> impl Strategy<Value = Vec<Event>> + use<> {
    let first = limits.first().expect("at least one");
    let (span, cost_max) = (span(first) as i64, capacity(first));
    let us = prop_oneof![
        4 => Just(0),
        2 => Just(1),
        4 => 0..=(span / cost_max as i64 * 2).max(1),
        2 => 0..=span,
        // Late by no more than the slack, and set back.
        2 => -1_000_000i64..0,
        1 => Just(-1_000_001),
        1 => -2 * span..0,
    ];
    let cost = prop_oneof![5 => Just(1), 2 => 1..=cost_max.min(5), 2 => Just(cost_max), 1 => 0..=cost_max];
    let then =
        prop_oneof![6 => Just(Then::Keep), 2 => Just(Then::Count), 1 => Just(Then::Undo), 1 => Just(Then::Refund)];
    let one = (0..limits.len(), us, cost, then).prop_map(|(limit, us, cost, then)| Event { limit, us, cost, then });
    proptest::collection::vec(one, 1..60)
}

/// What the short cut says, and what it makes of the state.
fn take_one(limit: &Limit, state: &State, now: Now) -> (Option<(Decision, Mark)>, State) {
    macro_rules! of {
        ($($name:ident)*) => {
            match (limit, state) {
                $((Limit::$name(limit), State::$name(state)) => {
                    let mut state = state.clone();
                    let taken = limit.take_one(&mut state, now);
                    (taken, State::$name(state))
                })*
                _ => panic!("{state:?} is not of {limit:?}"),
            }
        };
    }
    of!(TokenBucket Gcra FixedWindow SlidingCounter SlidingLog LeakyBucket Concurrency Cell)
}

/// What the long way says, and makes of the state if only what is allowed is kept.
fn decide_one(limit: &Limit, state: &State, now: Now) -> ((Decision, Mark), State) {
    let step = limit.decide(Some(state), Cost::ONE, now);
    let mut held = Some(state.clone());
    let change = if step.decision.is_allow() {
        step.next
    } else {
        step.repair
    };
    if let Some(change) = change {
        limit.keep(&mut held, change, LeaseId(0));
    }
    ((step.decision, step.mark), held.expect("a key that was there is there"))
}

/// Holds the short cut to the long way, and says whether there was one.
fn check(limit: &Limit, held: &State, now: Now) -> Result<bool, TestCaseError> {
    let (taken, after) = take_one(limit, held, now);
    let Some(taken) = taken else {
        prop_assert_eq!(&after, held, "what says nothing writes nothing");
        return Ok(false);
    };
    let (decided, kept) = decide_one(limit, held, now);
    prop_assert_eq!(taken, decided);
    prop_assert_eq!(after, kept);
    Ok(true)
}

/// Whether one unit of a key that knows only this limit is to be had in place: of a debt, by a clock not set back.
fn is_usual(limit: &Limit, state: &State, now: Now) -> bool {
    let of_debt = matches!(
        limit,
        Limit::TokenBucket(_) | Limit::Gcra(_) | Limit::LeakyBucket(_) | Limit::Cell(_)
    );
    of_debt && limit.decide(Some(state), Cost::ONE, now).repair.is_none()
}

fn packs(state: &State) -> Result<(), TestCaseError> {
    if let State::TokenBucket(debt) | State::LeakyBucket(debt) = *state {
        let packed = PackedDebt::from(debt);
        prop_assert_eq!(Debt::from(packed), debt);
        prop_assert_eq!(packed.fresh_at(), debt.fresh_at());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn taking_one_in_place_is_deciding_and_keeping_or_nothing(
        (limits, events) in any_limits().prop_flat_map(|limits| {
            let events = events(&limits);
            (Just(limits), events)
        }),
        start in prop_oneof![4 => Just(START), 1 => Just(0), 1 => Just(Now::MAX.as_micros() - 1_000_000), 1 => 0..(1u64 << 52)],
    ) {
        let (mut key, mut us) = (Key::new(limits[0]), start);
        for Event { limit, us: by, cost, then } in events {
            us = us.saturating_add_signed(by);
            key.limit = limits[limit];
            if let Some(state) = &key.state {
                packs(state)?;
                let late = [0, 1, 1_000_000, 1_000_001].map(|late| now(us.saturating_sub(late)));
                let waited = now(us.saturating_sub(span(&key.limit))).with_slack(Micros::MAX);
                for now in late.into_iter().chain([waited]) {
                    let is_shortcut = check(&key.limit, state, now)?;
                    prop_assert!(is_shortcut == is_usual(&key.limit, state, now) || limits.len() > 1);
                }
            }
            match then {
                Then::Keep => drop(key.take(cost, us)),
                Then::Count => {
                    let step = key.peek(cost, us);
                    if let Some(change) = step.next.or(step.repair) {
                        key.limit.keep(&mut key.state, change, LeaseId(us));
                    }
                }
                Then::Undo => {
                    if let (_, Some(receipt)) = key.charge(cost, us) {
                        key.undo(&receipt, us);
                    }
                }
                Then::Refund => {
                    key.take(cost, us);
                    key.refund(cost, us);
                }
            }
        }
    }
}
