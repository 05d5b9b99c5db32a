//! Random times: a denial of the near cache is a denial of the core at every time that the store's clock may show.

use super::*;
use crate::store::redis::key::RedisKeyspace;
use proptest::prelude::*;
use tollgate_core::{
    Cell, Concurrency, Counter, FixedWindow, Gcra, LeakyBucket, OnStoreFailure, Rate, SlidingCounter, SlidingLog,
    TokenBucket,
};

const UNITS: u64 = 10;

fn limits() -> Vec<Limit> {
    let rate = Rate::new(UNITS, Micros::from_millis(700)).expect("in range");
    vec![
        TokenBucket::new(rate).into(),
        Gcra::new(rate).into(),
        FixedWindow::new(rate).into(),
        SlidingCounter::new(rate).into(),
        LeakyBucket::new(rate).into(),
        Cell::new(UNITS - 1, UNITS, 1).expect("in range").into(),
        SlidingLog::new(rate).expect("in range").into(),
        Concurrency::new(UNITS, Micros::from_millis(700))
            .expect("in range")
            .into(),
    ]
}

fn key(subject: u64) -> RedisKey {
    let keys = RedisKeyspace::new("tg", 64, None);
    let [limit, ..] = &limits()[..] else { unreachable!() };
    let counter = Counter {
        domain: "default",
        rule: "rule",
        variant: "",
        limit,
        per: &[],
    };
    keys.key(&keys.template(&counter), &[&subject.to_le_bytes()])
}

fn charge(limit: Limit, cost: u64) -> Charge<RedisKey> {
    Charge {
        key: key(1),
        limit,
        cost: Cost::new(cost).expect("in range"),
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Local,
    }
}

fn us(us: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + us)
}

/// A key in the store.
#[derive(Default)]
struct Stored(Option<State>);

impl Stored {
    fn decide(&self, charge: &Charge<RedisKey>, now: Timestamp) -> Decision {
        charge
            .limit
            .decide(self.0.as_ref(), charge.cost, Now::new(now))
            .decision
    }

