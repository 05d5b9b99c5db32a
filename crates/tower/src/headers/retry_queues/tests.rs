use super::*;
use tollgate_limiter::core::testing::rules::{attempt, attribute_pairs, rule_set};

fn cost(units: u64) -> Cost {
    Cost::new(units).expect("in range")
}

#[test]
fn only_rules_whose_callers_share_a_counter_have_queues() {
    let rules = rule_set(
        "rules:\n- { id: shared, limit: 10/s }\n- { id: single, limit: 10/s, per: user }\n\
         - { id: chosen, limit: 10/s, per: endpoint, spread: true }\n- { id: never, limit: 10/s, spread: false }\n",
    );
    let state = RetryQueues::default().rule_queues(&rules);
    assert_eq!(
        state.0.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true, false]
    );
}

#[test]
fn the_mean_cost_counts_the_attempts_that_cost_one() {
    let queue = RuleQueue::default();
    assert_eq!(queue.mean_cost_milli(), 1_000);
    for units in [1, 1, 0, 4, 1, 0, 1] {
        queue.count(cost(units));
    }
    assert_eq!(queue.mean_cost_milli(), 1_600);
}

#[test]
fn one_large_cost_after_many_of_one_is_not_the_mean() {
    let queue = RuleQueue::default();
    for _ in 0..10 * ONES_MAX {
        queue.count(Cost::ONE);
    }
    assert_eq!(queue.mean_cost_milli(), 1_000);
    queue.count(cost(900));
    assert_eq!(queue.mean_cost_milli(), (ONES_MAX + 900) * 1_000 / (ONES_MAX + 1));
    // From now on each is counted.
    queue.count(Cost::ONE);
    assert_eq!(queue.mean_cost_milli(), (ONES_MAX + 901) * 1_000 / (ONES_MAX + 2));
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
    // Twenty slots a second, until ten are known.
    assert_eq!(interval(0), 50_000);
    for second in 0..10 {
        for _ in 0..5 {
            queue.slots.add(at(second), 1);
        }
        // Five in each second so far.
        if second > 0 {
            assert_eq!(interval(second), 200_000);
        }
    }
    // Idle seconds count as much as the others.
    assert_eq!(interval(14), 400_000);
    for _ in 0..20 {
        queue.slots.add(at(100), 1);
        queue.slots.add(at(100), 0);
    }
    assert_eq!(interval(100), 500_000);
    // Ten stay known.
    for _ in 0..4 {
        queue.slots.add(at(200), 1);
    }
    assert_eq!(interval(200), 2_500_000);
    assert_eq!(interval(300), 10_000_000);
}

#[test]
fn the_mean_cost_is_of_recent_attempts() {
    let queue = RuleQueue::default();
    for _ in 0..10 * MEAN_OVER {
        queue.count(cost(2));
    }
    for _ in 0..10 * MEAN_OVER {
        queue.count(cost(1_000));
    }
    assert!(queue.mean_cost_milli() > 990_000, "{}", queue.mean_cost_milli());
}

/// The extra wait of a denied attempt with these attributes, over a store where `bytes` are the costs.
fn extra(
    queues: &RetryQueues,
    rules: &RuleSet,
    state: &RuleQueues,
    attributes: &[(&str, &str)],
    wait: Micros,
) -> Micros {
    let attributes = attribute_pairs(attributes.iter().copied());
    let attempt = attempt(&attributes);
    let plan = rules.plan(&attempt, |_, _| ());
    let line = plan.lines.first().expect("a rule that matches");
    let caller = queues.caller_hash(line.rule, &attempt, RetryCaller::Attributes);
    let queue = state.0[rules.index_of(line.rule)].as_ref().expect("a queue");
    let limit = line.window.expect("a window").limit();
    let cost = line.rule.charged_cost(&attempt);
    let denial = RetryDenial {
        counter: 7,
        caller,
        wait: Micros::new(wait.get().saturating_sub(queue.excess(limit, cost).get())),
        interval: queue.interval(limit, cost, NonZeroU64::MIN, Micros::new(1)),
        extra_max: Micros::from_secs(60),
        draw: 0,
    };
    queues.spread.lock().expect("no panic").extra(Micros::new(1), &denial)
}

#[test]
fn a_large_cost_makes_nobody_else_wait_as_long() {
    let rules = rule_set("rules:\n- { id: tokens, limit: 60000/min, cost: { attribute: bytes } }\n");
    let queues = RetryQueues::default();
    let state = queues.rule_queues(&rules);
    for _ in 0..10 {
        state.0[0].as_ref().expect("a queue").count(cost(100));
    }
    // 60,000 units of an empty bucket take a minute, and 100 a tenth of a second.
    let large = [("user", "u_1"), ("bytes", "60000")];
    assert_eq!(
        extra(&queues, &rules, &state, &large, Micros::from_secs(60)),
        Micros::ZERO
    );
    let small = [("user", "u_2"), ("bytes", "100")];
    let second = extra(&queues, &rules, &state, &small, Micros::from_millis(100));
    assert!(second <= Micros::from_millis(100), "{second:?}");
    // The same caller with another cost is the last in the queue, and keeps its place.
    let again = [("user", "u_2"), ("bytes", "50")];
    let third = extra(&queues, &rules, &state, &again, Micros::from_millis(50));
    assert!(third <= Micros::from_millis(150), "{third:?}");
}

#[test]
fn a_network_is_one_caller_and_the_order_of_attributes_is_none() {
    use tollgate_limiter::core::rules::Attribute;
    let queues = RetryQueues::default();
    let attribute = |name, value: &'static str| Attribute {
        name,
        value: value.as_bytes(),
    };
    let rules = rule_set("rules:\n- { id: shared, limit: 10/s }\n");
    let rule = rules.rules().first().expect("a rule");
    let hash = |attributes: &[Attribute<'_>], caller| {
        let attempt = Attempt {
            domain: "default",
            attributes,
            cost: Cost::ONE,
        };
        queues.caller_hash(rule, &attempt, caller)
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
