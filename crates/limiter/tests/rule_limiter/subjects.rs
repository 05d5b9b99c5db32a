//! Subjects: forgetting, refunding, explaining, and values of arbitrary bytes.

use super::{attempt, attributes, check, forget, limiter, render, rules, stopped_store};
use proptest::prelude::*;
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::rules::{Attempt, Attribute, DenialReason, RuleMatch};
use tollgate_limiter::store::memory::{Memory, Overflow};

const RULES: &str = r"
rules:
- { id: ceiling, when: { endpoint: /a }, limit: 1000/min }
- { id: plan, per: merchant, limit: [100/min, 1000/h] }
- { id: both, per: [merchant, user], when: { endpoint: /a, bot: { present: false } }, limit: 10/min }
- { id: trial, per: merchant, limit: 50/min, experiment: { share: 50%, algorithm: gcra } }
- { id: there, domain: other, per: merchant, limit: 5/min }
";

#[test]
fn a_subject_is_forgotten_where_nothing_speaks_against_it() {
    let all = ["merchant=m", "user=u", "endpoint=/a"];
    for (pairs, rule, expected) in [
        (&["merchant=m"][..], None, 3),
        (&["merchant=m"], Some("plan"), 2),
        (&["merchant=m", "user=u"], None, 4),
        (&["merchant=m", "user=u", "endpoint=/b"], None, 3),
        (&["merchant=m", "user=u", "bot=1"], None, 3),
        (&["merchant=other"], None, 0),
        (&["user=u"], None, 0),
        (&[], None, 0),
        (&[], Some("ceiling"), 1),
        (&["endpoint=/b"], Some("ceiling"), 0),
        (&["merchant=m"], Some("plan.1h"), 1),
        (&["merchant=m"], Some("trial"), 1),
        (&["user=u"], Some("plan"), 0),
    ] {
        let (limiter, _) = limiter(RULES);
        assert_eq!(
            check(&limiter, &all, 1),
            "allowed by both: ceiling 999 plan.1min 99 plan.1h 999 both 9 trial 49"
        );
        assert_eq!(forget(&limiter, pairs, rule), expected, "{pairs:?} {rule:?}");
        assert_eq!(
            forget(&limiter, pairs, rule),
            0,
            "it is forgotten already: {pairs:?} {rule:?}"
        );
    }
}

#[test]
fn a_name_that_no_rule_has_is_not_taken_for_one_with_nothing_to_forget() {
    let (limiter, _) = limiter(RULES);
    for (rule, hint) in [
        ("pln", "did you mean `plan`?"),
        ("plan.1hr", "did you mean `plan.1h`?"),
        ("nothing-like-it", "the id of a rule"),
        // It is one of another domain.
        ("there", "the domain `default` has no such rule"),
    ] {
        let error = block_on(limiter.forget(&attempt(&attributes(&["merchant=m"]), 1), Some(rule)));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(hint) && error.contains(rule), "{error}");
    }
}

#[test]
fn what_is_given_back_is_there_again_and_never_more() {
    let (limiter, _) = limiter(RULES);
    let attributes = attributes(&["merchant=m", "endpoint=/a"]);
    assert_eq!(
        check(&limiter, &["merchant=m", "endpoint=/a"], 10),
        "allowed by trial: ceiling 990 plan.1min 90 plan.1h 990 trial 40"
    );
    let refund = |cost| render(&block_on(limiter.refund(&attempt(&attributes, cost))));
    assert_eq!(
        refund(3),
        "allowed by trial: ceiling 993 plan.1min 93 plan.1h 993 trial 43"
    );
    assert_eq!(
        refund(1_000_000),
        "allowed by trial: ceiling 1000 plan.1min 100 plan.1h 1000 trial 50"
    );
}

#[test]
fn explaining_takes_nothing() {
    let (limiter, _) = limiter(RULES);
    let attributes = attributes(&["merchant=m", "endpoint=/a"]);
    let attempt = attempt(&attributes, 1);
    let before = block_on(limiter.explain(&attempt));
    let after = block_on(limiter.explain(&attempt));
    assert_eq!(before.to_string(), after.to_string());
    assert!(before.verdict.allowed);
    let matched: Vec<bool> = before
        .traces
        .iter()
        .map(|story| story.rule_match.is_matched())
        .collect();
    assert_eq!(matched, [true, true, false, true, false]);
    let RuleMatch::Matched(plan) = &before.traces[1].rule_match else {
        panic!("the plan applies")
    };
    let keys: Vec<&String> = plan.limits.iter().filter_map(|limit| limit.key.as_ref()).collect();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
    assert_eq!(
        check(&limiter, &["merchant=m", "endpoint=/a"], 1),
        "allowed by trial: ceiling 999 plan.1min 99 plan.1h 999 trial 49"
    );
}

