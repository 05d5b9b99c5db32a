//! The statements of a plan about counters, compared with what the limiter does when the rules are replaced.

use super::rules;
use crate::control::plan::effect::Effect;
use crate::control::plan::{ChangePlan, EffectKind, compare};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::rules::{Attempt, Attribute};
use tollgate_limiter::core::{Cost, Micros, Timestamp};
use tollgate_limiter::store::memory::Memory;

/// One subject under rules that are replaced while it uses all it may.
struct Subject {
    clock: Clock,
    store: Arc<Memory>,
}

impl Subject {
    fn new() -> Self {
        // Noon in UTC: no window of a day ends while a test runs.
        let clock = Clock::manual(Timestamp::from_micros(1_770_897_600_000_000));
        let store = Arc::new(Memory::options().clock(clock.clone()).build());
        Self { clock, store }
    }

    /// Uses all it may at this instant, and returns how much that was.
    fn exhaust(&self, text: &str) -> u64 {
        let limiter = RuleLimiter::new(rules(text), Arc::clone(&self.store));
        let attribute = |name, value: &'static str| Attribute {
            name,
            value: value.as_bytes(),
        };
        let attributes = [
            attribute("user", "u_1"),
            attribute("city", "Bern"),
            attribute("tier", "gold"),
        ];
        let attempt = Attempt {
            domain: "default",
            attributes: &attributes,
            cost: Cost::ONE,
        };
        let mut allowed = 0;
        while allowed < 10_000 && limiter.check_now(&attempt).verdict.allowed {
            allowed += 1;
        }
        allowed
    }

    /// Uses all it may for some steps of this length.
    fn saturate(&self, text: &str, steps: u64, step: Micros) -> u64 {
        let mut allowed = 0;
        for _ in 0..steps {
            allowed += self.exhaust(text);
            self.clock.advance(step);
        }
        allowed
    }
}

fn rule(options: &str) -> String {
    format!("rules: [{{ id: r, {options} }}]")
}

/// The largest restart that a plan states, and the texts of its effects.
fn stated(live: &str, next: &str) -> (u64, Vec<String>) {
    let (live, next) = (rules(live), rules(next));
    let plan = ChangePlan::between(&live, &next);
    let (Some(before), Some(after)) = (live.rules().first(), next.rules().first()) else {
        return (0, Vec::new());
    };
    let units = compare::differences(before, after)
        .into_iter()
        .map(|(_, effect)| match effect {
            Effect::Restart { units, .. } => units,
            _ => 0,
        });
    (
        units.max().unwrap_or(0),
        plan.lines.into_iter().map(|line| line.effect).collect(),
    )
}

const ALGORITHMS: [&str; 7] = [
    "token_bucket, limit: 20/min",
    "gcra, limit: 20/min",
    "fixed_window, limit: 20/min",
    "sliding_log, limit: 20/min",
    "sliding_counter, limit: 20/min",
    "leaky_bucket, limit: 20/min",
    "concurrency, limit: 20",
];

#[test]
fn another_algorithm_grants_exactly_the_stated_units_once() {
    for live in ALGORITHMS {
        for next in ALGORITHMS {
            let [live, next] = [live, next].map(|text| rule(&format!("per: user, algorithm: {text}")));
            let (units, effects) = stated(&live, &next);
            let subject = Subject::new();
            assert_eq!(subject.exhaust(&live), 20);
            assert_eq!(subject.exhaust(&next), units, "{live} to {next}: {effects:?}");
            assert_eq!(subject.exhaust(&next), 0, "once");
        }
    }
}

