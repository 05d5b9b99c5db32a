//! Faults of other rate limiters and of published scripts, each as a test that it is not ours. Those that fit in a table
//! of requests and answers are in the worked examples beside the algorithms; here are the ones that need more.

use std::sync::Mutex;
use std::thread;
use tollgate_core::{
    Cell, Charge, Cost, Decision, Gcra, LeakyBucket, LeaseId, Limit, Mark, Micros, Now, OnStoreFailure, Policy, Rate,
    Receipt, Retry, State, Timestamp, TokenBucket, propose,
};

const SECOND: Micros = Micros::from_secs(1);

fn now(after: Micros) -> Now {
    Now::new(Timestamp::from_micros(1_770_854_400_000_000) + after)
}

fn rate(units: u64, seconds: u64) -> Rate {
    Rate::new(units, Micros::from_secs(seconds)).expect("in range")
}

/// One limit of each algorithm, all of `units` a second.
fn every_limit(units: u64) -> [Limit; 8] {
    tollgate_core::testing::limits::every_limit(units, SECOND)
}

/// Decides and keeps in one step, as a store does.
fn take(limit: &Limit, state: &mut Option<State>, cost: Cost, now: Now, lease: u64) -> Decision {
    let step = limit.decide(state.as_ref(), cost, now);
    let change = if step.decision.is_allow() {
        step.next.or(step.repair)
    } else {
        step.repair
    };
    if let Some(change) = change {
        limit.keep(state, change, LeaseId(lease));
    }
    step.decision
}

fn cost(units: u64) -> Cost {
    Cost::new(units).expect("in range")
}

#[test]
fn two_limits_checked_together_keep_the_token_of_the_one_that_passes() {
    // Published scripts check both in a pipeline: the hour's token is gone although the second's limit denied.
    let (wide, narrow) = (TokenBucket::new(rate(1_000, 3_600)), TokenBucket::new(rate(1, 1)));
    let charges = [("wide", wide.into()), ("narrow", narrow.into())].map(|(key, limit)| Charge {
        key,
        limit,
        cost: Cost::ONE,
        policy: Policy::Enforce,
        on_failure: OnStoreFailure::Local,
    });
    let (mut wide_state, mut narrow_state) = (None, None);
    let at = now(SECOND);
    let first = propose(&charges, |charge, cost| charge.limit.decide(None, cost, at));
    assert!(first.allowed);
    for (outcome, (charge, state)) in first
        .charges
        .into_iter()
        .zip(charges.iter().zip([&mut wide_state, &mut narrow_state]))
    {
        let change = outcome.change.expect("a charge that passes is kept");
        charge.limit.keep(state, change, LeaseId(0));
    }

    for _ in 0..1_000 {
        let state = |key: &&str| match *key {
            "wide" => wide_state.as_ref(),
            _ => narrow_state.as_ref(),
        };
        let denied = propose(&charges, |charge, cost| {
            charge.limit.decide(state(&charge.key), cost, at)
        });
        assert!(!denied.allowed);
        let [wide_charge, narrow_charge] = denied.charges.as_slice() else {
            panic!("an outcome for each charge")
        };
        assert!(wide_charge.decision.is_allow(), "its own limit would let it pass");
        assert_eq!(
            wide_charge.decision.standing().remaining,
            999,
            "and still has what it had"
        );
        assert_eq!(narrow_charge.decision.retry(), Some(Retry::After(SECOND)));
        assert_eq!(wide_charge.change, None);
        assert_eq!(narrow_charge.change, None);
    }
    let left = charges[0].limit.decide(wide_state.as_ref(), Cost::ZERO, at).decision;
    assert_eq!(left.standing().remaining, 999);
}

#[test]
fn checking_first_and_taking_later_cannot_happen_since_both_are_one_step_on_one_state() {
    // limitador asks all counters and then adds to them: between the two others have been let through as well.
    for limit in every_limit(100) {
        let at = now(SECOND);
        let state = Mutex::new(None);
        let admitted: usize = thread::scope(|scope| {
            let callers: Vec<_> = (0..8_u64)
                .map(|caller| {
                    let (limit, state) = (&limit, &state);
                    scope.spawn(move || {
                        let attempt = |n| {
                            let lease = caller << 32 | n;
                            let mut state = state.lock().expect("no caller panics");
                            take(limit, &mut state, Cost::ONE, at, lease).is_allow()
                        };
                        (0..100).filter(|&n| attempt(n)).count()
                    })
                })
                .collect();
            callers
                .into_iter()
                .map(|caller| caller.join().expect("no caller panics"))
                .sum()
        });
        assert_eq!(admitted, 100, "{}", limit.algorithm());
    }
}

