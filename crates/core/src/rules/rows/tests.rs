use super::*;
use crate::decision::Cost;
use crate::rules::{Attribute, attributes, sample};

const RULES: &str = "
rules:
- id: plan
  per: merchant
  limit: 100/min
  by: { tier: { gold: 200/min } }
  overrides:
  - { merchant: m_1, limit: 300/min }
- { id: address, per: client_ip, limit: 10/s, algorithm: sliding_log }
- { id: slots, per: merchant, limit: 5, algorithm: concurrency }
- { id: split, per: merchant, limit: 7/s, experiment: { share: 50%, algorithm: sliding_counter } }
- { id: plan.1h, limit: 1000000/s }
";

fn edit(rule: &str, subject: &[(&str, &str)], terms: Option<&str>) -> RowEdit {
    RowEdit::new(Attempt::DOMAIN, rule, subject.iter().copied(), terms)
}

fn attempt<'a>(attributes: &'a [Attribute<'a>]) -> Attempt<'a> {
    Attempt {
        domain: Attempt::DOMAIN,
        attributes,
        cost: Cost::ONE,
    }
}

/// The windows of a rule for an attempt, as `name capacity`; `banned` and `unlimited` otherwise.
fn limits(rules: &RuleSet, rule: &str, pairs: &[(&str, &str)]) -> Vec<String> {
    let pairs: Vec<(&str, &[u8])> = pairs.iter().map(|&(name, value)| (name, value.as_bytes())).collect();
    let given = attributes(&pairs);
    let plan = rules.plan(&attempt(&given), |counter, _| {
        assert!(rules.counter(counter).is_some(), "every counter is listed");
    });
    let lines = plan.lines.iter().filter(|line| line.rule.id() == rule);
    let shown = lines.map(|line| match (line.window, line.terms) {
        (Some(window), _) => format!("{} {}", window.name(), window.limit().capacity()),
        (None, Terms::Unlimited) => "unlimited".to_owned(),
        (None, _) => "banned".to_owned(),
    });
    shown.collect()
}

fn amended(rules: &RuleSet, edits: &[RowEdit]) -> RuleSet {
    let (next, problems) = rules.amend(edits);
    assert_eq!(problems, []);
    next
}

#[test]
fn a_row_comes_before_overrides_by_and_limit() {
    let rules = sample(RULES);
    let next = amended(
        &rules,
        &[
            edit("plan", &[("merchant", "m_1")], Some("20000/min burst 500")),
            edit("plan", &[("merchant", "m_2")], Some("unlimited")),
            edit("plan", &[("merchant", "m_3")], Some("0/min")),
            edit("plan", &[("merchant", "m_4")], Some("[10/s, 600/min]")),
            edit("slots", &[("merchant", "m_4")], Some("9")),
        ],
    );
    for (merchant, expected) in [
        ("m_1", &["plan 500"][..]),
        ("m_2", &["unlimited"]),
        ("m_3", &["banned"]),
        ("m_4", &["plan.1s 10", "plan.1min 600"]),
        ("m_5", &["plan 200"]),
    ] {
        assert_eq!(
            limits(&next, "plan", &[("merchant", merchant), ("tier", "gold")]),
            expected
        );
    }
    assert_eq!(limits(&next, "slots", &[("merchant", "m_4")]), ["slots 9"]);
    assert_eq!(
        limits(&rules, "plan", &[("merchant", "m_1")]),
        ["plan 300"],
        "the set before is unchanged"
    );
    assert_eq!((next.row_count(), next.orphan_rows(), rules.row_count()), (5, 0, 0));
    let deleted = amended(&next, &[edit("plan", &[("merchant", "m_1")], None)]);
    assert_eq!(limits(&deleted, "plan", &[("merchant", "m_1")]), ["plan 300"]);
    assert_eq!(deleted.row_count(), 4);
}

#[test]
fn the_row_with_more_attributes_wins_then_the_first_by_their_names() {
    let mut edits = vec![
        edit("plan", &[("region", "eu")], Some("1/min")),
        edit("plan", &[("merchant", "m_1")], Some("2/min")),
        edit("plan", &[("merchant", "m_1"), ("region", "eu")], Some("3/min")),
        edit("plan", &[("city", "x"), ("region", "eu")], Some("4/min")),
    ];
    let mut rules = amended(&sample(RULES), &edits);
    let given = [("merchant", "m_1"), ("region", "eu"), ("city", "x")];
    for expected in ["plan 4", "plan 3", "plan 2", "plan 1", "plan 300"] {
        assert_eq!(limits(&rules, "plan", &given), [expected]);
        if expected == "plan 300" {
            break;
        }
        let gone = RowEdit {
            terms: None,
            ..edits.pop().expect("one for each step")
        };
        rules = amended(&rules, &[gone]);
    }
    assert_eq!(rules.row_count(), 0);
    assert!(
        rules.rows.rules.find(0).is_some_and(|rows| rows.sets.is_empty()),
        "no look-up is left"
    );
}

#[test]
fn one_matching_value_of_several_is_enough() {
    let rules = amended(
        &sample(RULES),
        &[edit("plan", &[("merchant", "m_2"), ("region", "eu")], Some("8/min"))],
    );
    let given = [
        ("merchant", "m_9"),
        ("merchant", "m_2"),
        ("region", "us"),
        ("region", "eu"),
    ];
    assert_eq!(limits(&rules, "plan", &given), ["plan 8"]);
    assert_eq!(limits(&rules, "plan", &given[..3]), ["plan 100"]);
    // Lengths are part of the key: these are other values.
    assert_eq!(
        limits(&rules, "plan", &[("merchant", "m_2e"), ("region", "u")]),
        ["plan 100"]
    );
}

#[test]
fn addresses_are_those_that_per_counts() {
    let rules = sample(RULES);
    let counted = |value| rules.counted_value(Attempt::DOMAIN, "address", "client_ip", value);
    assert_eq!(counted("2001:DB8::9"), "2001:db8::");
    assert_eq!(counted("::ffff:10.0.0.1"), "10.0.0.1");
    assert_eq!(counted("10.0.0.1"), "10.0.0.1");
    assert_eq!(counted("no address: none"), "no address: none");
    let unknown = rules.counted_value(Attempt::DOMAIN, "later", "client_ip", "2001:DB8::9");
    assert_eq!(unknown, "2001:DB8::9", "its rule is not known");
    let next = amended(
        &rules,
        &[
            edit("address", &[("client_ip", "2001:db8::")], Some("99/s")),
            edit("address", &[("client_ip", "10.0.0.1")], Some("98/s")),
        ],
    );
    for (address, expected) in [
        ("2001:db8::1", "address 99"),
        ("2001:0DB8:0::ffff", "address 99"),
        ("2001:db8:1::1", "address 10"),
        ("10.0.0.1", "address 98"),
        ("::ffff:10.0.0.1", "address 98"),
        ("10.0.0.2", "address 10"),
    ] {
        assert_eq!(
            limits(&next, "address", &[("client_ip", address)]),
            [expected],
            "{address}"
        );
    }
    // Another address of the network would be a second row of one subject. It does not delete the first either.
    for terms in [Some("1/s"), None] {
        let (same, problems) = next.amend(&[edit("address", &[("client_ip", "2001:db8::9")], terms)]);
        let text = problems.first().map_or("", |problem| &problem.text);
        assert_eq!(text, "`address` counts `2001:db8::9` as `2001:db8::`");
        assert_eq!(
            limits(&same, "address", &[("client_ip", "2001:db8::9")]),
            ["address 99"]
        );
    }
}

#[test]
fn both_variants_of_an_experiment_have_the_row() {
    let rules = amended(&sample(RULES), &[edit("split", &[("region", "eu")], Some("70/s"))]);
    let mut algorithms: Vec<&str> = Vec::new();
    for number in 0..50 {
        let merchant = format!("m_{number}");
        let given = attributes(&[("merchant", merchant.as_bytes()), ("region", b"eu")]);
        let plan = rules.plan(&attempt(&given), |_, _| ());
        let line = plan
            .lines
            .iter()
            .find(|line| line.rule.id() == "split")
            .expect("it matches");
        let limit = line.window.expect("it limits").limit();
        assert_eq!(limit.capacity(), 70);
        algorithms.push(limit.algorithm());
    }
    algorithms.sort_unstable();
    algorithms.dedup();
    assert_eq!(algorithms, ["sliding_counter", "token_bucket"]);
}

#[test]
fn a_new_period_adds_one_counter_and_an_old_one_is_shared() {
    let rules = sample(RULES);
    let same = amended(&rules, &[edit("plan", &[("merchant", "m_1")], Some("1/min"))]);
    assert_eq!(same.added_counters().len(), 0);
    let day = amended(&same, &[edit("plan", &[("merchant", "m_2")], Some("1/day"))]);
    let again = amended(&day, &[edit("plan", &[("merchant", "m_3")], Some("2/day"))]);
    assert_eq!((day.added_counters().len(), again.added_counters().len()), (1, 1));
    // A window of a list is found by its own name, too.
    let listed = amended(&again, &[edit("plan", &[("merchant", "m_4")], Some("[1/s, 100/min]"))]);
    let given = attributes(&[("merchant", b"m_4")]);
    let found = listed.counters_of(&attempt(&given), Some("plan.1min"), |counter, _| counter.index());
    assert_eq!(found.expect("a known name").len(), 1);
    assert_eq!(limits(&listed, "plan", &[("merchant", "m_2")]), ["plan 1"]);
}

#[test]
fn a_row_with_a_problem_has_no_effect_and_others_are_as_before() {
    let rules = amended(
        &sample(RULES),
        &[
            edit("address", &[("client_ip", "10.0.0.1")], Some("5/s")),
            edit("slots", &[("merchant", "m_1")], Some("3")),
        ],
    );
    let nine: Vec<String> = (0..9).map(|number| format!("a{number}")).collect();
    let nine: Vec<(&str, &str)> = nine.iter().map(|name| (name.as_str(), "x")).collect();
    let merchant = [("merchant", "m_1")];
    for (rule, subject, terms, expected) in [
        (
            "address",
            &[("client_ip", "10.0.0.1")][..],
            "5/s burst 9",
            "takes no burst",
        ),
        ("plan", &merchant, "100", "has no period"),
        ("plan", &merchant, "lots", "is not a limit"),
        ("plan", &merchant, "[]", "a list of 0 windows"),
        ("plan", &merchant, "[1/s, 2/s]", "two windows of 1s"),
        ("plan", &merchant, "[1/s, unlimited]", "cannot be one of several"),
        ("plan", &merchant, "[1/s, 5/h]", "`plan.1h`, as another rule is"),
        ("slots", &merchant, "[1, 2]", "has no windows"),
        ("split", &merchant, "5/s burst 9", "for the experiment"),
        ("plan", &[], "1/s", "names 0 attributes"),
        ("plan", &nine, "1/s", "names 9 attributes"),
        ("plan", &[("b", "1"), ("a", "1")], "1/s", "not sorted"),
        ("plan", &[("", "1")], "1/s", "not an attribute"),
    ] {
        let fine = edit("plan", &[("merchant", "m_7")], Some("7/min"));
        let (next, problems) = rules.amend(&[edit(rule, subject, Some(terms)), fine]);
        let [problem] = &*problems else {
            panic!("one problem for {rule} {terms}: {problems:?}");
        };
        assert!(problem.text.contains(expected), "{}", problem.text);
        assert_eq!((problem.index, problem.hint.is_empty()), (0, false));
        // The row before is not what the table of rows says any more.
        let lost = usize::from(matches!(rule, "address" | "slots"));
        assert_eq!(
            (next.row_count(), next.added_counters().len()),
            (3 - lost, 0),
            "{rule} {terms}"
        );
        let expected = if rule == "address" { "address 10" } else { "address 5" };
        assert_eq!(limits(&next, "address", &[("client_ip", "10.0.0.1")]), [expected]);
        let expected = if rule == "slots" { "slots 5" } else { "slots 3" };
        assert_eq!(limits(&next, "slots", &[("merchant", "m_1")]), [expected]);
        assert_eq!(limits(&next, "plan", &[("merchant", "m_7")]), ["plan 7"]);
    }
}

#[test]
fn a_row_without_its_rule_is_counted_until_it_is_deleted() {
    let row = edit("later", &[("merchant", "m_1")], Some("whatever the rule will accept"));
    let rules = amended(&sample(RULES), &[row.clone(), row.clone()]);
    assert_eq!((rules.row_count(), rules.orphan_rows()), (1, 1));
    let gone = RowEdit { terms: None, ..row };
    let rules = amended(&rules, &[gone.clone(), gone]);
    assert_eq!((rules.row_count(), rules.orphan_rows()), (0, 0));
}

#[test]
fn attribute_sets_and_periods_of_one_rule_have_bounds() {
    let rules = sample(RULES);
    let names: Vec<String> = (0..17).map(|number| format!("a{number}")).collect();
    let edits: Vec<RowEdit> = names
        .iter()
        .map(|name| edit("plan", &[(name, "x")], Some("1/min")))
        .collect();
    let (next, problems) = rules.amend(&edits);
    assert_eq!((next.row_count(), problems.len()), (16, 1));
    // One that is not used any more makes space.
    let next = amended(
        &next,
        &[
            edit("plan", &[("a3", "x")], None),
            edit("plan", &[("a16", "x")], Some("5/min")),
        ],
    );
    assert_eq!(limits(&next, "plan", &[("merchant", "m"), ("a16", "x")]), ["plan 5"]);
    let periods: Vec<String> = (61..161).map(|seconds| format!("1/{seconds}s")).collect();
    let edits = periods
        .iter()
        .map(|terms| edit("plan", &[("merchant", "m_1")], Some(terms)));
    // One row that changes its period again and again needs one counter, or two while both are there.
    let edits: Vec<RowEdit> = edits.collect();
    let next = amended(&rules, &edits);
    assert!(next.added_counters().len() <= 2, "{}", next.added_counters().len());
    assert_eq!(limits(&next, "plan", &[("merchant", "m_1")]), ["plan 1"]);
    // A hundred rows with a hundred periods need too many.
    let merchants: Vec<String> = (0..100).map(|number| format!("m_{number}")).collect();
    let edits: Vec<RowEdit> = merchants
        .iter()
        .zip(&periods)
        .map(|(merchant, terms)| edit("plan", &[("merchant", merchant)], Some(terms)))
        .collect();
    let (full, problems) = rules.amend(&edits);
    assert_eq!((full.added_counters().len(), problems.len()), (64, 36));
    assert!(
        problems
            .iter()
            .all(|problem| problem.text.contains("more than 64 different periods"))
    );
    // One that is not used any more makes space, and no other row gets its counter.
    let next = amended(
        &full,
        &[
            edit("plan", &[("merchant", "m_5")], None),
            edit("plan", &[("merchant", "m_99")], Some("9/160s")),
        ],
    );
    assert_eq!(next.added_counters().len(), 64);
    for (merchant, expected) in [
        ("m_4", Some(65)),
        ("m_5", Some(60)),
        ("m_6", Some(67)),
        ("m_99", Some(160)),
    ] {
        assert_eq!(period_s(&next, merchant), expected, "{merchant}");
    }
    assert_eq!(period_s(&full, "m_5"), Some(66), "the set before is unchanged");
}

/// The period of the counter that a merchant's plan is counted in.
fn period_s(rules: &RuleSet, merchant: &str) -> Option<u64> {
    let given = attributes(&[("merchant", merchant.as_bytes())]);
    let mut counters = Vec::new();
    rules.plan(&attempt(&given), |counter, _| counters.push(counter));
    let specs = counters.iter().filter_map(|counter| rules.counter(*counter));
    let spec = specs.into_iter().find(|spec| &*spec.id == "plan")?;
    match spec.limit.counter_period()? {
        crate::quantity::Period::Exact(period) => Some(period.get() / 1_000_000),
        _ => None,
    }
}

#[test]
fn windows_of_one_row_have_counters_of_their_own() {
    let rules = amended(&sample(RULES), &[edit("plan", &[("merchant", "m_1")], Some("1/61s"))]);
    // That of 61 s is free when the new terms are compiled, and must not be given to both of its windows.
    let next = amended(
        &rules,
        &[
            edit("plan", &[("merchant", "m_1")], None),
            edit("plan", &[("merchant", "m_2")], Some("[1/62s, 2/63s, 3/61s]")),
        ],
    );
    let given = attributes(&[("merchant", b"m_2")]);
    let mut counters = Vec::new();
    next.plan(&attempt(&given), |counter, _| counters.push(counter));
    let mut periods: Vec<_> = counters
        .iter()
        .filter_map(|counter| next.counter(*counter))
        .map(|spec| {
            (
                spec.window_name.as_deref().unwrap_or_default(),
                spec.limit.counter_period(),
            )
        })
        .filter(|(name, _)| name.starts_with("plan."))
        .collect();
    assert_eq!(periods.len(), 3, "{periods:?}");
    periods.dedup();
    assert_eq!(
        periods.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["plan.62s", "plan.63s", "plan.61s"]
    );
}

#[test]
fn rows_keep_what_their_rule_is() {
    let rules = sample(
        "rules:
- { id: shadow, per: user, mode: shadow, limit: 5/min }
- { id: list, per: user, limit: [10/s, 100/min] }
- { id: slots, per: user, algorithm: concurrency, limit: 5, lease_ttl: 9s }
- { id: month, per: user, algorithm: fixed_window, calendar: Europe/Berlin, limit: 5/month }
- { id: off, per: user, mode: disabled, limit: 5/min }
",
    );
    let user = [("user", "u")];
    let next = amended(
        &rules,
        &[
            edit("shadow", &user, Some("7/min")),
            edit("list", &user, Some("[20/s, 50/min]")),
            edit("slots", &user, Some("2")),
            edit("month", &user, Some("7/month")),
            edit("off", &user, Some("7/min")),
        ],
    );
    for (rule, expected) in [
        ("shadow", &["shadow 7"][..]),
        ("list", &["list.1s 20", "list.1min 50"]),
        ("slots", &["slots 2"]),
        ("month", &["month 7"]),
        ("off", &[]),
    ] {
        assert_eq!(limits(&next, rule, &user), expected);
    }
    assert_eq!(next.added_counters().len(), 0, "they count on where the rules counted");
    let given = attributes(&[("user", b"u")]);
    let plan = next.plan(&attempt(&given), |_, _| ());
    let lines: Vec<_> = plan.charges().map(|planned| planned.charge).collect();
    assert_eq!(
        lines.first().map(|charge| charge.policy),
        Some(crate::settle::Policy::Shadow)
    );
    let lease = |rules: &RuleSet| {
        let given = attributes(&[("user", b"u")]);
        let plan = rules.plan(&attempt(&given), |_, _| ());
        let limit = plan.charges().map(|planned| planned.charge.limit).nth(3);
        format!("{limit:?}").replace("slots: 5", "slots: 2")
    };
    assert_eq!(lease(&next), lease(&rules), "the lease lasts as long");
    // Windows of another calendar, one of a list alone, and none at all.
    let next = amended(
        &rules,
        &[
            edit("month", &user, Some("[1/day, 9/year]")),
            edit("list", &user, Some("100/min")),
            edit("slots", &user, Some("unlimited")),
        ],
    );
    assert_eq!(limits(&next, "month", &user), ["month.1day 1", "month.1year 9"]);
    assert_eq!(limits(&next, "list", &user), ["list 100"]);
    assert_eq!(limits(&next, "slots", &user), ["unlimited"]);
    for (rule, terms) in [("month", "1/month burst 2"), ("slots", "5/min"), ("month", "3/36h")] {
        let (_, problems) = rules.amend(&[edit(rule, &user, Some(terms))]);
        assert_eq!(problems.len(), 1, "{rule} {terms}");
    }
}

#[test]
fn descriptors_have_no_rows() {
    let rules = crate::testing::rules::descriptor_rules(
        "domain: shop\ndescriptors:\n- key: user\n  rate_limit: { unit: minute, requests_per_unit: 5 }\n",
        crate::testing::rules::strict(),
    );
    let id = rules.rules().first().map(|rule| rule.id().to_owned()).expect("one");
    let row = |terms: Option<&str>| RowEdit {
        domain: "shop".into(),
        ..edit(&id, &[("user", "u")], terms)
    };
    let (next, problems) = rules.amend(&[row(Some("9/min"))]);
    assert_eq!(next.row_count(), 0);
    let text = problems.first().map_or("", |problem| &problem.text);
    assert!(text.contains("comes from a file of envoyproxy/ratelimit"), "{text}");
    // To delete what cannot be there is not an error.
    assert_eq!(rules.amend(&[row(None)]).1, []);
}

#[test]
fn a_row_of_several_values_beats_none_of_more_attributes() {
    // With more values than are tried, the rows of fewer attributes still apply.
    let rules = amended(
        &sample(RULES),
        &[
            edit("plan", &[("merchant", "m_1"), ("region", "eu")], Some("8/min")),
            edit("plan", &[("merchant", "m_1")], Some("0/min")),
        ],
    );
    let values: Vec<String> = (0..40).map(|number| format!("x{number}")).collect();
    let mut given: Vec<(&str, &str)> = values
        .iter()
        .flat_map(|value| [("merchant", &**value), ("region", &**value)])
        .collect();
    given.extend([("merchant", "m_1"), ("region", "eu")]);
    assert_eq!(limits(&rules, "plan", &given), ["banned"]);
}

#[test]
fn an_explanation_names_the_row() {
    let rules = amended(
        &sample(RULES),
        &[edit("plan", &[("merchant", "m_1"), ("region", "eu")], Some("8/min"))],
    );
    let given = attributes(&[("merchant", b"m_1"), ("region", b"eu")]);
    let plan = rules.plan(&attempt(&given), |_, _| ());
    let verdict = plan.verdict(crate::Source::Memory);
    let text = rules
        .explain(&attempt(&given), (verdict, Vec::new()), |_, _| String::new())
        .to_string();
    assert!(text.contains("limit from the row of merchant=m_1, region=eu"), "{text}");
}

#[test]
fn a_row_of_a_rule_with_a_reserve_keeps_its_part() {
    let rules = sample(
        "rules: [{ id: plan, per: merchant, limit: 100/min, reserve: { share: 20%, for: { priority: critical } } }]",
    );
    let next = amended(
        &rules,
        &[
            edit("plan", &[("merchant", "m_1")], Some("1000/min")),
            edit("plan", &[("merchant", "m_2")], Some("[10/s, 600/min]")),
            edit("plan", &[("merchant", "m_3")], Some("unlimited")),
        ],
    );
    for (merchant, expected) in [
        ("m_1", &["plan 1000", "plan 800"][..]),
        ("m_2", &["plan.1s 10", "plan.1s 8", "plan.1min 600", "plan.1min 480"]),
        ("m_3", &["unlimited"]),
        ("m_4", &["plan 100", "plan 80"]),
    ] {
        assert_eq!(limits(&next, "plan", &[("merchant", merchant)]), expected);
    }
    assert_eq!(
        limits(&next, "plan", &[("merchant", "m_2"), ("priority", "critical")]),
        ["plan.1s 10", "plan.1min 600"]
    );
    assert_eq!(next.added_counters().len(), 4, "two windows, each with two counters");
    let counters_of = |rules: &RuleSet| rules.counters_in_use().count();
    assert_eq!((counters_of(&rules), counters_of(&next)), (2, 6));
    let deleted = amended(&next, &[edit("plan", &[("merchant", "m_2")], None)]);
    assert_eq!(counters_of(&deleted), 2);
    let (_, problems) = next.amend(&[edit("plan", &[("merchant", "m_9")], Some("1/min"))]);
    let [problem] = &*problems else {
        panic!("{problems:?}");
    };
    assert_eq!(problem.text, "a reserve of 20% of 1 leaves less than 1 to all others");
}
