//! Leases of concurrency limits, taken and given back with the store and without it.

use crate::fixture::Fixture;
use tollgate_core::{Concurrency, LeaseId, Limit, Micros};
use tollgate_limiter::store::{Source, Store};

const TTL: Micros = Micros::from_secs(60);

fn slots(count: u64) -> Limit {
    Concurrency::new(count, TTL).expect("in range").into()
}

/// How many slots an instance gives out until it refuses.
async fn fill(fixture: &Fixture, instance: usize, limit: &Limit, from: u64) -> u64 {
    for taken in 0.. {
        let charge = fixture.charge(limit, "u", 1);
        if !fixture.instances[instance]
            .settle(&[charge], LeaseId(from + taken))
            .await
            .allowed
        {
            return taken;
        }
    }
    unreachable!("a limit ends")
}

#[tokio::test]
async fn what_is_held_in_both_modes_together_is_at_most_the_limit_and_the_share() {
    let (fixture, limit) = (Fixture::new(2, 2), slots(20));
    assert_eq!(fill(&fixture, 0, &limit, 1).await, 20);
    fixture.cut_all(true);
    // Those who hold them may give them back at any time, and nobody here would hear of it: so the share is free.
    assert_eq!(fill(&fixture, 0, &limit, 100).await, 10);
    assert_eq!(fill(&fixture, 1, &limit, 200).await, 10);
    fixture.cut_all(false);
    assert_eq!(
        fill(&fixture, 0, &limit, 300).await,
        0,
        "the shared ones are still held"
    );
    fixture.clock.advance(TTL);
    assert_eq!(
        fill(&fixture, 1, &limit, 400).await,
        20,
        "after a lease's time all is as it was"
    );
}

#[tokio::test]
async fn a_lease_taken_here_is_released_and_renewed_here_also_when_the_store_is_back() {
    let (fixture, limit) = (Fixture::new(1, 1), slots(2));
    let (store, key) = (&fixture.instances[0], fixture.key(&limit, "u"));
    fixture.cut_all(true);
    assert_eq!(fill(&fixture, 0, &limit, 1).await, 2);
    assert_eq!(store.release(key, &limit, LeaseId(1)).await, Ok(true));
    assert_eq!(fill(&fixture, 0, &limit, 10).await, 1);
    fixture.cut_all(false);
    assert_eq!(store.renew(key, &limit, LeaseId(2)).await, Ok(Some(TTL)));
    assert_eq!(store.release(key, &limit, LeaseId(2)).await, Ok(true));
    assert_eq!(store.release(key, &limit, LeaseId(2)).await, Ok(false), "once");
    // The shared store never heard of them.
    assert_eq!(fixture.used(&limit, "u").await, 0);
}

#[tokio::test]
async fn a_lease_of_the_store_cannot_be_given_back_while_it_is_away_and_that_is_said() {
    let (fixture, limit) = (Fixture::new(1, 1), slots(2));
    let (store, key) = (&fixture.instances[0], fixture.key(&limit, "u"));
    let taken = store.settle(&[fixture.charge(&limit, "u", 1)], LeaseId(7)).await;
    assert_eq!(taken.outcomes[0].expect("an outcome").source, Source::Shared);
    fixture.cut_all(true);
    assert!(store.release(key, &limit, LeaseId(7)).await.is_err());
    assert!(store.renew(key, &limit, LeaseId(7)).await.is_err());
    fixture.cut_all(false);
    assert_eq!(store.renew(key, &limit, LeaseId(7)).await, Ok(Some(TTL)));
    assert_eq!(store.release(key, &limit, LeaseId(7)).await, Ok(true));
}
