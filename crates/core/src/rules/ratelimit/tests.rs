//! Which limit a descriptor meets, under which name it is counted, and what is said of files that cannot be used.

use super::{DescriptorFiles, Descriptors, Unit};
use crate::problem::Origin;
use crate::rules::Attribute;

fn read(merge_domains: bool, texts: &[&str]) -> Result<(Descriptors, Vec<String>), Vec<String>> {
    let mut files = DescriptorFiles::new(merge_domains);
    for (number, text) in texts.iter().enumerate() {
        let origin = Origin::new(format!("{number}.yaml"), *text);
        files.add_file(&super::parse(&origin).unwrap_or_else(|problems| panic!("{problems:?}")));
    }
    let texts = |problems: Vec<crate::problem::Problem>| problems.into_iter().map(|problem| problem.text).collect();
    match files.finish() {
        Ok((descriptors, warnings)) => Ok((descriptors, texts(warnings))),
        Err(problems) => Err(texts(problems)),
    }
}

fn valid(text: &str) -> Descriptors {
    read(false, &[text]).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

/// The entries of `key=value, key=value`.
fn entries(text: &str) -> Vec<Attribute<'_>> {
    let pairs = text.split(", ").map(|part| part.split_once('=').unwrap());
    pairs
        .map(|(name, value)| Attribute {
            name,
            value: value.as_bytes(),
        })
        .collect()
}

/// The capacity, the window and the name of the statistics of the limit found, if any.
fn found(descriptors: &Descriptors, domain: &str, descriptor: &str) -> Option<(u32, Unit, String)> {
    let entries = entries(descriptor);
    let found = descriptors.find(domain, &entries)?;
    let (requests, unit) = found.limit.rate.unwrap_or((u32::MAX, Unit::Year));
    Some((requests, unit, found.path(domain, &entries)))
}

const BASIC: &str = include_str!("tests/basic.yaml");

#[test]
fn a_limit_is_found_entry_by_entry_and_only_at_the_last() {
    let descriptors = valid(BASIC);
    let some = |requests, unit, path: &str| Some((requests, unit, path.to_owned()));
    for (domain, descriptor, expected) in [
        ("unknown", "key2=x", None),
        ("d", "unknown=x", None),
        ("d", "key1=value1", None),
        (
            "d",
            "key1=value1, subkey1=x",
            some(5, Unit::Second, "d.key1_value1.subkey1"),
        ),
        (
            "d",
            "key1=value1, subkey1=subvalue1",
            some(10, Unit::Second, "d.key1_value1.subkey1_subvalue1"),
        ),
        ("d", "key1=value1, subkey1=x, more=y", None),
        // There is no way back from the value of its own to the key alone.
        ("d", "key1=value1, other=x", None),
        ("d", "key1=elsewhere, other=x", some(7, Unit::Minute, "d.key1.other")),
        ("d", "key2=", some(20, Unit::Minute, "d.key2")),
        ("d", "key2=x", some(20, Unit::Minute, "d.key2")),
        ("d", "key2=value2", some(30, Unit::Hour, "d.key2_value2")),
        ("d", "key2=white", None),
        ("d", "key2=x, key3=y", None),
        ("d", "key3=x", some(1, Unit::Day, "d.key3")),
        ("d", "key4=x", some(u32::MAX, Unit::Year, "d.key4")),
        ("d", "odd=42", some(2, Unit::Minute, "d.odd_42")),
        ("d", "odd=true", some(3, Unit::Minute, "d.odd_true")),
        ("d", "odd=x", some(4, Unit::Minute, "d.odd")),
        // An empty value is looked for with its underscore first.
        ("d", "empty=", some(6, Unit::Minute, "d.empty_")),
        ("d", "empty=x", some(5, Unit::Minute, "d.empty")),
        ("d", "none=x", None),
        ("d", "week=x", some(1, Unit::Week, "d.week")),
        ("d", "month=x", some(1, Unit::Month, "d.month")),
        ("d", "year=x", some(0, Unit::Year, "d.year")),
    ] {
        assert_eq!(
            found(&descriptors, domain, descriptor),
            expected,
            "{domain} {descriptor}"
        );
    }
    assert!(descriptors.find("d", &[]).is_none());
}

const WILD: &str = include_str!("tests/wild.yaml");

