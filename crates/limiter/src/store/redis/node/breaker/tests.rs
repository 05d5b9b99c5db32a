//! The conditions that open and close the circuit breaker.

use super::*;

fn at(ms: u64) -> Timestamp {
    Timestamp::EPOCH + Micros::from_millis(1_000_000 + ms)
}

fn breaker(open_for: OpenFor) -> Breaker {
    let config = BreakerConfig {
        open_for,
        ..BreakerConfig::default()
    };
    Breaker::new(config, Duration::from_millis(10))
}

/// Records an unreachable server every 10 ms, and returns when the breaker opened.
fn unreachable_until_open(breaker: &Breaker, from_ms: u64, to_ms: u64) -> Option<u64> {
    let mut times = (from_ms..=to_ms).step_by(10);
    times.find(|ms| breaker.record(CallResult::Unreachable, at(*ms)))
}

fn fail(breaker: &Breaker, times: u64, from_ms: u64) -> bool {
    (0..times).any(|n| breaker.record(CallResult::Failed, at(from_ms + n)))
}

#[test]
fn opens_after_five_failures_in_a_row_and_says_once_that_it_must_be_probed() {
    let breaker = breaker(OpenFor::Auto);
    assert!(!fail(&breaker, 4, 0));
    breaker.record(CallResult::Ok, at(10));
    assert!(!fail(&breaker, 4, 20) && breaker.try_acquire(at(30)));
    assert!(fail(&breaker, 1, 30));
    assert!(!breaker.try_acquire(at(31)) && breaker.is_open(at(31)));
    assert!(!fail(&breaker, 5, 40), "it is probed already");
    assert_eq!((breaker.state(), breaker.changes()), (BreakerState::Open, 1));
}

#[test]
fn failures_further_apart_are_no_row() {
    let breaker = breaker(OpenFor::Auto);
    for n in 0..20 {
        assert!(!breaker.record(CallResult::Failed, at(n * 2_600)), "{n}");
    }
}

#[test]
fn opens_when_half_of_twenty_calls_in_a_second_fail() {
    let breaker = breaker(OpenFor::Auto);
    let mut calls = 0;
    let opened = (0..30).find(|n| {
        calls += 1;
        let result = if n % 2 == 0 { CallResult::Failed } else { CallResult::Ok };
        breaker.record(result, at(n * 10))
    });
    // The twentieth, or the next that failed.
    assert!(opened.is_some() && (20..=21).contains(&calls), "{calls}");
    let slow = super::tests::breaker(OpenFor::Auto);
    let opened = (0..100).any(|n| {
        let result = if n % 2 == 0 { CallResult::Failed } else { CallResult::Ok };
        slow.record(result, at(n * 60))
    });
    assert!(!opened, "fewer than twenty a second say nothing");
}

#[test]
fn a_call_without_an_answer_and_the_way_back_are_one_failure() {
    let breaker = breaker(OpenFor::Auto);
    for stall in 0..6 {
        let from = stall * 1_000;
        assert!(!fail(&breaker, 1, from));
        assert_eq!(unreachable_until_open(&breaker, from + 1, from + 59), None, "{stall}");
        assert!(!breaker.record(CallResult::Ok, at(from + 60)));
    }
    // Earlier calls do not count.
    assert!(!fail(&breaker, 4, 7_000));
}

#[test]
fn a_server_that_stays_out_of_reach_is_noticed_within_a_tenth_of_a_second() {
    // After one failed call at 10 ms; without any call; with fifty calls a second.
    let after_one = breaker(OpenFor::Auto);
    fail(&after_one, 1, 10);
    assert_eq!(unreachable_until_open(&after_one, 20, 200), Some(70));
    assert_eq!(unreachable_until_open(&breaker(OpenFor::Auto), 0, 200), Some(60));
    let seldom = breaker(OpenFor::Auto);
    fail(&seldom, 1, 30);
    let opened = [40, 60, 80, 100].map(|ms| seldom.record(CallResult::Unreachable, at(ms)));
    assert_eq!(opened, [false, false, false, true]);
}

