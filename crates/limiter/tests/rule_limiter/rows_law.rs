//! The law of amendments: a limiter that has lived through random edits decides as one that is made from scratch of the
//! rows and attributes that are left.

use super::{render, rules, stopped_store};
use std::collections::BTreeMap;
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::rules::{Attempt, AttributeEdit, RowEdit, RuleSet};
use tollgate_limiter::core::testing::random::Random;
use tollgate_limiter::core::testing::rules::{attempt, attribute_pairs, derived};
use tollgate_limiter::core::{Cost, Micros};

const RULES: &str = "
rules:
- id: plan
  per: user
  limit: 20/min
  by: { tier: { gold: 30/min } }
  overrides: [{ user: u1, limit: 25/min }]
- { id: list, per: [user, region], limit: [9/s, 40/min] }
- { id: shadow, per: user, mode: shadow, limit: 3/min, algorithm: sliding_log }
- { id: slots, per: user, limit: 4, algorithm: concurrency }
- { id: split, per: user, limit: 12/min, experiment: { share: 50%, algorithm: sliding_counter } }
- { id: quota, per: user, limit: 50/month, algorithm: fixed_window, calendar: Europe/Berlin }
- { id: all, limit: 500/min }
- { id: address, per: client_ip, limit: 15/min }
";

/// Some are invalid for some of the rules, the last for all of them.
const TERMS: [&str; 12] = [
    "5/min",
    "7/min burst 3",
    "[6/s, 11/min]",
    "[2/30s, 100/h]",
    "unlimited",
    "0/min",
    "3",
    "8/day",
    "9/month",
    "5/45s",
    "[4/day, 4/month]",
    "lots",
];
const SUBJECTS: [&[(&str, &str)]; 10] = [
    &[("user", "u1")],
    &[("user", "u2")],
    &[("user", "u3")],
    &[("region", "eu")],
    &[("tier", "gold")],
    &[("region", "eu"), ("user", "u1")],
    &[("region", "us"), ("user", "u2")],
    &[("tier", "gold"), ("user", "u2")],
    &[("client_ip", "2001:db8::")],
    &[("client_ip", "10.0.0.1"), ("region", "eu")],
];
const RULE_IDS: [&str; 9] = [
    "plan", "list", "shadow", "slots", "split", "quota", "all", "address", "later",
];
const ADDRESSES: [&str; 4] = ["2001:db8::7", "2001:db8:0:1::7", "10.0.0.1", "::ffff:10.0.0.1"];

type Rows = BTreeMap<(&'static str, &'static [(&'static str, &'static str)]), &'static str>;
type Attributes = BTreeMap<&'static str, &'static str>;

fn row(rule: &str, subject: &[(&str, &str)], terms: Option<&str>) -> RowEdit {
    RowEdit::new(Attempt::DOMAIN, rule, subject.iter().copied(), terms)
}

fn tier(user: &str, tier: Option<&str>) -> AttributeEdit {
    AttributeEdit {
        source: "user".into(),
        subject: user.into(),
        name: "tier".into(),
        value: tier.map(Box::from),
    }
}

fn base() -> RuleSet {
    rules(RULES).with_derived([derived("tier", "user", Some("free"))].into())
}

/// Random edits of a few rows and attributes, which are also made in the tables.
fn edits(random: &mut Random, rows: &mut Rows, attributes: &mut Attributes) -> (Vec<RowEdit>, Vec<AttributeEdit>) {
    let row_edits = (0..random.below(6)).map(|_| {
        let (rule, subject) = (random.pick(&RULE_IDS), random.pick(&SUBJECTS));
        let terms = (!random.one_in(4)).then(|| random.pick(&TERMS));
        match terms {
            Some(terms) => rows.insert((rule, subject), terms),
            None => rows.remove(&(rule, subject)),
        };
        row(rule, subject, terms)
    });
    let row_edits = row_edits.collect();
    let attribute_edits = (0..random.below(3)).map(|_| {
        let user = random.pick(&["u1", "u2", "u3"]);
        let value = (!random.one_in(3)).then(|| random.pick(&["gold", "free"]));
        match value {
            Some(value) => attributes.insert(user, value),
            None => attributes.remove(user),
        };
        tier(user, value)
    });
    (row_edits, attribute_edits.collect())
}

/// The verdict of a random attempt, or what a refund or a forget leaves.
fn step(limiter: &RuleLimiter, random: &mut Random) -> String {
    let mut attributes = vec![("user", random.pick(&["u1", "u2", "u3"]))];
    if random.one_in(2) {
        attributes.push(("region", random.pick(&["eu", "us"])));
    }
    if random.one_in(2) {
        attributes.push(("client_ip", random.pick(&ADDRESSES)));
    }
    if random.one_in(4) {
        attributes.push(("tier", "gold"));
    }
    let attributes = attribute_pairs(attributes);
    let attempt = Attempt {
        cost: Cost::new(random.below(4)).expect("in range"),
        ..attempt(&attributes)
    };
    match random.below(12) {
        0 => render(&block_on(limiter.refund(&attempt))),
        1 => {
            let text = block_on(limiter.explain(&attempt)).to_string();
            // Each store has keys of its own.
            text.lines()
                .map(|line| line.split("; key ").next().unwrap_or(line))
                .collect()
        }
        // Not how many: a store may have dropped counters that are fresh again.
        2 => format!("{:?}", block_on(limiter.forget(&attempt, None)).map(drop)),
        _ => render(&limiter.check_now(&attempt).verdict),
    }
}

#[test]
fn a_limiter_after_random_edits_decides_as_one_made_from_scratch() {
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let ((amended_store, amended_clock), (fresh_store, fresh_clock)) = (stopped_store(), stopped_store());
        let mut amended = RuleLimiter::new(base(), amended_store);
        let (mut rows, mut attributes) = (Rows::new(), Attributes::new());
        for round in 0..25 {
            let (row_edits, attribute_edits) = edits(&mut random, &mut rows, &mut attributes);
            let (next, _) = amended.amended(&row_edits, &attribute_edits);
            amended = next;
            let all: Vec<RowEdit> = rows
                .iter()
                .map(|((rule, subject), terms)| row(rule, subject, Some(terms)))
                .collect();
            let (set, problems) = base().amend(&all);
            let tiers: Vec<AttributeEdit> = attributes.iter().map(|(user, value)| tier(user, Some(value))).collect();
            let fresh = RuleLimiter::new(set.amend_attributes(&tiers).0, Arc::clone(&fresh_store));
            let counts = |limiter: &RuleLimiter| {
                let rules = limiter.rules();
                (rules.row_count(), rules.orphan_rows(), rules.attribute_count())
            };
            assert_eq!(counts(&amended), counts(&fresh), "seed {seed}, round {round}");
            assert_eq!(fresh.rules().row_count() + problems.len(), rows.len());
            for number in 0..20 {
                let (mut one, mut other) = (random.clone(), random.clone());
                let (left, right) = (step(&amended, &mut one), step(&fresh, &mut other));
                assert_eq!(left, right, "seed {seed}, round {round}, step {number}, rows {rows:?}");
                random = one;
            }
            let pause = Micros::new(random.pick(&[0, 1_000, 700_000, 40_000_000]));
            amended_clock.advance(pause);
            fresh_clock.advance(pause);
        }
    }
}
