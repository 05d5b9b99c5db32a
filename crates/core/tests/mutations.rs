//! Damaged rules and rows: whatever is changed in them, nothing panics, a set is rejected whole and a row alone.

use std::collections::BTreeSet;
use tollgate_core::problem::{Origin, Problem};
use tollgate_core::rules::{Attempt, AttributeEdit, ParserOptions, RowEdit, RuleSet, RulesParser, Terms};
use tollgate_core::testing::random::Random;
use tollgate_core::testing::rules::{attempt, attribute_pairs, derived, rule_set};
use tollgate_core::yaml;

/// Sets, and rows, that are damaged. The documented long run sets it to a million.
const MUTATIONS: u64 = match option_env!("TOLLGATE_MUTATIONS") {
    Some(mutations) => number(mutations),
    None => 3_000,
};

const RULES: &str = "domain: default
rules:
- id: plan
  per: user
  limit: 20/min burst 5
  by: { tier: { gold: 30/min, none: 0/min } }
  overrides:
  - { user: [u1, u2], limit: [25/min, 300/h] }
  - { client_ip: 2001:db8::1, limit: unlimited }
- { id: list, when: { path: '/v1/*' }, per: [user, region], limit: [9/s, 40/min] }
- { id: shadow, per: user, mode: shadow, limit: 3/min, algorithm: sliding_log, min_interval: 1s }
- { id: slots, per: user, limit: 4, algorithm: concurrency, lease_ttl: 30s }
- { id: split, per: user, limit: 12/min, experiment: { share: 50%, algorithm: sliding_counter } }
- { id: quota, per: user, limit: 50/month, algorithm: fixed_window, calendar: Europe/Berlin }
- { id: regex, when: { path: { regex: '^/v[0-9]+/' }, ip: { cidr: [10.0.0.0/8] } }, limit: 500/min, cost: 3 }
- { id: address, per: client_ip, limit: 15/min, ipv6_prefix: 56 }
";

/// Parts of rules and of rows, and some that belong into neither.
const WORDS: [&str; 32] = [
    "20/min",
    "burst",
    "unlimited",
    "0/s",
    "[",
    "]",
    "{",
    "}",
    ":",
    "- ",
    ", ",
    "\n",
    "  ",
    "\t",
    "\0",
    "\u{202e}",
    "&a",
    "*a",
    "!!int",
    "99999999999999999999",
    "-1",
    "1e9",
    "1/0s",
    "per",
    "limit",
    "id",
    "'",
    "\"",
    "ü",
    "/v1/*",
    "::1",
    "%",
];

const fn number(text: &str) -> u64 {
    match u64::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("TOLLGATE_MUTATIONS is a number"),
    }
}

fn read(text: &str) -> Result<RuleSet, Vec<Problem>> {
    let node = yaml::parse(&Origin::new("any.yaml", text))?;
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&node);
    parser.finish().map(|parsed| parsed.rules)
}

/// A text with a few changes: parts removed, repeated, swapped for words, and bytes replaced.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..random.between(1, 4) {
        let at = random.below(chars.len() as u64 + 1) as usize;
        let end = chars.len().min(at + random.below(30) as usize);
        let part: Vec<char> = match random.below(5) {
            0 => Vec::new(),
            1 => chars.get(at..end).unwrap_or_default().repeat(2),
            2 => random.pick(&WORDS).chars().collect(),
            3 => char::from_u32(random.below(0x300) as u32).into_iter().collect(),
            _ => {
                let word = random.pick(&WORDS).chars();
                word.chain(chars.get(at..end).unwrap_or_default().iter().copied())
                    .collect()
            }
        };
        chars.splice(at..end, part);
    }
    chars.into_iter().collect()
}

/// What each rule says to some attempts.
fn lines(rules: &RuleSet, users: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for user in users {
        let attributes = attribute_pairs([
            ("user", *user),
            ("region", "eu"),
            ("path", "/v1/x"),
            ("client_ip", "2001:db8::1"),
            ("ip", "10.1.2.3"),
        ]);
        let plan = rules.plan(&attempt(&attributes), |counter, parts| {
            assert!(rules.counter(counter).is_some(), "every counter is listed");
            parts.concat()
        });
        all.extend(plan.lines.iter().map(|line| match (line.window, line.terms) {
            (Some(window), _) => format!("{user} {} {:?}", window.name(), window.limit()),
            (None, Terms::Unlimited) => format!("{user} {} unlimited", line.rule.id()),
            (None, _) => format!("{user} {} banned", line.rule.id()),
        }));
    }
    all
}

fn row(rule: &str, subject: &[(String, String)], terms: Option<String>) -> RowEdit {
    let subject = subject.iter().map(|(name, value)| (&**name, &**value));
    RowEdit::new(Attempt::DOMAIN, rule, subject, terms.as_deref())
}

