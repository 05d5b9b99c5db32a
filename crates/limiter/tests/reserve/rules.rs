//! A reserve beside other limits, refunds, forgetting, edits of its rule, and explanations.

use crate::{attempt, limiter, stopped_store};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::Micros;
use tollgate_limiter::core::testing::rules::{attributes, rule_set};

const CEILING: &str = "
rules:
- { id: ceiling, per: region, limit: 100/h, reserve: { share: 20%, for: { priority: critical } } }
";

/// The attempts of a cost of one that pass, up to `most`.
fn passed(limiter: &RuleLimiter, pairs: &[&str], most: usize) -> usize {
    let given = attributes(pairs);
    (0..most)
        .take_while(|_| limiter.check_now(&attempt(&given, 1)).verdict.allowed)
        .count()
}

/// What remains for an attempt, and of what.
fn standing(limiter: &RuleLimiter, pairs: &[&str]) -> (u64, u64) {
    let given = attributes(pairs);
    let checked = limiter.check_now(&attempt(&given, 0));
    let decision = checked.verdict.nearest().and_then(|ruling| ruling.decision);
    let standing = *decision.expect("decided").standing();
    (standing.remaining, standing.limit)
}

const NORMAL: &[&str] = &["region=eu"];
const CRITICAL: &[&str] = &["region=eu", "priority=critical"];

#[test]
fn critical_attempts_may_use_everything_and_the_others_never_the_reserve() {
    let (here, _) = limiter(CEILING);
    assert_eq!(passed(&here, NORMAL, 200), 80);
    assert_eq!(standing(&here, NORMAL), (0, 80));
    assert_eq!(standing(&here, CRITICAL), (20, 100));
    assert_eq!(passed(&here, CRITICAL, 200), 20);
    let (there, _) = limiter(CEILING);
    assert_eq!(passed(&there, CRITICAL, 60), 60);
    // The others are held back by what is used of the whole.
    assert_eq!(standing(&there, NORMAL), (40, 100));
    assert_eq!(passed(&there, NORMAL, 200), 40);
}

#[test]
fn a_lent_reserve_refills_for_all_at_the_whole_rate() {
    let (limiter, clock) =
        limiter("rules: [{ id: r, limit: 100/s, reserve: { share: 20%, for: { priority: critical }, lend: true } }]");
    assert_eq!(passed(&limiter, &[], 200), 80);
    clock.advance(Micros::from_millis(500));
    assert_eq!(passed(&limiter, &[], 200), 50, "not 40");
    assert_eq!(passed(&limiter, &["priority=critical"], 200), 20);
    let denied = limiter.check_now(&attempt(&[], 1)).verdict;
    assert!(
        denied.nearest().is_some_and(|ruling| !ruling.reserved),
        "the whole limit is used up too"
    );
}

#[test]
fn a_denial_by_another_limit_takes_nothing_of_either_counter() {
    let (limiter, _) = limiter(&format!("{CEILING}- {{ id: strict, per: user, limit: 1/h }}\n"));
    let user = &["region=eu", "user=u"];
    assert_eq!(passed(&limiter, user, 9), 1);
    assert_eq!(standing(&limiter, NORMAL), (79, 80));
    assert_eq!(standing(&limiter, CRITICAL), (99, 100));
    // And a denial by the reserve takes nothing of the other.
    assert_eq!(passed(&limiter, NORMAL, 200), 79);
    assert_eq!(passed(&limiter, &["region=eu", "user=v"], 9), 0);
    assert_eq!(passed(&limiter, &["region=eu", "user=v", "priority=critical"], 9), 1);
}

#[test]
fn a_refund_and_forgetting_are_for_both_counters() {
    let (limiter, _) = limiter(CEILING);
    assert_eq!(passed(&limiter, NORMAL, 50), 50);
    let refunded = block_on(limiter.refund(&attempt(&attributes(NORMAL), 10)));
    let [ruling] = &*refunded.rulings else {
        panic!("one ruling for both: {refunded:?}");
    };
    let remaining = ruling.decision.map(|decision| decision.standing().remaining);
    assert!(refunded.allowed && !ruling.reserved);
    assert_eq!(remaining, Some(40));
    assert_eq!(
        (standing(&limiter, NORMAL), standing(&limiter, CRITICAL)),
        ((40, 80), (60, 100))
    );
    // What critical attempts used is returned to the whole alone.
    block_on(limiter.refund(&attempt(&attributes(CRITICAL), 10)));
    assert_eq!(
        (standing(&limiter, NORMAL), standing(&limiter, CRITICAL)),
        ((40, 80), (70, 100))
    );
    let forgotten = block_on(limiter.forget(&attempt(&attributes(NORMAL), 1), None));
    assert_eq!(forgotten.ok(), Some(2));
    assert_eq!(
        (standing(&limiter, NORMAL), standing(&limiter, CRITICAL)),
        ((80, 80), (100, 100))
    );
}

