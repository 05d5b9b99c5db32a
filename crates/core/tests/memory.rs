//! How much a key takes, and that long states stay packed while they are edited.

use tollgate_core::{
    Algorithm, Concurrency, Cost, LeaseId, Micros, Now, Rate, Ring, SlidingLog, State, Timestamp, algorithm,
};

const START: u64 = 1_700_006_400_000_000;

fn now(us: u64) -> Now {
    Now::new(Timestamp::from_micros(us))
}

fn log(units: u64, period: Micros) -> SlidingLog {
    Rate::new(units, period).and_then(SlidingLog::new).expect("in range")
}

/// A log filled by single requests, each at an instant of its own.
fn filled(log: SlidingLog) -> Ring {
    let mut state = None;
    for n in 0..log.rate().units() {
        let step = log.decide(state.as_ref(), Cost::ONE, now(START + n));
        let next = step.next.expect("as many pass as fit");
        log.keep(&mut state, next, LeaseId(0));
    }
    state.expect("a log that was written")
}

#[test]
fn a_full_log_takes_eight_bytes_or_less_per_request() {
    let (minute, day, year) = (
        Micros::from_secs(60),
        Micros::from_secs(86_400),
        Micros::from_secs(366 * 86_400),
    );
    for (units, period, bytes) in [
        (100, minute, 5),
        (1_000, minute, 5),
        (10_000, minute, 5),
        (100, day, 6),
        (1_000_000, day, 8),
        (1_000_000, Micros::from_secs(200 * 86_400), 8),
        (500_000, year, 8),
        // The one corner that needs a bit more than a word: over 2^19 requests in over 2^44 µs (203 days).
        (1_000_000, year, 9),
    ] {
        let ring = filled(log(units, period));
        assert_eq!(ring.run_count() as u64, units);
        // Sixteen bytes for the whole ring are room to read the last run in one go.
        assert_eq!(ring.heap_bytes() as u64, units * bytes + 16, "{units} per {period}");
    }
}

#[test]
fn requests_of_one_instant_and_large_costs_take_one_run() {
    let log = log(1_000_000, Micros::from_secs(60));
    let mut state = None;
    for cost in [1, 1, 1, 999_000] {
        let step = log.decide(state.as_ref(), Cost::new(cost).expect("in range"), now(START));
        log.keep(&mut state, step.next.expect("it fits"), LeaseId(0));
    }
    assert_eq!(state.expect("written").run_count(), 1);
}

#[test]
fn a_busy_log_goes_round_and_does_not_grow() {
    let log = log(100, Micros::from_secs(1));
    let mut state = None;
    let mut admitted = 0;
    for n in 0..100_000u64 {
        // Twice as fast as allowed.
        let step = log.decide(state.as_ref(), Cost::ONE, now(START + n * 5_000));
        if step.decision.is_allow() {
            admitted += 1;
            log.keep(&mut state, step.next.expect("a charge changes the log"), LeaseId(0));
        }
    }
    assert_eq!(admitted, 100_000 / 200 * 100);
    assert!(state.expect("written").heap_bytes() <= 100 * 8);
}

#[test]
fn raising_a_limit_widens_the_log_and_loses_nothing() {
    let period = Micros::from_secs(60);
    let mut state = Some(filled(log(7, period)));
    for units in [8, 100, 5_000, 1_000_000] {
        let log = log(units, period);
        let used = |state: &Option<Ring>| {
            units
                - log
                    .decide(state.as_ref(), Cost::ZERO, now(START + 10))
                    .decision
                    .standing()
                    .remaining
        };
        let before = used(&state);
        let step = log.decide(state.as_ref(), Cost::ONE, now(START + 10));
        log.keep(&mut state, step.next.expect("there is room now"), LeaseId(0));
        assert_eq!(used(&state), before + 1);
    }
}

#[test]
fn a_lease_takes_twenty_six_bytes() {
    let limit = Concurrency::new(10_000, Micros::from_secs(60)).expect("in range");
    let mut state = None;
    for id in 1..=10_000 {
        let step = limit.decide(state.as_ref(), Cost::ONE, now(START + id));
        limit.keep(&mut state, step.next.expect("a slot is free"), LeaseId(id));
    }
    let leases = state.as_ref().expect("written");
    assert_eq!(leases.heap_bytes(), 10_000 * 26);
    // And every one of them can be released, in any order, once.
    for id in (1..=10_000).rev().step_by(97) {
        let edit = limit.release(state.as_ref().expect("written"), LeaseId(id), now(START + 20_000));
        limit.keep(&mut state, edit.expect("it is held"), LeaseId(id));
        assert!(
            limit
                .release(state.as_ref().expect("written"), LeaseId(id), now(START + 20_000))
                .is_none()
        );
    }
}

#[test]
fn small_states_are_small() {
    assert_eq!(size_of::<Option<algorithm::token_bucket::State>>(), 32);
    assert_eq!(size_of::<Option<algorithm::gcra::State>>(), 24);
    assert_eq!(size_of::<algorithm::cell::State>(), 24);
    assert_eq!(size_of::<algorithm::fixed_window::State>(), 24);
    assert_eq!(size_of::<algorithm::sliding_counter::PackedCounters>(), 32);
    assert!(size_of::<State>() <= 112);
}
