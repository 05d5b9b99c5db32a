//! Whose clock decides, and whose keys they are.

use crate::site::{Site, charge, every_limit, lease, time};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::{Charge, Counter, Limit, Micros, Timestamp};
use tollgate_limiter::store::Store;
use tollgate_limiter::store::redis::{Redis, RedisKey, Time};
use tollgate_limiter::testing::servers::Kind;

/// Asks a server that hears it only after a while: what its clock showed before and after, and when it was decided.
async fn decided(site: &Site, clock: Time) -> (Timestamp, Timestamp, Timestamp) {
    let store = site.options().time(clock).open();
    let limit = every_limit(5, Micros::from_secs(60))[0];
    let key = site.counter(&store, &limit, "anybody");
    let warm = store.peek(&[charge(key, &limit, 1)]).await;
    assert!(warm.outcomes[0].is_ok());
    let before = time(&mut site.admin());
    site.server.freeze();
    let asking = tokio::spawn(async move { store.settle(&[charge(key, &limit, 1)], lease()).await });
    sleep(Duration::from_millis(400)).await;
    site.server.thaw();
    let settled = asking.await.expect("a task that ends");
    assert!(settled.outcomes[0].is_ok(), "{settled:?}");
    (before, settled.now, time(&mut site.admin()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_of_ours_counts_within_the_tolerance_and_not_beyond() {
    let site = Site::start(Kind::Redis70);
    let half = Micros::from_millis(200);
    // It was decided when it was asked, or when it was heard.
    let client = |tolerance| Time::Client {
        skew_tolerance: tolerance,
    };
    let (before, now, _) = decided(&site, client(Micros::from_secs(60))).await;
    assert!(now < before + half, "{:?} later", now.since(before));
    for clock in [client(Micros::from_millis(50)), client(Micros::ZERO), Time::Server] {
        let (before, now, after) = decided(&site, clock).await;
        assert!(now > before + half && now <= after, "{:?} later", now.since(before));
    }
    assert_eq!(site.audit(), 1);
}

/// One unit of a counter, by the names that all stores give it.
fn one(store: &Redis, limit: &Limit) -> Charge<RedisKey> {
    let counter = Counter {
        domain: "default",
        rule: "plan",
        variant: "",
        limit,
        per: &[],
    };
    charge(store.key(&store.subjects(&counter), &[b"m_1"]), limit, 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_apart_by_prefix_and_secret_and_together_without() {
    let site = Site::start(Kind::Redis70);
    let limit = every_limit(5, Micros::from_secs(3_600))[0];
    let apart = [
        ("tg:{", site.options()),
        ("other:{", site.options().prefix("other")),
        ("tg:{", site.options().key_secret(b"one")),
        ("tg:{", site.options().key_secret(b"two")),
    ];
    let mut keys = BTreeSet::new();
    for (prefix, options) in apart {
        let stores = [options.clone().open(), options.open()];
        for (store, left) in stores.iter().zip([4, 3]) {
            let one = one(store, &limit);
            let settled = store.settle(&[one], lease()).await;
            let standing = *settled.outcomes[0].expect("an answer").decision.standing();
            assert_eq!(standing.remaining, left, "both take of the same counter");
            let text = store.key_text(&one.key);
            assert!(text.starts_with(prefix), "{text}");
            keys.insert(text);
        }
    }
    assert_eq!(keys.len(), 4);
    assert_eq!(site.ask::<BTreeSet<String>>(&["KEYS", "*"]), keys);
}
