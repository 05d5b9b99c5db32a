//! Laws of reading rules: nothing that is written brings it down, what is written comes back, and size costs no more than
//! its share.

use proptest::prelude::*;
use std::fmt::Write as _;
use tollgate_core::problem::{Origin, Problem};
use tollgate_core::rules::{Mode, ParsedRules, ParserOptions, RuleSet, RulesParser, ratelimit};
use tollgate_core::{Limit, quantity, yaml};

fn read(text: &str) -> Result<ParsedRules, Vec<Problem>> {
    let node = yaml::parse(&Origin::new("any.yaml", text))?;
    let mut reader = RulesParser::new(ParserOptions::default());
    if ratelimit::is_descriptor_file(&node) {
        let mut files = ratelimit::DescriptorFiles::new(false);
        files.add_file(&node);
        reader.set_descriptors(files.finish()?.0, ratelimit::RatelimitOptions::default());
    } else {
        reader.add_file(&node);
    }
    reader.finish()
}

fn valid(text: &str) -> RuleSet {
    match read(text) {
        Ok(read) => read.rules,
        Err(problems) => panic!(
            "{text}\n{}",
            problems.iter().map(ToString::to_string).collect::<String>()
        ),
    }
}

/// Words that rules are made of, and some that break them.
fn rule_key() -> impl Strategy<Value = String> {
    const KEYS: &[&str] = &[
        "rules",
        "id",
        "limit",
        "when",
        "per",
        "by",
        "overrides",
        "experiment",
        "algorithm",
        "cost",
        "mode",
        "domain",
        "a",
        "user",
        "10/s",
        "0/min",
        "5/s burst 3",
        "unlimited",
        "20",
        "concurrency",
        "sliding_log",
        "share",
        "10%",
        "regex",
        "cidr",
        "present",
        "true",
        "null",
        "~",
        "*",
        "a*b",
        "\\*",
        "10.0.0.0/8",
        "ip",
        "é",
        "",
        "(",
        "[a-z]{9}",
        "open",
        "cap",
        "shadow",
        "lease_ttl",
        "30s",
        "18446744073709551616",
        "-1",
        "1e9",
        ".5",
        "\u{0}",
        "\u{feff}",
    ];
    prop_oneof![
        8 => proptest::sample::select(KEYS).prop_map(String::from),
        1 => ".{0,12}",
    ]
}

/// A value of any shape, in flow style, with words in quotes or not.
fn value() -> impl Strategy<Value = String> {
    let leaf = (rule_key(), any::<bool>()).prop_map(|(word, quoted)| if quoted { format!("{word:?}") } else { word });
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(|items| format!("[{}]", items.join(", "))),
            proptest::collection::vec((rule_key(), inner), 0..6).prop_map(|entries| {
                let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                format!("{{{}}}", entries.join(", "))
            }),
        ]
    })
}

/// Every problem can be shown and lies in the text.
fn shown(problems: &[Problem], text: &str) -> Result<(), TestCaseError> {
    for problem in problems {
        prop_assert!(problem.to_string().contains("any.yaml:"));
        prop_assert!(
            problem.location.line as usize <= text.split(['\n', '\r']).count() + 1,
            "{}",
            problem
        );
    }
    prop_assert!(problems.is_sorted_by_key(|problem| (problem.location.line, problem.location.column)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_answered(text in "(?s).{0,200}") {
        if let Err(problems) = read(&text) {
            prop_assert!(!problems.is_empty());
            shown(&problems, &text)?;
        }
    }

    #[test]
    fn any_text_in_the_letters_of_yaml_is_answered(text in "[-\\[\\]{}:,&*!|>'\"%@`#?~ \n\tab1/s]{0,120}") {
        if let Err(problems) = read(&text) {
            prop_assert!(!problems.is_empty());
            shown(&problems, &text)?;
        }
    }

    #[test]
    fn any_rules_are_answered(rules in proptest::collection::vec(
        proptest::collection::vec((rule_key(), value()), 0..6), 0..4,
    )) {
        let mut text = String::from("rules:\n");
        for fields in rules {
            text.push_str("- id: x\n  limit: 1/s\n");
            for (key, value) in fields {
                let _ = writeln!(text, "  {key}: {value}");
            }
        }
        match read(&text) {
            Ok(read) => shown(&read.warnings, &text)?,
            Err(problems) => {
                prop_assert!(problems.iter().any(Problem::is_error));
                shown(&problems, &text)?;
            }
        }
    }

    #[test]
    fn values_are_taken_as_they_are_written(
        values in proptest::collection::vec("(?s).{1,20}", 1..5),
        id in "[A-Za-z0-9_.:/-]{1,64}",
    ) {
        // JSON's texts are YAML's.
        let quoted: Vec<String> = values.iter().map(|value| json(value)).collect();
        let text = format!(
            "rules:\n- id: {}\n  per: a\n  limit: 1/s\n  overrides:\n  - {{ a: [{}], limit: 7/s }}\n",
            json(&id),
            quoted.join(", "),
        );
        let rules = valid(&text);
        let [rule] = rules.rules() else { panic!("one rule") };
        prop_assert_eq!(rule.id(), &*id);
        prop_assert_eq!(rule.location().line, 2);
        for value in &values {
            let attributes = [tollgate_core::rules::Attribute { name: "a", value: value.as_bytes() }];
            let attempt = tollgate_core::rules::Attempt {
                domain: "default",
                attributes: &attributes,
                cost: tollgate_core::Cost::ONE,
            };
            let plan = rules.plan(&attempt, |counter, _| counter.index());
            let limits: Vec<u64> = plan.lines.iter().filter_map(|line| Some(line.window?.limit().capacity())).collect();
            prop_assert_eq!(limits, [7], "{}", value);
        }
    }

    #[test]
    fn numbers_are_taken_as_they_are_written(
        units in 1_u64..=1_000_000,
        period_ms in 1_u64..1_000_000,
        burst in 1_u64..1_000_000,
        slots in 1_u64..=10_000,
    ) {
        let text = format!("rules:\n\
            - {{ id: bucket, limit: {units}/{period_ms}ms burst {burst} }}\n\
            - {{ id: log, limit: {units}/{period_ms}ms, algorithm: sliding_log }}\n\
            - {{ id: slots, limit: {slots}, algorithm: concurrency }}\n");
        let rules = valid(&text);
        let limits: Vec<&Limit> = rules.counters().iter().map(|counter| &counter.limit).collect();
        prop_assert_eq!(limits.iter().map(|limit| limit.capacity()).collect::<Vec<_>>(), [burst, units, slots]);
        let rate = limits[0].rate().unwrap();
        prop_assert_eq!((rate.units(), rate.period().get()), (units, period_ms * 1_000));
        prop_assert!(rules.rules().iter().all(|rule| rule.mode() == Mode::Enforce));
    }

    #[test]
    fn a_period_is_read_back_from_its_name(us in 1_u64..1 << 50) {
        let period = tollgate_core::Micros::new(us);
        prop_assert_eq!(quantity::parse_period(&quantity::period_name(period)), Ok(period));
    }
}

/// A text in quotes, as JSON and YAML write it.
fn json(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            ' '..='~' => quoted.push(letter),
            _ => {
                let _ = write!(quoted, "\\U{:08x}", letter as u32);
            }
        }
    }
    quoted.push('"');
    quoted
}

