//! Several limits at once: all are charged, or none.

use crate::keys::{Key, START, any_divisible, any_limit, capacity, now, units};
use crate::standings::used_key;
use proptest::prelude::*;
use tollgate_core::{Charge, LeaseId, OnStoreFailure, Policy, Proposal, propose};

/// Settles charges against keys by their place, and keeps what comes of it.
fn propose_and_keep(keys: &mut [Key], charges: &[Charge<usize>], us: u64) -> Proposal {
    let settlement = propose(charges, |charge, cost| {
        charge.limit.decide(keys[charge.key].state.as_ref(), cost, now(us))
    });
    for (charge, outcome) in charges.iter().zip(&settlement.charges) {
        if let Some(change) = outcome.change.clone() {
            charge.limit.keep(&mut keys[charge.key].state, change, LeaseId(1));
        }
    }
    settlement
}

fn charge(keys: &[Key], key: usize, cost: u64, policy: Policy) -> Charge<usize> {
    Charge {
        key,
        limit: keys[key].limit,
        cost: units(cost),
        policy,
        on_failure: OnStoreFailure::Local,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn passes_if_all_pass_and_then_all_are_charged_else_none(
        ((first, us), (second, other)) in (used_key(any_limit()), used_key(any_limit())), costs in (0u64..20, 0u64..20)
    ) {
        let us = us.max(other);
        let mut keys = [first, second];
        let single = [keys[0].peek(costs.0, us), keys[1].peek(costs.1, us)];
        let before = keys.clone();
        let charges = [charge(&keys, 0, costs.0, Policy::Enforce), charge(&keys, 1, costs.1, Policy::Enforce)];
        let settlement = propose_and_keep(&mut keys, &charges, us);
        prop_assert_eq!(settlement.allowed, single.iter().all(|step| step.decision.is_allow()));
        for (index, outcome) in settlement.charges.iter().enumerate() {
            prop_assert_eq!(outcome.decision.is_allow(), single[index].decision.is_allow());
            // What each answer says is how its key then stands.
            prop_assert_eq!(*outcome.decision.standing(), *keys[index].peek(0, us).decision.standing());
            if !settlement.allowed {
                prop_assert_eq!(&keys[index].state, &before[index].state);
            }
        }
    }

    #[test]
    fn the_same_key_charged_twice_adds_up((key, us) in used_key(any_divisible()), costs in (1u64..20, 1u64..20)) {
        let mut keys = [key.clone()];
        let charges = [charge(&keys, 0, costs.0, Policy::Enforce), charge(&keys, 0, costs.1, Policy::Enforce)];
        let settlement = propose_and_keep(&mut keys, &charges, us);
        let mut at_once = key.clone();
        let decision = at_once.take(costs.0 + costs.1, us);
        prop_assert_eq!(settlement.allowed, decision.is_allow());
        prop_assert_eq!(keys[0].remaining(us), at_once.remaining(us));
        prop_assert_eq!(settlement.charges[0].decision.is_allow(), key.peek(costs.0, us).decision.is_allow());
        prop_assert_eq!(settlement.charges[1].decision.is_allow(), decision.is_allow());
    }

    #[test]
    fn a_shadow_is_charged_when_it_would_allow_and_never_refuses(
        ((first, us), (shadow, other)) in (used_key(any_limit()), used_key(any_limit())), cost in 1u64..20
    ) {
        let us = us.max(other);
        let mut keys = [first, shadow];
        let before = keys[1].clone();
        let charges = [charge(&keys, 0, cost, Policy::Enforce), charge(&keys, 1, cost, Policy::Shadow)];
        let settlement = propose_and_keep(&mut keys, &charges, us);
        prop_assert_eq!(settlement.allowed, settlement.charges[0].decision.is_allow());
        let charged = settlement.allowed && before.peek(cost, us).decision.is_allow();
        prop_assert_eq!(charged, keys[1].state != before.state);
    }

    #[test]
    fn a_counted_charge_is_kept_even_when_refused(
        (mut key, us) in used_key(prop_oneof![crate::keys::any_bucket(), crate::keys::any_window(), crate::keys::any_log()])
    ) {
        let refused = key.remaining(us) + 1;
        let charges = [charge(&[key.clone()], 0, refused, Policy::Count)];
        let settlement = propose_and_keep(std::slice::from_mut(&mut key), &charges, us);
        prop_assert!(!settlement.allowed);
        prop_assert_eq!(key.remaining(us), 0, "it takes what was left");
        prop_assert!(key.peek(0, us).decision.standing().limit == capacity(&key.limit));
    }

    #[test]
    fn a_clock_set_back_is_repaired_once_however_many_charges_meet_the_key(
        (limit, cost) in any_limit().prop_flat_map(|limit| (Just(limit), 1..=capacity(&limit))),
        back in 1_000_001u64..10_000_000_000,
        policy in prop_oneof![Just(Policy::Enforce), Just(Policy::Shadow)],
    ) {
        let mut keys = [Key::new(limit)];
        keys[0].take(cost, START);
        let before = *keys[0].peek(0, START).decision.standing();
        let refused = capacity(&limit) + 1;
        let charges = [
            charge(&keys, 0, refused, policy),
            charge(&keys, 0, 0, policy),
            charge(&keys, 0, refused, policy),
        ];
        propose_and_keep(&mut keys, &charges, START - back);
        let after = keys[0].peek(0, START - back);
        prop_assert!(after.repair.is_none(), "repaired, and once");
        prop_assert_eq!(after.decision.standing().remaining, before.remaining);
        prop_assert!(after.decision.standing().reset_after >= before.reset_after);
    }

    #[test]
    fn a_kept_charge_after_a_step_back_is_the_only_change_of_its_key(
        (limit, cost) in any_divisible()
            .prop_filter("needs room for two", |limit| capacity(limit) >= 3)
            .prop_flat_map(|limit| (Just(limit), 1..=capacity(&limit) - 2)),
        back in 1_000_001u64..10_000_000_000,
    ) {
        let mut key = Key::new(limit);
        key.take(cost, START);
        let left = key.remaining(START);
        let mut keys = [key];
        let charges = [charge(&keys, 0, 1, Policy::Enforce), charge(&keys, 0, 1, Policy::Enforce)];
        prop_assert!(propose_and_keep(&mut keys, &charges, START - back).allowed);
        prop_assert_eq!(keys[0].remaining(START - back), left - 2);
        // And a look alone writes the step back.
        let mut keys = [Key { state: keys[0].state.clone(), ..keys[0].clone() }];
        let earlier = START - back - 2_000_000;
        let peeks = [charge(&keys, 0, 0, Policy::Enforce)];
        propose_and_keep(&mut keys, &peeks, earlier);
        prop_assert!(keys[0].peek(0, earlier).repair.is_none());
    }

    #[test]
    fn a_refused_shadow_is_not_reckoned_with_and_a_counted_refusal_is(
        (key, us) in used_key(prop_oneof![crate::keys::any_bucket(), crate::keys::any_window(), crate::keys::any_log()])
    ) {
        let left = key.remaining(us);
        if left == 0 {
            return Ok(());
        }
        let keys = [key];
        let pair = |policy| [charge(&keys, 0, left + 1, policy), charge(&keys, 0, 1, policy)];
        let mut shadows = keys.clone();
        let settlement = propose_and_keep(&mut shadows, &pair(Policy::Shadow), us);
        prop_assert!(!settlement.charges[0].decision.is_allow() && settlement.charges[1].decision.is_allow());
        prop_assert_eq!(shadows[0].remaining(us), left - 1);
        let mut counted = keys.clone();
        let settlement = propose_and_keep(&mut counted, &pair(Policy::Count), us);
        prop_assert!(!settlement.charges[1].decision.is_allow(), "what was refused has taken all there was");
        prop_assert_eq!(counted[0].remaining(us), 0);
        prop_assert_eq!(settlement.charges[1].decision.standing().remaining, 0);
    }
}

#[test]
fn two_charges_of_one_key_do_not_slip_past_a_limit_of_a_thousand_million() {
    let rate = tollgate_core::Rate::new(1_000_000_000, tollgate_core::Micros::from_secs(1)).expect("in range");
    let key = Key::new(tollgate_core::TokenBucket::new(rate).into());
    let keys = [key];
    let charges = [
        charge(&keys, 0, 1_000_000_000, Policy::Enforce),
        charge(&keys, 0, 1_000_000_000, Policy::Enforce),
    ];
    assert!(!propose(&charges, |charge, cost| charge.limit.decide(None, cost, now(START))).allowed);
}
