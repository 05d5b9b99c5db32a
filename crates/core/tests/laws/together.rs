//! Several limits at once: all are charged, or none.

use crate::keys::{Key, START, any_divisible, any_limit, capacity, now, units};
use crate::promise::used;
use proptest::prelude::*;
use tollgate_core::{Charge, LeaseId, Policy, Settlement, settle};

/// Settles charges against keys by their place, and keeps what comes of it.
fn settled(keys: &mut [Key], charges: &[Charge<usize>], us: u64) -> Settlement {
    let settlement = settle(charges, |charge, cost| {
        charge.limit.decide(keys[charge.key].state.as_ref(), cost, now(us))
    });
    for (charge, outcome) in charges.iter().zip(&settlement.outcomes) {
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
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn passes_if_all_pass_and_then_all_are_charged_else_none(
        ((first, us), (second, other)) in (used(any_limit()), used(any_limit())), costs in (0u64..20, 0u64..20)
    ) {
        let us = us.max(other);
        let mut keys = [first, second];
        let alone = [keys[0].look(costs.0, us), keys[1].look(costs.1, us)];
        let before = keys.clone();
        let charges = [charge(&keys, 0, costs.0, Policy::Enforce), charge(&keys, 1, costs.1, Policy::Enforce)];
        let settlement = settled(&mut keys, &charges, us);
        prop_assert_eq!(settlement.passes, alone.iter().all(|step| step.decision.is_allow()));
        for (index, outcome) in settlement.outcomes.iter().enumerate() {
            prop_assert_eq!(outcome.decision.is_allow(), alone[index].decision.is_allow());
            // What each answer says is how its key then stands.
            prop_assert_eq!(*outcome.decision.standing(), *keys[index].look(0, us).decision.standing());
            if !settlement.passes {
                prop_assert_eq!(&keys[index].state, &before[index].state);
            }
        }
    }

    #[test]
    fn the_same_key_charged_twice_adds_up((key, us) in used(any_divisible()), costs in (1u64..20, 1u64..20)) {
        let mut keys = [key.clone()];
        let charges = [charge(&keys, 0, costs.0, Policy::Enforce), charge(&keys, 0, costs.1, Policy::Enforce)];
        let settlement = settled(&mut keys, &charges, us);
        let mut at_once = key.clone();
        let decision = at_once.ask(costs.0 + costs.1, us);
        prop_assert_eq!(settlement.passes, decision.is_allow());
        prop_assert_eq!(keys[0].remaining(us), at_once.remaining(us));
        prop_assert_eq!(settlement.outcomes[0].decision.is_allow(), key.look(costs.0, us).decision.is_allow());
        prop_assert_eq!(settlement.outcomes[1].decision.is_allow(), decision.is_allow());
    }

    #[test]
    fn a_shadow_is_charged_when_it_would_allow_and_never_refuses(
        ((first, us), (shadow, other)) in (used(any_limit()), used(any_limit())), cost in 1u64..20
    ) {
        let us = us.max(other);
        let mut keys = [first, shadow];
        let before = keys[1].clone();
        let charges = [charge(&keys, 0, cost, Policy::Enforce), charge(&keys, 1, cost, Policy::Shadow)];
        let settlement = settled(&mut keys, &charges, us);
        prop_assert_eq!(settlement.passes, settlement.outcomes[0].decision.is_allow());
        let charged = settlement.passes && before.look(cost, us).decision.is_allow();
        prop_assert_eq!(charged, keys[1].state != before.state);
    }

    #[test]
    fn a_counted_charge_is_kept_even_when_refused(
        (mut key, us) in used(prop_oneof![crate::keys::any_bucket(), crate::keys::any_window(), crate::keys::any_log()])
    ) {
        let refused = key.remaining(us) + 1;
        let charges = [charge(&[key.clone()], 0, refused, Policy::Count)];
        let settlement = settled(std::slice::from_mut(&mut key), &charges, us);
        prop_assert!(!settlement.passes);
        prop_assert_eq!(key.remaining(us), 0, "it takes what was left");
        prop_assert!(key.look(0, us).decision.standing().limit == capacity(&key.limit));
    }

    #[test]
    fn at_one_instant_two_kinds_of_caller_get_the_same_total_in_any_order(
        (key, us) in used(any_divisible()), order in proptest::collection::vec(any::<bool>(), 1..30), cost in 1u64..4
    ) {
        // Two callers of the same cost through one key: who comes first does not matter to how many pass.
        let mut forward = key.clone();
        let mut backward = key;
        let count = |key: &mut Key, order: &mut dyn Iterator<Item = &bool>| {
            order.filter(|_| key.ask(cost, us).is_allow()).count()
        };
        prop_assert_eq!(count(&mut forward, &mut order.iter()), count(&mut backward, &mut order.iter().rev()));
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
    assert!(!settle(&charges, |charge, cost| charge.limit.decide(None, cost, now(START))).passes);
}
