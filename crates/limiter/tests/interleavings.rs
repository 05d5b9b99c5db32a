//! Thousands of interleavings of threads on the memory store: whatever the order of its locks, the totals are exact and
//! no thread deadlocks.
//!
//! Run with `cargo test -p tollgate-limiter --features shuttle --test interleavings`. A failure prints the schedule that
//! caused it. The hash secret is new for each schedule, so the shards of the keys vary too.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cost, Decision, Micros, Timestamp};
use tollgate_limiter::limits::{Concurrency, FixedWindow, IntoLimit, SlidingLog, TokenBucket};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{LimitCheck, Limiter, NamedLimit};

/// Schedules per scene and scheduler.
const SCHEDULES: usize = 2_000;

/// Context switches that a bug may need to show.
const DEPTH: usize = 3;

/// Runs a scene under random schedules, and under schedules with few, adversarial context switches.
fn interleave(scene: fn()) {
    shuttle::check_random(scene, SCHEDULES);
    shuttle::check_pct(scene, SCHEDULES, DEPTH);
}

fn limiter(shards: usize) -> (Limiter, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Memory::options().clock(clock.clone()).shards(shards).build();
    (Limiter::new(store), clock)
}

fn named(limiter: &Limiter, id: &str, limit: impl IntoLimit) -> Arc<NamedLimit> {
    Arc::new(limiter.limit(id, limit).expect("a limit in range"))
}

fn remaining(limiter: &Limiter, limit: &NamedLimit, subject: &str) -> u64 {
    let cost = Cost::ZERO;
    limiter.check_cost(limit, subject, cost).standing().remaining
}

/// Three threads settle two keys each, the second in reverse order, with too little capacity for all.
fn two_keys(first: impl IntoLimit, second: impl IntoLimit, shards: usize) {
    let (limiter, _) = limiter(shards);
    let one = named(&limiter, "one", first);
    let two = named(&limiter, "two", second);
    let passed = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let (limiter, one, two, passed) = (limiter.clone(), one.clone(), two.clone(), Arc::clone(&passed));
            thread::spawn(move || {
                for _ in 0..2 {
                    let mut checks = [LimitCheck::one(&one, "a"), LimitCheck::one(&two, "b")];
                    if number == 1 {
                        checks.reverse();
                    }
                    let settlement = limiter.check_all(&checks);
                    passed.fetch_add(u64::from(settlement.allowed), Ordering::SeqCst);
                    let seen = limiter.check_all(&[
                        LimitCheck {
                            cost: Cost::ZERO,
                            ..LimitCheck::one(&one, "a")
                        },
                        LimitCheck {
                            cost: Cost::ZERO,
                            ..LimitCheck::one(&two, "b")
                        },
                    ]);
                    let taken: Vec<u64> = seen
                        .outcomes
                        .iter()
                        .map(|outcome| {
                            let decision = outcome.expect("memory is always there").decision;
                            decision.standing().limit - decision.standing().remaining
                        })
                        .collect();
                    assert_eq!(taken.first(), taken.last(), "one key was charged and the other was not");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    assert_eq!(passed.load(Ordering::SeqCst), 4);
    assert_eq!((remaining(&limiter, &one, "a"), remaining(&limiter, &two, "b")), (1, 0));
}

#[test]
fn two_keys_in_opposite_orders_are_charged_together_or_not_at_all() {
    interleave(|| two_keys(TokenBucket::per_hour(5), TokenBucket::per_hour(4), 4));
}

#[test]
fn so_are_keys_of_different_algorithms() {
    interleave(|| two_keys(SlidingLog::per_hour(5), FixedWindow::per_hour(4), 2));
}

#[test]
fn keys_that_come_while_a_shard_grows_and_is_swept_are_all_kept() {
    interleave(|| {
        let (limiter, clock) = limiter(1);
        let old = named(&limiter, "old", TokenBucket::per_second(1));
        let new = named(&limiter, "new", TokenBucket::per_hour(2));
        for n in 0..6 {
            limiter.check(&old, format!("old {n}"));
        }
        clock.advance(Micros::from_secs(1));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (limiter, new) = (limiter.clone(), new.clone());
                thread::spawn(move || {
                    for n in 0..6 {
                        assert!(limiter.check(&new, format!("new {number} {n}")).is_allow());
                        // All three meet on one key, which the first of them makes.
                        if n == 3 {
                            limiter.check(&new, "shared");
                        }
                    }
                })
            })
            .collect();
        let sweeper = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.store().sweep(5) + limiter.store().sweep(5))
        };
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        sweeper.join().expect("no thread panics");
        while limiter.store().sweep(usize::MAX) > 0 {}
        let usage = limiter.store().usage();
        assert_eq!((usage.keys, usage.swept), (19, 6));
        assert_eq!(remaining(&limiter, &new, "shared"), 0);
        for number in 0..3 {
            for n in 0..6 {
                assert_eq!(remaining(&limiter, &new, &format!("new {number} {n}")), 1);
            }
        }
    });
}

#[test]
fn a_slot_is_never_held_twice_and_never_lost() {
    interleave(|| {
        let (limiter, _) = limiter(1);
        let searches = limiter.concurrency("searches", Concurrency::at_most(2));
        let searches = Arc::new(searches.expect("a limit in range"));
        let inside = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (limiter, searches, inside) = (limiter.clone(), searches.clone(), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Ok(permit) = limiter.acquire(&searches, "a") {
                            assert!(inside.fetch_add(1, Ordering::SeqCst) < 2, "three hold two slots");
                            assert!(permit.renew().is_some());
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        let free = || limiter.acquire(&searches, "a").ok();
        let held = [free(), free(), free()];
        assert_eq!(held.iter().flatten().count(), 2);
    });
}

#[test]
fn a_batch_and_single_requests_admit_the_limit_between_them() {
    interleave(|| {
        let (limiter, _) = limiter(4);
        let limit = named(&limiter, "rule", TokenBucket::per_hour(3));
        let admitted = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let subjects = ["a", "b", "c"];
        let count = |admitted: &[AtomicU64; 3], subject: usize, decision: Decision| {
            let counter = admitted.get(subject).expect("one for each subject");
            counter.fetch_add(u64::from(decision.is_allow()), Ordering::SeqCst);
        };
        let batches: Vec<_> = [[0, 1, 2, 0], [2, 1, 0, 2]]
            .into_iter()
            .map(|order| {
                let (limiter, limit, admitted) = (limiter.clone(), limit.clone(), Arc::clone(&admitted));
                thread::spawn(move || {
                    let keys = order.map(|subject| subjects.get(subject).copied().unwrap_or_default());
                    let mut order = order.into_iter();
                    limiter.check_each(&limit, &keys, |decision| {
                        count(&admitted, order.next().unwrap_or_default(), decision);
                    });
                })
            })
            .collect();
        let single = {
            let (limiter, limit, admitted) = (limiter.clone(), limit.clone(), Arc::clone(&admitted));
            thread::spawn(move || {
                for (index, subject) in subjects.iter().enumerate() {
                    for _ in 0..2 {
                        count(&admitted, index, limiter.check(&limit, subject));
                    }
                }
            })
        };
        for thread in batches.into_iter().chain([single]) {
            thread.join().expect("no thread panics");
        }
        for counter in admitted.iter() {
            assert_eq!(counter.load(Ordering::SeqCst), 3);
        }
    });
}
