//! A limit that changes under a live key never mints: tiers, overrides, edits.

use crate::keys::{Key, START, any_concurrency, any_rate, capacity, wait};
use proptest::prelude::*;
use tollgate_core::{FixedWindow, Gcra, LeakyBucket, Limit, Micros, Rate, SlidingCounter, SlidingLog, TokenBucket};

/// A request under a limit of its own.
#[derive(Clone, Copy, Debug)]
struct LimitedRequest {
    limit: Limit,
    gap_us: u64,
    cost: u64,
}

fn limited_requests(limits: impl Strategy<Value = Limit>) -> impl Strategy<Value = Vec<LimitedRequest>> {
    let one = (limits, prop_oneof![Just(0), Just(1), 0u64..5_000_000], 1u64..10)
        .prop_map(|(limit, gap_us, cost)| LimitedRequest { limit, gap_us, cost });
    proptest::collection::vec(one, 1..80)
}

fn any_rate_within_seconds() -> impl Strategy<Value = (Rate, u64)> {
    let period = prop_oneof![Just(1_000), Just(1_000_000), 1_000u64..10_000_000];
    (1u64..200, period, 1u64..100)
        .prop_map(|(units, period, burst)| (Rate::new(units, Micros::new(period)).expect("in range"), burst))
}

fn numbers(limit: &Limit) -> (u64, u64, u64) {
    match limit {
        Limit::TokenBucket(it) => (it.rate().units(), it.rate().period().get(), it.burst()),
        Limit::Gcra(it) => (it.rate().units(), it.rate().period().get(), it.burst()),
        Limit::LeakyBucket(it) => (it.rate().units(), it.rate().period().get(), it.depth()),
        other => panic!("{other:?} is not a bucket"),
    }
}

