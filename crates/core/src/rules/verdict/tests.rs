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

const RESERVE: &str = "
rules:
- { id: kept, limit: 10/s, on_store_failure: closed, reserve: { share: 20%, for: { priority: critical } } }
";

/// The ruling of a limit with a reserve, from the results of its two counters.
fn reserve_ruling(all: ChargeResult, others: ChargeResult) -> String {
    let rules = sample(RESERVE);
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &[],
        cost: Cost::ONE,
    };
    let mut plan = rules.plan(&attempt, |_, _| ());
    plan.record([all, others]);
    let allowed = plan.is_allowed();
    let verdict = plan.verdict(Source::Memory);
    assert_eq!(verdict.allowed, allowed);
    let [ruling] = &*verdict.rulings else {
        return format!("{} rulings", verdict.rulings.len());
    };
    assert_eq!(ruling.is_allow(), allowed);
    assert!(!ruling.reserved || !allowed);
    let capacity = ruling.window.expect("it limits").limit().capacity();
    let remaining = ruling.decision.map(|decision| decision.standing().remaining);
    let retry = match ruling.decision.and_then(|decision| decision.retry()) {
        Some(Retry::After(wait)) => format!("after {wait}"),
        retry => format!("{retry:?}"),
    };
    let reserved = if ruling.reserved { " reserved" } else { "" };
    format!(
        "{allowed} of {capacity}: {remaining:?} {retry} {}{reserved}",
        ruling.source
    )
}

#[test]
fn the_counter_that_binds_speaks_for_both() {
    let denied = |retry, source| {
        let standing = standing(0);
        decided(Decision::Deny { standing, retry }, source)
    };
    let wait = |us| denied(Retry::After(Micros::new(us)), Source::Memory);
    let failed: ChargeResult = Err(Undecided::Failed);
    for (all, others, expected) in [
        (allow(5), allow(3), "true of 8: Some(3) None memory"),
        (allow(2), allow(3), "true of 10: Some(2) None memory"),
        (allow(3), allow(3), "true of 10: Some(3) None memory"),
        (allow(5), wait(7), "false of 8: Some(0) after 7us memory reserved"),
        (wait(7), allow(3), "false of 10: Some(0) after 7us memory"),
        (wait(7), wait(8), "false of 8: Some(0) after 8us memory"),
        (wait(8), wait(8), "false of 10: Some(0) after 8us memory"),
        (wait(9), wait(8), "false of 10: Some(0) after 9us memory"),
        (
            wait(9),
            denied(Retry::Never, Source::Shared),
            "false of 8: Some(0) Some(Never) shared",
        ),
        (
            allow(9),
            denied(Retry::Unknown, Source::Local),
            "false of 8: Some(0) Some(Unknown) local reserved",
        ),
        (failed, failed, "false of 10: None None closed"),
        (allow(5), failed, "false of 8: None None closed"),
        (failed, wait(8), "false of 10: None None closed"),
        (Err(Undecided::Skipped), Err(Undecided::Skipped), "0 rulings"),
        (
            Err(Undecided::Skipped),
            denied(Retry::After(Micros::new(8)), Source::Near),
            "false of 8: Some(0) after 8us near reserved",
        ),
        (
            denied(Retry::After(Micros::new(8)), Source::Near),
            Err(Undecided::Skipped),
            "false of 10: Some(0) after 8us near",
        ),
        (Err(Undecided::Skipped), wait(8), "false of 8: Some(0) after 8us memory"),
    ] {
        assert_eq!(reserve_ruling(all, others), expected, "{all:?} {others:?}");
    }
}

#[test]
fn a_lent_part_that_denies_says_whether_the_whole_would() {
    let rules =
        sample("rules: [{ id: lent, limit: 10/s, reserve: { share: 20%, for: { priority: critical }, lend: true } }]");
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &[],
        cost: Cost::ONE,
    };
    let reserved = |reset_ms| {
        let mut plan = rules.plan(&attempt, |_, _| ());
        let standing = Standing {
            limit: 8,
            remaining: 0,
            reset_after: Micros::from_millis(reset_ms),
        };
        let retry = Retry::After(Micros::ONE);
        plan.record([decided(Decision::Deny { standing, retry }, Source::Memory)]);
        plan.verdict(Source::Memory).rulings[0].reserved
    };
    assert!(reserved(800) && reserved(900));
    assert!(!reserved(901) && !reserved(1_000));
}
