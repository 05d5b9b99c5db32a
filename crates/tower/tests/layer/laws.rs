//! Laws of the layer, over random limits and requests.

use http::Request;
use http::request::Parts;
use proptest::prelude::*;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cost, Micros, Timestamp};
use tollgate_limiter::limits::{FixedWindow, Gcra, SlidingCounter, TokenBucket};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{Limiter, NamedLimit};
use tollgate_tower::extract::header;
use tollgate_tower::{Admission, AdmissionControl, LimitSet};

fn head(key: &str) -> Parts {
    let request = Request::get("/").header("x-key", key).body(()).expect("a request");
    request.into_parts().0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Five requests in each of 20,000 cases: 100,000 decisions.
    #[test]
    fn a_denied_request_consumes_nothing_and_passes_when_it_was_told_to_return(
        units in (1_u64..4, 1_u64..4, 1_u64..4, 1_u64..4),
        steps in proptest::collection::vec((0_u8..3, 0_u64..30_000_000), 5),
    ) {
        let clock = Clock::manual(Timestamp::from_micros(1_794_782_040_000_000));
        let limiter = Limiter::new(Memory::options().shards(1).clock(clock.clone()).build());
        let limits = LimitSet::new(limiter.clone())
            .per("bucket", TokenBucket::per_minute(units.0), header("x-key"))
            .and_then(|limits| limits.per("gcra", Gcra::per_minute(units.1 * 2), header("x-key")))
            .and_then(|limits| limits.shared("window", FixedWindow::per_minute(units.2 * 2)))
            .and_then(|limits| limits.shared("counter", SlidingCounter::per_minute(units.3 * 2)))
            .expect("valid limits");
        let named: [(NamedLimit, bool); 4] = [
            (limiter.limit("bucket", TokenBucket::per_minute(units.0)).expect("valid"), true),
            (limiter.limit("gcra", Gcra::per_minute(units.1 * 2)).expect("valid"), true),
            (limiter.limit("window", FixedWindow::per_minute(units.2 * 2)).expect("valid"), false),
            (limiter.limit("counter", SlidingCounter::per_minute(units.3 * 2)).expect("valid"), false),
        ];
        let standings = |key: &str| named.each_ref().map(|(limit, is_per)| {
            let subject = if *is_per { key } else { "" };
            *limiter.check_cost(limit, subject, Cost::ZERO).standing()
        });
        for (key, wait_us) in steps {
            let key = ["a", "b", "c"][usize::from(key)];
            let before = standings(key);
            match limits.admit_now(&head(key), None) {
                Some(Admission::Deny(denial)) => {
                    prop_assert_eq!(standings(key), before);
                    let wait = denial.headers.get("retry-after").expect("a wait").to_str().expect("text");
                    clock.advance(Micros::from_secs(wait.parse().expect("seconds")));
                    prop_assert!(matches!(limits.admit_now(&head(key), None), Some(Admission::Admit(_))));
                }
                Some(Admission::Admit(_)) => {
                    for (before, after) in before.iter().zip(standings(key)) {
                        prop_assert_eq!(after.remaining + 1, before.remaining);
                    }
                }
                other => prop_assert!(false, "{other:?}"),
            }
            clock.advance(Micros::new(wait_us));
        }
    }
}
