mod counters;

use super::*;
use crate::control::model::OverrideRow;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{ParserOptions, RulesParser};
use tollgate_limiter::core::yaml;

fn rules(text: &str) -> RuleSet {
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&yaml::parse(&Origin::new("rules.yaml", text)).expect("yaml"));
    parser.finish().expect("sound rules").rules
}

fn plan(live: &str, next: &str) -> ChangePlan {
    ChangePlan::between(&rules(live), &rules(next))
}

/// The differences between two spellings of one rule, each with its effect.
fn lines(live: &str, next: &str) -> Vec<(String, String)> {
    let rule = |text: &str| format!("rules: [{{ id: r, {text} }}]");
    let plan = plan(&rule(live), &rule(next));
    plan.lines.into_iter().map(|line| (line.what, line.effect)).collect()
}

#[test]
fn a_plan_reads_as_the_specification_writes_it() {
    let live = "rules:
- { id: search, per: user, algorithm: token_bucket, limit: 200/min }
- { id: merchant-plan, per: merchant, limit: 100/min }
- { id: legacy-ceiling, algorithm: sliding_counter, limit: 1000/min }
- { id: same, per: user, when: { a: [x, y] }, limit: 60/min }
";
    let next = "rules:
- { id: merchant-plan, per: merchant, limit: 60/min }
- { id: search, per: user, algorithm: sliding_log, limit: 200/min }
- { id: exports, limit: 10/min }
- { id: same, limit: 60/60s, when: { a: [y, x] }, per: user }
";
    let rows = |count: usize, terms: &str| -> Vec<OverrideRow> {
        let row = |index: usize| OverrideRow {
            domain: "default".into(),
            rule: "merchant-plan".into(),
            subject: [("merchant".to_owned(), format!("m_{index}"))].into(),
            terms: terms.into(),
            note: String::new(),
            expires_at: 0,
            revision: 1,
            actor: "anna".into(),
        };
        (0..count).map(row).collect()
    };
    let all = [rows(37, "20000/min"), rows(5, "10/min"), rows(2, "0/min")].concat();
    let mut plan = plan(live, next).with_rows(&rules(next), &all, |_| false);
    plan.format = 3;
    (plan.supported, plan.instances) = (12, 12);
    assert_eq!(
        plan.to_string(),
        "\
~ default/merchant-plan   limit 100/min -> 60/min      stricter; usage is kept
~ default/search          token_bucket -> sliding_log  counters restart: up to 200 more per user, once
+ default/exports         new
- default/legacy-ceiling  removed                      counters expire within 2 min
! 37 override rows of default/merchant-plan are above the new limit (list: --rows)
plan: 2 changed, 1 added, 1 removed, 1 unchanged; format 3, supported by 12 of 12 instances"
    );
    let listed = plan.text_with_rows();
    assert!(
        listed.contains("above the new limit\n    merchant=m_0  20000/min\n"),
        "{listed}"
    );
    let json = serde_json::to_string(&plan).expect("plain data");
    assert_eq!(serde_json::from_str::<ChangePlan>(&json).expect("its own form"), plan);
}

#[test]
fn equal_meanings_are_no_changes() {
    let live = "rules: [{ id: a, per: ip, limit: [5/s, 100/min], cost: 1 }, { id: b, limit: 0/min }]";
    let next = "rules: [{ id: b, limit: 0/h }, { id: a, limit: [100/60s, 5/1s], per: [ip] }]";
    let plan = plan(live, next);
    assert!(plan.is_empty());
    assert_eq!((plan.unchanged, plan.to_string().as_str()), (2, "no changes"));
}

