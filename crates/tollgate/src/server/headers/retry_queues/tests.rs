use super::*;
use tollgate_limiter::core::testing::rules::rule_set;

fn cost(units: u64) -> Cost {
    Cost::new(units).expect("in range")
}

#[test]
fn only_rules_whose_callers_share_a_counter_have_queues() {
    let rules = rule_set(
        "rules:\n- { id: shared, limit: 10/s }\n- { id: single, limit: 10/s, per: user }\n\
         - { id: chosen, limit: 10/s, per: endpoint, spread: true }\n- { id: never, limit: 10/s, spread: false }\n",
    );
    let state = RetryQueues::default().rule_state(&rules);
    assert_eq!(
        state.0.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true, false]
    );
}

#[test]
fn the_mean_cost_counts_from_the_first_attempt_that_costs_more_than_one() {
    let queue = RuleQueue::default();
    assert_eq!(queue.mean_cost_milli(), 1_000);
    for units in [1, 1, 0, 4, 1, 0, 1] {
        queue.count(cost(units));
    }
    assert_eq!(queue.mean_cost_milli(), 2_000);
}

#[test]
fn slots_that_end_give_the_interval_of_a_concurrency_limit() {
    let limit = tollgate_limiter::core::Concurrency::new(20, Micros::from_secs(60)).expect("in range");
    let queue = RuleQueue::default();
    let at = |second: u64| Micros::new(second * 1_000_000 + 1);
    let interval = |second| {
        queue
            .interval(&limit.into(), Cost::ONE, NonZeroU64::MIN, at(second))
            .get()
    };
    // Twenty slots a second, until ten are known to have ended.
    assert_eq!(interval(0), 50_000);
    for second in 0..10 {
        for _ in 0..5 {
            queue.completions.add(at(second));
        }
    }
    assert_eq!(interval(9), 200_000);
    // The first five seconds are over.
    assert_eq!(interval(14), 400_000);
    assert_eq!(interval(60), 50_000);
}

#[test]
fn a_network_is_one_caller_and_the_order_of_attributes_is_none() {
    use tollgate_limiter::core::rules::Attribute;
    let queues = RetryQueues::default();
    let attribute = |name, value: &'static str| Attribute {
        name,
        value: value.as_bytes(),
    };
    let hash = |attributes: &[Attribute<'_>], caller| {
        let attempt = Attempt {
            domain: "default",
            attributes,
            cost: Cost::ONE,
        };
        queues.caller_hash(&attempt, caller)
    };
    let address = |text: &str| hash(&[], RetryCaller::Address(text.parse().expect("an address")));
    assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
    assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
    assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    assert_eq!(address("192.0.2.1"), address("::ffff:192.0.2.1"));
    let [one, other] = [attribute("user", "u_1"), attribute("endpoint", "/v1")];
    let by_attributes = |attributes: &[Attribute<'_>]| hash(attributes, RetryCaller::Attributes);
    assert_eq!(by_attributes(&[one, other]), by_attributes(&[other, one]));
    assert_ne!(by_attributes(&[one]), by_attributes(&[one, other]));
    assert_ne!(
        by_attributes(&[attribute("a", "bc")]),
        by_attributes(&[attribute("ab", "c")])
    );
}
