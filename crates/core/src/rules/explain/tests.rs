use crate::algorithm::{LeaseId, Receipt};
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::rules::{Attempt, attributes, sample};
use crate::settle::Outcome;
use crate::settle::source::Source;
use crate::units::time::Micros;

const RULES: &str = r#"
rules:
- id: ceiling
  when: { endpoint: [/v1/charges, /v1/refunds], method: "P*" }
  limit: 10000/s
- id: plan
  per: [merchant, client_ip]
  limit: 100/min
  by: { tier: { enterprise: 5000/min burst 500 } }
  overrides: [{ merchant: m_13, limit: 0/min }]
- { id: slots, per: user, algorithm: concurrency, limit: 20 }
- { id: priced, per: account, limit: 10/s, cost: [{ when: { endpoint: /search }, cost: 5 }, { default: 1 }] }
- { id: off, limit: 1/s, mode: disabled }
- { id: there, domain: other, limit: 1/s }
"#;

fn explain(pairs: &[(&str, &[u8])], decision: Decision) -> String {
    let rules = sample(RULES);
    let attributes = attributes(pairs);
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &attributes,
        cost: Cost::ONE,
    };
    let mut plan = rules.plan(&attempt, |_, _| ());
    plan.record(std::iter::repeat(Ok(Outcome {
        decision,
        receipt: Receipt::without_mark(Cost::ONE, LeaseId::default()),
        source: Source::Memory,
    })));
    let verdict = plan.verdict(Source::Memory);
    let key = |counter: crate::rules::CounterId, per: &[&[u8]]| format!("k{}{}", counter.index(), per.len());
    rules.explain(&attempt, (verdict, Vec::new()), key).to_string()
}

const STANDING: Standing = Standing {
    limit: 100,
    remaining: 99,
    reset_after: Micros::from_millis(600),
};

#[test]
fn tells_of_every_rule_whether_it_applies_and_why_not() {
    let allow = Decision::Allow {
        standing: STANDING,
        delay: Micros::ZERO,
    };
    let text = explain(
        &[
            ("merchant", b"m_1"),
            ("client_ip", b"2001:db8::7"),
            ("tier", b"enterprise"),
            ("endpoint", b"/v1/\x1b[31m"),
        ],
        allow,
    );
    let expected = "\
allowed: `plan` would leave 99 of 100, resets in 600ms

ceiling: skipped
    `endpoint` is `/v1/\\u{1b}[31m`, expected `/v1/charges` or `/v1/refunds`
    `method` is missing, expected `P*`
    suggestion: `endpoint` must be `/v1/charges` or `/v1/refunds`
    suggestion: `method` must be `P*`

plan: matched, enforce
    counted for merchant=m_1, client_ip=2001:db8::/64
    cost 1; limit from `by` tier = enterprise
    plan: token_bucket of 5000 per 1min, burst 500; would leave 99 of 100, resets in 600ms; key k12

slots: skipped
    `user` is missing, and `per` needs it
    suggestion: send `user`

priced: skipped
    `account` is missing, and `per` needs it
    suggestion: send `account`

off: skipped
    disabled
    suggestion: set the rule's mode to enforce or shadow

there (domain other): skipped
    the attempt's domain is `default`
    suggestion: send the attempt in domain `other`
";
    assert_eq!(text, expected);
}