    /// Settles a charge as the script does, and returns its reply.
    fn settle(&mut self, charge: &Charge<RedisKey>, now: Timestamp) -> ChargeReply {
        let step = charge.limit.decide(self.0.as_ref(), charge.cost, Now::new(now));
        let allowed = step.decision.is_allow();
        if let (true, Some(next)) = (allowed, step.next) {
            charge.limit.keep(&mut self.0, next, LeaseId(1));
        }
        let is_ring = charge.limit.packed_bytes().is_none();
        ChargeReply::Charge {
            decision: step.decision,
            receipt: Receipt {
                cost: charge.cost,
                mark: Mark::default(),
                lease: LeaseId(1),
            },
            kept: allowed,
            allowed,
            state: self.0.clone().filter(|_| !is_ring),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn what_is_refused_here_is_refused_at_every_time_the_store_may_show(
        which in 0..8_usize,
        before in prop::collection::vec((0..120_000_u64, 0..=UNITS + 2), 1..24),
        outbound in 0..30_000_u64,
        inbound in 0..30_000_u64,
        delay in 0..260_000_u64,
        cost in 0..=UNITS + 2,
        clock_ahead in prop_oneof![Just(0), 0..20_000_u64],
    ) {
        let limit = limits()[which];
        let cache = NearCache::new(Micros::new(clock_ahead), Now::SLACK);
        let mut stored = Stored::default();
        // The local clock is an hour behind the store's, which the cache does not know.
        const CLOCK_BEHIND: u64 = 3_600_000_000;
        let mut now = 0;
        for (pause, cost) in before {
            now += pause;
            let round_trip = RoundTrip {
                sent: us(now.saturating_sub(outbound)),
                received: us(now + inbound),
                now: us(now + CLOCK_BEHIND),
            };
            let charge = charge(limit, cost);
            let reply = stored.settle(&charge, round_trip.now);
            cache.record(&charge, &[charge], &reply, round_trip);
        }
        let sent = now.saturating_sub(outbound);
        let ours = us(now + inbound + delay);
        let this = charge(limit, cost);
        let denial = cache.denial(&[this], ours);
        // The one-way time of the last round trip is between zero and all of it, and clocks drift.
        let earliest = now + delay - delay / 5_000;
        let latest = now + (now + inbound + delay - sent) + delay / 5_000;
        if let Some(denial) = denial {
            prop_assert!(!denial.allowed && now + inbound + delay - sent < TTL.get());
            prop_assert!(!matches!(limit, Limit::Concurrency(_)));
            let times = [earliest, (earliest + latest) / 2, latest, latest + clock_ahead];
            for time in times {
                let decision = stored.decide(&this, us(time + CLOCK_BEHIND));
                prop_assert!(!decision.is_allow(), "at {}: {:?}", time, decision);
            }
            let outcome = denial.outcomes[0].expect("known");
            prop_assert_eq!(outcome.source, Source::Near);
            // At its own time it is the store's decision.
            let reply = stored.decide(&this, denial.now);
            prop_assert_eq!(outcome.decision.retry(), reply.retry());
            prop_assert_eq!(outcome.decision.standing().limit, reply.standing().limit);
            prop_assert_eq!(outcome.decision.standing().remaining, reply.standing().remaining);
            // Nothing that another instance sent since can have changed them.
            let cheapest = stored.decide(&charge(limit, 1), us(latest + clock_ahead + CLOCK_BEHIND));
            prop_assert!(!cheapest.is_allow(), "{:?}", cheapest);
        }
    }

    #[test]
    fn what_the_store_would_refuse_even_at_the_latest_is_refused_here(
        which in 0..6_usize,
        delay in 0..200_000_u64,
        cost in 1..=UNITS,
    ) {
        let limit = limits()[which];
        let cache = NearCache::new(Micros::ZERO, Now::SLACK);
        let mut stored = Stored::default();
        let round_trip = RoundTrip { sent: us(0), received: us(200), now: us(100) };
        let all = charge(limit, UNITS);
        let reply = stored.settle(&all, round_trip.now);
        cache.record(&all, &[all], &reply, round_trip);
        let this = charge(limit, cost);
        let at_last = stored.decide(&this, us(100 + 200 + delay + (200 + delay) / 5_000 + 1));
        let denial = cache.denial(&[this], us(200 + delay));
        let is_exhausted = !at_last.is_allow() && at_last.standing().remaining == 0;
        prop_assert_eq!(denial.is_some(), is_exhausted);
    }
}

/// A near cache with an empty bucket, and the round trip that recorded it.
fn exhausted() -> (NearCache, Charge<RedisKey>, RoundTrip) {
    let limit = TokenBucket::new(Rate::new(UNITS, Micros::from_secs(3_600)).expect("in range"));
    let cache = NearCache::new(Micros::ZERO, Now::SLACK);
    let all = charge(limit.into(), UNITS);
    let round_trip = RoundTrip {
        sent: us(1_000),
        received: us(1_200),
        now: us(1_100),
    };
    let reply = Stored::default().settle(&all, round_trip.now);
    cache.record(&all, &[all], &reply, round_trip);
    (cache, charge(limit.into(), 1), round_trip)
}

#[test]
fn an_entry_is_believed_for_250_ms_from_when_it_was_asked_for() {
    let (cache, one, round_trip) = exhausted();
    assert!(cache.denial(&[one], round_trip.sent + Micros::new(249_999)).is_some());
    assert!(cache.denial(&[one], round_trip.sent + TTL).is_none());
}

#[test]
fn what_counts_although_refused_and_what_only_watches_is_not_refused_here() {
    let (cache, one, round_trip) = exhausted();
    let with = |policy| Charge { policy, ..one };
    assert!(cache.denial(&[one, with(Policy::Count)], round_trip.received).is_none());
    assert!(cache.denial(&[with(Policy::Count)], round_trip.received).is_none());
    assert!(cache.denial(&[with(Policy::Shadow)], round_trip.received).is_none());
    // Another charge of the request that is not cached is skipped.
    let other = Charge { key: key(2), ..one };
    let denial = cache
        .denial(&[other, one], round_trip.received)
        .expect("one is refused");
    assert_eq!(denial.outcomes[0], Err(StoreError::Skipped));
    assert!(denial.outcomes[1].is_ok());
}

#[test]
fn a_reply_that_comes_late_changes_nothing_and_a_clock_that_was_set_back_does() {
    let (cache, one, round_trip) = exhausted();
    let full = Stored::default().settle(&one, round_trip.now);
    let earlier = RoundTrip {
        now: round_trip.now - Micros::ONE,
        ..round_trip
    };
    cache.record(&one, &[one], &full, earlier);
    assert!(cache.denial(&[one], round_trip.received).is_some());
    // An hour back, and long after: old entries do not count.
    let after = |us_after| RoundTrip {
        sent: round_trip.sent + Micros::new(300_000 + us_after),
        received: round_trip.received + Micros::new(300_000 + us_after),
        now: round_trip.now - Micros::from_secs(3_600) + Micros::new(us_after),
    };
    let mut stored = Stored::default();
    let all = Charge {
        cost: Cost::new(UNITS).expect("in range"),
        ..one
    };
    let reply = stored.settle(&all, after(0).now);
    cache.record(&all, &[all], &reply, after(0));
    assert!(cache.denial(&[one], after(0).received).is_some());
}

#[test]
fn a_key_that_has_something_left_again_is_forgotten() {
    let (cache, one, round_trip) = exhausted();
    assert_eq!(cache.entries.load(Ordering::Relaxed), 1);
    let later = RoundTrip {
        now: round_trip.now + Micros::ONE,
        ..round_trip
    };
    let reply = Stored::default().settle(&one, later.now);
    cache.record(&one, &[one], &reply, later);
    assert_eq!(cache.entries.load(Ordering::Relaxed), 0);
    assert!(cache.denial(&[one], later.received).is_none());
}

#[test]
fn there_are_never_more_entries_than_there_may_be() {
    let (cache, one, round_trip) = exhausted();
    let all = Charge {
        cost: Cost::new(UNITS).expect("in range"),
        ..one
    };
    let record_many = |from: u64, count: u64, round_trip: RoundTrip| {
        for subject in from..from + count {
            let all = Charge {
                key: key(subject),
                ..all
            };
            let reply = Stored::default().settle(&all, round_trip.now);
            cache.record(&all, &[all], &reply, round_trip);
        }
    };
    let many = ENTRIES_MAX as u64 + ENTRIES_MAX as u64 / 8;
    record_many(10, many, round_trip);
    let kept = cache.entries.load(Ordering::Relaxed);
    assert!(kept <= ENTRIES_MAX && kept > ENTRIES_MAX * 9 / 10, "{kept}");
    // Expired entries make room.
    let later = RoundTrip {
        sent: round_trip.sent + TTL,
        received: round_trip.received + TTL,
        now: round_trip.now + TTL,
    };
    record_many(10 + many, 1_000, later);
    let newest = Charge {
        key: key(10 + many + 999),
        ..one
    };
    assert!(cache.denial(&[newest], later.received).is_some());
    assert!(cache.entries.load(Ordering::Relaxed) <= ENTRIES_MAX);
}