#[test]
fn a_hundred_who_looked_and_saw_one_left_are_not_all_let_in() {
    for limit in every_limit(100) {
        let at = now(SECOND);
        let mut state = None;
        assert!(take(&limit, &mut state, cost(99), at, 0).is_allow());
        let peeked = limit.decide(state.as_ref(), Cost::ZERO, at).decision;
        assert_eq!(peeked.standing().remaining, 1, "{}", limit.algorithm());
        let admitted = (1..=100)
            .filter(|&caller| take(&limit, &mut state, Cost::ONE, at, caller).is_allow())
            .count();
        assert_eq!(admitted, 1, "{}", limit.algorithm());
    }
}

#[test]
fn what_another_algorithm_left_under_a_key_counts_as_nothing_and_harms_nobody() {
    // redis-cell takes the whole server down when the key holds something else.
    let at = now(SECOND);
    for writer in every_limit(5) {
        let mut foreign = None;
        assert!(take(&writer, &mut foreign, cost(3), at, 7).is_allow());
        for reader in every_limit(5).into_iter().filter(|reader| *reader != writer) {
            let names = (writer.algorithm(), reader.algorithm());
            let receipt = Receipt {
                cost: cost(3),
                mark: Mark::default(),
                lease: LeaseId(7),
            };
            for amount in [0, 1, 5, 6] {
                let seen = reader.decide(foreign.as_ref(), cost(amount), at);
                assert_eq!(seen, reader.decide(None, cost(amount), at), "{names:?}");
            }
            assert_eq!(reader.refund(foreign.as_ref(), cost(3), at), None, "{names:?}");
            assert_eq!(reader.undo(foreign.as_ref(), &receipt, at), None, "{names:?}");
            assert_eq!(
                foreign.as_ref().and_then(|state| reader.fresh_at(state)),
                None,
                "{names:?}"
            );

            let mut state = foreign.clone();
            assert!(take(&reader, &mut state, cost(5), at, 8).is_allow(), "{names:?}");
            assert!(!take(&reader, &mut state, Cost::ONE, at, 9).is_allow(), "{names:?}");
        }
    }
}

#[test]
fn a_change_of_another_algorithm_is_not_carried_out() {
    let at = now(SECOND);
    for writer in every_limit(5) {
        let change = writer.decide(None, Cost::ONE, at).next.expect("a charge that passes");
        for reader in every_limit(5).into_iter().filter(|reader| *reader != writer) {
            let mut state = None;
            reader.keep(&mut state, change.clone(), LeaseId(0));
            assert_eq!(state, None, "{} by {}", writer.algorithm(), reader.algorithm());
        }
    }
}

#[test]
fn idling_never_earns_more_than_the_burst_however_long_and_whatever_the_burst() {
    // throttlecrab: a burst of 10, one hit, 8.9 s idle, then 17 pass; and a burst of 1 never limits.
    for burst in 1..=20 {
        let limits: [Limit; 4] = [
            TokenBucket::new(rate(1, 1)).with_burst(burst).expect("in range").into(),
            Gcra::new(rate(1, 1)).with_burst(burst).expect("in range").into(),
            LeakyBucket::new(rate(1, 1)).with_depth(burst).expect("in range").into(),
            Cell::new(burst - 1, 1, 1).expect("in range").into(),
        ];
        for limit in limits {
            for idle_ms in (1_000..=25_000).step_by(100) {
                let mut state = None;
                assert!(take(&limit, &mut state, Cost::ONE, now(Micros::ZERO), 0).is_allow());
                let at = now(Micros::from_millis(idle_ms));
                let decisions: Vec<Decision> = (0..3 * burst)
                    .map(|n| take(&limit, &mut state, Cost::ONE, at, n))
                    .collect();
                let admitted = decisions.iter().filter(|decision| decision.is_allow()).count();
                assert_eq!(admitted as u64, burst, "{limit:?} after {idle_ms} ms");
                let remaining_max = decisions.iter().map(|decision| decision.standing().remaining).max();
                assert!(remaining_max < Some(burst), "{limit:?} after {idle_ms} ms");
            }
        }
    }
}

#[test]
fn a_wait_is_told_only_to_the_denied_and_is_never_zero() {
    // A published script answers an allowed request with a negative wait; others round the wait down to nothing.
    for limit in every_limit(3) {
        let mut state = None;
        for step in 0..200_u64 {
            let at = now(Micros::new(step * 7_919));
            let decision = take(&limit, &mut state, cost(1 + step % 3), at, step);
            match (decision.is_allow(), decision.retry()) {
                (true, None) | (false, Some(Retry::Unknown)) => {}
                (false, Some(Retry::After(wait))) => assert!(wait > Micros::ZERO, "{}", limit.algorithm()),
                (_, retry) => panic!("{}: {decision:?} with {retry:?}", limit.algorithm()),
            }
        }
    }
}
