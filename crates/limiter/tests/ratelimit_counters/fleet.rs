//! Instances of both, on one key.

use crate::fixture::{Other, counters, hit, limiter, query};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Micros, Source};
use tollgate_limiter::store::redis::RedisCountersOptions;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const KEY: &str = "shop_year_x_1766016000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn together_they_let_exactly_the_limit_pass() {
    for kind in ServerKind::ALL {
        let server = Server::start(kind);
        let admitted = Arc::new(AtomicU64::new(0));
        let theirs: Vec<_> = (0..2)
            .map(|_| {
                let (mut other, admitted) = (Other::outcome(&server), Arc::clone(&admitted));
                std::thread::spawn(move || {
                    for _ in 0..60 {
                        // What it lets pass: what is counted then is not beyond the limit.
                        admitted.fetch_add(u64::from(other.hit(KEY, 31_536_100) <= 100), Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let ours: Vec<_> = (0..2)
            .map(|_| {
                let (limiter, admitted) = (limiter(&server.url(), counters()), Arc::clone(&admitted));
                tokio::spawn(async move {
                    for _ in 0..60 {
                        let (is_allowed, _, source) = hit(&limiter, &["year=x"], 1).await;
                        assert_eq!(source, Source::Shared);
                        admitted.fetch_add(u64::from(is_allowed), Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for instance in ours {
            instance.await.expect("it counts");
        }
        for instance in theirs {
            instance.join().expect("it counts");
        }
        assert_eq!(admitted.load(Ordering::SeqCst), 100, "{kind:?}");
        // What was refused is counted too.
        assert_eq!(query::<u64>(&server, &["GET", KEY]), 240, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sees_what_the_other_counted_and_a_new_window_is_another_key() {
    let server = Server::start(ServerKind::Redis70);
    let clock = Clock::manual(crate::fixture::NOW);
    let options = RedisCountersOptions {
        clock: clock.clone(),
        ..counters()
    };
    let (limiter, mut other) = (limiter(&server.url(), options), Other::outcome(&server));
    assert_eq!(hit(&limiter, &["hour=x"], 3).await, (true, 7, Source::Shared));
    assert_eq!(other.hit("shop_hour_x_1773489600", 3_600), 4);
    assert_eq!(hit(&limiter, &["hour=x"], 6).await, (true, 0, Source::Shared));
    assert_eq!(other.hit("shop_hour_x_1773489600", 3_600), 11);
    // Beyond the limit also a look is refused; at the limit it is not.
    assert_eq!(hit(&limiter, &["hour=x"], 0).await, (false, 0, Source::Shared));
    clock.advance(Micros::from_secs(3_600));
    assert_eq!(other.hit("shop_hour_x_1773493200", 3_600), 1);
    assert_eq!(hit(&limiter, &["hour=x"], 9).await, (true, 0, Source::Shared));
    assert_eq!(hit(&limiter, &["hour=x"], 0).await, (true, 0, Source::Shared));
}