#[test]
fn tells_what_would_have_to_change_for_a_refusal_to_pass() {
    let deny = |retry| Decision::Deny {
        standing: STANDING,
        retry,
    };
    for (pairs, retry, expected) in [
        (
            &[("user", &b"u"[..])][..],
            Retry::Unknown,
            "suggestion: wait until a lease is released, or raise `limit`",
        ),
        (
            &[("merchant", b"m_1"), ("client_ip", b"10.0.0.1")],
            Retry::After(Micros::from_secs(3)),
            "suggestion: wait 3s, lower the cost to what remains, or raise `limit`",
        ),
        (
            &[("merchant", b"m_1"), ("client_ip", b"10.0.0.1")],
            Retry::Never,
            "suggestion: a cost of 1 is never allowed: request at most 100, or raise `limit`",
        ),
        (
            &[("merchant", b"m_13"), ("client_ip", b"10.0.0.1")],
            Retry::Never,
            "suggestion: override 1 must allow something",
        ),
    ] {
        let text = explain(pairs, deny(retry));
        assert!(text.starts_with("denied: "), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    assert!(explain(&[], deny(Retry::Never)).starts_with("allowed: no rule matched\n"));
}

#[test]
fn a_long_value_is_told_in_part() {
    let long = vec![b'x'; 1 << 16];
    let allow = Decision::Allow {
        standing: STANDING,
        delay: Micros::ZERO,
    };
    assert!(explain(&[("endpoint", &long)], allow).len() < 2_000);
}

#[test]
fn names_the_entry_that_gave_the_cost() {
    let allow = Decision::Allow {
        standing: STANDING,
        delay: Micros::ZERO,
    };
    let cost_of = |endpoint: &[u8]| explain(&[("account", b"a"), ("endpoint", endpoint)], allow);
    let search = cost_of(b"/search");
    assert!(
        search.contains("cost 5 from entry 1 of `cost`; limit from `limit`"),
        "{search}"
    );
    let other = cost_of(b"/other");
    assert!(
        other.contains("cost 1 from the default of `cost`; limit from `limit`"),
        "{other}"
    );
}

#[test]
fn shows_both_counters_of_a_reserve() {
    let rules = sample(
        "rules: [{ id: ceiling, limit: 1000/s, reserve: { share: 20%, for: { priority: critical, endpoint: /pay } } }]",
    );
    let text = |pairs: &[(&str, &[u8])]| {
        let attributes = attributes(pairs);
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        let mut plan = rules.plan_to_explain(&attempt, |_, _| ());
        let decided = |decision| {
            Ok(Outcome {
                decision,
                receipt: Receipt::without_mark(Cost::ONE, LeaseId::default()),
                source: Source::Memory,
            })
        };
        let allow = decided(Decision::Allow {
            standing: STANDING,
            delay: Micros::ZERO,
        });
        let deny = decided(Decision::Deny {
            standing: Standing {
                remaining: 0,
                ..STANDING
            },
            retry: Retry::After(Micros::from_millis(2)),
        });
        plan.record([allow, deny]);
        let rulings = plan.reserve_rulings(Source::Memory);
        let verdict = plan.verdict(Source::Memory);
        let key = |counter: crate::rules::CounterId, _: &[&[u8]]| format!("k{}", counter.index());
        rules.explain(&attempt, (verdict, rulings), key).to_string()
    };
    let expected = "\
denied: `ceiling` denies: 0 of 100 remaining, retry in 2ms

ceiling: matched, enforce
    counted globally
    cost 1; limit from `limit`
    ceiling: token_bucket of 800 per 1s; denies: 0 of 100 remaining, retry in 2ms; key k1
    reserve of 20% for priority = `critical`, endpoint = `/pay`: the attempt may not use it
        all: ceiling: token_bucket of 1000 per 1s; would leave 99 of 100, resets in 600ms; key k0
        others: ceiling: token_bucket of 800 per 1s; denies: 0 of 100 remaining, retry in 2ms; key k1
    suggestion: wait 2ms, lower the cost to what remains, or raise `limit`: the rest is kept for others
";
    assert_eq!(text(&[]), expected);
    let critical = text(&[("priority", b"critical"), ("endpoint", b"/pay")]);
    assert!(critical.starts_with("allowed: `ceiling` would leave 99"), "{critical}");
    for part in [
        "the attempt may use it\n",
        "        all: ceiling",
        "        others: ceiling",
    ] {
        assert!(critical.contains(part), "{critical}");
    }
}