#[test]
fn the_first_pattern_that_fits_is_taken_behind_the_exact_value() {
    let descriptors = valid(WILD);
    for (descriptor, requests, path) in [
        ("path=/a/x", 1, "d.path_/a/*"),
        ("path=/a/bc", 1, "d.path_/a/*"),
        ("path=/a/exact", 3, "d.path_/a/exact"),
        ("path=/a/b*", 2, "d.path_/a/b*"),
        ("path=/other", 4, "d.path"),
        ("told=tx", 5, "d.told_tx"),
        ("told=x", 6, "d.told_x"),
        ("told=", 6, "d.told"),
        ("shared=s1, leaf=", 7, "d.shared_s*.leaf"),
        ("shared=sx, leaf=y", 7, "d.shared_s*.leaf_y"),
        ("starlight=x", 8, "d.star*"),
        ("file=a.png", 9, "d.file_*.png"),
        ("file=.png", 9, "d.file_*.png"),
        ("between=a1b2c", 10, "d.between_a*b*c"),
    ] {
        let found = found(&descriptors, "d", descriptor);
        assert_eq!(found, Some((requests, Unit::Minute, path.to_owned())), "{descriptor}");
    }
}

#[test]
fn a_shared_pattern_is_counted_as_one_value() {
    let descriptors = valid(WILD);
    let counted = |descriptor| {
        let entries = entries(descriptor);
        let found = descriptors.find("d", &entries).unwrap();
        let values: Vec<String> = found
            .counted_values(&entries)
            .map(|(_, value)| String::from_utf8(value.to_vec()).unwrap())
            .collect();
        values
    };
    assert_eq!(counted("shared=sx, leaf=y"), ["s*", "y"]);
    assert_eq!(counted("file=a.png"), ["*.png"]);
    assert_eq!(counted("path=/a/x"), ["/a/x"]);
}

#[test]
fn limits_are_listed_under_their_whole_names() {
    let descriptors = valid(BASIC);
    let names: Vec<String> = descriptors.limits().into_iter().map(|(name, _)| name).collect();
    assert!(names.is_sorted());
    assert!(
        names.contains(&"d.key1_value1.subkey1_subvalue1".to_owned()),
        "{names:?}"
    );
    assert_eq!(names.len(), 15);
}

#[test]
fn what_cannot_be_used_is_told_in_the_words_its_users_know() {
    let limit = "rate_limit: { unit: minute, requests_per_unit: 1 }";
    for (text, expected) in [
        ("descriptors: []", "config file cannot have empty domain"),
        ("domain: \"\"", "config file cannot have empty domain"),
        ("", "config file cannot have empty domain"),
        (
            "- domain: d\n",
            "error loading config file: expected a map with `domain` and `descriptors`, found a list",
        ),
        (
            "d",
            "error loading config file: expected a map with `domain` and `descriptors`, found a text",
        ),
        ("domain: d\ndescriptors: [{ value: x }]", "descriptor has empty key"),
        (
            "domain: d\ndescriptors: [{ key: key1, value: value1 }, { key: key1, value: value1 }]",
            "duplicate descriptor composite key 'd.key1_value1'",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, value: b_c }, { key: a_b, value: c }]",
            "duplicate descriptor composite key 'd.a_b_c'",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: foo, requests_per_unit: 1 } }]",
            "invalid rate limit unit 'foo'",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: unknown, requests_per_unit: 1 } }]",
            "invalid rate limit unit 'unknown'",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { requests_per_unit: 1 } }]",
            "invalid rate limit unit ''",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, unlimited: true } }]",
            "should not specify rate limit unit when unlimited",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, name: n, replaces: [{ name: n }] } }]",
            "replaces should not contain name of same descriptor",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, replaces: [{ name: \"\" }] } }]",
            "should not have an empty replaces entry",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, ratelimit: {} }]",
            "config error, unknown key 'ratelimit'",
        ),
        ("domain: d\n0.25: a", "config error, key is not of type string: 0.25"),
        (
            "domain: d\ndescriptors: [a]",
            "config error, yaml file contains list of type other than map: a",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1.5 } }]",
            "error checking config",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, metadata: [x], rate_limit: { unit: day } }]",
            "error loading config file: expected `metadata`, which is a map, found a list",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: abc } }]",
            "error loading config file: `abc` is not a number of requests",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, shadow_mode: 5, rate_limit: { unit: day } }]",
            "error loading config file: expected true or false, found a number",
        ),
        (
            "domain: d\ndescriptors: 5",
            "error loading config file: expected a list of descriptors, found a number",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, replaces: b } }]",
            "error loading config file: expected a list of names, found a text",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, value: b, share_threshold: true }]",
            "share_threshold can only be used with wildcard values (containing '*'), but found key 'a_b'",
        ),
    ] {
        let problems = read(false, &[text]).expect_err(text);
        assert!(
            problems.iter().any(|problem| problem == expected),
            "{text}\n{problems:?}"
        );
    }
    let file = format!("domain: d\ndescriptors: [{{ key: a, {limit} }}]");
    let other = format!("domain: d\ndescriptors: [{{ key: b, {limit} }}]");
    let problems = read(false, &[&file, &other]).unwrap_err();
    assert_eq!(problems, ["duplicate domain 'd' in config file"]);
    let problems = read(true, &[&file, &file]).unwrap_err();
    assert_eq!(problems, ["duplicate descriptor composite key 'd.a'"]);
    let (merged, _) = read(true, &[&file, &other]).unwrap();
    assert!(found(&merged, "d", "a=x").is_some() && found(&merged, "d", "b=x").is_some());
}