#[test]
fn each_difference_states_its_effect() {
    let stricter = "stricter; usage is kept";
    let looser = "looser; usage is kept";
    for (live, next, what, effect) in [
        ("limit: 100/min", "limit: 60/min", "limit 100/min -> 60/min", stricter),
        ("limit: 100/min", "limit: 101/min", "limit 100/min -> 101/min", looser),
        (
            "limit: 100/min burst 5",
            "limit: 90/min burst 9",
            "limit 100/min burst 5 -> 90/min burst 9",
            stricter,
        ),
        (
            "per: user, limit: 100/min",
            "per: user, limit: 90/h",
            "limit 100/min -> 90/h",
            "counters restart: up to 90 more per user, once",
        ),
        (
            "limit: 100/min",
            "algorithm: fixed_window, limit: 90/min",
            "token_bucket 100/min -> fixed_window 90/min",
            "counters restart: up to 90 more, once",
        ),
        (
            "limit: 9/s",
            "limit: [9/s, 100/min]",
            "limit 9/s -> [9/s, 100/min]",
            stricter,
        ),
        (
            "limit: [9/s, 100/min]",
            "limit: 9/s",
            "limit [9/s, 100/min] -> 9/s",
            looser,
        ),
        (
            "limit: unlimited",
            "limit: 9/s",
            "limit unlimited -> 9/s",
            "starts to deny",
        ),
        (
            "limit: 9/s",
            "limit: unlimited",
            "limit 9/s -> unlimited",
            "no longer denies",
        ),
        ("limit: 9/s", "limit: 0/s", "limit 9/s -> 0/s", stricter),
        ("limit: 0/s", "limit: 9/s", "limit 0/s -> 9/s", looser),
        (
            "limit: 9/s",
            "limit: 9/s, mode: shadow",
            "mode enforce -> shadow",
            "no longer denies",
        ),
        (
            "limit: 9/s, mode: shadow",
            "limit: 9/s",
            "mode shadow -> enforce",
            "starts to deny",
        ),
        (
            "limit: 9/s, mode: shadow",
            "limit: 9/s, mode: disabled",
            "mode shadow -> disabled",
            "",
        ),
        (
            "limit: 9/s, when: { a: x }",
            "limit: 9/s, when: { a: y, b: z }",
            "when a, b",
            "applies to other requests",
        ),
        (
            "per: user, limit: 9/s",
            "per: [user, city], limit: 9/s",
            "per user -> user, city",
            "counters restart: up to 9 more per user and city, once",
        ),
        (
            "per: user, limit: 9/s",
            "limit: 9/s",
            "per user -> one counter",
            "counters restart: up to 9 more, once",
        ),
        ("limit: 9/s", "limit: 9/s, cost: 2", "cost 1 -> 2", stricter),
        (
            "limit: 9/s",
            "limit: 9/s, on_store_failure: closed",
            "on_store_failure local -> closed",
            "",
        ),
        (
            "limit: 9/s",
            "limit: 9/s, spread: false",
            "spread by default -> false",
            "",
        ),
        (
            "limit: 9/s",
            "limit: 9/s, reserve: { share: 20%, for: { priority: critical } }",
            "reserve none -> 20% for priority = `critical`",
            stricter,
        ),
        (
            "limit: 9/s, reserve: { share: 20%, for: { priority: critical } }",
            "limit: 9/s",
            "reserve 20% for priority = `critical` -> none",
            looser,
        ),
        (
            "limit: 9/s, reserve: { share: 20%, for: { priority: critical } }",
            "limit: 9/s, reserve: { share: 10%, for: { priority: critical }, lend: true }",
            "reserve 20% for priority = `critical` -> 10% for priority = `critical`, lent",
            looser,
        ),
        (
            "limit: 9/s, reserve: { share: 20%, for: { priority: critical } }",
            "limit: 9/s, reserve: { share: 20%, for: { priority: [critical, high] } }",
            "reserve 20% for priority = `critical` -> 20% for priority = `critical` or `high`",
            "applies to other requests",
        ),
        (
            "algorithm: sliding_log, limit: 9/s",
            "algorithm: sliding_log, limit: 9/s, min_interval: 50ms",
            "min_interval none -> 50ms",
            stricter,
        ),
        (
            "algorithm: concurrency, limit: 9, lease_ttl: 30s",
            "algorithm: concurrency, limit: 9, lease_ttl: 10s",
            "lease_ttl 30s -> 10s",
            looser,
        ),
        (
            "per: user, limit: 9/s",
            "per: user, limit: 9/s, experiment: { share: 10%, limit: 5/s }",
            "experiment for 10%",
            "counters restart: up to 5 more per user, once",
        ),
        (
            "per: user, limit: 9/s, by: { tier: { gold: 50/s } }",
            "per: user, limit: 9/s, by: { tier: { gold: 60/s } }",
            "tier=gold 50/s -> 60/s",
            looser,
        ),
        (
            "per: user, limit: 9/s, overrides: [{ user: u_1, limit: 5/s }]",
            "per: user, limit: 9/s",
            "user=u_1 5/s -> 9/s",
            looser,
        ),
    ] {
        assert_eq!(
            lines(live, next),
            [(what.to_owned(), effect.to_owned())],
            "{live} to {next}"
        );
    }
}

/// Another algorithm is one line, and 50 more may pass.
fn check_restart(limits: &str) {
    assert_eq!(
        lines(limits, &format!("algorithm: gcra, {limits}")),
        [(
            "token_bucket -> gcra".to_owned(),
            "counters restart: up to 50 more per user, once".to_owned()
        )]
    );
}

