//! The embedded store: what every store must do, and what this one promises besides.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_limiter::clock::Clock;
use tollgate_limiter::conformance::{Harness, block_on, conformance};
use tollgate_limiter::core::testing::limits::every_limit;
use tollgate_limiter::core::{Cost, Decision, LeaseId, Limit, Micros, Retry, Timestamp};
use tollgate_limiter::store::memory::{Memory, Overflow};
use tollgate_limiter::store::{Source, Store};
use tollgate_limiter::testing::counters::{charge, key, named_limit};
use tollgate_limiter::{LimitCheck, Limiter, NamedLimit, limits};

fn manual_clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

#[test]
fn does_what_every_store_must_on_a_clock_that_is_moved() {
    let clock = manual_clock();
    let store = Memory::options().clock(clock.clone()).build();
    let harness = Harness::new(store).with_clock(move |span| clock.advance(span));
    let report = block_on(conformance(&harness)).expect("it conforms");
    println!("{report}");
}

#[test]
fn does_what_every_store_must_on_the_running_clock() {
    let report = block_on(conformance(&Harness::new(Memory::default()))).expect("it conforms");
    println!("{report}");
}

#[test]
fn does_what_a_compensated_store_must() {
    let harness = Harness::new(Memory::default()).compensated();
    block_on(conformance(&harness)).expect("it conforms");
}

#[test]
fn does_what_every_store_must_in_one_shard() {
    let store = Memory::options().shards(1).build();
    block_on(conformance(&Harness::new(store))).expect("it conforms");
}

/// A limit of every algorithm, each holding so many units for a long time.
fn limits(units: u64) -> [Limit; 8] {
    let limits = every_limit(units, Micros::from_secs(86_400));
    assert_eq!(
        limits.each_ref().map(Limit::algorithm),
        Limit::ALGORITHMS,
        "every algorithm has its limit here"
    );
    limits
}

fn remaining(limiter: &Limiter, named: &NamedLimit, subject: &str) -> u64 {
    limiter.check_cost(named, subject, Cost::ZERO).standing().remaining
}

fn bucket(limiter: &Limiter, units: u64) -> NamedLimit {
    let draft = limits::TokenBucket::per_hour(units);
    limiter.limit("bucket", draft).expect("in range")
}

/// Runs eight threads that begin together.
fn eight_threads(work: impl Fn(usize) + Sync) {
    let gate = Barrier::new(8);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (gate, work) = (&gate, &work);
            scope.spawn(move || {
                gate.wait();
                work(number);
            });
        }
    });
}

#[test]
fn eight_threads_on_one_key_admit_exactly_the_limit_every_time() {
    for limit in limits(100) {
        for round in 0..25 {
            let limiter = Limiter::new(Memory::options().clock(manual_clock()).build());
            let named = named_limit(&limiter, "rule", limit);
            let admitted = AtomicU64::new(0);
            eight_threads(|_| {
                for _ in 0..50 {
                    let decision = limiter.check(&named, "one");
                    admitted.fetch_add(u64::from(decision.is_allow()), Ordering::Relaxed);
                }
            });
            assert_eq!(admitted.into_inner(), 100, "{} in round {round}", limit.algorithm());
            assert_eq!(remaining(&limiter, &named, "one"), 0);
        }
    }
}

