//! Never more than the envelope, in any interval.

use crate::keys::{Key, Request, START, any_cell, any_concurrency, any_log, any_queue, any_rate, requests, wait};
use crate::keys::{any_bucket, any_spaced_log};
use proptest::prelude::*;
use tollgate_core::{FixedWindow, Limit, SlidingCounter};

/// What was admitted: when, and how much.
fn admitted(limit: Limit, requests: &[Request]) -> Vec<(u64, u64)> {
    let (mut key, mut us) = (Key::new(limit), START);
    let mut admitted = Vec::new();
    for request in requests {
        us += request.gap_us;
        if key.take(request.cost, us).is_allow() && request.cost > 0 {
            admitted.push((us, request.cost));
        }
    }
    admitted
}

/// For every two admitted requests: how far apart they are, and how much passed from the one to the other.
fn intervals(admitted: &[(u64, u64)]) -> impl Iterator<Item = (u64, u128)> + '_ {
    (0..admitted.len()).flat_map(move |from| {
        let mut sum = 0;
        admitted[from..].iter().map(move |&(us, cost)| {
            sum += u128::from(cost);
            (us - admitted[from].0, sum)
        })
    })
}

/// The parameters of a bucket: units, period and burst.
fn numbers(limit: &Limit) -> (u128, u128, u128) {
    let (rate, burst) = match limit {
        Limit::TokenBucket(it) => (it.rate(), it.burst()),
        Limit::Gcra(it) => (it.rate(), it.burst()),
        Limit::LeakyBucket(it) => (it.rate(), it.depth()),
        other => panic!("{other:?} has no burst"),
    };
    (rate.units().into(), rate.period().get().into(), burst.into())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn buckets_admit_at_most_burst_plus_rate_times_time(
        (limit, requests) in any_bucket().prop_flat_map(|limit| (Just(limit), requests(limit, 120)))
    ) {
        let (units, period, burst) = numbers(&limit);
        for (length, sum) in intervals(&admitted(limit, &requests)) {
            prop_assert!(sum * period <= burst * period + units * u128::from(length), "{sum} in {length} us");
        }
    }

    #[test]
    fn cells_admit_at_most_their_limit_and_one_each_interval(
        (limit, requests) in any_cell().prop_flat_map(|limit| (Just(limit), requests(limit, 120))),
    ) {
        // The interval is not the limit's to tell: two requests in a row show it.
        let Limit::Cell(cell) = limit else { unreachable!() };
        let mut key = Key::new(limit);
        key.take(cell.limit(), START);
        let whole_us = key.peek(0, START).decision.standing().reset_after.get();
        for (length, sum) in intervals(&admitted(limit, &requests)) {
            // limit + t / T with T = whole / limit; the whole is rounded up by less than a microsecond.
            let max = u128::from(cell.limit()) * u128::from(whole_us + length);
            prop_assert!(sum * u128::from(whole_us - 1) <= max, "{sum} in {length} us");
        }
    }

    #[test]
    fn a_log_admits_at_most_its_limit_in_any_window(
        (limit, requests) in prop_oneof![any_log(), any_spaced_log()]
            .prop_flat_map(|limit| (Just(limit), requests(limit, 120)))
    ) {
        let Limit::SlidingLog(log) = limit else { unreachable!() };
        let admitted = admitted(limit, &requests);
        for (length, sum) in intervals(&admitted) {
            prop_assert!(length >= log.rate().period().get() || sum <= u128::from(log.rate().units()));
        }
        for pair in admitted.windows(2) {
            prop_assert!(pair[1].0 - pair[0].0 >= log.min_interval().get());
        }
    }

    #[test]
    fn a_fixed_window_admits_at_most_its_limit_per_aligned_window(
        (rate, requests) in any_rate().prop_flat_map(|rate| (Just(rate), requests(FixedWindow::new(rate).into(), 120)))
    ) {
        let mut windows = std::collections::HashMap::<u64, u64>::new();
        for (us, cost) in admitted(FixedWindow::new(rate).into(), &requests) {
            let sum = windows.entry(us / rate.period().get()).or_default();
            *sum += cost;
            prop_assert!(*sum <= rate.units());
        }
    }

    #[test]
    fn a_counter_admits_exactly_what_its_estimate_allows(
        (rate, requests) in any_rate()
            .prop_flat_map(|rate| (Just(rate), requests(SlidingCounter::new(rate).into(), 120)))
    ) {
        let (mut key, mut us) = (Key::new(SlidingCounter::new(rate).into()), START);
        let (units, period) = (u128::from(rate.units()), u128::from(rate.period().get()));
        let mut windows = std::collections::HashMap::<u64, u128>::new();
        for request in &requests {
            us += request.gap_us;
            let window = us / rate.period().get();
            let count = |window| windows.get(&window).copied().unwrap_or(0);
            let covered = period - u128::from(us % rate.period().get());
            let estimate = count(window) * period + window.checked_sub(1).map_or(0, count) * covered;
            let cost = u128::from(request.cost);
            let passes = cost == 0 || estimate + cost * period <= units * period;
            prop_assert_eq!(key.take(request.cost, us).is_allow(), passes);
            if passes {
                *windows.entry(window).or_default() += cost;
            }
        }
    }

    #[test]
    fn no_more_are_in_flight_than_there_are_slots(
        (limit, requests) in any_concurrency().prop_flat_map(|limit| (Just(limit), requests(limit, 120)))
    ) {
        let Limit::Concurrency(slots) = limit else { unreachable!() };
        let admitted = admitted(limit, &requests);
        for &(us, _) in &admitted {
            let held = admitted.iter().filter(|lease| lease.0 <= us && us < lease.0 + slots.lease_ttl().get());
            prop_assert!(held.map(|lease| lease.1).sum::<u64>() <= slots.slots());
        }
    }

    #[test]
    fn what_leaves_a_queue_keeps_its_rate(
        (queue, requests) in any_queue().prop_flat_map(|queue| (Just(queue), requests(queue.into(), 120)))
    ) {
        let (mut key, mut us) = (Key::new(queue.into()), START);
        let (mut leaves, mut ahead): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        for request in requests.iter().filter(|request| request.cost > 0) {
            us += request.gap_us;
            if let tollgate_core::Decision::Allow { delay, .. } = key.take(request.cost, us) {
                leaves.push(us + delay.get());
                ahead.push(request.cost);
            }
        }
        prop_assert!(leaves.is_sorted());
        // Between two that leave, all that went ahead of the later one has had its time; a microsecond is for rounding.
        let (units, period) = (u128::from(queue.rate().units()), u128::from(queue.rate().period().get()));
        for from in 0..leaves.len() {
            let mut work = 0;
            for to in from + 1..leaves.len() {
                work += u128::from(ahead[to - 1]);
                prop_assert!(work * period <= u128::from(leaves[to] - leaves[from] + 1) * units);
            }
        }
    }
}

