//! Override rows and derived attributes under live keys: what a check, a refund and a forget obey.

use super::{attempt, check, forget, limiter};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::rules::{AttributeEdit, EditProblems, RowEdit};
use tollgate_limiter::core::testing::rules::{attributes, derived, rule_set};

const RULES: &str = "rules:\n- { id: plan, per: user, limit: 100/min, by: { tier: { gold: 500/min } } }\n";

fn row(rule: &str, user: &str, terms: Option<&str>) -> RowEdit {
    RowEdit::new("default", rule, [("user", user)], terms)
}

fn amended(limiter: &RuleLimiter, edits: &[RowEdit]) -> RuleLimiter {
    let (next, problems) = limiter.amended(edits, &[]);
    assert_eq!(problems, EditProblems::default());
    next
}

#[test]
fn usage_is_kept_when_a_row_comes_and_goes() {
    let (limiter, _) = limiter(RULES);
    assert_eq!(check(&limiter, &["user=u"], 40), "allowed by plan: plan 60");
    let raised = amended(&limiter, &[row("plan", "u", Some("200/min"))]);
    assert_eq!(check(&raised, &["user=u"], 10), "allowed by plan: plan 150");
    assert_eq!(check(&raised, &["user=v"], 10), "allowed by plan: plan 90");
    let back = amended(&raised, &[row("plan", "u", None)]);
    assert_eq!(check(&back, &["user=u"], 0), "allowed by plan: plan 50");
    let banned = amended(&back, &[row("plan", "u", Some("0/min"))]);
    assert_eq!(check(&banned, &["user=u"], 1), "denied by plan: plan 0 Never");
    // A limiter that is still in use answers as before.
    assert_eq!(check(&limiter, &["user=u"], 0), "allowed by plan: plan 50");
}

#[test]
fn a_row_with_a_period_of_its_own_has_a_counter_of_its_own() {
    let (limiter, _) = limiter(RULES);
    assert_eq!(check(&limiter, &["user=u"], 40), "allowed by plan: plan 60");
    let daily = amended(&limiter, &[row("plan", "u", Some("[100/min, 1000/day]"))]);
    let expected = "allowed by plan.1min: plan.1min 50 plan.1day 990";
    assert_eq!(check(&daily, &["user=u"], 10), expected);
    // Another edit shares the keys that the first one added.
    let later = amended(&daily, &[row("plan", "v", Some("7/day"))]);
    let expected = "allowed by plan.1min: plan.1min 50 plan.1day 990";
    assert_eq!(check(&later, &["user=u"], 0), expected);
    assert_eq!(check(&later, &["user=v"], 1), "allowed by plan: plan 6");
    assert_eq!(forget(&later, &["user=u"], Some("plan.1day")), 1);
    let expected = "allowed by plan.1min: plan.1min 50 plan.1day 1000";
    assert_eq!(check(&later, &["user=u"], 0), expected);
    assert_eq!(forget(&later, &["user=u"], None), 1);
}

#[test]
fn a_lease_of_a_row_is_released_by_its_token() {
    let (limiter, _) = limiter("rules:\n- { id: slots, per: user, algorithm: concurrency, limit: unlimited }\n");
    let limiter = amended(&limiter, &[row("slots", "u", Some("1"))]);
    let given = attributes(&["user=u"]);
    let result = limiter.check_now(&attempt(&given, 1));
    let lease = result.lease.expect("it holds a slot");
    assert!(!limiter.check_now(&attempt(&given, 1)).verdict.allowed);
    // A later edit does not lose it.
    let later = amended(&limiter, &[row("slots", "v", Some("3"))]);
    assert_eq!(block_on(later.release(&lease)), Ok(true));
    assert!(later.check_now(&attempt(&given, 1)).verdict.allowed);
}

#[test]
fn derived_attributes_are_seen_by_check_batches_refund_and_forget() {
    let tier = derived("tier", "user", None);
    let (store, _) = super::stopped_store();
    let limiter = RuleLimiter::new(rule_set(RULES).with_derived([tier].into()), Arc::clone(&store));
    let gold = AttributeEdit {
        source: "user".into(),
        subject: "u".into(),
        name: "tier".into(),
        value: Some("gold".into()),
    };
    let (limiter, _) = limiter.amended(&[], &[gold]);
    assert_eq!(check(&limiter, &["user=u"], 10), "allowed by plan: plan 490");
    assert_eq!(
        check(&limiter, &["user=v", "tier=gold"], 10),
        "allowed by plan: plan 90"
    );
    let given = attributes(&["user=u"]);
    let attempts = [attempt(&given, 1), attempt(&given, 1)];
    let remaining: Vec<String> = limiter
        .check_each_now(&attempts)
        .iter()
        .map(|result| super::render(&result.verdict))
        .collect();
    assert_eq!(remaining, ["allowed by plan: plan 489", "allowed by plan: plan 488"]);
    let refunded = block_on(limiter.refund(&attempt(&given, 2)));
    assert_eq!(super::render(&refunded), "allowed by plan: plan 490");
    let explanation = block_on(limiter.explain(&attempt(&given, 1))).to_string();
    assert!(explanation.contains("tier=gold: derived from user"), "{explanation}");
    assert!(explanation.contains("limit from `by` tier = gold"), "{explanation}");
    assert_eq!(forget(&limiter, &["user=u"], None), 1);
    assert_eq!(check(&limiter, &["user=u"], 0), "allowed by plan: plan 500");
}