#[test]
fn what_is_no_yaml_is_told_in_the_words_its_users_know() {
    let nested = format!("domain: d\ndescriptors: {}", "[{ key: a, descriptors: ".repeat(20));
    for text in [
        "domain: [",
        "domain: d\n\tdescriptors: []",
        "domain: d\ndomain: e",
        &nested,
    ] {
        let problems = super::parse(&Origin::new("d.yaml", text)).expect_err(text);
        for problem in problems {
            assert!(
                problem.text.starts_with("error loading config file: "),
                "{text}: {problem}"
            );
        }
    }
}

#[test]
fn numbers_flags_and_levels_are_those_that_the_guide_tells() {
    let limit = |requests: &str| {
        let file = format!(
            "domain: d\ndescriptors: [{{ key: a, rate_limit: {{ unit: day, requests_per_unit: {requests} }} }}]"
        );
        found(&valid(&file), "d", "a=x").map(|(requests, ..)| requests)
    };
    for (text, requests) in [
        ("010", 8),
        ("1_000", 1_000),
        ("0x10", 16),
        ("0b11", 3),
        ("0o17", 15),
        ("08", 8),
    ] {
        assert_eq!(limit(text), Some(requests), "{text}");
    }
    for (flag, expected) in [
        ("yes", true),
        ("On", true),
        ("y", true),
        ("true", true),
        ("no", false),
        ("OFF", false),
    ] {
        let file = format!("domain: d\ndescriptors: [{{ key: a, shadow_mode: {flag}, rate_limit: {{ unit: day }} }}]");
        let descriptors = valid(&file);
        let is_shadow = descriptors.find("d", &entries("a=x")).unwrap().limit.shadow;
        assert_eq!(is_shadow, expected, "{flag}");
    }
    let file = "domain: d\ndescriptors: [{ key: a, shadow_mode: perhaps, rate_limit: { unit: day } }]";
    let problems = read(false, &[file]).unwrap_err();
    assert!(problems[0].starts_with("error loading config file: `"), "{problems:?}");
    // As a value it stays what was written.
    let descriptors = valid("domain: d\ndescriptors: [{ key: a, value: yes, rate_limit: { unit: day } }]");
    assert!(found(&descriptors, "d", "a=yes").is_some() && found(&descriptors, "d", "a=true").is_none());
    let nested = |levels: usize| {
        let open = "[{ key: a, descriptors: ".repeat(levels - 1);
        let file = format!(
            "domain: d\ndescriptors: {open}[{{ key: a }}]{}",
            "}]".repeat(levels - 1)
        );
        super::parse(&Origin::new("d.yaml", file)).is_ok()
    };
    assert!(nested(15) && !nested(16));
}