#[test]
fn more_failures_or_longer_ones_are_more_patience() {
    for (failures, deadline_ms, opens_at) in [(1, 10, 0), (3, 10, 60), (20, 10, 190), (5, 100, 400)] {
        let config = BreakerConfig {
            failures,
            ..BreakerConfig::default()
        };
        let breaker = Breaker::new(config, Duration::from_millis(deadline_ms));
        let mut opened = (0..1_000)
            .step_by(10)
            .filter(|ms| breaker.record(CallResult::Unreachable, at(*ms)));
        assert_eq!(opened.next(), Some(opens_at), "{failures} {deadline_ms}");
    }
}

#[test]
fn one_that_stands_still_again_and_again_is_left_alone() {
    let breaker = breaker(OpenFor::Auto);
    let stalls = |from_ms: u64| {
        (0..10_u64).find(|stall| {
            let from = from_ms + stall * 100;
            assert!(!fail(&breaker, 1, from + 10));
            let opened = unreachable_until_open(&breaker, from + 20, from + 50);
            opened.is_some() || breaker.record(CallResult::Ok, at(from + 55))
        })
    };
    assert_eq!(stalls(0), Some(2));
    for _ in 0..PROBES_MIN {
        breaker.record_probe(CallResult::Ok, at(1_000));
    }
    assert_eq!(stalls(1_000), Some(1), "sooner when it was left alone just before");
}

#[test]
fn closes_after_two_probes_in_a_row() {
    let breaker = breaker(OpenFor::Auto);
    fail(&breaker, 5, 0);
    assert!(breaker.record_probe(CallResult::Ok, at(100)));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(!breaker.try_acquire(at(101)), "no request is risked");
    assert!(breaker.record_probe(CallResult::Failed, at(200)));
    assert_eq!(breaker.state(), BreakerState::Open);
    assert!(breaker.record_probe(CallResult::Ok, at(300)));
    assert!(!breaker.record_probe(CallResult::Ok, at(400)));
    assert_eq!((breaker.state(), breaker.changes()), (BreakerState::Closed, 2));
    assert!(breaker.try_acquire(at(401)));
}

#[test]
fn a_link_that_comes_and_goes_is_trusted_more_and_more_slowly() {
    let breaker = breaker(OpenFor::Auto);
    let mut now = 0;
    let mut probes = Vec::new();
    for _ in 0..4 {
        fail(&breaker, 5, now);
        let needed = (1..).find(|n| !breaker.record_probe(CallResult::Ok, at(now + n * 150)));
        probes.extend(needed);
        now += 2_000;
    }
    assert_eq!(probes, [2, 4, 8, 8]);
    now += 20_000;
    fail(&breaker, 5, now);
    assert!(breaker.record_probe(CallResult::Ok, at(now + 100)));
    assert!(
        !breaker.record_probe(CallResult::Ok, at(now + 200)),
        "after a quiet time all is as it was"
    );
}

#[test]
fn for_a_fixed_time_nobody_passes_and_then_one_tries() {
    let breaker = breaker(OpenFor::Fixed(Micros::from_secs(30)));
    assert!(!fail(&breaker, 5, 0), "nobody probes in the background");
    assert!(!breaker.try_acquire(at(29_000)) && breaker.is_open(at(29_000)));
    assert!(!breaker.is_open(at(30_010)) && breaker.try_acquire(at(30_010)));
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(!breaker.try_acquire(at(30_011)), "one at a time");
    breaker.record(CallResult::Failed, at(30_020));
    assert!(!breaker.try_acquire(at(60_000)));
    assert!(breaker.try_acquire(at(60_030)));
    // The caller of the trial has left; another may try.
    assert!(breaker.try_acquire(at(61_040)));
    breaker.record(CallResult::Ok, at(61_050));
    assert!(breaker.try_acquire(at(61_051)) && breaker.try_acquire(at(61_052)));
}
