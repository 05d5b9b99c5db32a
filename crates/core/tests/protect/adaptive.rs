//! Laws of the adaptive limit.

use proptest::prelude::*;
use tollgate_core::Micros;
use tollgate_core::protect::{AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, ResponseOutcome, ResponseSample};

const WINDOW_US: u64 = 250_000;

fn gradient(start: u64) -> AdaptiveLimit {
    let config = AdaptiveConfig {
        algorithm: AdaptiveAlgorithm::Gradient,
        min: 10,
        max: 1_000,
    };
    AdaptiveLimit::new(config, start, Micros::ZERO)
}

/// A window of 40 responses, half of them on each of two routes.
fn window(limit: &mut AdaptiveLimit, number: u64, latency_ms: [u64; 2], in_flight: u64) {
    for index in 0..40_u64 {
        let sample = ResponseSample {
            route: index % 2,
            latency: Micros::from_millis(latency_ms[(index % 2) as usize]),
            outcome: ResponseOutcome::Answered,
            in_flight,
        };
        let start = number * WINDOW_US;
        limit.record(
            Micros::new(if index == 39 { start + WINDOW_US } else { start }),
            &sample,
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_limit_stays_in_its_range(
        min in 1..100_u64, span in 0..1_000_u64, start in 0..2_000_u64, by_latency: bool,
        steps in prop::collection::vec((1..500_000_u64, 0..2_000_u64, 0..3_u64, any::<bool>(), 0..100_000_u64), 1..400),
    ) {
        let algorithm = if by_latency { AdaptiveAlgorithm::Gradient } else { AdaptiveAlgorithm::Aimd };
        let mut limit = AdaptiveLimit::new(AdaptiveConfig { algorithm, min, max: min + span }, start, Micros::ZERO);
        let mut now = 0;
        for (latency, in_flight, route, failed, gap) in steps {
            now += gap;
            let outcome = if failed { ResponseOutcome::Failed } else { ResponseOutcome::Answered };
            let before = limit.limit();
            let sample = ResponseSample { route, latency: Micros::new(latency), outcome, in_flight };
            let changed = limit.record(Micros::new(now), &sample);
            prop_assert!((min..=min + span).contains(&limit.limit()));
            prop_assert_eq!(changed, (limit.limit() != before).then_some(limit.limit()));
        }
    }

    #[test]
    fn below_half_of_the_limit_latency_changes_nothing(latencies in prop::collection::vec(1..1_000_u64, 1..40)) {
        let mut limit = gradient(100);
        for (number, latency) in (0..).zip(latencies) {
            window(&mut limit, number, [latency; 2], 49);
            prop_assert_eq!(limit.limit(), 100);
        }
    }
}

#[test]
fn a_range_above_a_million_slots_is_a_million() {
    let config = AdaptiveConfig {
        algorithm: AdaptiveAlgorithm::Gradient,
        min: 5_000_000,
        max: u64::MAX,
    };
    assert_eq!(AdaptiveLimit::new(config, 1, Micros::ZERO).limit(), 1_000_000);
}

#[test]
fn a_change_of_the_mix_is_not_a_change_of_the_load() {
    let mut limit = gradient(100);
    window(&mut limit, 0, [10, 200], 10);
    // Slow responses only, at their own baseline: the limit grows.
    for number in 1..20 {
        for index in 0..40_u64 {
            let sample = ResponseSample {
                route: 1,
                latency: Micros::from_millis(200),
                outcome: ResponseOutcome::Answered,
                in_flight: limit.limit(),
            };
            let start = number * WINDOW_US;
            limit.record(
                Micros::new(if index == 39 { start + WINDOW_US } else { start }),
                &sample,
            );
        }
    }
    assert!(limit.limit() > 140, "{}", limit.limit());
}

#[test]
fn a_saturated_service_does_not_raise_its_baseline() {
    let mut limit = gradient(100);
    window(&mut limit, 0, [50; 2], 100);
    // An hour at twice the latency: more in flight, no more throughput.
    for number in 1..14_400 {
        window(&mut limit, number, [100; 2], 90 + number % 20);
    }
    assert_eq!(limit.limit(), 10);
}

#[test]
fn a_service_that_became_slower_is_the_new_normal_within_the_hour() {
    let mut limit = gradient(100);
    window(&mut limit, 0, [50; 2], 100);
    let mut now = WINDOW_US;
    let mut number = 0_u64;
    while now < 3_600_000_000 {
        number += 1;
        // Throughput grows with the number in flight: 40 responses take less time with more of them.
        let in_flight = limit.limit() * (50 + number % 50) / 100 + 1;
        let gap = WINDOW_US * 100 / (50 + number % 50);
        for index in 0..40_u64 {
            let sample = ResponseSample {
                route: 0,
                latency: Micros::from_millis(80),
                outcome: ResponseOutcome::Answered,
                in_flight,
            };
            limit.record(Micros::new(if index == 39 { now + gap } else { now }), &sample);
        }
        now += gap;
    }
    assert!(limit.limit() > 500, "{}", limit.limit());
}