/// So many rules of the two-tier kind.
fn many_rules(count: usize) -> String {
    let mut text = String::from("rules:\n");
    for n in 0..count {
        let _ = write!(
            text,
            "- id: ceiling-{n}\n  when: {{ endpoint: /v1/e{n}, method: [GET, \"P*\"] }}\n  limit: [{}/s, 100000/min]\n  \
             per: [merchant]\n  by: {{ tier: {{ free: 10/s, paid: 100/s }} }}\n",
            n + 1
        );
    }
    text
}

/// One rule with so many overrides.
fn many_overrides(count: usize) -> String {
    let mut text = String::from("rules:\n- id: plan\n  per: merchant\n  limit: 100/min\n  overrides:\n");
    for n in 0..count {
        let _ = writeln!(text, "  - {{ merchant: m_{n}, limit: {}/min }}", n % 1_000);
    }
    text
}

#[test]
fn twenty_thousand_rules_and_a_hundred_thousand_overrides_are_read() {
    let rules = valid(&many_rules(20_000));
    assert_eq!(rules.rules().len(), 20_000);
    // A second and a minute: a window of `by` shares its counter with that of the same period in the list.
    assert_eq!(rules.counters().len(), 40_000);
    let rules = valid(&many_overrides(100_000));
    assert_eq!(rules.rules().len(), 1);
    assert_eq!(rules.counters().len(), 1);
}

/// Writes rules of a size.
type Make = fn(usize) -> String;

#[test]
fn ten_times_as_much_takes_about_ten_times_as_long() {
    let cases: [(&str, Make); 8] = [
        ("rules", many_rules),
        ("overrides", many_overrides),
        ("alike", |count| {
            let rule = |n: usize| format!("- {{ id: r{n}, per: user, limit: 5/s }}\n");
            format!("rules:\n{}", (0..count).map(rule).collect::<String>())
        }),
        ("alike in many windows", |count| {
            // None is stricter than another in all windows, so nothing is found before the end.
            let windows = |n: usize| -> Vec<String> {
                (1..=16)
                    .map(|k| format!("{}/{k}min", 100 + (n * k) % 17 * 20))
                    .collect()
            };
            let when = "when: { a: a, b: b, c: c, d: d }";
            let rule = |n: usize| format!("- {{ id: r{n}, {when}, limit: [{}] }}\n", windows(n).join(", "));
            format!("rules:\n{}", (0..count / 10).map(rule).collect::<String>())
        }),
        ("descriptors that begin alike", |count| {
            let value = "v".repeat(80);
            let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
            let descriptor = |n: usize| format!("- {{ key: k, value: {value}{n}, {limit} }}\n");
            format!(
                "domain: d\ndescriptors:\n{}",
                (0..count).map(descriptor).collect::<String>()
            )
        }),
        ("twins", |count| {
            let rule = |_| "- { id: r, limit: 5/s }\n";
            format!("rules:\n{}", (0..count).map(rule).collect::<String>())
        }),
        ("faults", |count| {
            let rule = |n: usize| format!("- {{ id: r{n}, limt: 5/s, x{n}: 1 }}\n");
            format!("rules:\n{}", (0..count).map(rule).collect::<String>())
        }),
        ("values", |count| {
            let values: Vec<String> = (0..count).map(|n| format!("v{n}")).collect();
            format!(
                "rules:\n- {{ id: r, limit: 5/s, when: {{ a: [{}] }} }}\n",
                values.join(", ")
            )
        }),
    ];
    for (name, make) in cases {
        let (small, large) = (make(2_000), make(20_000));
        let best = |text: &str| (0..3).map(|_| time(text)).min().unwrap();
        let (small, large) = (best(&small), best(&large));
        // Square growth would be a hundred times.
        assert!(
            large < small * 40,
            "{name}: {small:?} for 2,000 and {large:?} for 20,000"
        );
    }
}