#[test]
fn another_algorithm_is_one_line_and_not_one_for_each_tier() {
    check_restart("per: user, limit: 9/s, by: { tier: { gold: 50/s, free: 1/s } }");
}

#[test]
fn another_algorithm_is_named_where_the_default_counts_nothing() {
    check_restart("per: user, limit: unlimited, by: { tier: { gold: 50/s } }");
}

#[test]
fn the_larger_of_two_new_windows_bounds_what_is_gained() {
    assert_eq!(
        lines("per: user, limit: 9/s", "per: user, limit: [5/10s, 100/h]"),
        [(
            "limit 9/s -> [5/10s, 100/h]".to_owned(),
            "counters restart: up to 100 more per user, once".to_owned()
        )]
    );
}

#[test]
fn very_many_changed_overrides_are_counted_and_not_listed() {
    let overrides = |limit: &str| {
        let entries: Vec<String> = (0..50).map(|n| format!("{{ user: u_{n}, limit: {limit} }}")).collect();
        format!("per: user, limit: 9/s, overrides: [{}]", entries.join(", "))
    };
    let found = lines(&overrides("1/s"), &overrides("2/s"));
    assert_eq!(found.len(), 21);
    assert_eq!(
        found.last().map(|(what, _)| what.as_str()),
        Some("30 more limits of single subjects")
    );
}

#[test]
fn rows_of_a_removed_rule_and_invalid_ones_are_named() {
    let row = |rule: &str, terms: &str| OverrideRow {
        domain: "default".into(),
        rule: rule.into(),
        subject: [("user".to_owned(), "u_1".to_owned())].into(),
        terms: terms.into(),
        note: String::new(),
        expires_at: 0,
        revision: 1,
        actor: "anna".into(),
    };
    let live = rules("rules: [{ id: a, per: user, limit: 9/s }, { id: b, per: user, limit: 9/s }]");
    let next = rules("rules: [{ id: b, per: user, algorithm: fixed_window, limit: 9/s }]");
    let rows = [row("a", "1/s"), row("b", "5/s burst 9"), row("b", "5/s")];
    let plan = ChangePlan::between(&live, &next).with_rows(&next, &rows, |index| index == 1);
    let text = plan.to_string();
    for (rule, what) in [("a", "kept without a rule"), ("b", "invalid under the new rule")] {
        let line = format!("! 1 override row of default/{rule} is {what} (list: --rows)\n");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn a_row_is_above_a_limit_if_all_its_windows_are() {
    let row = |terms: &str| OverrideRow {
        domain: "default".into(),
        rule: "r".into(),
        subject: [("user".to_owned(), terms.to_owned())].into(),
        terms: terms.into(),
        note: String::new(),
        expires_at: 0,
        revision: 1,
        actor: "anna".into(),
    };
    let listed = |live: &str, next: &str, rows: &[&str]| -> Vec<String> {
        let rule = |options: &str| rules(&format!("rules: [{{ id: r, per: user, {options} }}]"));
        let rows: Vec<OverrideRow> = rows.iter().map(|terms| row(terms)).collect();
        let plan = ChangePlan::between(&rule(live), &rule(next)).with_rows(&rule(next), &rows, |_| false);
        let samples = plan.rows.into_iter().flat_map(|note| note.sample);
        samples.map(|sample| sample.terms).collect()
    };
    let rows = ["9/s", "[9/s, 60/min]", "[9/s, 101/min]", "unlimited", "0/min", "200/h"];
    assert_eq!(
        listed("limit: [20/s, 200/min]", "limit: [9/s, 100/min]", &rows),
        ["9/s", "[9/s, 101/min]", "unlimited"]
    );
    // Another algorithm or period may be a lower limit too.
    assert_eq!(
        listed(
            "limit: 100/min",
            "algorithm: fixed_window, limit: 60/min",
            &["70/min", "50/min"]
        ),
        ["70/min"]
    );
    assert_eq!(listed("limit: 100/min", "limit: 60/h", &["2/min", "1/min"]), ["2/min"]);
    // A higher limit leaves rows above it as they were.
    assert!(listed("limit: 100/min", "limit: 200/min", &["300/min"]).is_empty());
}

#[test]
fn text_of_a_server_cannot_control_the_terminal() {
    let mut plan = plan("rules: []", "rules: [{ id: r, limit: 9/s }]");
    plan.lines[0].rule = "r\u{1b}[31m\n".to_owned();
    let text = plan.to_string();
    assert!(text.starts_with("+ default/r\\u{1b}[31m\\n  new\n"), "{text}");
}
