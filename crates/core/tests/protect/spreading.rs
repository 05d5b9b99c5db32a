//! Laws of retry spreading.

use proptest::prelude::*;
use std::num::NonZeroU64;
use tollgate_core::Micros;
use tollgate_core::protect::{RetryDenial, RetrySpread, return_interval};

/// A step: the time since the last one, and a denial.
fn denial(callers: u64) -> impl Strategy<Value = (u64, RetryDenial)> {
    let gap = prop_oneof![Just(0), 0..2_000_000_u64, 4_000_000..6_000_000_u64];
    let wait = prop_oneof![0..2_000_000_u64, 0..100_000_000_u64];
    let extra_max = prop_oneof![Just(60_000_000), 0..100_000_000_u64];
    let numbers = (0..callers, wait, 0..10_000_000_u64, extra_max, any::<u32>());
    (gap, numbers).prop_map(|(gap, (caller, wait, interval, extra_max, draw))| {
        let denial = RetryDenial {
            counter: 1,
            caller,
            wait: Micros::new(wait),
            interval: Micros::new(interval),
            extra_max: Micros::new(extra_max),
            draw,
        };
        (gap, denial)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn a_lone_caller_gets_no_extra_wait(steps in prop::collection::vec(denial(1), 1..8)) {
        let mut spread = RetrySpread::default();
        let mut now = 0;
        for (gap, denial) in steps {
            now += gap;
            prop_assert_eq!(spread.extra(Micros::new(now), &denial), Micros::ZERO);
        }
    }

    #[test]
    fn the_extra_wait_is_never_above_the_maximum(steps in prop::collection::vec(denial(4), 1..12)) {
        let mut spread = RetrySpread::default();
        let mut now = 0;
        for (gap, denial) in steps {
            now += gap;
            prop_assert!(spread.extra(Micros::new(now), &denial) <= denial.extra_max);
        }
    }

    #[test]
    fn a_caller_that_is_not_the_last_keeps_its_return_time(
        steps in prop::collection::vec(denial(4), 2..12), polls in prop::collection::vec(0..500_000_u64, 1..4),
    ) {
        let mut spread = RetrySpread::default();
        let mut now = 0;
        for (number, (gap, mut denial)) in (1..).zip(steps) {
            now += gap.min(1_000_000);
            denial.caller = number;
            denial.extra_max = Micros::from_secs(600);
            let at = now + denial.wait.get() + spread.extra(Micros::new(now), &denial).get();
            // Somebody else is behind it.
            let other = RetryDenial { caller: 0, wait: Micros::ZERO, ..denial };
            spread.extra(Micros::new(now), &other);
            for gap in &polls {
                now += gap;
                if at <= now {
                    break;
                }
                // The wait shrinks as the time comes nearer.
                let due = at.min(now + denial.wait.get());
                let wait = Micros::new(due - now);
                let poll = RetryDenial { wait, ..denial };
                prop_assert_eq!(now + wait.get() + spread.extra(Micros::new(now), &poll).get(), at);
            }
        }
    }

    #[test]
    fn callers_return_an_interval_after_each_other(
        callers in 2..40_u64, wait in 0..2_000_000_u64, interval in 0..1_000_000_u64,
    ) {
        let mut spread = RetrySpread::default();
        for caller in 0..callers {
            let denial = RetryDenial {
                counter: 1,
                caller,
                wait: Micros::new(wait),
                interval: Micros::new(interval),
                extra_max: Micros::from_secs(60),
                draw: 0,
            };
            prop_assert_eq!(spread.extra(Micros::from_secs(9), &denial), Micros::new(caller * interval));
        }
        let length = spread.queue_length(Micros::from_secs(9), 1);
        prop_assert_eq!(length, Micros::new(wait + callers * interval));
    }
}

#[test]
fn counters_have_queues_of_their_own_and_a_new_one_replaces_the_shortest() {
    let mut spread = RetrySpread::default();
    let denial = |counter: u64, caller: u64| RetryDenial {
        counter,
        caller,
        wait: Micros::from_secs(1),
        interval: Micros::new(counter + 1),
        extra_max: Micros::from_secs(60),
        draw: 0,
    };
    let now = Micros::from_secs(100);
    for counter in 0..1_024 {
        assert_eq!(spread.extra(now, &denial(counter, 1)), Micros::ZERO);
    }
    assert_eq!(spread.extra(now, &denial(5_000, 1)), Micros::ZERO);
    // Counter 0 was the shortest, and lost its queue; 1 has its own.
    assert_eq!(spread.queue_length(now, 0), Micros::ZERO);
    assert_eq!(spread.extra(now, &denial(1, 2)), Micros::new(2));
}

#[test]
fn many_new_counters_replace_each_other_and_not_the_long_queues() {
    let mut spread = RetrySpread::default();
    let denial = |counter: u64, interval_s: u64| RetryDenial {
        counter,
        caller: 1,
        wait: Micros::from_secs(1),
        interval: Micros::from_secs(interval_s),
        extra_max: Micros::from_secs(600),
        draw: 0,
    };
    let now = Micros::from_secs(100);
    for counter in 0..1_024 {
        spread.extra(now, &denial(counter, 500));
    }
    for counter in 10_000..60_000 {
        spread.extra(now, &denial(counter, 1));
    }
    let long = (0..1_024).filter(|counter| spread.queue_length(now, *counter) > Micros::from_secs(100));
    let kept = long.count();
    // The newcomers take one place among each sixteen.
    assert_eq!(kept, 1_024 - 64);
    let short = (10_000..60_000).filter(|counter| spread.queue_length(now, *counter) > Micros::ZERO);
    assert_eq!(short.count(), 64);
}

#[test]
fn return_times_are_kept_for_thousands_of_callers() {
    let mut spread = RetrySpread::default();
    let denial = |caller: u64| RetryDenial {
        counter: 1,
        // As a hash would spread them.
        caller: caller.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        wait: Micros::from_millis(1),
        interval: Micros::from_millis(1),
        extra_max: Micros::from_secs(60),
        draw: 0,
    };
    let now = Micros::from_secs(1);
    let first: Vec<Micros> = (0..8_000).map(|caller| spread.extra(now, &denial(caller))).collect();
    let again: Vec<Micros> = (0..8_000).map(|caller| spread.extra(now, &denial(caller))).collect();
    let kept = first.iter().zip(&again).filter(|(first, again)| first == again).count();
    // Sets of four: a few have to hold more.
    assert!(kept > 7_200, "{kept} of 8000 kept their return time");
}

#[test]
fn the_interval_is_the_mean_cost_over_the_rate_of_this_instance() {
    let interval = |cost, mean_milli, instances, units, period_s| {
        let [instances, units] = [instances, units].map(|number| NonZeroU64::new(number).expect("not zero"));
        return_interval(cost, mean_milli, instances, units, Micros::from_secs(period_s)).get()
    };
    assert_eq!(interval(1, 1_000, 1, 1_000, 1), 1_000);
    assert_eq!(interval(1, 1_000, 4, 1_000, 1), 4_000);
    assert_eq!(interval(1, 1_000, 1, 1_000, 60), 60_000);
    // One large cost moves the tail no further than a mean one.
    assert_eq!(interval(500, 2_500, 1, 1_000, 1), 2_500);
    assert_eq!(interval(2, 2_500, 1, 1_000, 1), 2_000);
    // Rounded up.
    assert_eq!(interval(1, 1_000, 1, 3, 1), 333_334);
    assert_eq!(interval(1, 1_000, 1, 1_000_000_000, 1), 1);
}
