//! The limiter as a program uses it: rules in code, several at once, permits, waiting.

use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cost, Decision, LimitError, Micros, Policy, Retry, Timestamp};
use tollgate_limiter::limits::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
use tollgate_limiter::store::memory::Memory;
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
        limiter.limit("g", Concurrency::at_most(5).lease_ttl(Duration::from_secs(30)))?,
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
    Ok(())
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
    let limit = limiter.limit("searches", Concurrency::at_most(1).lease_ttl(Duration::from_secs(10)))?;
    let held = limiter.acquire(&limit, "u").expect("the slot is free");
    assert!(limiter.acquire(&limit, "u").is_err());
    drop(held);
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
