use super::*;
use crate::rules::{Attribute, attributes, sample};
use crate::testing::random::Random;

const PLANS: &str = r"
rules:
- id: ceiling
  when: { endpoint: /v1/charges }
  limit: 10000/s
- id: plan
  per: [merchant]
  limit: 100/min
  by: { tier: { free: 50/min, enterprise: 5000/min burst 500, partner: unlimited } }
  overrides:
  - { merchant: m_42, limit: 20000/min }
  - { merchant: m_13, limit: 0/min }
  - { merchant: m_7, endpoint: /v1/charges, limit: 7/min }
  - { merchant: m_7, limit: 77/min }
  - { endpoint: /v1/free, limit: unlimited }
- id: points
  per: [merchant]
  algorithm: fixed_window
  limit: [10/s, 200/min]
  cost: { attribute: points, default: 2 }
  mode: shadow
";

/// Each line as `name capacity cost`, or what the rule says instead.
fn lines(pairs: &[(&str, &[u8])]) -> Vec<String> {
    let rules = sample(PLANS);
    let attributes = attributes(pairs);
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &attributes,
        cost: Cost::new(3).expect("in range"),
    };
    let plan = rules.plan(&attempt, |_, _| ());
    let windows = plan.lines.iter().filter(|line| line.window.is_some());
    assert_eq!(windows.count(), plan.charges().count());
    let line = |line: &Line<'_, ()>| match (line.terms, line.window) {
        (Terms::Banned(_), _) => format!("{} banned", line.rule.id),
        (Terms::Unlimited, _) => format!("{} unlimited", line.rule.id),
        (Terms::Limited(_), window) => {
            let window = window.expect("a limited line has a window");
            format!("{} {} {}", window.name(), window.limit().capacity(), line.cost.get())
        }
    };
    plan.lines.iter().map(line).collect()
}

#[test]
fn an_override_goes_before_by_and_by_before_the_limit() {
    let plan = |pairs: &[(&str, &[u8])]| {
        let of_plan = |line: &String| line.starts_with("plan ").then(|| line["plan ".len()..].to_owned());
        lines(pairs).iter().find_map(of_plan).expect("the plan applies")
    };
    for (pairs, expected) in [
        (&[("merchant", &b"m_1"[..])][..], "100 3"),
        (&[("merchant", b"m_1"), ("tier", b"free")], "50 3"),
        (&[("merchant", b"m_1"), ("tier", b"enterprise")], "500 3"),
        (&[("merchant", b"m_1"), ("tier", b"partner")], "unlimited"),
        (&[("merchant", b"m_1"), ("tier", b"else")], "100 3"),
        (&[("merchant", b"m_42"), ("tier", b"free")], "20000 3"),
        (&[("merchant", b"m_13"), ("tier", b"enterprise")], "banned"),
        (&[("merchant", b"m_7"), ("endpoint", b"/v1/charges")], "7 3"),
        (&[("merchant", b"m_7"), ("endpoint", b"/v1/else")], "77 3"),
        (&[("merchant", b"m_7"), ("endpoint", b"/v1/free")], "77 3"),
        (&[("merchant", b"m_1"), ("endpoint", b"/v1/free")], "unlimited"),
        (&[("merchant", b"m_1"), ("merchant", b"m_42")], "20000 3"),
        (&[("merchant", b"m_13"), ("merchant", b"m_42")], "20000 3"),
        (
            &[("merchant", b"x"), ("merchant", b"m_7"), ("endpoint", b"/v1/charges")],
            "7 3",
        ),
    ] {
        assert_eq!(plan(pairs), expected, "{pairs:?}");
    }
}

#[test]
fn a_rule_is_met_where_its_conditions_and_dimensions_are() {
    assert_eq!(lines(&[]), Vec::<String>::new());
    assert_eq!(lines(&[("endpoint", b"/v1/charges")]), ["ceiling 10000 3"]);
    assert_eq!(
        lines(&[("endpoint", b"/v1/charges"), ("merchant", b"m_1"), ("points", b"4")]),
        ["ceiling 10000 3", "plan 100 3", "points.1s 10 12", "points.1min 200 12"]
    );
}

#[test]
fn a_cost_that_is_no_number_is_the_default_and_is_counted() {
    let rules = sample(PLANS);
    for (points, expected) in [(&b"4"[..], 0), (b"many", 1)] {
        let attributes = attributes(&[("merchant", b"m_1"), ("points", points)]);
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        assert_eq!(rules.plan(&attempt, |_, _| ()).invalid_costs, expected);
    }
}

