//! What can be set, as that one's environment does.

use crate::fixture::{Ear, calls, check_all, counters, hit, keys, limiter, query};
use std::time::Duration;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Micros, Source};
use tollgate_limiter::store::redis::{Redis, RedisCountersOptions};
use tollgate_limiter::testing::servers::{Server, ServerKind};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_a_second_are_counted_on_their_own_server() {
    let (server, second) = (Server::start(ServerKind::Redis70), Server::start(ServerKind::Redis62));
    let per_second = Redis::options(&second.url()).expect("a URL");
    let options = RedisCountersOptions {
        per_second: Some(Box::new(per_second.deadline(Duration::from_secs(5)))),
        ..counters()
    };
    let limiter = limiter(&server.url(), options);
    assert_eq!(check_all(&limiter, &["second=x", "minute=x"]).await, (true, vec![1, 1]));
    assert_eq!(hit(&limiter, &["second=x"], 2).await, (false, 0, Source::Shared));
    assert_eq!((calls(&server, "incrby"), calls(&second, "incrby")), (1, 2));
    assert_eq!(keys(&server), ["shop_minute_x_1773491220"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_to_be_over_its_limit_is_not_asked_for_until_its_window_ends() {
    let server = Server::start(ServerKind::Redis70);
    let clock = Clock::manual(crate::fixture::NOW);
    let options = RedisCountersOptions {
        local_cache: 1 << 20,
        clock: clock.clone(),
        ..counters()
    };
    let limiter = limiter(&server.url(), options);
    // At the limit it is asked for, beyond it once.
    for source in [
        Source::Shared,
        Source::Shared,
        Source::Shared,
        Source::Near,
        Source::Near,
    ] {
        assert_eq!(hit(&limiter, &["minute=x"], 1).await.2, source);
    }
    assert_eq!(calls(&server, "incrby"), 3);
    assert_eq!(hit(&limiter, &["minute=x"], 0).await, (false, 0, Source::Near));
    // Others of the same request are counted.
    assert_eq!(check_all(&limiter, &["minute=x", "hour=x"]).await, (false, vec![0, 9]));
    assert_eq!(calls(&server, "incrby"), 4);
    clock.advance(Micros::from_secs(60));
    assert_eq!(hit(&limiter, &["minute=x"], 1).await, (true, 1, Source::Shared));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_one_limit_refuses_is_counted_by_that_one_only() {
    let server = Server::start(ServerKind::Redis70);
    for (local_cache, value) in [(0, "a"), (1 << 20, "b")] {
        let options = RedisCountersOptions {
            stop_when_over: true,
            local_cache,
            ..counters()
        };
        let limiter = limiter(&server.url(), options);
        let names = [format!("minute={value}"), format!("hour={value}")];
        let both = names.each_ref().map(String::as_str);
        let counted = || {
            let keys = [
                format!("shop_minute_{value}_1773491220"),
                format!("shop_hour_{value}_1773489600"),
            ];
            let keys = keys.each_ref().map(String::as_str);
            query::<Vec<u64>>(&server, &["MGET", keys[0], keys[1]])
        };
        let mut ear = Ear::at(&server);
        for (allowed, remaining) in [(true, [1, 9]), (true, [0, 8])] {
            assert_eq!(check_all(&limiter, &both).await, (allowed, remaining.to_vec()));
            let calls_received = ear.next(6);
            assert!(
                calls_received[0].starts_with("GET ") && calls_received[1].starts_with("GET "),
                "{calls_received:?}"
            );
        }
        assert_eq!(check_all(&limiter, &both).await, (false, vec![0, 8]));
        assert_eq!(counted(), [3, 2]);
        ear.next(6);
        assert_eq!(check_all(&limiter, &both).await, (false, vec![0, 8]));
        // Where it is remembered what is over its limit, that is not counted either, and the other is not asked before.
        let (minute, calls_received) = match local_cache {
            0 => (4, 6),
            _ => (3, 2),
        };
        assert_eq!(counted(), [minute, 2]);
        let calls_received = ear.next(calls_received);
        assert!(
            calls_received
                .iter()
                .any(|text| text.starts_with("INCRBY shop_hour") && text.ends_with(" 0")),
            "{calls_received:?}"
        );
        // A request of one limit is counted as ever.
        assert_eq!(hit(&limiter, &[names[1].as_str()], 9).await, (false, 0, Source::Shared));
        assert_eq!(counted()[1], 11);
    }
}