#[test]
fn eight_threads_in_batches_admit_exactly_the_limit_of_each_key() {
    let subjects: Vec<String> = (0..40).map(|n| format!("user {n}")).collect();
    for limit in limits(10) {
        let limiter = Limiter::new(Memory::options().clock(manual_clock()).shards(4).build());
        let named = named_limit(&limiter, "rule", limit);
        let admitted = AtomicU64::new(0);
        eight_threads(|number| {
            let mut order: Vec<&String> = subjects.iter().collect();
            order.rotate_left(number * 5);
            if number % 2 == 0 {
                order.reverse();
            }
            for _ in 0..3 {
                limiter.check_each(&named, &order, |decision| {
                    admitted.fetch_add(u64::from(decision.is_allow()), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(admitted.into_inner(), 400, "{}", limit.algorithm());
    }
}

#[test]
fn settles_of_two_keys_in_opposite_orders_neither_deadlock_nor_charge_only_one() {
    for limit in limits(100) {
        for shards in [1, 2, 1_024] {
            let limiter = Limiter::new(Memory::options().clock(manual_clock()).shards(shards).build());
            let named = named_limit(&limiter, "rule", limit);
            let bucket = bucket(&limiter, 150);
            let passed = AtomicU64::new(0);
            eight_threads(|number| {
                let mut checks = [
                    LimitCheck::one(&named, "a"),
                    LimitCheck::one(&bucket, "b"),
                    LimitCheck::one(&named, "c"),
                ];
                checks.rotate_left(number % 3);
                if number % 2 == 0 {
                    checks.reverse();
                }
                for _ in 0..25 {
                    passed.fetch_add(u64::from(limiter.check_all(&checks).allowed), Ordering::Relaxed);
                }
            });
            assert_eq!(passed.into_inner(), 100, "{}", limit.algorithm());
            assert_eq!(remaining(&limiter, &named, "a"), 0);
            assert_eq!(remaining(&limiter, &named, "c"), 0);
            assert_eq!(remaining(&limiter, &bucket, "b"), 50);
        }
    }
}

#[test]
fn a_batch_is_answered_as_one_by_one() {
    let clock = manual_clock();
    // More than one chunk, some of them twice.
    let subjects: Vec<String> = (0..100).map(|n| format!("user {}", n % 37)).collect();
    for limit in limits(4) {
        let store = || Limiter::new(Memory::options().clock(clock.clone()).build());
        let (batch, single) = (store(), store());
        let [in_batch, alone] = [&batch, &single].map(|limiter| named_limit(limiter, "rule", limit));
        for _ in 0..2 {
            let mut answers = Vec::new();
            batch.check_each(&in_batch, &subjects, |decision| answers.push(decision));
            let expected: Vec<Decision> = subjects.iter().map(|subject| single.check(&alone, subject)).collect();
            assert_eq!(answers, expected, "{}", limit.algorithm());
            clock.advance(Micros::from_secs(7_201));
        }
        assert_eq!(batch.store().usage().keys, 37);
    }
}

/// A limiter in four shards on a clock that is moved, and a limit of it.
fn in_four_shards(limit: Limit) -> (Clock, Limiter, NamedLimit) {
    let clock = manual_clock();
    let limiter = Limiter::new(Memory::options().clock(clock.clone()).shards(4).build());
    let named = named_limit(&limiter, "rule", limit);
    (clock, limiter, named)
}

#[test]
fn idle_keys_are_swept_out_behind_new_ones_and_the_table_does_not_grow() {
    for limit in limits(10) {
        let (clock, limiter, named) = in_four_shards(limit);
        let flood = |wave: u64| {
            for n in 0..5_000 {
                assert!(limiter.check(&named, format!("{wave} {n}")).is_allow());
            }
            limiter.store().usage()
        };
        let first = flood(0);
        assert_eq!((first.keys, first.swept), (5_000, 0));
        for wave in 1..4 {
            // Longer than any of them needs to be fresh.
            clock.advance(Micros::from_secs(3 * 86_400));
            let usage = flood(wave);
            assert_eq!(
                (usage.keys, usage.swept),
                (5_000, wave * 5_000),
                "{}",
                limit.algorithm()
            );
            // Old keys and new ones are there together for a while, so there is some growth at first and then no more.
            assert!(
                usage.bytes <= first.bytes * 3 / 2,
                "{} then {}",
                first.bytes,
                usage.bytes
            );
        }
    }
}

#[test]
fn a_sweep_gives_back_the_memory_of_keys_that_nobody_asks_for() {
    for limit in limits(10) {
        let (clock, limiter, named) = in_four_shards(limit);
        for n in 0..5_000 {
            limiter.check(&named, format!("user {n}"));
        }
        let full = limiter.store().usage();
        assert_eq!(limiter.store().sweep(usize::MAX), 0, "live keys stay");
        assert_eq!(limiter.store().usage(), full);
        clock.advance(Micros::from_secs(3 * 86_400));
        assert!(
            limiter.store().sweep(10) <= 40,
            "a sweep looks at no more slots than it was told"
        );
        while limiter.store().sweep(1_000) > 0 {}
        let empty = limiter.store().usage();
        assert_eq!((empty.keys, empty.swept), (0, 5_000), "{}", limit.algorithm());
        assert!(
            empty.bytes * 50 < full.bytes,
            "{} of {} bytes left",
            empty.bytes,
            full.bytes
        );
        assert!(limiter.check(&named, "user 1").is_allow());
    }
}

fn capped(shards: usize, max_memory: usize) -> Limiter {
    let options = Memory::options().clock(manual_clock()).shards(shards);
    Limiter::new(options.max_memory(max_memory).build())
}

#[test]
fn at_the_cap_exhausted_keys_stay_exhausted_and_new_ones_share_one_limit() {
    const CAP: usize = 128 << 10;
    let limiter = capped(8, CAP);
    let named = bucket(&limiter, 3);
    let exhausted: Vec<String> = (0..200).map(|n| format!("exhausted {n}")).collect();
    for subject in &exhausted {
        assert_eq!((0..4).filter(|_| limiter.check(&named, subject).is_allow()).count(), 3);
    }
    let mut denied = 0;
    for (n, subject) in (0..100_000).zip(exhausted.iter().cycle()) {
        denied += u64::from(!limiter.check(&named, format!("new {n}")).is_allow());
        assert!(
            !limiter.check(&named, subject).is_allow(),
            "{subject} was let through after {n} new keys"
        );
        assert!(limiter.store().usage().bytes <= CAP || n % 100 > 0);
    }
    let usage = limiter.store().usage();
    assert!(usage.bytes <= CAP, "{} bytes", usage.bytes);
    assert!(
        usage.bytes > CAP / 2,
        "the memory there is gets used: {} bytes",
        usage.bytes
    );
    // Every key either got a place of its own or was counted; of the latter only as many passed as one limit holds.
    // One place is the shared counter's.
    assert_eq!(usage.keys as u64 - 201 + usage.overflowed, 100_000);
    assert_eq!(denied, usage.overflowed - 3);
}

#[test]
fn whoever_met_the_shared_counter_is_told_so() {
    let limiter = Limiter::new(Memory::options().clock(manual_clock()).max_memory(0).build());
    let named = bucket(&limiter, 3);
    for n in 0..5 {
        let subject = format!("new {n}");
        let settlement = block_on(limiter.settle(&[LimitCheck::one(&named, &subject)]));
        assert_eq!(settlement.allowed, n < 3);
        let sources: Vec<_> = settlement
            .outcomes
            .iter()
            .map(|outcome| outcome.map(|outcome| outcome.source))
            .collect();
        assert_eq!(sources, [Ok(Source::Overflow)]);
    }
    assert_eq!(limiter.store().usage().keys, 1, "the shared counter alone");
    assert_eq!(limiter.store().usage().overflowed, 5);
}

#[test]
fn without_room_new_keys_of_every_algorithm_pass_as_often_as_one_limit_allows() {
    for limit in limits(10) {
        let limiter = Limiter::new(Memory::options().clock(manual_clock()).max_memory(0).build());
        let named = named_limit(&limiter, "rule", limit);
        let admitted = (0..100).filter(|n| limiter.check(&named, format!("new {n}")).is_allow());
        assert_eq!(admitted.count(), 10, "{}", limit.algorithm());
        assert_eq!(limiter.store().usage().overflowed, 100);
    }
}

#[test]
fn when_told_to_deny_new_keys_are_refused_until_there_is_room() {
    let clock = manual_clock();
    let options = Memory::options().clock(clock.clone()).shards(1);
    let limiter = Limiter::new(options.max_memory(16 << 10).overflow(Overflow::Deny).build());
    let named = bucket(&limiter, 3);
    let decisions: Vec<Decision> = (0..1_000).map(|n| limiter.check(&named, format!("new {n}"))).collect();
    let usage = limiter.store().usage();
    let admitted = decisions.iter().filter(|decision| decision.is_allow()).count();
    assert_eq!((admitted, usage.overflowed as usize), (usage.keys, 1_000 - usage.keys));
    let last = decisions.last().expect("a thousand");
    assert_eq!((last.retry(), last.standing().remaining), (Some(Retry::Unknown), 0));
    assert!(limiter.check(&named, "new 0").is_allow(), "a key that is there goes on");
    clock.advance(Micros::from_secs(3_600));
    assert!(limiter.check(&named, "new 999").is_allow(), "idle keys have made room");
}

#[test]
fn several_new_keys_of_one_request_keep_to_the_cap_and_share_as_one() {
    const CAP: usize = 64 << 10;
    let limiter = capped(1, CAP);
    let named = bucket(&limiter, 1_000_000);
    for n in 0..5_000 {
        let subjects: Vec<String> = (0..7).map(|part| format!("new {n} {part}")).collect();
        let checks: Vec<LimitCheck<'_>> = subjects
            .iter()
            .map(|subject| LimitCheck::one(&named, subject))
            .collect();
        assert!(limiter.check_all(&checks).allowed);
    }
    let usage = limiter.store().usage();
    assert!(usage.bytes <= CAP, "{} bytes", usage.bytes);
    assert!(usage.overflowed > 30_000);

    let limiter = Limiter::new(Memory::options().clock(manual_clock()).max_memory(0).build());
    for limit in limits(10) {
        let named = named_limit(&limiter, "rule", limit);
        let passed = (0..20).filter(|n| {
            let (a, b) = (format!("a {n}"), format!("b {n}"));
            limiter
                .check_all(&[LimitCheck::one(&named, &a), LimitCheck::one(&named, &b)])
                .allowed
        });
        assert_eq!(
            passed.count(),
            5,
            "two units each of one shared counter: {}",
            limit.algorithm()
        );
    }
}

#[test]
fn what_met_the_shared_counter_is_given_back_to_it() {
    let limiter = Limiter::new(Memory::options().clock(manual_clock()).max_memory(0).build());
    let slots = limiter
        .concurrency("slots", tollgate_limiter::limits::Concurrency::at_most(1))
        .expect("in range");
    drop(limiter.acquire(&slots, "a").expect("the shared slot is free"));
    let held = limiter.acquire(&slots, "b").expect("it was given back");
    assert!(held.renew().is_some());
    assert!(limiter.acquire(&slots, "c").is_err());
}

#[test]
fn a_lease_on_the_shared_counter_is_given_back_also_when_its_key_has_room_since() {
    let limiter = capped(1, 16 << 10);
    let slots = limiter
        .concurrency("slots", tollgate_limiter::limits::Concurrency::at_most(1))
        .expect("in range");
    // The next one that finds no room, and those before it.
    let fill = |from: u32| {
        let before = limiter.store().usage().overflowed;
        let mut held = Vec::new();
        for n in from.. {
            let subject = format!("new {n}");
            let permit = limiter.acquire(&slots, &subject);
            if limiter.store().usage().overflowed > before {
                return (subject, permit, held);
            }
            held.push(permit.expect("each has a slot"));
        }
        unreachable!("the store is full at some time")
    };
    let (subject, shared, held) = fill(0);
    let shared = shared.expect("the shared slot is free");
    drop(held);
    let own = limiter
        .acquire(&slots, &subject)
        .expect("it has room and a slot of its own");
    assert!(shared.renew().is_some());
    assert!(own.renew().is_some());
    drop(shared);
    assert!(limiter.acquire(&slots, &subject).is_err(), "its own slot is still held");
    let (_, shared, _held) = fill(1_000_000);
    assert!(shared.is_ok(), "the shared slot was given back");
}

#[test]
fn a_refund_of_a_key_that_is_not_there_is_not_given_to_the_shared_counter() {
    let store = Memory::options().clock(manual_clock()).max_memory(0).build();
    let limit = *bucket(&Limiter::in_memory(), 3).limit();
    let charge = |subject: &str| charge(key(&store, "rule", &limit, &[subject.as_bytes()]), &limit, 1);
    let passes = |subject| block_on(store.settle(&[charge(subject)], LeaseId::default())).allowed;
    assert!(passes("a") && passes("b") && passes("c"));
    let refunded = block_on(store.refund(&charge("never seen")));
    assert!(refunded.is_ok());
    assert!(!passes("d"), "three have passed, and the limit is three");
}

#[test]
fn a_shadow_lets_everybody_pass_and_says_where_it_stands() {
    let limiter = Limiter::in_memory();
    let named = bucket(&limiter, 2).with_policy(tollgate_limiter::core::Policy::Shadow);
    let remaining: Vec<u64> = (0..4)
        .map(|_| limiter.check(&named, "a"))
        .map(|decision| {
            assert!(decision.is_allow());
            decision.standing().remaining
        })
        .collect();
    assert_eq!(remaining, [1, 0, 0, 0]);
}
