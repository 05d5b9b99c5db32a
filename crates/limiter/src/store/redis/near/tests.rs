//! Made-up times: whatever is refused here, the core refuses at every time that the store's clock may show.

use super::*;
use crate::store::redis::key::Keys;
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
    let keys = Keys::new("tg", 64, None);
    let [limit, ..] = &limits()[..] else { unreachable!() };
    let counter = Counter {
        domain: "default",
        rule: "rule",
        variant: "",
        limit,
        per: &[],
    };
    keys.key(&keys.subjects(&counter), &[&subject.to_le_bytes()])
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

/// A key as the store has it.
#[derive(Default)]
struct Stored(Option<State>);

impl Stored {
    fn decide(&self, charge: &Charge<RedisKey>, now: Timestamp) -> Decision {
        charge
            .limit
            .decide(self.0.as_ref(), charge.cost, Now::new(now))
            .decision
    }

    /// Settles a charge as the script does, and tells of it.
    fn settle(&mut self, charge: &Charge<RedisKey>, now: Timestamp) -> Told {
        let step = charge.limit.decide(self.0.as_ref(), charge.cost, Now::new(now));
        let passes = step.decision.is_allow();
        if let (true, Some(next)) = (passes, step.next) {
            charge.limit.keep(&mut self.0, next, LeaseId(1));
        }
        let is_ring = charge.limit.packed_bytes().is_none();
        Told::Charge {
            decision: step.decision,
            receipt: receipt(charge.cost, LeaseId(1)),
            kept: passes,
            passes,
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
        way_there in 0..30_000_u64,
        way_back in 0..30_000_u64,
        asked in 0..260_000_u64,
        cost in 0..=UNITS + 2,
        ahead in prop_oneof![Just(0), 0..20_000_u64],
    ) {
        let limit = limits()[which];
        let near = Near::new(Micros::new(ahead), Now::SLACK);
        let mut stored = Stored::default();
        // Our clock is an hour behind the store's, which nobody here knows.
        const BEHIND: u64 = 3_600_000_000;
        let mut now = 0;
        for (pause, cost) in before {
            now += pause;
            let when = Exchange {
                sent: us(now.saturating_sub(way_there)),
                received: us(now + way_back),
                now: us(now + BEHIND),
            };
            let charge = charge(limit, cost);
            let told = stored.settle(&charge, when.now);
            near.learn(&charge, &[charge], &told, when);
        }
        let sent = now.saturating_sub(way_there);
        let ours = us(now + way_back + asked);
        let this = charge(limit, cost);
        let refusal = near.refusal(&[this], ours);
        // The last reply's way is between nothing and all of the time it took, and clocks drift.
        let earliest = now + asked - asked / 5_000;
        let latest = now + (now + way_back + asked - sent) + asked / 5_000;
        if let Some(refusal) = refusal {
            prop_assert!(!refusal.passes && now + way_back + asked - sent < BELIEVED.get());
            prop_assert!(!matches!(limit, Limit::Concurrency(_)));
            let times = [earliest, (earliest + latest) / 2, latest, latest + ahead];
            for time in times {
                let decision = stored.decide(&this, us(time + BEHIND));
                prop_assert!(!decision.is_allow(), "at {}: {:?}", time, decision);
            }
            let outcome = refusal.outcomes[0].expect("known");
            prop_assert_eq!(outcome.source, Source::Near);
            // Told at its own time, it is what the store would have said then.
            let told = stored.decide(&this, refusal.now);
            prop_assert_eq!(outcome.decision.retry(), told.retry());
            prop_assert_eq!(outcome.decision.standing().limit, told.standing().limit);
            prop_assert!(outcome.decision.standing().remaining <= told.standing().remaining);
        }
    }

    #[test]
    fn what_the_store_would_refuse_even_at_the_latest_is_refused_here(
        which in 0..6_usize,
        asked in 0..200_000_u64,
        cost in 1..=UNITS,
    ) {
        let limit = limits()[which];
        let near = Near::new(Micros::ZERO, Now::SLACK);
        let mut stored = Stored::default();
        let when = Exchange { sent: us(0), received: us(200), now: us(100) };
        let all = charge(limit, UNITS);
        let told = stored.settle(&all, when.now);
        near.learn(&all, &[all], &told, when);
        let this = charge(limit, cost);
        let at_last = stored.decide(&this, us(100 + 200 + asked + (200 + asked) / 5_000 + 1));
        let refusal = near.refusal(&[this], us(200 + asked));
        prop_assert_eq!(refusal.is_some(), !at_last.is_allow());
    }
}

/// A near cache that knows a bucket to be empty, and when that was.
fn exhausted() -> (Near, Charge<RedisKey>, Exchange) {
    let limit = TokenBucket::new(Rate::new(UNITS, Micros::from_secs(3_600)).expect("in range"));
    let near = Near::new(Micros::ZERO, Now::SLACK);
    let all = charge(limit.into(), UNITS);
    let when = Exchange {
        sent: us(1_000),
        received: us(1_200),
        now: us(1_100),
    };
    let told = Stored::default().settle(&all, when.now);
    near.learn(&all, &[all], &told, when);
    (near, charge(limit.into(), 1), when)
}

#[test]
fn an_entry_is_believed_for_250_ms_from_when_it_was_asked_for() {
    let (near, one, when) = exhausted();
    assert!(near.refusal(&[one], when.sent + Micros::new(249_999)).is_some());
    assert!(near.refusal(&[one], when.sent + BELIEVED).is_none());
}

#[test]
fn what_counts_although_refused_and_what_only_watches_is_not_refused_here() {
    let (near, one, when) = exhausted();
    let with = |policy| Charge { policy, ..one };
    assert!(near.refusal(&[one, with(Policy::Count)], when.received).is_none());
    assert!(near.refusal(&[with(Policy::Count)], when.received).is_none());
    assert!(near.refusal(&[with(Policy::Shadow)], when.received).is_none());
    // Another charge of the request that is not known: nobody asked for it.
    let other = Charge { key: key(2), ..one };
    let refusal = near.refusal(&[other, one], when.received).expect("one is refused");
    assert_eq!(refusal.outcomes[0], Err(StoreError::Unasked));
    assert!(refusal.outcomes[1].is_ok());
}

#[test]
fn a_reply_that_comes_late_changes_nothing_and_a_clock_that_was_set_back_does() {
    let (near, one, when) = exhausted();
    let full = Stored::default().settle(&one, when.now);
    let earlier = Exchange {
        now: when.now - Micros::ONE,
        ..when
    };
    near.learn(&one, &[one], &full, earlier);
    assert!(near.refusal(&[one], when.received).is_some());
    // An hour back, and long after: what was known then counts for nothing.
    let after = |us_after| Exchange {
        sent: when.sent + Micros::new(300_000 + us_after),
        received: when.received + Micros::new(300_000 + us_after),
        now: when.now - Micros::from_secs(3_600) + Micros::new(us_after),
    };
    let mut stored = Stored::default();
    let all = Charge {
        cost: Cost::new(UNITS).expect("in range"),
        ..one
    };
    let told = stored.settle(&all, after(0).now);
    near.learn(&all, &[all], &told, after(0));
    assert!(near.refusal(&[one], after(0).received).is_some());
}

#[test]
fn a_key_that_has_something_left_again_is_forgotten() {
    let (near, one, when) = exhausted();
    assert_eq!(near.entries.load(Ordering::Relaxed), 1);
    let later = Exchange {
        now: when.now + Micros::ONE,
        ..when
    };
    let told = Stored::default().settle(&one, later.now);
    near.learn(&one, &[one], &told, later);
    assert_eq!(near.entries.load(Ordering::Relaxed), 0);
    assert!(near.refusal(&[one], later.received).is_none());
}

#[test]
fn there_are_never_more_entries_than_there_may_be() {
    let (near, one, when) = exhausted();
    let all = Charge {
        cost: Cost::new(UNITS).expect("in range"),
        ..one
    };
    let learn = |from: u64, count: u64, when: Exchange| {
        for subject in from..from + count {
            let all = Charge {
                key: key(subject),
                ..all
            };
            let told = Stored::default().settle(&all, when.now);
            near.learn(&all, &[all], &told, when);
        }
    };
    let many = MOST as u64 + MOST as u64 / 8;
    learn(10, many, when);
    let kept = near.entries.load(Ordering::Relaxed);
    assert!(kept <= MOST && kept > MOST * 9 / 10, "{kept}");
    // As soon as they are not believed any more, there is room.
    let later = Exchange {
        sent: when.sent + BELIEVED,
        received: when.received + BELIEVED,
        now: when.now + BELIEVED,
    };
    learn(10 + many, 1_000, later);
    let newest = Charge {
        key: key(10 + many + 999),
        ..one
    };
    assert!(near.refusal(&[newest], later.received).is_some());
    assert!(near.entries.load(Ordering::Relaxed) <= MOST);
}
