//! The limiter as a program uses it: rules in code, several at once, permits, waiting.

use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cost, Decision, Limit, LimitError, Micros, Policy, Retry, Timestamp};
use tollgate_limiter::limits::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
use tollgate_limiter::store::fallback::FallbackOptions;
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::store::{SharedStore, Source, StoreMode};
use tollgate_limiter::testing::admin::{connect, query};
use tollgate_limiter::testing::eventually;
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_limiter::{LimitCheck, Limiter};

fn manual_limiter() -> (Limiter, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_770_854_400_000_000));
    (Limiter::new(Memory::options().clock(clock.clone()).build()), clock)
}

#[test]
fn every_limit_can_be_written_in_code() -> Result<(), LimitError> {
    let (limiter, _) = manual_limiter();
    let limits = [
        limiter.limit("a", TokenBucket::per_minute(100).burst(5))?,
        limiter.limit("b", Gcra::per_hour(100).burst(5))?,
        limiter.limit("c", LeakyBucket::per_second(100).depth(5))?,
        limiter.limit("d", FixedWindow::per_day(5))?,
        limiter.limit("e", SlidingCounter::per_second(5))?,
        limiter.limit("f", SlidingLog::per(5, Duration::from_millis(250)))?,
    ];
    for limit in &limits {
        let passed = (0..9).filter(|_| limiter.check(limit, "user:42").is_allow()).count();
        assert_eq!(passed, 5, "{limit:?}");
        assert!(
            limiter.check(limit, "user:43").is_allow(),
            "{} counts each subject on its own",
            limit.id()
        );
    }
    let slots = limiter.concurrency("g", Concurrency::at_most(5).lease_ttl(Duration::from_secs(30)))?;
    let permits: Vec<_> = (0..9).filter_map(|_| limiter.acquire(&slots, "user:42").ok()).collect();
    assert_eq!(permits.len(), 5);
    assert!(limiter.acquire(&slots, "user:43").is_ok());
    Ok(())
}

#[test]
fn a_slot_cannot_be_taken_without_a_permit() {
    let (limiter, _) = manual_limiter();
    let slots: Limit = tollgate_core::Concurrency::new(5, Micros::from_secs(60))
        .expect("in range")
        .into();
    let error = limiter.limit("slots", slots).expect_err("a check would hold a slot");
    assert_eq!(
        error.to_string(),
        "a slot of a concurrency limit is held by a permit: make the limit with `concurrency` and call `acquire`"
    );
}

#[test]
fn a_limit_that_cannot_be_says_so_when_the_rule_is_made() {
    let (limiter, _) = manual_limiter();
    let denial = limiter
        .limit("none", TokenBucket::per_minute(0))
        .expect_err("zero is no limit");
    assert_eq!(
        denial.to_string(),
        "a limit of 0 allows nothing: give 1 to 999999999999999 units (or ban the caller)"
    );
    assert!(limiter.limit("slow", Gcra::per_day(1).burst(1_000_000)).is_err());
    assert!(
        limiter
            .limit("spaced", SlidingLog::per_second(1).min_interval(Duration::from_secs(2)))
            .is_err()
    );
}

#[test]
fn time_gives_back_what_was_used() -> Result<(), LimitError> {
    let (limiter, clock) = manual_limiter();
    let limit = limiter.limit("logins", TokenBucket::per_second(10).burst(1))?;
    assert!(limiter.check(&limit, "a").is_allow());
    let Decision::Deny {
        retry: Retry::After(wait),
        ..
    } = limiter.check(&limit, "a")
    else {
        panic!("it was used up")
    };
    clock.advance(Micros::new(wait.get() - 1));
    assert!(!limiter.check(&limit, "a").is_allow());
    clock.advance(Micros::ONE);
    assert!(limiter.check(&limit, "a").is_allow());
    Ok(())
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() -> Result<(), LimitError> {
    let (limiter, _) = manual_limiter();
    let ceiling = limiter.limit("ceiling", TokenBucket::per_second(10))?;
    let merchant = limiter.limit("merchant", SlidingLog::per_minute(2))?;
    let shadow = limiter
        .limit("shadow", FixedWindow::per_minute(1))?
        .with_policy(Policy::Shadow);
    let remaining = |limit| limiter.check_cost(limit, "m_1", Cost::ZERO).standing().remaining;
    for passes in [true, true, false, false] {
        let checks = [
            LimitCheck::one(&ceiling, "all"),
            LimitCheck::one(&merchant, "m_1"),
            LimitCheck::one(&shadow, "m_1"),
        ];
        assert_eq!(limiter.check_all(&checks).allowed, passes);
    }
    assert_eq!(
        limiter.check_cost(&ceiling, "all", Cost::ZERO).standing().remaining,
        8,
        "refused is not charged"
    );
    assert_eq!((remaining(&merchant), remaining(&shadow)), (0, 0));
    Ok(())
}

#[test]
fn a_permit_is_given_back_however_it_ends() -> Result<(), LimitError> {
    let (limiter, clock) = manual_limiter();
    let limit = limiter.concurrency("searches", Concurrency::at_most(1).lease_ttl(Duration::from_secs(10)))?;
    let held = limiter.acquire(&limit, "u").expect("the slot is free");
    assert!(limiter.acquire(&limit, "u").is_err());
    let clone = held.clone();
    drop(held);
    assert!(limiter.acquire(&limit, "u").is_err(), "a clone holds it");
    drop(clone);
    let lost = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _held = limiter.acquire(&limit, "u").expect("it was given back");
        panic!("the work went wrong");
    }));
    assert!(lost.is_err());
    let held = limiter.acquire(&limit, "u").expect("a panic gave it back too");
    clock.advance(Micros::from_secs(9));
    assert_eq!(held.renew(), Some(Micros::from_secs(10)));
    clock.advance(Micros::from_secs(9));
    assert!(limiter.acquire(&limit, "u").is_err(), "it was renewed");
    clock.advance(Micros::from_secs(1));
    assert_eq!(held.renew(), None, "it has run out");
    assert!(limiter.acquire(&limit, "u").is_ok());
    Ok(())
}

