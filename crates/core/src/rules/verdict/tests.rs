use super::*;
use crate::algorithm::{LeaseId, Receipt};
use crate::decision::{Cost, Standing};
use crate::rules::{Attempt, RuleSet, sample};
use crate::settle::Outcome;

type ChargeResult = Result<Outcome, Undecided>;

/// Four limits that every attempt meets, and answers for them.
const FOUR: &str = r"
rules:
- { id: a, limit: 10/s }
- { id: b, limit: 10/s, on_store_failure: closed }
- { id: s, limit: 10/s, mode: shadow, on_store_failure: closed }
- { id: o, limit: 10/s, on_store_failure: open }
";

fn verdict_text(rules: &RuleSet, cost: Cost, results: &[ChargeResult]) -> String {
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &[],
        cost,
    };
    let mut plan = rules.plan(&attempt, |_, _| ());
    plan.record(results.iter().copied());
    let allowed = plan.is_allowed();
    let verdict = plan.verdict(Source::Memory);
    assert_eq!(verdict.allowed, allowed);
    assert_eq!(
        verdict.is_closed(),
        verdict.rulings.iter().any(|ruling| ruling.source == Source::Closed)
    );
    let answer = if verdict.allowed { "allowed" } else { "denied" };
    let nearest = verdict.nearest().map_or("-", |ruling| ruling.name);
    format!("{answer} {nearest} {} {}", verdict.source, verdict.delay)
}

fn standing(remaining: u64) -> Standing {
    Standing {
        limit: 10,
        remaining,
        reset_after: Micros::ONE,
    }
}

fn allow(remaining: u64) -> ChargeResult {
    held(remaining, 0)
}

fn held(remaining: u64, delay_us: u64) -> ChargeResult {
    let decision = Decision::Allow {
        standing: standing(remaining),
        delay: Micros::new(delay_us),
    };
    decided(decision, Source::Memory)
}

fn decided(decision: Decision, source: Source) -> ChargeResult {
    let receipt = Receipt::without_mark(Cost::ONE, LeaseId::default());
    Ok(Outcome {
        decision,
        receipt,
        source,
    })
}

fn deny(retry: Retry) -> ChargeResult {
    let decision = Decision::Deny {
        standing: standing(0),
        retry,
    };
    decided(decision, Source::Memory)
}

#[test]
fn the_nearest_limit_speaks() {
    let rules = sample(FOUR);
    let after = |us| Retry::After(Micros::new(us));
    let overflown = allow(9).map(|outcome| Outcome {
        source: Source::Overflow,
        ..outcome
    });
    for (answers, expected) in [
        ([allow(5), allow(4), allow(9), allow(9)], "allowed b memory 0us"),
        ([allow(4), allow(4), allow(9), allow(4)], "allowed a memory 0us"),
        // A shadow never speaks, never binds, and holds nobody.
        ([allow(5), allow(4), allow(0), allow(9)], "allowed b memory 0us"),
        (
            [allow(5), allow(4), deny(Retry::Never), allow(9)],
            "allowed b memory 0us",
        ),
        ([held(5, 7), held(4, 3), held(9, 99), allow(9)], "allowed b memory 7us"),
        // The longest wait: never, then unknown, then the longest time; the first of equal ones.
        (
            [deny(after(5)), deny(after(9)), allow(9), allow(0)],
            "denied b memory 0us",
        ),
        (
            [deny(after(9)), deny(after(9)), allow(9), held(0, 5)],
            "denied a memory 0us",
        ),
        (
            [deny(after(9)), deny(Retry::Unknown), allow(9), allow(0)],
            "denied b memory 0us",
        ),
        (
            [deny(Retry::Never), deny(Retry::Unknown), allow(9), allow(0)],
            "denied a memory 0us",
        ),
        (
            [deny(after(1)), deny(Retry::Unknown), deny(Retry::Never), allow(0)],
            "denied b memory 0us",
        ),
        // The least exact source, a shadow's too.
        ([allow(5), allow(4), overflown, allow(9)], "allowed b overflow 0us"),
    ] {
        assert_eq!(verdict_text(&rules, Cost::ONE, &answers), expected, "{answers:?}");
    }
}

#[test]
fn a_rule_without_its_store_does_as_it_says() {
    const FAILED: ChargeResult = Err(Undecided::Failed);
    let rules = sample(FOUR);
    let never = deny(Retry::Never);
    for (answers, expected) in [
        // `local` is decided by a share; without one only the store could allow.
        ([FAILED, allow(4), allow(9), allow(9)], "denied a closed 0us"),
        ([allow(5), allow(4), allow(9), FAILED], "allowed b open 0us"),
        ([allow(5), allow(4), FAILED, allow(9)], "allowed b open 0us"),
        ([allow(5), FAILED, allow(9), allow(9)], "denied b closed 0us"),
        ([FAILED, FAILED, FAILED, FAILED], "denied a closed 0us"),
        ([never, FAILED, FAILED, FAILED], "denied a closed 0us"),
    ] {
        assert_eq!(verdict_text(&rules, Cost::ONE, &answers), expected, "{answers:?}");
    }
}

#[test]
fn a_limit_that_was_not_asked_for_has_no_ruling() {
    const SKIPPED: ChargeResult = Err(Undecided::Skipped);
    let rules = sample(FOUR);
    let near = deny(Retry::Unknown).map(|outcome| Outcome {
        source: Source::Near,
        ..outcome
    });
    let answers = [SKIPPED, SKIPPED, SKIPPED, near];
    assert_eq!(verdict_text(&rules, Cost::ONE, &answers), "denied o near 0us");
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &[],
        cost: Cost::ONE,
    };
    let mut plan = rules.plan(&attempt, |_, _| ());
    plan.record(answers);
    let verdict = plan.verdict(Source::Shared);
    assert_eq!(verdict.rulings.len(), 1);
}

#[test]
fn bans_and_rules_without_limit_need_no_store() {
    let ban = sample("rules:\n- { id: z, limit: 10/s }\n- { id: ban, limit: 0/s }\n");
    let never = Decision::Deny {
        standing: Standing {
            limit: 0,
            remaining: 0,
            reset_after: Micros::ZERO,
        },
        retry: Retry::Never,
    };
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &[],
        cost: Cost::ONE,
    };
    let mut plan = ban.plan(&attempt, |_, _| ());
    plan.record([allow(3)]);
    let verdict = plan.verdict(Source::Memory);
    assert_eq!(verdict.nearest().and_then(|ruling| ruling.decision), Some(never));
    assert_eq!(verdict_text(&ban, Cost::ONE, &[allow(3)]), "denied ban memory 0us");
    assert_eq!(
        verdict_text(&ban, Cost::ONE, &[deny(Retry::Unknown)]),
        "denied ban memory 0us"
    );
    assert_eq!(
        verdict_text(&ban, Cost::ZERO, &[allow(3)]),
        "allowed ban memory 0us",
        "looking is allowed"
    );

    let shadow = sample("rules:\n- { id: z, limit: 10/s }\n- { id: ban, limit: 0/s, mode: shadow }\n");
    assert_eq!(verdict_text(&shadow, Cost::ONE, &[allow(3)]), "allowed z memory 0us");
    let free = sample("rules:\n- { id: free, limit: unlimited }\n");
    assert_eq!(verdict_text(&free, Cost::ONE, &[]), "allowed - memory 0us");
    let none = sample("rules: []\n");
    assert_eq!(verdict_text(&none, Cost::ONE, &[]), "allowed - memory 0us");
}
