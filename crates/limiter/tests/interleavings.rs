//! Threads of the embedded store led through thousands of interleavings: whatever the order of its locks, the totals are
//! exact and nobody waits for ever.
//!
//! Run with `cargo test -p tollgate-limiter --features shuttle --test interleavings`. A failure prints the schedule that
//! brought it about. Which shard a key falls into is drawn anew for each, so the places of keys vary too.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cost, Decision, Micros, Timestamp};
use tollgate_limiter::limits::{Concurrency, FixedWindow, IntoLimit, SlidingLog, TokenBucket};
use tollgate_limiter::store::memory::Memory;
use tollgate_limiter::{LimitCheck, Limiter, NamedLimit};

/// How many interleavings of each scene are tried by each way of choosing them.
const SCHEDULES: usize = 2_000;

/// How many changes of thread in unlucky places a bug may need to show.
const DEPTH: usize = 3;

/// Tries a scene under schedules drawn at random, and under ones that prefer few but nasty changes of thread.
fn interleave(scene: fn()) {
    shuttle::check_random(scene, SCHEDULES);
    shuttle::check_pct(scene, SCHEDULES, DEPTH);
}

fn limiter(shards: usize) -> (Limiter, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Memory::options().clock(clock.clone()).shards(shards).build();
    (Limiter::new(store), clock)
}

fn rule(limiter: &Limiter, id: &str, limit: impl IntoLimit) -> Arc<NamedLimit> {
    Arc::new(limiter.limit(id, limit).expect("a limit in range"))
}

fn left(limiter: &Limiter, rule: &NamedLimit, subject: &str) -> u64 {
    let cost = Cost::ZERO;
    limiter.check_cost(rule, subject, cost).standing().remaining
}

/// Three threads settle two keys each, the second the other way round, with too little room for all.
fn two_keys(first: impl IntoLimit, second: impl IntoLimit, shards: usize) {
    let (limiter, _) = limiter(shards);
    let one = rule(&limiter, "one", first);
    let two = rule(&limiter, "two", second);
    let passed = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let (limiter, one, two, passed) = (limiter.clone(), one.clone(), two.clone(), Arc::clone(&passed));
            thread::spawn(move || {
                for _ in 0..2 {
                    let mut asks = [LimitCheck::one(&one, "a"), LimitCheck::one(&two, "b")];
                    if number == 1 {
                        asks.reverse();
                    }
                    let settled = limiter.check_all(&asks);
                    passed.fetch_add(u64::from(settled.allowed), Ordering::SeqCst);
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
    assert_eq!((left(&limiter, &one, "a"), left(&limiter, &two, "b")), (1, 0));
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
        let old = rule(&limiter, "old", TokenBucket::per_second(1));
        let new = rule(&limiter, "new", TokenBucket::per_hour(2));
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
        assert_eq!(left(&limiter, &new, "shared"), 0);
        for number in 0..3 {
            for n in 0..6 {
                assert_eq!(left(&limiter, &new, &format!("new {number} {n}")), 1);
            }
        }
    });
}

#[test]
fn a_slot_is_never_held_twice_and_never_lost() {
    interleave(|| {
        let (limiter, _) = limiter(1);
        let searches = rule(&limiter, "searches", Concurrency::at_most(2));
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
        assert_eq!(left(&limiter, &searches, "a"), 2);
    });
}

#[test]
fn a_batch_and_single_requests_admit_the_limit_between_them() {
    interleave(|| {
        let (limiter, _) = limiter(4);
        let rule = rule(&limiter, "rule", TokenBucket::per_hour(3));
        let admitted = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
        let subjects = ["a", "b", "c"];
        let count = |admitted: &[AtomicU64; 3], subject: usize, decision: Decision| {
            let counter = admitted.get(subject).expect("one for each subject");
            counter.fetch_add(u64::from(decision.is_allow()), Ordering::SeqCst);
        };
        let batches: Vec<_> = [[0, 1, 2, 0], [2, 1, 0, 2]]
            .into_iter()
            .map(|order| {
                let (limiter, rule, admitted) = (limiter.clone(), rule.clone(), Arc::clone(&admitted));
                thread::spawn(move || {
                    let keys = order.map(|subject| subjects.get(subject).copied().unwrap_or_default());
                    let mut order = order.into_iter();
                    limiter.check_each(&rule, &keys, |decision| {
                        count(&admitted, order.next().unwrap_or_default(), decision);
                    });
                })
            })
            .collect();
        let single = {
            let (limiter, rule, admitted) = (limiter.clone(), rule.clone(), Arc::clone(&admitted));
            thread::spawn(move || {
                for (index, subject) in subjects.iter().enumerate() {
                    for _ in 0..2 {
                        count(&admitted, index, limiter.check(&rule, subject));
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