#[test]
fn a_damaged_set_is_rejected_whole_or_is_a_set() {
    let (mut accepted, mut rejected) = (0_u64, 0_u64);
    for seed in 0..MUTATIONS {
        let text = mutated(RULES, &mut Random::new(seed));
        match read(&text) {
            Ok(rules) => {
                accepted += 1;
                lines(&rules, &["u1", "u3"]);
            }
            Err(problems) => {
                rejected += 1;
                assert!(!problems.is_empty(), "seed {seed}: rejected without a reason");
                let longest = problems.iter().map(|problem| problem.to_string().len()).max();
                assert!(longest < Some(16 << 10), "seed {seed}");
            }
        }
    }
    assert!(accepted > 0 && rejected > 0, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn a_damaged_row_is_rejected_alone() {
    const TERMS: [&str; 6] = ["20/min", "[9/s, 40/min]", "7/min burst 3", "4", "50/month", "unlimited"];
    const IDS: [&str; 8] = ["plan", "list", "shadow", "slots", "split", "quota", "regex", "address"];
    let good = |user: &str| {
        let subject = [("user".to_owned(), user.to_owned())];
        row("plan", &subject, Some("7/min".to_owned()))
    };
    let (rules, problems) = rule_set(RULES).amend(&[good("kept"), good("u1")]);
    assert_eq!(problems, []);
    let before = lines(&rules, &["kept", "u1", "u3"]);
    let (mut accepted, mut rejected) = (0_u64, 0_u64);
    for seed in 0..MUTATIONS {
        let mut random = Random::new(seed);
        // Subjects that none of the attempts below has, unless the damage makes one of it.
        let edits: Vec<RowEdit> = (0..8)
            .map(|number| {
                let damage = |text: &str, random: &mut Random| match random.one_in(2) {
                    true => mutated(text, random),
                    false => text.to_owned(),
                };
                let subject = [(
                    damage("merchant", &mut random),
                    damage(&format!("m_{number}"), &mut random),
                )];
                let (rule, terms) = (random.pick(&IDS), random.pick(&TERMS));
                let (rule, terms) = (damage(rule, &mut random), damage(terms, &mut random));
                row(&rule, &subject, (!random.one_in(8)).then_some(terms))
            })
            .collect();
        let (next, problems) = rules.amend(&edits);
        let named: BTreeSet<usize> = problems.iter().map(|problem| problem.index).collect();
        assert_eq!(named.len(), problems.len(), "seed {seed}: each is named once");
        assert!(named.iter().all(|index| *index < edits.len()));
        assert!(
            problems
                .iter()
                .all(|problem| problem.text.len() < 1_000 && !problem.hint.is_empty())
        );
        rejected += problems.len() as u64;
        accepted += (next.row_count() - rules.row_count()) as u64;
        assert_eq!(lines(&next, &["kept", "u1", "u3"]), before, "seed {seed}: {edits:?}");
        // All are gone when they are deleted, orphans included.
        let deletions: Vec<RowEdit> = edits
            .iter()
            .map(|edit| RowEdit {
                terms: None,
                ..edit.clone()
            })
            .collect();
        let (after, _) = next.amend(&deletions);
        assert_eq!((after.row_count(), after.orphan_rows()), (2, 0), "seed {seed}");
    }
    assert!(accepted > 0 && rejected > 0, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn a_damaged_attribute_is_rejected_alone() {
    let tier = derived("tier", "user", None);
    let rules = rule_set(RULES).with_derived([tier].into());
    let edit = |texts: [&str; 4]| {
        let [source, subject, name, value] = texts.map(Box::from);
        AttributeEdit {
            source,
            subject,
            name,
            value: Some(value),
        }
    };
    let (rules, problems) = rules.amend_attributes(&[edit(["user", "kept", "tier", "gold"])]);
    assert_eq!(problems, []);
    let before = lines(&rules, &["kept", "u3"]);
    for seed in 0..MUTATIONS {
        let mut random = Random::new(seed);
        let texts = ["client_ip", "2001:db8::1", "tier", "gold"].map(|text| match random.one_in(2) {
            true => mutated(text, &mut random),
            false => text.to_owned(),
        });
        let edits = [
            edit(["user", "u1", "tier", "gold"]),
            edit(texts.each_ref().map(String::as_str)),
        ];
        let (next, problems) = rules.amend_attributes(&edits);
        assert!(
            problems.iter().all(|problem| problem.index == 1),
            "seed {seed}: {problems:?}"
        );
        assert_eq!(next.attribute_count(), 3 - problems.len(), "seed {seed}");
        assert_eq!(lines(&next, &["kept", "u3"]), before, "seed {seed}: {texts:?}");
    }
}