#[test]
fn the_order_of_attributes_does_not_matter() {
    let rules = sample(PLANS);
    let names: [(&str, &[u8]); 5] = [
        ("endpoint", b"/v1/charges"),
        ("merchant", b"m_7"),
        ("tier", b"free"),
        ("points", b"4"),
        ("else", b"x"),
    ];
    let planned = |attributes: &[Attribute<'_>]| {
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes,
            cost: Cost::ONE,
        };
        let plan = rules.plan(&attempt, |counter, per| (counter, per.concat()));
        format!("{:?}", plan.charges().collect::<Vec<_>>())
    };
    let expected = planned(&attributes(&names));
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut shuffled = attributes(&names);
        for index in 0..shuffled.len() {
            let other = random.between(index as u64, names.len() as u64 - 1);
            shuffled.swap(index, other as usize);
        }
        assert_eq!(planned(&shuffled), expected);
    }
}

#[test]
fn a_shadow_is_charged_as_one_and_a_ban_is_noticed() {
    let rules = sample(PLANS);
    let planned = |merchant: &[u8], cost| {
        let attributes = attributes(&[("merchant", merchant)]);
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost,
        };
        let plan = rules.plan(&attempt, |_, _| ());
        let policies: Vec<Policy> = plan.charges().map(|planned| planned.charge.policy).collect();
        (policies, plan.is_banned())
    };
    let shadows = [Policy::Shadow, Policy::Shadow];
    assert_eq!(
        planned(b"m_1", Cost::ONE),
        ([&[Policy::Enforce][..], &shadows].concat(), false)
    );
    assert_eq!(planned(b"m_13", Cost::ONE), (shadows.to_vec(), true));
    assert_eq!(
        planned(b"m_13", Cost::ZERO),
        (shadows.to_vec(), false),
        "looking is allowed"
    );
}

#[test]
fn an_override_of_an_address_is_for_every_spelling_of_what_is_counted_as_it() {
    let rules = sample(
        "rules:\n\
         - id: r\n  per: ip\n  limit: 100/s\n  overrides:\n  \
           - {ip: [10.0.0.1, '::ffff:10.0.0.2', '2001:DB8:0:1::5'], limit: 0/s}\n  \
           - {ip: 10.0.0.3, name: '::ffff:10.0.0.3', limit: 0/s}\n",
    );
    let is_banned = |ip: &str, name: &str| {
        let attributes = attributes(&[("ip", ip.as_bytes()), ("name", name.as_bytes())]);
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        rules.plan(&attempt, |_, _| ()).is_banned()
    };
    for (ip, name, expected) in [
        ("10.0.0.1", "", true),
        ("::ffff:10.0.0.1", "", true),
        ("::FFFF:0a00:0001", "", true),
        ("10.0.0.2", "", true),
        ("10.0.0.4", "", false),
        ("2001:db8:0:1::5", "", true),
        ("2001:db8:0:1:ffff::", "", true),
        ("2001:db8:0:2::5", "", false),
        // Beside an attribute that holds no address, which is bytes.
        ("::ffff:10.0.0.3", "::ffff:10.0.0.3", true),
        ("::ffff:10.0.0.3", "10.0.0.3", false),
    ] {
        assert_eq!(is_banned(ip, name), expected, "{ip} {name}");
    }
}

#[test]
fn rules_without_their_key_are_found_however_they_are_indexed() {
    let rules = sample(
        "rules:\n- { id: alone, per: user, limit: 1/s }\n\
         - { id: exact, when: { endpoint: /x }, per: user, limit: 1/s }\n\
         - { id: regex, when: { endpoint: { regex: x } }, per: user, limit: 1/s }\n\
         - { id: absent, when: { user: { present: false } }, limit: 1/s }\n\
         - { id: pair, per: [user, merchant], limit: 1/s }\n\
         - { id: off, per: user, limit: 1/s, mode: disabled }\n\
         - { id: elsewhere, domain: api, per: user, limit: 1/s }\n",
    );
    for (pairs, expected) in [
        (&[][..], &["alone", "pair"][..]),
        (&[("user", &b"u"[..])], &["pair"]),
        (&[("user", b"u"), ("merchant", b"m")], &[]),
        (&[("endpoint", b"/x")], &["alone", "exact", "regex", "pair"]),
        (&[("endpoint", b"/y"), ("merchant", b"m")], &["alone", "pair"]),
    ] {
        let attributes = attributes(pairs);
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        let missing = rules.missing_keys(&attempt);
        let names: Vec<&str> = missing.iter().map(|index| &*rules.rules[*index].id).collect();
        assert_eq!(names, expected, "{pairs:?}");
        let lacks_key = rules.plan(&attempt, |_, _| ()).lacks_key;
        assert_eq!(lacks_key, !expected.is_empty(), "{pairs:?}");
    }
}