/// Every request that passes, with its limit, in turn.
fn run(requests: &[LimitedRequest]) -> Vec<(u64, LimitedRequest)> {
    let Some(first) = requests.first() else {
        return Vec::new();
    };
    let (mut key, mut us) = (Key::new(first.limit), START);
    let mut admitted = Vec::new();
    for &request in requests {
        us += request.gap_us;
        key.limit = request.limit;
        if key.take(request.cost, us).is_allow() {
            admitted.push((us, request));
        }
    }
    admitted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn buckets_admit_no_more_than_the_largest_of_them_would(
        asked in limited_requests(any_rate_within_seconds().prop_map(|(rate, burst)| {
            TokenBucket::new(rate).with_burst(burst).expect("in range").into()
        }))
    ) {
        no_more_than_the_largest(&asked)?;
    }

    #[test]
    fn leaky_buckets_admit_no_more_than_the_largest_of_them_would(
        asked in limited_requests(any_rate_within_seconds().prop_map(|(rate, burst)| {
            LeakyBucket::new(rate).with_depth(burst).expect("in range").into()
        }))
    ) {
        no_more_than_the_largest(&asked)?;
    }

    #[test]
    fn gcra_keeps_its_debt_in_time(
        asked in limited_requests(any_rate_within_seconds().prop_map(|(rate, burst)| {
            Gcra::new(rate).with_burst(burst).expect("in range").into()
        }))
    ) {
        // In time: the work of what passed in an interval is at most the longest tolerance and the interval's length.
        // Counted in 1/4096 µs, rounded down for the work.
        const GRAIN: u128 = 4096;
        let work = |it: &LimitedRequest, units: u64| {
            let (per, period, _) = numbers(&it.limit);
            u128::from(units) * u128::from(period) * GRAIN / u128::from(per)
        };
        let tolerance = asked.iter().map(|it| work(it, numbers(&it.limit).2) + 1).max().unwrap_or(0);
        let admitted = run(&asked);
        for from in 0..admitted.len() {
            let mut sum = 0;
            for (us, it) in &admitted[from..] {
                sum += work(it, it.cost);
                let length = u128::from(us - admitted[from].0) * GRAIN;
                prop_assert!(sum <= tolerance + length);
            }
        }
    }

    #[test]
    fn windows_and_logs_admit_no_more_than_the_largest_limit(
        asked in limited_requests((1u64..50, 0..3).prop_map(|(units, kind)| {
            let rate = Rate::new(units, Micros::from_secs(2)).expect("in range");
            match kind {
                0 => FixedWindow::new(rate).into(),
                1 => SlidingCounter::new(rate).into(),
                _ => SlidingLog::new(rate).expect("few enough").into(),
            }
        })),
        kind in 0usize..3,
    ) {
        // One key has one algorithm; only its numbers change.
        let names = ["fixed_window", "sliding_counter", "sliding_log"];
        let asked: Vec<LimitedRequest> = asked.into_iter().filter(|it| it.limit.algorithm() == names[kind]).collect();
        let largest = asked.iter().map(|it| capacity(&it.limit)).max().unwrap_or(0);
        let admitted = run(&asked);
        for &(to, _) in &admitted {
            let within = |from: u64| admitted.iter().filter(move |it| it.0 > from && it.0 <= to).map(|it| it.1.cost);
            let sum: u64 = match names[kind] {
                "sliding_log" => within(to - 2_000_000).sum(),
                _ => within((to / 2_000_000 * 2_000_000) - 1).sum(),
            };
            prop_assert!(sum <= largest);
        }
    }

    #[test]
    fn promises_hold_under_the_new_limit_too(
        before in any_rate(), after in any_rate(), bursts in (1u64..50, 1u64..50), used in 1u64..50, idle in 0u64..10_000_000,
        cost in 1u64..50,
    ) {
        let old = TokenBucket::new(before).with_burst(bursts.0);
        let new = TokenBucket::new(after).with_burst(bursts.1);
        let (Ok(old), Ok(new)) = (old, new) else { return Ok(()) };
        let mut key = Key::new(old.into());
        key.take(used.min(bursts.0), START);
        key.limit = new.into();
        let us = START + idle;
        let remaining = key.remaining(us);
        prop_assert!(key.peek(remaining, us).decision.is_allow());
        prop_assert!(!key.peek(remaining + 1, us).decision.is_allow());
        if let Some(wait) = wait(&key.peek(cost, us).decision) {
            prop_assert!(!key.peek(cost, us + wait - 1).decision.is_allow());
            prop_assert!(key.peek(cost, us + wait).decision.is_allow());
        }
        let reset = key.peek(0, us).decision.standing().reset_after.get();
        let fresh = Key::new(key.limit);
        prop_assert_eq!(key.peek(0, us + reset).decision, fresh.peek(0, us + reset).decision);
    }

    #[test]
    fn slots_in_use_stay_in_use(before in any_concurrency(), after in any_concurrency(), used in 1u64..50) {
        let mut key = Key::new(before);
        let used = used.min(capacity(&before));
        key.take(used, START);
        key.limit = after;
        prop_assert_eq!(key.remaining(START), capacity(&after).saturating_sub(used));
    }
}

fn no_more_than_the_largest(requests: &[LimitedRequest]) -> Result<(), TestCaseError> {
    let burst = requests.iter().map(|it| numbers(&it.limit).2).max().unwrap_or(0);
    let fastest = requests
        .iter()
        .map(|it| numbers(&it.limit))
        .max_by(|a, b| (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1))));
    let (units, period, _) = fastest.unwrap_or((0, 1, 0));
    let admitted = run(requests);
    for from in 0..admitted.len() {
        let mut sum = 0;
        for (us, it) in &admitted[from..] {
            sum += u128::from(it.cost);
            let length = u128::from(us - admitted[from].0);
            let max = u128::from(burst) * u128::from(period) + u128::from(units) * length;
            prop_assert!(sum * u128::from(period) <= max, "{} in {} us", sum, length);
        }
    }
    Ok(())
}

#[test]
fn what_was_used_stays_used_when_a_limit_is_raised() {
    let per_minute = |units| Rate::new(units, Micros::from_secs(60)).expect("in range");
    let mut key = Key::new(TokenBucket::new(per_minute(100)).into());
    assert!(key.take(100, START).is_allow());
    key.limit = TokenBucket::new(per_minute(1_000)).into();
    assert_eq!(key.remaining(START), 900);

    let mut key = Key::new(Gcra::new(per_minute(100)).into());
    assert!(key.take(100, START).is_allow());
    key.limit = Gcra::new(per_minute(1_000)).into();
    assert_eq!(key.remaining(START), 0, "it owed a minute and still does");
}
