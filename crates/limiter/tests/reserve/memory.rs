//! The laws over the memory store, with a clock that is moved.

use crate::laws::{RandomAttempts, of_case, random_rule};
use crate::{START_US, attempt, stopped_store};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::testing::random::Random;
use tollgate_limiter::core::{Micros, Timestamp};
use tollgate_limiter::testing::reserve::ReserveLaws;

const RULES: u64 = 500;
const CASES_PER_RULE: u64 = 200;

#[test]
fn the_laws_hold_in_a_hundred_thousand_random_cases() {
    let (mut denied, mut reserved, mut unknown) = (0_u64, 0_u64, 0_u64);
    for seed in 0..RULES {
        let mut random = Random::new(seed);
        let (rule, unit_us) = random_rule(&mut random, &[1, 10, 1_000, 60_000]);
        let (store, clock) = stopped_store();
        let limiter = RuleLimiter::new(rule.rules.clone(), Arc::clone(&store));
        let mut now_us = START_US;
        for case in 0..CASES_PER_RULE {
            let (case, mut laws) = (format!("{case}"), ReserveLaws::new(&rule));
            let attempts = RandomAttempts::new(&mut random, &rule);
            for step in 0..random.between(5, 40) {
                let pause_us = match random.below(6) {
                    0 => random.below(unit_us * 20),
                    1 | 2 => random.below(unit_us * 2),
                    _ => 0,
                };
                clock.advance(Micros::new(pause_us));
                now_us += pause_us;
                let (is_critical, cost) = attempts.next(&mut random);
                let attributes = of_case(&case, is_critical);
                let checked = limiter.check_now(&attempt(&attributes, cost.get()));
                let verdict = checked.verdict;
                denied += u64::from(!verdict.allowed);
                let [ruling] = &*verdict.rulings else {
                    panic!("one ruling for both counters: {verdict:?}");
                };
                reserved += u64::from(ruling.reserved);
                assert!(!ruling.reserved || !verdict.allowed && !is_critical);
                let recorded = laws.record(is_critical, cost, Timestamp::from_micros(now_us), verdict.allowed);
                let all_allow =
                    recorded.unwrap_or_else(|law| panic!("{law}: seed {seed}, case {case}, step {step}: {rule:?}"));
                let is_kept_for_others = !verdict.allowed && all_allow;
                // With one counter it is known to the microsecond.
                assert!(ruling.reserved == is_kept_for_others || rule.lends && !verdict.allowed);
                unknown += u64::from(ruling.reserved != is_kept_for_others);
            }
        }
    }
    assert!(denied > 100_000 && reserved > 50_000, "{denied} {reserved}");
    assert!(unknown < reserved / 100, "{unknown} of {reserved}");
}