#[test]
fn anchors_are_expanded_and_only_the_first_document_is_read() {
    let file = "domain: d
descriptors:
- key: a
  rate_limit: &daily { unit: day, requests_per_unit: 5 }
- key: b
  rate_limit: *daily
- key: c
  rate_limit: { <<: *daily, requests_per_unit: 7 }
- key: e
  rate_limit: { requests_per_unit: 7, <<: [{ unit: hour }, *daily] }
";
    let documents = [
        (file.to_owned(), 0),
        (format!("---\n{file}---\n"), 0),
        (format!("{file}...\n"), 0),
        (format!("{file}---\ndomain: other\n"), 1),
        (format!("{file}---\n[\n"), 1),
    ];
    for (text, warnings) in documents {
        let (descriptors, found_warnings) = read(false, &[&text]).unwrap_or_else(|problems| panic!("{problems:?}"));
        let ignored = |warning: &&String| warning.contains("only the first is read");
        assert_eq!(
            found_warnings.iter().filter(ignored).count(),
            warnings,
            "{text}\n{found_warnings:?}"
        );
        for (descriptor, requests, unit) in [
            ("a=x", 5, Unit::Day),
            ("b=x", 5, Unit::Day),
            ("c=x", 7, Unit::Day),
            ("e=x", 5, Unit::Hour),
        ] {
            let (found_requests, found_unit, _) = found(&descriptors, "d", descriptor).unwrap();
            assert_eq!((found_requests, found_unit), (requests, unit), "{descriptor}");
        }
        assert!(found(&descriptors, "other", "a=x").is_none());
    }
}

#[test]
fn aliases_of_aliases_are_expanded_up_to_a_bound() {
    let mut laughs = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for level in 'b'..='z' {
        let below = char::from_u32(level as u32 - 1).unwrap();
        laughs += &format!("{level}: &{level} [{}]\n", vec![format!("*{below}"); 9].join(", "));
    }
    let mut deep = String::from("k0: &k0 [x]\n");
    for level in 1..40 {
        deep += &format!("k{level}: &k{level} [*k{}]\n", level - 1);
    }
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 100].join(", "));
    for (text, expected) in [
        (&*laughs, "the aliases stand for more than 100000 values"),
        (&long, "the aliases stand for more than 100000 values"),
        (&deep, "deep"),
        ("a: &a [*a]\n", "no value has this anchor"),
        ("a: *nowhere\n", "no value has this anchor"),
    ] {
        let problems = super::parse(&Origin::new("d.yaml", text)).expect_err(text);
        let found = problems.iter().map(ToString::to_string).collect::<String>();
        assert!(
            found.contains(expected) && found.contains("error loading config file: "),
            "{found}"
        );
    }
}

#[test]
fn anything_may_stand_below_metadata() {
    let descriptors = valid(
        "domain: d\ndescriptors:\n- key: a\n  metadata: { plan: { anything: [1, 2.5] } }\n  \
         rate_limit: { unit: day, requests_per_unit: 1 }\n",
    );
    let entries = entries("a=x");
    assert!(descriptors.find("d", &entries).unwrap().limit.metadata.is_some());
}