#[test]
fn what_was_used_stays_used_when_the_reserve_changes() {
    let (store, _) = stopped_store();
    let with = |text: &str| RuleLimiter::new(rule_set(text), Arc::clone(&store));
    let plain = with("rules: [{ id: ceiling, per: region, limit: 100/h }]");
    assert_eq!(passed(&plain, NORMAL, 30), 30);
    let kept = with(CEILING);
    assert_eq!(standing(&kept, CRITICAL), (70, 100));
    assert_eq!(
        standing(&kept, NORMAL),
        (70, 100),
        "the others have used nothing of their part yet"
    );
    assert_eq!(passed(&kept, NORMAL, 40), 40);
    let more = with(&CEILING.replace("20%", "50%"));
    assert_eq!(
        (standing(&more, NORMAL), standing(&more, CRITICAL)),
        ((10, 50), (30, 100))
    );
    assert_eq!(standing(&plain, NORMAL), (30, 100));
}

#[test]
fn an_explanation_has_the_state_of_both_counters() {
    let (limiter, _) = limiter(CEILING);
    assert_eq!(passed(&limiter, NORMAL, 80), 80);
    for (pairs, usable) in [(NORMAL, false), (CRITICAL, true)] {
        let text = block_on(limiter.explain(&attempt(&attributes(pairs), 1))).to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let has = |start: &str, part: &str| lines.iter().any(|line| line.starts_with(start) && line.contains(part));
        let use_text = if usable { "may use it" } else { "may not use it" };
        assert!(has("reserve of 20% for priority = `critical`", use_text), "{text}");
        assert!(
            has("all: ceiling: token_bucket of 100 per 1h; would leave", "of 100"),
            "{text}"
        );
        assert!(has("others: ceiling: token_bucket of 80 per 1h;", "of 80"), "{text}");
    }
    assert_eq!(standing(&limiter, CRITICAL), (20, 100), "it takes nothing");
}

#[test]
fn all_conditions_of_the_reserve_must_hold() {
    let (limiter, _) = limiter(
        "rules: [{ id: r, limit: 10/h, reserve: { share: 50%, for: { endpoint: \"/v1/pay*\", mode: [live, vip] } } }]",
    );
    assert_eq!(passed(&limiter, &["endpoint=/v1/payments"], 20), 5);
    assert_eq!(passed(&limiter, &["endpoint=/v1/payments", "mode=test"], 20), 0);
    assert_eq!(passed(&limiter, &["endpoint=/v1/payments", "mode=vip"], 20), 5);
}

#[test]
fn the_worked_example_of_the_page_is_right() {
    let (limiter, clock) =
        limiter("rules: [{ id: ceiling, limit: 1000/s, reserve: { share: 20%, for: { priority: critical } } }]");
    let (mut critical, mut others) = (0, 0);
    for step in 0..10_000 {
        others += passed(&limiter, NORMAL, 1);
        if step * 150 % 10_000 < 150 {
            critical += passed(&limiter, CRITICAL, 1);
        }
        clock.advance(Micros::new(100));
    }
    assert_eq!((critical, others), (150, 1_599));
}

#[test]
fn a_shadow_charges_both_counters_or_none() {
    let (limiter, _) = limiter(&CEILING.replace("id: ceiling,", "id: ceiling, mode: shadow,"));
    // Nobody is denied, and the others take no more than their part.
    assert_eq!(passed(&limiter, NORMAL, 200), 200);
    let remaining = |pairs: &[&str]| {
        let verdict = limiter.check_now(&attempt(&attributes(pairs), 0)).verdict;
        let decision = verdict.rulings[0].decision.expect("decided");
        (decision.standing().remaining, decision.standing().limit)
    };
    assert_eq!((remaining(NORMAL), remaining(CRITICAL)), ((0, 80), (20, 100)));
    let would_deny = limiter.check_now(&attempt(&attributes(NORMAL), 1)).verdict;
    assert!(would_deny.allowed && !would_deny.rulings[0].is_allow() && would_deny.rulings[0].reserved);
    assert_eq!(passed(&limiter, CRITICAL, 20), 20);
    assert_eq!(remaining(CRITICAL), (0, 100));
    // The whole is used up, and a charge to the rest would be given back as well.
    block_on(limiter.forget(&attempt(&attributes(NORMAL), 1), None)).expect("both");
    assert_eq!(passed(&limiter, CRITICAL, 100), 100);
    assert_eq!(passed(&limiter, NORMAL, 50), 50);
    assert_eq!(
        block_on(limiter.refund(&attempt(&attributes(CRITICAL), 100)))
            .rulings
            .len(),
        1
    );
    assert_eq!(remaining(NORMAL), (80, 80));
}