#[test]
fn a_fixed_window_lets_twice_its_limit_through_at_the_seam() {
    let rate = tollgate_core::Rate::new(100, tollgate_core::Micros::from_secs(60)).expect("in range");
    let mut key = Key::new(FixedWindow::new(rate).into());
    let boundary = START + 60_000_000;
    assert!(key.take(100, boundary - 1).is_allow());
    assert!(!key.take(1, boundary - 1).is_allow());
    assert!(key.take(100, boundary).is_allow(), "two hundred within a microsecond");
    assert!(!key.take(1, boundary).is_allow());
}

#[test]
fn uneven_rates_do_not_drift_however_long_they_run() {
    for (units, period) in [
        (7, 1_000_000),
        (1_000, 420_000_000),
        (3, 31_622_400_000_000),
        (999_983, 1_000_003),
    ] {
        let rate = tollgate_core::Rate::new(units, tollgate_core::Micros::new(period)).expect("in range");
        let bucket = tollgate_core::TokenBucket::new(rate).with_burst(2).expect("in range");
        let gcra = tollgate_core::Gcra::new(rate).with_burst(2).expect("in range");
        let rounds = if period > 1_000_000_000_000 { 200 } else { 100_000_u64 };
        for limit in [Limit::from(bucket), Limit::from(gcra)] {
            let (mut key, mut us) = (Key::new(limit), START);
            assert!(key.take(1, us).is_allow());
            // A caller who always comes at the promised moment gets the n-th further unit at exactly n * period / units:
            // with two units of burst the limit is never idle, so nothing of its time is lost.
            for n in 0..rounds {
                let due = (u128::from(n) * u128::from(period)).div_ceil(u128::from(units)) as u64;
                assert_eq!(us, START + due, "{limit:?}, unit {n}");
                assert!(key.take(1, us).is_allow());
                us += wait(&key.take(1, us)).expect("the next one waits");
            }
        }
    }
}
