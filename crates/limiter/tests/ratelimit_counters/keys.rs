//! What is written: names, commands and lifetimes.

use crate::fixture::{Ear, attempt, calls, check_all, counters, entries, hit, keys, limiter, open, query, rules};
use std::sync::Arc;
use tollgate_limiter::core::Source;
use tollgate_limiter::core::rules::RuleMatch;
use tollgate_limiter::core::rules::ratelimit::{LimitOverride, Unit};
use tollgate_limiter::store::redis::RedisCountersOptions;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::{AttemptItem, Direction, InlineLimit, RuleLimiter};

/// Descriptors, the keys they are counted in, and the length of the window.
const KEYS: [(&[&str], &str, u64); 18] = [
    (&["second=x"], "shop_second_x_1773491237", 1),
    (&["minute=x"], "shop_minute_x_1773491220", 60),
    (&["hour=x"], "shop_hour_x_1773489600", 3_600),
    (&["day=x"], "shop_day_x_1773446400", 86_400),
    (&["week=x"], "shop_week_x_1773273600", 604_800),
    (&["month=x"], "shop_month_x_1772928000", 2_592_000),
    (&["year=x"], "shop_year_x_1766016000", 31_536_000),
    (&["minute="], "shop_minute__1773491220", 60),
    (&["plan=free", "user=u 1"], "shop_plan_free_user_u 1_1773491220", 60),
    (&["plan=free", "user="], "shop_plan_free_user__1773491220", 60),
    // All that fit it are one.
    (&["path=/a/1"], "shop_path_/a/*_1773491220", 60),
    (&["path=/a/"], "shop_path_/a/*_1773491220", 60),
    (&["path=/b/1"], "shop_path_/b/1_1773491220", 60),
    // By the place of an entry, and not by what keys are called in the file.
    (
        &["route=/a/1", "route=/a/2"],
        "shop_route_/a/*_route_/a/2_1773491220",
        60,
    ),
    (&["starlight=x"], "shop_starlight_x_1773491220", 60),
    (&["joined1=x"], "shop_joined1_joined*_1773491220", 60),
    (&["a=b_c"], "shop_a_b_c_1773491220", 60),
    (&["empty="], "shop_empty__1773491220", 60),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_commands_and_lifetimes_are_those_of_envoyproxy() {
    for (kind, prefix, jitter) in [
        (ServerKind::Redis62, "", 300),
        (ServerKind::Redis70, "rl:{eu}:", 10),
        (ServerKind::Valkey, "p_", 0),
    ] {
        let server = Server::start(kind);
        let options = RedisCountersOptions {
            prefix: prefix.into(),
            jitter,
            ..counters()
        };
        let limiter = limiter(&server.url(), options);
        let mut ear = Ear::at(&server);
        for (descriptor, key, unit) in &KEYS {
            for hits in [1, 0, 7] {
                limiter.check(&attempt(&entries(descriptor), hits)).await;
                let calls_received = ear.next(2);
                assert_eq!(calls_received[0], format!("INCRBY {prefix}{key} {hits}"), "{kind:?}");
                let lifetime = calls_received[1].strip_prefix(&format!("EXPIRE {prefix}{key} "));
                let lifetime: u64 = lifetime.expect(&calls_received[1]).parse().expect("a number");
                let max = unit + u64::from(jitter).max(1);
                assert!((*unit..max).contains(&lifetime), "{kind:?}: {}", calls_received[1]);
            }
        }
        // What has no limit, or none in this file, is not counted.
        for descriptor in [&["free=x"][..], &["unknown=x"], &["plan=free"]] {
            limiter.check(&attempt(&entries(descriptor), 1)).await;
        }
        let mut expected: Vec<String> = KEYS.iter().map(|(_, key, _)| format!("{prefix}{key}")).collect();
        expected.sort();
        expected.dedup();
        let is_long = |key: &String| !key.contains("second");
        let kept: Vec<String> = keys(&server).into_iter().filter(is_long).collect();
        expected.retain(is_long);
        assert_eq!(kept, expected, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lifetimes_are_spread_over_all_of_the_jitter() {
    let server = Server::start(ServerKind::Redis70);
    let options = RedisCountersOptions {
        jitter: 4,
        ..counters()
    };
    let limiter = limiter(&server.url(), options);
    let mut ear = Ear::at(&server);
    let mut observed = [0; 4];
    for _ in 0..200 {
        hit(&limiter, &["hour=x"], 1).await;
        let lifetime: usize = ear.next(2)[1]
            .rsplit(' ')
            .next()
            .expect("a word")
            .parse()
            .expect("a number");
        observed[lifetime - 3_600] += 1;
    }
    assert!(observed.iter().all(|times| *times > 20), "{observed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_asks_and_a_key_is_told_as_it_is_written() {
    let server = Server::start(ServerKind::Redis70);
    let limiter = limiter(&server.url(), counters());
    assert_eq!(hit(&limiter, &["minute=x"], 1).await, (true, 1, Source::Shared));
    let mut ear = Ear::at(&server);
    let entries = entries(&["minute=x"]);
    let reply = limiter.explain(&attempt(&entries, 2)).await;
    assert_eq!(ear.next(1), ["GET shop_minute_x_1773491220"]);
    assert!(!reply.verdict.allowed);
    let matched = reply.traces.iter().find_map(|story| match &story.rule_match {
        RuleMatch::Matched(matched) => matched.limits[0].key.clone(),
        RuleMatch::Skipped(_) => None,
    });
    assert_eq!(matched.as_deref(), Some("shop_minute_x_1773491220"));
    assert_eq!(hit(&limiter, &["minute=x"], 0).await, (true, 1, Source::Shared));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_or_forgotten_is_so_for_all() {
    let server = Server::start(ServerKind::Redis70);
    let options = RedisCountersOptions {
        local_cache: 1 << 20,
        ..counters()
    };
    let limiter = limiter(&server.url(), options);
    let key = "shop_minute_x_1773491220";
    let entries = entries(&["minute=x"]);
    assert_eq!(hit(&limiter, &["minute=x"], 5).await, (false, 0, Source::Shared));
    let given = limiter.refund(&attempt(&entries, 4)).await;
    assert!(given.allowed);
    assert_eq!(query::<String>(&server, &["GET", key]), "1");
    // Nor is it remembered here that it was over its limit.
    assert_eq!(hit(&limiter, &["minute=x"], 1).await, (true, 0, Source::Shared));
    // Never below nothing, and no key that was not there.
    limiter.refund(&attempt(&entries, 9)).await;
    assert_eq!(query::<String>(&server, &["GET", key]), "0");
    assert_eq!(hit(&limiter, &["minute=x"], 1).await, (true, 1, Source::Shared));
    assert_eq!(limiter.forget(&attempt(&entries, 1), None).await.expect("a store"), 1);
    assert_eq!(
        limiter
            .forget(&attempt(&entries, 1), Some("minute"))
            .await
            .expect("a store"),
        0
    );
    limiter.refund(&attempt(&entries, 1)).await;
    assert_eq!(keys(&server), [""; 0]);
    // What is counted for everybody is cleared only by its name.
    let shared = crate::fixture::entries(&["path=/a/1"]);
    assert_eq!(hit(&limiter, &["path=/a/2"], 1).await, (true, 9, Source::Shared));
    assert_eq!(limiter.forget(&attempt(&shared, 1), None).await.expect("a store"), 0);
    let named = limiter
        .rules()
        .rules()
        .iter()
        .find(|rule| rule.per().is_empty())
        .expect("one")
        .id();
    assert_eq!(
        limiter
            .forget(&attempt(&shared, 1), Some(named))
            .await
            .expect("a store"),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_give_back_at_once_leave_nothing_below_zero() {
    let server = Server::start(ServerKind::Redis70);
    let limiter = Arc::new(limiter(&server.url(), counters()));
    for _ in 0..20 {
        hit(&limiter, &["minute=x"], 3).await;
        let giving = (0..8).map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.refund(&attempt(&entries(&["minute=x"]), 2)).await.allowed })
        });
        for given in giving.collect::<Vec<_>>() {
            assert!(given.await.expect("it gives back"));
        }
        assert_eq!(query::<String>(&server, &["GET", "shop_minute_x_1773491220"]), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strictly_counters_are_our_own() {
    let server = Server::start(ServerKind::Redis70);
    let strict = RuleLimiter::new(rules(true), Arc::new(open(&server.url(), counters())));
    assert!(hit(&strict, &["minute=x"], 1).await.0);
    assert_eq!((keys(&server), calls(&server, "incrby")), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_above_a_thousand_million_are_counted_as_they_are() {
    let server = Server::start(ServerKind::Redis70);
    let store = Arc::new(open(&server.url(), counters()));
    let strict = RuleLimiter::new(rules(true), Arc::clone(&store));
    let counted = RuleLimiter::new(rules(false), store);
    for limiter in [&counted, &strict] {
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (allowed, remaining, _) = hit(limiter, &["huge=x"], 1_500_000_000).await;
            answers.push((allowed, remaining));
        }
        assert_eq!(answers[..2], [(true, 2_500_000_000), (true, 1_000_000_000)]);
        assert!(!answers[2].0);
    }
    assert_eq!(query::<u64>(&server, &["GET", "shop_huge_x_1766016000"]), 4_500_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_number_is_left_alone_and_costs_no_other_key() {
    let server = Server::start(ServerKind::Redis70);
    let limiter = limiter(&server.url(), counters());
    let _: String = query(&server, &["SET", "shop_minute_x_1773491220", "x"]);
    let _: u64 = query(&server, &["RPUSH", "shop_minute_list_1773491220", "x"]);
    for _ in 0..10 {
        for large_hits in ["minute=x", "minute=list"] {
            let checked = limiter.check(&attempt(&entries(&[large_hits]), 1)).await;
            assert_eq!(checked.verdict.source, Source::Closed, "{large_hits}");
        }
    }
    assert_eq!(hit(&limiter, &["minute=y"], 1).await, (true, 1, Source::Shared));
    assert_eq!(check_all(&limiter, &["hour=a", "hour=a"]).await, (true, vec![9, 8]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_a_request_brings_is_counted_in_the_same_key() {
    let server = Server::start(ServerKind::Redis70);
    let limiter = limiter(&server.url(), counters());
    let with_override = |requests, unit| Some(InlineLimit::Override(LimitOverride::new(requests, unit, false)));
    let request = async |entry: &str, hits, direction, inline_limit| {
        let entries = entries(&[entry]);
        let attempt = attempt(&entries, hits);
        let combined = limiter
            .check_all(&[AttemptItem {
                attempt,
                direction,
                inline_limit,
            }])
            .await;
        combined.allowed
    };
    // The file allows two a minute, and the inline limit three more.
    assert_eq!(hit(&limiter, &["minute=x"], 3).await, (false, 0, Source::Shared));
    assert!(request("minute=x", 2, Direction::Consume, with_override(5, Unit::Minute)).await);
    assert!(!request("minute=x", 1, Direction::Consume, with_override(5, Unit::Minute)).await);
    assert!(request("minute=x", 4, Direction::Refund, with_override(5, Unit::Minute)).await);
    assert_eq!(hit(&limiter, &["minute=x"], 0).await, (true, 0, Source::Shared));
    // Where a pattern counts all values together, and where no file has a limit, it is the value that came.
    assert!(request("path=/a/1", 1, Direction::Consume, with_override(5, Unit::Minute)).await);
    assert!(!request("new=x", 1, Direction::Consume, with_override(0, Unit::Hour)).await);
    assert_eq!(
        keys(&server),
        [
            "shop_minute_x_1773491220",
            "shop_new_x_1773489600",
            "shop_path_/a/1_1773491220"
        ]
    );
    assert_eq!(query::<u64>(&server, &["GET", "shop_minute_x_1773491220"]), 2);
}