#[test]
fn a_banned_attempt_takes_nothing_anywhere() {
    let (limiter, _) = limiter(
        "rules:\n- { id: all, limit: 10/s }\n- { id: plan, per: user, limit: 5/s, overrides: [{ user: u, limit: 0/s }] }\n",
    );
    for _ in 0..20 {
        assert_eq!(check(&limiter, &["user=u"], 1), "denied by plan: all 10 plan 0 Never");
    }
    assert_eq!(check(&limiter, &["user=u"], 0), "allowed by plan: all 10 plan 0");
    assert_eq!(check(&limiter, &["user=v"], 1), "allowed by plan: all 9 plan 4");
}

#[test]
fn other_numbers_go_on_counting_where_the_old_ones_stopped() {
    let (store, _) = stopped_store();
    let text = |limit| format!("rules:\n- {{ id: plan, per: user, limit: {limit} }}\n");
    let before = RuleLimiter::new(rules(&text("100/min")), Arc::clone(&store));
    assert_eq!(check(&before, &["user=u"], 100), "allowed by plan: plan 0");
    let after = RuleLimiter::new(rules(&text("1000/min")), store);
    assert_eq!(check(&after, &["user=u"], 0), "allowed by plan: plan 900");
}

proptest! {
    #[test]
    fn any_bytes_are_just_data(
        one in (proptest::collection::vec(any::<u8>(), 0..4), proptest::collection::vec(any::<u8>(), 0..4)),
        other in (proptest::collection::vec(any::<u8>(), 0..4), proptest::collection::vec(any::<u8>(), 0..4)),
        like in any::<bool>(),
    ) {
        let (limiter, _) = limiter("rules:\n- { id: r, per: [a, b], limit: 1/day }\n");
        let other = if like { one.clone() } else { other };
        let is_allowed = |(a, b): &(Vec<u8>, Vec<u8>)| {
            let attributes = [Attribute { name: "b", value: b }, Attribute { name: "a", value: a }];
            let attempt = Attempt { attributes: &attributes, ..attempt(&[], 1) };
            limiter.check_now(&attempt).verdict.allowed
        };
        prop_assert!(is_allowed(&one));
        prop_assert_eq!(is_allowed(&other), one != other);
    }
}

#[test]
fn a_denial_names_what_denied() {
    const SPACED: &str = "rules:\n- { id: log, per: user, algorithm: sliding_log, limit: 2/min, min_interval: 10s }\n";
    let (limiter, clock) = limiter(SPACED);
    let reason = |limiter: &RuleLimiter, cost| {
        let attributes = attributes(&["user=u"]);
        let verdict = limiter.check_now(&attempt(&attributes, cost)).verdict;
        verdict.nearest().and_then(|ruling| ruling.denial_reason())
    };
    assert_eq!(reason(&limiter, 1), None);
    assert_eq!(
        reason(&limiter, 1),
        Some(DenialReason::MinInterval(Micros::from_secs(10)))
    );
    assert_eq!(reason(&limiter, 2), Some(DenialReason::Limit), "one of two remains");
    let attributes = attributes(&["user=u"]);
    let text = block_on(limiter.explain(&attempt(&attributes, 1))).to_string();
    assert!(text.contains("min_interval of 10s, retry in"), "{text}");
    assert!(text.contains("or lower `min_interval`"), "{text}");
    clock.advance(Micros::from_secs(10));
    assert_eq!(reason(&limiter, 1), None);
    assert_eq!(reason(&limiter, 1), Some(DenialReason::Limit), "nothing remains");

    let full = Memory::options().max_memory(0).overflow(Overflow::Deny).build();
    let full = RuleLimiter::new(rules(SPACED), Arc::new(full));
    assert_eq!(reason(&full, 1), Some(DenialReason::NoMemory));
}