#[test]
fn who_will_not_wait_long_enough_is_told_at_once() -> Result<(), LimitError> {
    let (limiter, _) = manual_limiter();
    let limit = limiter.limit("upstream", TokenBucket::per_minute(1))?;
    assert!(limiter.wait_blocking(&limit, "api", Cost::ONE, Duration::ZERO).is_ok());
    let denial = limiter
        .wait_blocking(&limit, "api", Cost::ONE, Duration::from_secs(59))
        .expect_err("it takes a minute");
    assert_eq!(denial.retry(), Some(Retry::After(Micros::from_secs(60))));
    let never = Cost::new(2).expect("in range");
    let denial = limiter
        .wait_blocking(&limit, "api", never, Duration::MAX)
        .expect_err("it never passes");
    assert_eq!(denial.retry(), Some(Retry::Never));
    Ok(())
}

#[test]
fn waiting_keeps_to_the_rate() -> Result<(), LimitError> {
    let limiter = Limiter::in_memory();
    for limit in [
        limiter.limit("gcra", Gcra::per_second(2_000).burst(1))?,
        limiter.limit("queue", LeakyBucket::per_second(2_000).depth(10).shaping())?,
    ] {
        let before = limiter.store().now();
        for _ in 0..5 {
            assert!(
                limiter
                    .wait_blocking(&limit, "api", Cost::ONE, Duration::from_secs(10))
                    .is_ok()
            );
        }
        // Four waits of half a millisecond each, by the limiter's own clock. How much longer is the machine's affair.
        assert!(limiter.store().now().since(before) >= Micros::from_millis(2));
    }
    Ok(())
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn waiting_without_a_thread_keeps_to_the_rate_too() -> Result<(), LimitError> {
    let limiter = Limiter::in_memory();
    let limit = limiter.limit("upstream", Gcra::per_second(2_000).burst(1))?;
    let before = limiter.store().now();
    for _ in 0..5 {
        assert!(
            limiter
                .ready(&limit, "api", Cost::ONE, Duration::from_secs(10))
                .await
                .is_ok()
        );
    }
    assert!(limiter.store().now().since(before) >= Micros::from_millis(2));
    let checks = [LimitCheck::one(&limit, "other")];
    assert!(limiter.peek(&checks).await.allowed);
    assert!(limiter.settle(&checks).await.allowed);
    Ok(())
}

/// An instance over this server, with a deadline that a busy machine keeps.
fn shared_limiter(server: &Server) -> Limiter<impl SharedStore + use<>> {
    let store = Redis::options(&server.url()).expect("a URL");
    let store = store.deadline(Duration::from_secs(5)).open();
    Limiter::with_fallback(store, one_instance())
}

fn one_instance() -> FallbackOptions {
    FallbackOptions {
        instances: Some(1),
        ..FallbackOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_store_has_the_methods_of_the_memory_store() -> Result<(), LimitError> {
    let server = Server::start(ServerKind::Redis70);
    let (limiter, other) = (shared_limiter(&server), shared_limiter(&server));
    let logins = limiter.limit("logins", TokenBucket::per_hour(3))?;
    let two = Cost::new(2).expect("in range");
    assert!(limiter.check(&logins, "u").await.is_allow());
    assert!(other.check_cost(&logins, "u", two).await.is_allow());
    let denial = limiter.check(&logins, "u").await;
    assert!(matches!(denial.retry(), Some(Retry::After(_))), "{denial:?}");

    let mut decisions = Vec::new();
    let subjects = ["u", "v", "v", "v", "v", "w"];
    let record = |decision: Decision| decisions.push(decision.is_allow());
    limiter.check_each(&logins, &subjects, record).await;
    assert_eq!(decisions, [false, true, true, true, false, true]);

    let ceiling = limiter.limit("ceiling", SlidingLog::per_hour(9))?;
    let checks = |subject: &'static str| [LimitCheck::one(&ceiling, "all"), LimitCheck::one(&logins, subject)];
    assert!(!other.check_all(&checks("v")).await.allowed);
    let settlement = other.check_all(&checks("w")).await;
    assert!(settlement.allowed);
    let outcome = settlement.outcomes[0].expect("an outcome");
    assert_eq!(
        (outcome.source, outcome.decision.standing().remaining),
        (Source::Shared, 8)
    );

    let upstream = limiter.limit("upstream", Gcra::per_second(50).burst(1))?;
    for _ in 0..3 {
        let ready = limiter.ready(&upstream, "api", Cost::ONE, Duration::from_secs(10));
        assert!(ready.await.is_ok());
    }
    let blocking = std::thread::spawn(move || {
        let wait = |limit, at_most| limiter.wait_blocking(limit, "api", Cost::ONE, at_most);
        assert!(wait(&upstream, Duration::from_secs(10)).is_ok());
        let never = limiter.wait_blocking(&logins, "u", two, Duration::from_secs(1));
        assert!(!never.expect_err("an hour is too long").is_allow());
    });
    let joined = tokio::task::spawn_blocking(|| blocking.join()).await.expect("it runs");
    joined.expect("no assertion failed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_of_a_shared_store_is_released_when_its_last_clone_is_dropped() -> Result<(), LimitError> {
    let server = Server::start(ServerKind::Redis70);
    let (limiter, other) = (shared_limiter(&server), shared_limiter(&server));
    let searches = limiter.concurrency(
        "searches",
        Concurrency::at_most(1).lease_ttl(Duration::from_secs(3_600)),
    )?;
    let permit = limiter.acquire(&searches, "u").await.expect("the slot is free");
    assert_eq!(permit.renew().await, Ok(Some(Micros::from_secs(3_600))));
    let clone = permit.clone();
    drop(permit);
    assert!(other.acquire(&searches, "u").await.is_err(), "a clone holds it");
    // The last owner of the store, in a thread without a runtime.
    drop(limiter);
    std::thread::spawn(move || drop(clone)).join().expect("no panic");
    eventually("the slot is free", async || other.acquire(&searches, "u").await.is_ok()).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_store_the_library_decides_by_its_share() -> Result<(), LimitError> {
    // No server has this port.
    let limiter = Limiter::redis("redis://127.0.0.1:1/0").expect("a URL");
    let logins = limiter.limit("logins", TokenBucket::per_hour(10))?;
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += u32::from(limiter.check(&logins, "u").await.is_allow());
    }
    assert_eq!(admitted, 8, "80 % of the limit");
    let searches = limiter.concurrency("searches", Concurrency::at_most(10))?;
    let permit = limiter.acquire(&searches, "u").await.expect("a slot of the share");
    drop(permit);
    let mut permits = Vec::new();
    for _ in 0..20 {
        permits.extend(limiter.acquire(&searches, "u").await);
    }
    assert_eq!(permits.len(), 8, "a dropped one was released here");
    Ok(())
}

#[tokio::test]
async fn without_a_share_nothing_passes_uncounted() -> Result<(), LimitError> {
    let redis = || Redis::options("redis://127.0.0.1:1/0").expect("a URL").open();
    let options = FallbackOptions {
        mode: StoreMode::SharedOnly,
        ..one_instance()
    };
    let (bare, shared_only) = (Limiter::new(redis()), Limiter::with_fallback(redis(), options));
    let limit = bare.limit("logins", TokenBucket::per_hour(10))?;
    let denial = bare.check(&limit, "u").await;
    assert_eq!((denial.retry(), denial.standing().limit), (Some(Retry::Unknown), 10));
    assert!(!bare.check_all(&[LimitCheck::one(&limit, "u")]).await.allowed);
    let limit = shared_only.limit("logins", TokenBucket::per_hour(10))?;
    assert_eq!(shared_only.check(&limit, "u").await.retry(), Some(Retry::Unknown));
    let shadow = limit.with_policy(Policy::Shadow);
    assert!(
        shared_only.check(&shadow, "u").await.is_allow(),
        "a shadow denies nothing"
    );
    Ok(())
}

/// `check_all` once allowed what it could not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_with_a_foreign_value_denies_alone_and_among_others() -> Result<(), LimitError> {
    let server = Server::start(ServerKind::Redis70);
    let store = Redis::options(&server.url()).expect("a URL");
    let limiter = Limiter::new(store.deadline(Duration::from_secs(5)).open());
    let (foreign, other) = (
        limiter.limit("foreign", FixedWindow::per_day(9))?,
        limiter.limit("other", FixedWindow::per_day(9))?,
    );
    assert!(limiter.check(&foreign, "u").await.is_allow());
    let mut admin = connect(&server);
    for key in query::<Vec<String>>(&mut admin, &["KEYS", "tg:{*"]) {
        query::<()>(&mut admin, &["SET", &key, "of another program"]);
    }
    assert!(!limiter.check(&foreign, "u").await.is_allow());
    let checks = [LimitCheck::one(&foreign, "u"), LimitCheck::one(&other, "u")];
    assert!(!limiter.check_all(&checks).await.allowed);
    // The other limit was not charged.
    let remaining = limiter.check(&other, "u").await.standing().remaining;
    assert_eq!(remaining, 8);
    Ok(())
}