/// How long a text takes to be read, and its problems to be shown.
#[expect(clippy::disallowed_methods, reason = "how time grows with size is what is tested")]
fn time(text: &str) -> std::time::Duration {
    let start = std::time::Instant::now();
    let shown = match read(text) {
        Ok(read) => read.warnings.iter().map(ToString::to_string).collect::<String>(),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<String>(),
    };
    let taken = start.elapsed();
    assert!(shown.len() < 1 << 20);
    taken
}

#[test]
fn expressions_made_to_be_large_are_refused_before_they_are() {
    let mut text = String::from("rules:\n");
    for n in 0..5_000 {
        let _ = writeln!(
            text,
            "- {{ id: r{n}, limit: 1/s, when: {{ a: {{ regex: \"(x{{{}}}){{500}}\" }} }} }}",
            n % 900 + 100
        );
    }
    let errors: String = read(&text).unwrap_err().iter().map(ToString::to_string).collect();
    assert!(errors.contains("is too large when it is compiled"), "{errors}");
    assert!(
        errors.contains("the expressions of all rules exceed their budget: 8192 small ones, or 128 of the largest"),
        "{errors}"
    );
}

#[test]
fn an_override_for_every_combination_is_bounded() {
    let values: Vec<String> = (0..1_001).map(|n| format!("v{n}")).collect();
    let list = values.join(", ");
    let text = format!(
        "rules:\n- id: r\n  limit: 1/s\n  overrides:\n  - {{ a: [{list}], b: [{list}], c: [{list}], limit: 2/s }}\n"
    );
    let errors: String = read(&text).unwrap_err().iter().map(ToString::to_string).collect();
    assert!(errors.contains("more than 10000 combinations"), "{errors}");
}

#[test]
fn overrides_of_many_rules_are_bounded_together() {
    let list: Vec<String> = (0..100).map(|n| format!("v{n}")).collect();
    let list = list.join(", ");
    let windows: Vec<String> = (1..=16).map(|n| format!("1/{n}min")).collect();
    let windows = windows.join(", ");
    // Each stands for 10,000 subjects with 16 windows: six are within the bound of a million and seven are not.
    let rules = |count: usize| {
        let mut text = String::from("rules:\n");
        for n in 0..count {
            let _ = writeln!(
                text,
                "- {{ id: r{n}, limit: 1/s, overrides: [{{ a: [{list}], b: [{list}], limit: [{windows}] }}] }}"
            );
        }
        text
    };
    assert!(read(&rules(6)).is_ok());
    let errors: Vec<String> = read(&rules(9)).unwrap_err().iter().map(ToString::to_string).collect();
    let bound = "the overrides of all rules name more than 1000000 subjects";
    assert!(
        matches!(errors.as_slice(), [one] if one.contains(bound) && one.starts_with("any.yaml:8:")),
        "{errors:?}"
    );
}

#[test]
fn several_files_make_one_set_or_none() {
    let parse = |name: &str, text: &str| yaml::parse(&Origin::new(name, text)).unwrap();
    let files = [
        parse("a.yaml", "rules: [{ id: x, limit: 1/s }]"),
        parse("b.yaml", "domain: other\nrules: [{ id: x, limit: unlimited }]"),
        parse("c.yaml", "rules: []"),
    ];
    let mut reader = RulesParser::new(ParserOptions::default());
    files.iter().for_each(|file| reader.add_file(file));
    reader.add_rules(&parse("d.yaml", "[{ id: y, limit: 0/s }]"), "other");
    let rules = reader.finish().unwrap().rules;
    let ids: Vec<(&str, &str)> = rules.rules().iter().map(|rule| (rule.domain(), rule.id())).collect();
    assert_eq!(ids, [("default", "x"), ("other", "x"), ("other", "y")]);

    let mut reader = RulesParser::new(ParserOptions::default());
    files.iter().for_each(|file| reader.add_file(file));
    reader.add_rules(&parse("d.yaml", "[{ id: x, limit: 0/s }]"), "other");
    let problems = reader.finish().unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].to_string().contains("the first is at b.yaml:2:15"),
        "{}",
        problems[0]
    );
}