#[test]
fn what_is_hardly_meant_is_warned_of() {
    let limit = "rate_limit: { unit: minute, requests_per_unit: 1 }";
    for (text, begins) in [
        (
            format!("domain: d\ndescriptors: [{{ key: a, value: b*, {limit} }}, {{ key: a, value: bc*, {limit} }}]"),
            "`a_bc*` is never reached by a pattern",
        ),
        (
            format!("domain: d\ndescriptors: [{{ key: a, {limit} }}, {{ key: a_b, value: c, {limit} }}]"),
            "`a_b_c` also takes requests whose key is `a` and whose value is `b_c`",
        ),
        (
            format!(
                "domain: d\ndescriptors:\n- {{ key: a, value: v, descriptors: [{{ key: x, {limit} }}] }}\n\
                 - {{ key: a, descriptors: [{{ key: y, {limit} }}] }}"
            ),
            "requests of `a_v` do not reach `y` below `a`",
        ),
        (
            "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, name: 'say \"a\"' } }]".to_owned(),
            "the name `say \"a\"` is left out of responses",
        ),
        (
            format!(
                "domain: d\ndescriptors:\n- {{ key: tenant, value: vip, {limit} }}\n\
                 - {{ key: tenant, descriptors: [{{ key: path, {limit} }}] }}"
            ),
            "requests of `tenant_vip` do not reach `path` below `tenant`",
        ),
        (
            format!("domain: d\ndescriptors: [{{ key: path, {limit} }}, {{ key: path, value: '*', {limit} }}]"),
            "`path` is never reached: every value of this key matches `path_*`",
        ),
        (
            format!("domain: d\ndescriptors: [{{ key: path, {limit} }}, {{ key: 'pa*', {limit} }}]"),
            "`path` is never reached: every value of this key matches `pa*`",
        ),
        (
            format!("domain: d\nunit: day\ndescriptors: [{{ key: a, {limit} }}]"),
            "`unit` has no effect in a file",
        ),
    ] {
        let (_, warnings) = read(false, &[&text]).unwrap();
        assert!(
            warnings.iter().any(|warning| warning.starts_with(begins)),
            "{text}\n{warnings:?}"
        );
    }
    let (_, warnings) = read(false, &[WILD]).unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    // An exception, and patterns that do not fit every value.
    let valid_file = format!(
        "domain: d\ndescriptors:\n- {{ key: tenant, value: vip }}\n- {{ key: tenant, descriptors: [{{ key: x, {limit} }}] }}\n\
         - {{ key: path, {limit} }}\n- {{ key: path, value: '/*', {limit} }}\n- {{ key: '*_x', {limit} }}"
    );
    let (_, warnings) = read(false, &[&valid_file]).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn converted_rules_can_be_read_and_mean_what_they_can() {
    for (file, rules, words) in [
        (BASIC, 11, "- { key2: value2, limit: 30/h }"),
        (BASIC, 11, "- { key2: white, limit: unlimited }"),
        (BASIC, 11, "- { subkey1: subvalue1, limit: 10/s }"),
        (WILD, 8, "# Not converted: a key with a star"),
        (WILD, 8, "when: { path: \"/a/*\" }\n  per: [path]"),
        (WILD, 8, "when: { shared: \"s*\" }\n  per: [leaf]"),
        ("domain: \"a: b\"", 0, "rules: []"),
    ] {
        let text = valid(file).as_rules();
        assert!(text.contains(words), "{text}");
        let set = crate::rules::sample(&text);
        assert_eq!(set.rules().len(), rules, "{text}");
    }
    let named = "domain: d\ndescriptors:\n- { key: \"it is a \\\"key\\\"\", quota_mode: true, \
                 rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: x }] } }";
    let text = valid(named).as_rules();
    assert!(
        text.contains("# quota_mode has no equivalent") && text.contains("# replaces has no"),
        "{text}"
    );
    assert_eq!(
        crate::rules::sample(&text).rules()[0].per()[0].attribute(),
        "it is a \"key\""
    );
}

#[test]
fn a_limit_may_be_one_of_our_own() {
    let file = |limit: &str| format!("domain: d\ndescriptors:\n- key: a\n  rate_limit: {{ {limit} }}\n");
    for (limit, means) in [
        ("limit: 100/10s", "limit: 100/10s\n  algorithm: token_bucket"),
        (
            "limit: 100/s burst 20, algorithm: gcra, name: n",
            "limit: 100/s burst 20\n  algorithm: gcra",
        ),
        (
            "unit: month, requests_per_unit: 100, algorithm: sliding_counter",
            "limit: 100/30day\n  algorithm: sliding_counter",
        ),
        (
            "limit: 10/min, algorithm: sliding_log, min_interval: 50ms",
            "limit: 10/min\n  algorithm: sliding_log\n  min_interval: \"50ms\"",
        ),
        (
            "limit: 5/s, algorithm: leaky_bucket, shape: true",
            "limit: 5/s\n  algorithm: leaky_bucket\n  shape: true",
        ),
        (
            "limit: 20, algorithm: concurrency, lease_ttl: 5s",
            "limit: 20\n  algorithm: concurrency\n  lease_ttl: \"5s\"",
        ),
        (
            "unit: day, requests_per_unit: 9, algorithm: fixed_window",
            "limit: 9/day\n  algorithm: fixed_window",
        ),
    ] {
        let descriptors = valid(&file(limit));
        let (_, held) = descriptors.limits().remove(0);
        let exact = held.native.as_ref().expect("a limit of our own");
        assert_eq!(held.rate, None);
        let text = descriptors.as_rules();
        assert!(text.contains(means), "{text}");
        // What it is converted to is the same limit.
        let set = crate::rules::sample(&text);
        assert_eq!(set.counters()[0].limit, exact.limit, "{text}");
    }
    for (limit, expected, column) in [
        ("algorithm: gcra", "an algorithm needs a limit", 15),
        ("algorithm: gcra, unit: day", "an algorithm needs a limit", 15),
        ("limit: 5/s, unit: day", "`unit` cannot be combined with `limit`", 29),
        (
            "limit: 5/s, unlimited: true",
            "`unlimited` cannot be combined with `limit`",
            29,
        ),
        ("limit: 5/s, algorithm: bucket", "`bucket` is not an algorithm", 40),
        ("limit: often", "`often` is not a limit", 24),
        (
            "limit: [5/s, 10/min]",
            "expected one limit like 100/min, found a list",
            24,
        ),
        ("limit: 0/s", "a ban needs no algorithm", 24),
        ("limit: unlimited", "what is not limited needs no algorithm", 24),
        (
            "limit: 5/s burst 9, algorithm: fixed_window",
            "`fixed_window` takes no burst",
            24,
        ),
        (
            "limit: 5/s, shape: true",
            "`shape` is an option of `leaky_bucket`, and this is `token_bucket`",
            29,
        ),
        ("limt: 5/s", "config error, unknown key 'limt'", 17),
    ] {
        let mut files = DescriptorFiles::new(false);
        let origin = Origin::new("d.yaml", file(limit));
        files.add_file(&super::parse(&origin).unwrap());
        let problems = files.finish().expect_err(limit);
        let found: Vec<String> = problems
            .iter()
            .map(|problem| format!("{}: {}", problem.location, problem.text))
            .collect();
        assert!(
            found.contains(&format!("d.yaml:4:{column}: {expected}")),
            "{limit} {found:?}"
        );
    }
    let elsewhere = "domain: d\ndescriptors: [{ key: a, limit: 5/s }]";
    assert_eq!(
        read(false, &[elsewhere]).unwrap_err(),
        ["config error, unknown key 'limit'"]
    );
}

#[test]
fn rules_of_several_domains_name_theirs() {
    let file = |domain| {
        format!("domain: {domain}\ndescriptors: [{{ key: a, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]")
    };
    let (both, _) = read(false, &[&file("one"), &file("two")]).unwrap();
    let set = crate::rules::sample(&both.as_rules());
    let domains: Vec<_> = set.rules().iter().map(crate::rules::Rule::domain).collect();
    assert_eq!(domains, ["one", "two"]);
}

#[test]
fn a_share_of_what_is_counted_is_held_against_a_share_of_the_limit() {
    use crate::rules::{Attempt, ParserOptions, RulesParser};
    use crate::settle::Outcome;
    use crate::{Cost, Decision, LeaseId, Limit, Micros, Receipt, Source, Standing};
    use std::num::NonZeroU64;

    let mut reader = RulesParser::new(ParserOptions::default());
    let file = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: minute, requests_per_unit: 100 } }]";
    reader.set_descriptors(valid(file), super::RatelimitOptions::default());
    let set = reader.finish().unwrap().rules;
    let attempt = Attempt {
        domain: "d",
        attributes: &entries("a=x"),
        cost: Cost::ONE,
    };
    let plan = || set.plan(&attempt, |_, _| ());
    let whole = plan().charges().next().unwrap().charge.limit;
    let (part, of) = (NonZeroU64::new(2).unwrap(), NonZeroU64::new(5).unwrap());
    let is_allowed = |limit: Limit, used: u64| {
        let standing = Standing {
            limit: limit.capacity(),
            remaining: limit.capacity() - used,
            reset_after: Micros::from_secs(1),
        };
        let mut plan = plan();
        plan.record([Ok(Outcome {
            decision: Decision::allow(standing),
            receipt: Receipt::without_mark(Cost::ONE, LeaseId::default()),
            source: Source::Memory,
        })]);
        plan.verdict(Source::Memory).allowed
    };
    assert!(is_allowed(whole, 100) && !is_allowed(whole, 101));
    let share = whole.portion(part, of);
    assert!(is_allowed(share, 39) && !is_allowed(share, 41));
}
