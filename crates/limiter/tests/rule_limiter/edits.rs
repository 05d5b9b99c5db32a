//! Rules that are edited under live keys: which counters continue.

use super::{check, rules, stopped_store};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::testing::limits::COUNTING;

fn rule(algorithm: &str, terms: &str) -> String {
    format!("rules:\n- {{ id: plan, per: user, algorithm: {algorithm}, {terms} }}\n")
}

/// Checks with each of these terms in turn, on one store: the terms, the attributes, the cost, and the expected verdict.
fn check_edits(steps: &[(&str, &[&str], u64, &str)]) {
    for algorithm in COUNTING {
        let (store, _) = stopped_store();
        for (step, (terms, pairs, cost, expected)) in steps.iter().enumerate() {
            let limiter = RuleLimiter::new(rules(&rule(algorithm, terms)), Arc::clone(&store));
            let verdict = check(&limiter, pairs, *cost);
            assert_eq!(verdict, *expected, "{algorithm}, step {step}: {terms}");
        }
    }
}

#[test]
fn a_window_keeps_its_counter_when_it_joins_a_list_and_when_it_leaves() {
    check_edits(&[
        ("limit: 100/day", &["user=u"], 40, "allowed by plan: plan 60"),
        (
            "limit: [100/day, 50/min]",
            &["user=u"],
            10,
            "allowed by plan.1min: plan.1day 50 plan.1min 40",
        ),
        ("limit: 50/min", &["user=u"], 0, "allowed by plan: plan 40"),
        (
            "limit: [50/60s, 1000/h, 100/24h]",
            &["user=u"],
            5,
            "allowed by plan.1min: plan.1min 35 plan.1h 995 plan.1day 45",
        ),
        ("limit: [100/day]", &["user=u"], 0, "allowed by plan.1day: plan.1day 45"),
        ("limit: 100/day", &["user=u"], 0, "allowed by plan: plan 45"),
    ]);
}

#[test]
fn a_subject_keeps_its_usage_when_another_list_is_selected_for_it() {
    let terms = "limit: 100/day, by: { tier: { pro: [100/day, 50/min] } }, \
                 overrides: [{ user: v, limit: [100/day, 20/min] }]";
    check_edits(&[
        (terms, &["user=u"], 10, "allowed by plan: plan 90"),
        (
            terms,
            &["user=u", "tier=pro"],
            10,
            "allowed by plan.1min: plan.1day 80 plan.1min 40",
        ),
        (terms, &["user=u"], 10, "allowed by plan: plan 70"),
        (terms, &["user=v"], 15, "allowed by plan.1min: plan.1day 85 plan.1min 5"),
        (
            "limit: [100/day, 20/min]",
            &["user=v"],
            0,
            "allowed by plan.1min: plan.1day 85 plan.1min 5",
        ),
        (
            "limit: [100/day, 50/min]",
            &["user=u"],
            0,
            "allowed by plan.1min: plan.1day 70 plan.1min 40",
        ),
    ]);
}

#[test]
fn a_window_of_another_period_is_another_counter() {
    check_edits(&[
        ("limit: 100/min", &["user=u"], 100, "allowed by plan: plan 0"),
        ("limit: 100/60s", &["user=u"], 0, "allowed by plan: plan 0"),
        ("limit: 100/h", &["user=u"], 0, "allowed by plan: plan 100"),
    ]);
}

#[test]
fn the_counter_of_a_window_is_forgotten_by_its_name_in_a_list() {
    let terms = "limit: 100/day, by: { tier: { pro: [100/day, 50/min] } }";
    for algorithm in COUNTING {
        let (store, _) = stopped_store();
        let limiter = RuleLimiter::new(rules(&rule(algorithm, terms)), store);
        check(&limiter, &["user=u"], 10);
        let forgotten = super::forget(&limiter, &["user=u"], Some("plan.1day"));
        assert_eq!(forgotten, 1, "{algorithm}");
        assert_eq!(
            check(&limiter, &["user=u"], 0),
            "allowed by plan: plan 100",
            "{algorithm}"
        );
    }
}

#[test]
fn a_quota_of_a_month_lasts_until_the_month_ends_in_its_time_zone() {
    // 2026-02-12T00:00:00Z; the month ends in Berlin an hour before it does in UTC.
    let (store, clock) = stopped_store();
    let rule = |rest: &str| {
        let text = format!("rules:\n- {{ id: plan, per: user, algorithm: fixed_window, {rest} }}\n");
        RuleLimiter::new(rules(&text), Arc::clone(&store))
    };
    let berlin = rule("limit: 100/month, calendar: Europe/Berlin");
    assert_eq!(check(&berlin, &["user=u"], 100), "allowed by plan: plan 0");
    let hours = 17 * 24 - 1;
    let denied = |hours: u64| format!("denied by plan: plan 0 After(Micros({}))", hours * 3_600_000_000);
    assert_eq!(check(&berlin, &["user=u"], 1), denied(hours));
    // Another zone, a list, and no zone at all: what was used stays used.
    let new_york = rule("limit: 100/month, calendar: America/New_York");
    assert_eq!(check(&new_york, &["user=u"], 1), denied(hours + 6));
    assert_eq!(
        check(&rule("limit: 150/month"), &["user=u"], 0),
        "allowed by plan: plan 50"
    );
    let list = rule("limit: [100/month, 9/day], calendar: Europe/Berlin");
    assert_eq!(
        check(&list, &["user=u"], 0),
        "allowed by plan.1month: plan.1month 0 plan.1day 9"
    );
    // A month is not thirty days.
    assert_eq!(
        check(&rule("limit: 100/30day"), &["user=u"], 0),
        "allowed by plan: plan 100"
    );
    clock.advance(Micros::new(hours * 3_600_000_000 - 1));
    assert_eq!(
        check(&berlin, &["user=u"], 1),
        "denied by plan: plan 0 After(Micros(1))"
    );
    clock.advance(Micros::ONE);
    assert_eq!(check(&berlin, &["user=u"], 100), "allowed by plan: plan 0");
    assert_eq!(check(&berlin, &["user=u"], 1), denied(31 * 24 - 1));
}

#[test]
fn a_day_keeps_its_counter_when_it_gets_a_time_zone() {
    let (store, _) = stopped_store();
    for (rest, cost, expected) in [
        ("limit: 100/day", 40, "allowed by plan: plan 60"),
        ("limit: 100/day, calendar: Asia/Tokyo", 10, "allowed by plan: plan 50"),
        (
            "limit: 100/24h, calendar: Australia/Lord_Howe",
            0,
            "allowed by plan: plan 50",
        ),
    ] {
        let text = format!("rules:\n- {{ id: plan, per: user, algorithm: fixed_window, {rest} }}\n");
        let limiter = RuleLimiter::new(rules(&text), Arc::clone(&store));
        assert_eq!(check(&limiter, &["user=u"], cost), expected, "{rest}");
    }
}
