//! Requests of many charges.

use crate::fixture::{Fixture, charge, every_limit, lease};
use tollgate_core::{Charge, Limit, Micros};
use tollgate_limiter::store::redis::{Functions, Redis, RedisKey};
use tollgate_limiter::store::{Store, StoreError};
use tollgate_limiter::testing::servers::ServerKind;

/// The most charges of one request.
const CHARGES_MAX: usize = 4_096;

fn charges(fixture: &Fixture, store: &Redis, limit: &Limit, count: usize) -> Vec<Charge<RedisKey>> {
    (0..count)
        .map(|subject| charge(fixture.counter(store, limit, &subject.to_string()), limit, 1))
        .collect()
}

/// The least time that the script took for a request of this many charges, by the server's own measure.
async fn took_us(fixture: &Fixture, store: &Redis, limit: &Limit, count: usize) -> u64 {
    let request = charges(fixture, store, limit, count);
    let mut least = u64::MAX;
    for _ in 0..8 {
        fixture.query::<()>(&["CONFIG", "RESETSTAT"]);
        assert!(store.settle(&request, lease()).await.allowed);
        let stats: String = fixture.query(&["INFO", "commandstats"]);
        let (_, rest) = stats.split_once("cmdstat_evalsha:calls=1,usec=").expect("one call");
        let us = rest.split(',').next().expect("a number");
        least = least.min(us.parse().expect("a number"));
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_charges_are_settled_at_once_in_a_time_that_grows_with_their_number() {
    for kind in ServerKind::ALL {
        let fixture = Fixture::start(kind);
        let store = fixture.options().functions(Functions::Off).near_cache(false).open();
        let limits = every_limit(20, Micros::from_secs(3_600));
        for limit in [&limits[0], &limits[4]] {
            let few = took_us(&fixture, &store, limit, CHARGES_MAX / 8).await;
            let many = took_us(&fixture, &store, limit, CHARGES_MAX).await;
            // Eight times as many. Were each compared with those before it, it would be sixty-four times as long.
            assert!(
                many < few * 24,
                "{kind:?} {}: {few} us and {many} us",
                limit.algorithm()
            );
        }
        let too_many = charges(&fixture, &store, &limits[0], CHARGES_MAX + 1);
        let denied = store.settle(&too_many, lease()).await;
        assert!(!denied.allowed);
        assert!(
            denied
                .outcomes
                .iter()
                .all(|outcome| *outcome == Err(StoreError::Overloaded))
        );
        fixture.audit();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_kept_or_none() {
    let fixture = Fixture::start(ServerKind::Valkey);
    let store = fixture.options().open();
    for limit in every_limit(9, Micros::from_secs(3_600)) {
        let mut request = charges(&fixture, &store, &limit, 200);
        // The last cannot be had, and so none of them is.
        request.push(charge(fixture.counter(&store, &limit, "last"), &limit, 10));
        let denied = store.settle(&request, lease()).await;
        assert!(!denied.allowed);
        let peeked = store.peek(&request[..200]).await;
        for outcome in peeked.outcomes {
            let standing = *outcome.expect("an answer").decision.standing();
            assert_eq!(standing.remaining, 8, "{limit:?}");
        }
    }
    assert_eq!(fixture.audit(), 0);
}