const RESERVES: &str = "
rules:
- { id: kept, limit: 1000/s, reserve: { share: 20%, for: { priority: critical } } }
- { id: lent, limit: [1000/s, 6000/min], reserve: { share: 20%, for: { priority: critical }, lend: true } }
- { id: slots, per: user, algorithm: concurrency, limit: 10, reserve: { share: 20%, for: { priority: critical, endpoint: /pay } } }
";

/// Each charge as `name part capacity counter`.
fn reserve_lines(pairs: &[(&str, &[u8])], explains: bool) -> Vec<String> {
    let rules = sample(RESERVES);
    let attributes = attributes(pairs);
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &attributes,
        cost: Cost::new(3).expect("in range"),
    };
    let key = |counter: CounterId, _: &[&[u8]]| counter.index();
    let plan = match explains {
        true => rules.plan_to_explain(&attempt, key),
        false => rules.plan(&attempt, key),
    };
    let line = |line: &Line<'_, usize>| {
        let charge = &line.charge.as_ref().expect("it limits").charge;
        let window = line.window.expect("it limits");
        assert_eq!(charge.key, window.counter().index());
        format!(
            "{} {:?} {} {} {}",
            window.name(),
            line.part,
            charge.limit.capacity(),
            charge.key,
            charge.cost.get()
        )
    };
    plan.lines.iter().map(line).collect()
}

#[test]
fn who_may_use_a_reserve_is_charged_to_the_whole_alone() {
    let critical: &[(&str, &[u8])] = &[("priority", b"critical"), ("user", b"u"), ("endpoint", b"/pay")];
    assert_eq!(
        reserve_lines(critical, false),
        [
            "kept Whole 1000 0 3",
            "lent.1s Whole 1000 2 3",
            "lent.1min Whole 6000 3 3",
            "slots Whole 10 4 3"
        ]
    );
    // All conditions must hold.
    let other = reserve_lines(&[("priority", b"critical"), ("user", b"u")], false);
    assert_eq!(other[3..], ["slots All 10 4 3", "slots Others 8 5 3"]);
}

#[test]
fn all_others_are_charged_to_their_part_too_unless_it_is_lent() {
    assert_eq!(
        reserve_lines(&[("user", b"u")], false),
        [
            "kept All 1000 0 3",
            "kept Others 800 1 3",
            "lent.1s Lent 800 2 3",
            "lent.1min Lent 4800 3 3",
            "slots All 10 4 3",
            "slots Others 8 5 3"
        ]
    );
}

#[test]
fn an_explanation_looks_at_both_counters() {
    let critical: &[(&str, &[u8])] = &[("priority", b"critical"), ("user", b"u"), ("endpoint", b"/pay")];
    assert_eq!(
        reserve_lines(critical, true),
        [
            "kept Whole 1000 0 3",
            "kept Idle 800 1 0",
            "lent.1s Whole 1000 2 3",
            "lent.1min Whole 6000 3 3",
            "slots Whole 10 4 3",
            "slots Idle 8 5 0"
        ]
    );
    let others: &[(&str, &[u8])] = &[("user", b"u")];
    assert_eq!(reserve_lines(others, true), reserve_lines(others, false));
}

#[test]
fn the_counter_of_all_is_that_of_the_rule_without_a_reserve() {
    let identity = |text: &str| -> Vec<Vec<u8>> {
        let rules = sample(text);
        let bytes = |spec: &crate::rules::CounterSpec| {
            let mut bytes = Vec::new();
            spec.counter(&[]).write(|piece| bytes.extend_from_slice(piece));
            bytes
        };
        rules.counters().iter().map(bytes).collect()
    };
    let plain = identity("rules: [{ id: r, limit: 10/s }]");
    let reserve = |share: &str| {
        identity(&format!(
            "rules: [{{ id: r, limit: 10/s, reserve: {{ share: {share}, for: {{ priority: critical }} }} }}]"
        ))
    };
    let lent =
        identity("rules: [{ id: r, limit: 10/s, reserve: { share: 20%, for: { priority: critical }, lend: true } }]");
    let [all, others] = &*reserve("20%") else {
        panic!("two counters");
    };
    assert_eq!(plain, std::slice::from_ref(all));
    assert_eq!(plain, lent);
    assert_ne!(all, others);
    // What was used stays used when the share changes.
    assert_eq!(reserve("20%"), reserve("50%"));
}
