//! Every key ends, whatever was done to it.

use crate::fixture::{Fixture, charge, every_limit, lease, settle};
use tollgate_core::{Charge, Limit, Micros, Policy};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{Redis, RedisKey};
use tollgate_limiter::testing::servers::ServerKind;

/// Periods from shorter than a minute to far longer, so that times to live double often.
const PERIODS: [Micros; 4] = [
    Micros::from_secs(1),
    Micros::from_secs(61),
    Micros::from_secs(3_600),
    Micros::from_secs(40 * 86_400),
];

/// What can be done to a key, by its number.
const CALL_FORMS: u32 = 9;

async fn treat(store: &Redis, key: RedisKey, limit: &Limit, call_form: u32) {
    let one = charge(key, limit, 1);
    let lease = lease();
    let settlement = store.settle(&[one], lease).await;
    let receipt = settlement.outcomes[0].expect("an answer").receipt;
    match call_form {
        0 => {}
        1 => store.undo(key, limit, &receipt).await.expect("undone"),
        2 => drop(store.refund(&one).await.expect("refunded")),
        3 => drop(store.release(key, limit, lease).await.expect("released")),
        4 => drop(store.renew(key, limit, lease).await.expect("renewed")),
        5 => drop(store.peek(&[one]).await),
        // All of it and more, so that the next is refused.
        6 => {
            for _ in 0..limit.capacity() + 2 {
                settle(store, key, limit, 1).await;
            }
        }
        7 => {
            let count = Charge {
                policy: Policy::Count,
                ..charge(key, limit, 3)
            };
            for _ in 0..limit.capacity() {
                store.settle(&[count], lease).await;
            }
        }
        // Twice in one request, and a limit that changed.
        _ => {
            store.settle(&[one, one], lease).await;
            let Some(more) = every_limit(limit.capacity() * 3, PERIODS[1])
                .into_iter()
                .find(|other| other.algorithm() == limit.algorithm())
            else {
                return;
            };
            if more.window() == limit.window() {
                settle(store, key, &more, 2).await;
            }
        }
    }
}

async fn all_end(kind: ServerKind) {
    let fixture = Fixture::start(kind);
    let store = fixture.options().near_cache(false).open();
    let mut kept = 0;
    for period in PERIODS {
        for limit in every_limit(20, period) {
            for call_form in 0..CALL_FORMS {
                let subject = format!("{period} {call_form}");
                let key = fixture.counter(&store, &limit, &subject);
                treat(&store, key, &limit, call_form).await;
                kept += 1;
            }
        }
        // What was written must end, before the shortest are gone.
        assert!(fixture.audit() > kept / 2, "of {kept}");
    }
    let ours: String = fixture.query(&["INFO", "keyspace"]);
    let [keys, expires] = ["keys=", "expires="].map(|name| {
        let (_, rest) = ours.split_once(name).expect("a count");
        rest.split(',').next().expect("a number").to_owned()
    });
    assert_eq!(keys, expires, "a key without a time to live");
    assert_eq!(store.metrics().errors().map(|(_, count)| count).sum::<u64>(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_ends_on_redis() {
    all_end(ServerKind::Redis70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_ends_on_the_oldest_redis() {
    all_end(ServerKind::Redis62).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_ends_on_valkey() {
    all_end(ServerKind::Valkey).await;
}