#[test]
fn a_restart_grants_at_most_the_stated_units_and_a_kept_counter_none() {
    for (live, next, gained) in [
        // Another period is another counter.
        ("per: user, limit: 100/min", "per: user, limit: 90/h", 90),
        ("per: user, limit: 20/min burst 5", "per: user, limit: 20/h burst 7", 7),
        // Another subject is another counter.
        ("per: user, limit: 9/min", "per: [user, city], limit: 9/min", 9),
        ("per: [user, city], limit: 9/min", "per: [city, user], limit: 7/min", 7),
        ("per: user, limit: 9/min", "limit: 12/min", 12),
        // Other numbers are not: what was used stays used.
        ("per: user, limit: 100/min", "per: user, limit: 60/min", 0),
        ("per: user, limit: 100/min", "per: user, limit: 1000/min", 900),
        (
            "algorithm: fixed_window, limit: 10/min",
            "algorithm: fixed_window, limit: 12/min",
            2,
        ),
        (
            "algorithm: concurrency, limit: 9",
            "algorithm: concurrency, limit: 11, lease_ttl: 10s",
            2,
        ),
        // Limits of single values and subjects.
        (
            "per: user, limit: 9/min, by: { tier: { gold: 50/min } }",
            "per: user, limit: 9/min, by: { tier: { gold: 60/h } }",
            60,
        ),
        (
            "per: user, limit: 9/min, by: { tier: { gold: 50/h } }",
            "per: user, limit: 9/min",
            9,
        ),
        (
            "per: user, limit: 9/min, overrides: [{ user: u_1, limit: 5/min }]",
            "per: user, limit: 9/min, overrides: [{ user: u_1, limit: 8/h }]",
            8,
        ),
        // A subject that enters or leaves an experiment has the counters of the other variant.
        (
            "per: user, limit: 9/min",
            "per: user, limit: 9/min, experiment: { share: 100%, limit: 5/min }",
            5,
        ),
        (
            "per: user, limit: 9/min, experiment: { share: 100%, limit: 5/min }",
            "per: user, limit: 9/min",
            9,
        ),
        // A day is a day in every calendar, and a month is not.
        (
            "algorithm: fixed_window, limit: 20/day, calendar: Europe/Berlin",
            "algorithm: fixed_window, limit: 20/day",
            0,
        ),
        (
            "algorithm: fixed_window, limit: 20/day",
            "algorithm: fixed_window, limit: 20/month",
            20,
        ),
        // A window that stays continues.
        ("limit: [9/min, 100/h]", "limit: [9/min, 50/day]", 0),
        ("limit: [9/min, 100/h]", "limit: 9/min", 0),
        ("limit: 9/min", "limit: [9/min, 100/h]", 0),
    ] {
        let subject = Subject::new();
        let (live, next) = (rule(live), rule(next));
        subject.exhaust(&live);
        let (units, effects) = stated(&live, &next);
        let found = subject.exhaust(&next);
        assert_eq!(found, gained, "{live} to {next}");
        let is_kept = effects
            .iter()
            .all(|effect| effect.is_empty() || effect.ends_with("; usage is kept"));
        assert!(
            found <= units || is_kept,
            "{found} more from {live} to {next}: {effects:?}"
        );
    }
}

/// A smaller window refills within the larger one, which is what a subject gains in the end.
#[test]
fn several_new_windows_grant_no_more_than_stated_in_the_long_run() {
    let (live, next) = (rule("limit: [9/s, 100/min]"), rule("limit: [5/10s, 100/h]"));
    let (step, hour) = (Micros::from_secs(10), 360);
    let subject = Subject::new();
    subject.saturate(&live, hour, step);
    let after_change = subject.saturate(&next, hour, step);
    let steady = subject.saturate(&next, hour, step);
    let (units, effects) = stated(&live, &next);
    let gained = after_change - steady;
    assert!(gained > 5 && gained <= units, "{gained} more: {effects:?}");
    assert_eq!(effects, ["counters restart: up to 100 more, once"]);
}

#[test]
fn counters_of_a_removed_rule_have_expired_after_the_stated_time() {
    let all = ALGORITHMS.map(|text| format!("per: user, algorithm: {text}"));
    let others = [
        "limit: 20/min burst 5",
        "limit: [5/s, 20/h]",
        "algorithm: concurrency, limit: 3, lease_ttl: 10s",
        "algorithm: fixed_window, limit: 20/month, calendar: Europe/Berlin",
        "per: user, limit: 20/s, by: { tier: { gold: 100/day } }",
    ];
    for options in all.into_iter().chain(others.map(str::to_owned)) {
        let text = rule(&options);
        let set = rules(&text);
        let (_, effect) = compare::removed(set.rules().first().expect("one rule"));
        let Effect::Expire(time) = effect else {
            panic!("{options}: {effect:?}")
        };
        let subject = Subject::new();
        let all = subject.exhaust(&text);
        subject.clock.advance(time);
        assert_eq!(subject.exhaust(&text), all, "{options}: {effect}");
    }
}

#[test]
fn a_plan_of_a_rule_that_restarts_claims_no_kept_usage() {
    for (live, next) in [
        ("per: user, limit: 100/min", "per: city, limit: 60/min, cost: 2"),
        ("per: user, limit: 100/min", "per: city, limit: 200/min"),
    ] {
        let plan = ChangePlan::between(&rules(&rule(live)), &rules(&rule(next)));
        let kinds: Vec<EffectKind> = plan.lines.iter().map(|line| line.effect_kind).collect();
        assert_eq!(kinds.first(), Some(&EffectKind::Restart));
        assert!(kinds.iter().skip(1).all(|kind| *kind == EffectKind::None), "{plan}");
    }
}
