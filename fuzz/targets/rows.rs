//! Any text as override rows of a rule set: each is applied or rejected alone, and the set can plan an attempt.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::problem::Origin;
use tollgate_core::rules::{Attempt, Attribute, ParserOptions, RowEdit, RuleSet, RulesParser};
use tollgate_core::{Cost, yaml};

const RULES: &str = "
rules:
- { id: a, per: user, limit: 20/min, by: { tier: { gold: 30/min } } }
- { id: b, per: user, limit: 4, algorithm: concurrency }
- { id: c, per: user, limit: 12/min, experiment: { share: 50%, algorithm: sliding_counter } }
- { id: d, per: client_ip, limit: 50/month, algorithm: fixed_window, calendar: Europe/Berlin }
";

fn rules() -> RuleSet {
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&yaml::parse(&Origin::new("rules.yaml", RULES)).expect("it is YAML"));
    parser.finish().expect("valid rules").rules
}

fuzz_target!(|text: &str| {
    // One row in each line: the rule, an attribute, its value, and the terms.
    let edits: Vec<RowEdit> = text
        .lines()
        .take(64)
        .map(|line| {
            let mut parts = line.splitn(4, ' ');
            let mut next = || parts.next().unwrap_or_default();
            RowEdit {
                domain: Attempt::DOMAIN.into(),
                rule: next().into(),
                subject: [(next().into(), next().into())].into(),
                terms: parts.next().map(Box::from),
            }
        })
        .collect();
    let (amended, problems) = rules().amend(&edits);
    assert!(amended.row_count() + problems.len() <= edits.len());
    for problem in problems {
        assert!(problem.text.len() < 1_000 && !problem.hint.is_empty());
    }
    let attributes: Vec<Attribute<'_>> = edits
        .iter()
        .flat_map(|edit| &edit.subject)
        .map(|(name, value)| Attribute { name, value: value.as_bytes() })
        .collect();
    let attempt = Attempt { domain: Attempt::DOMAIN, attributes: &attributes, cost: Cost::ONE };
    let plan = amended.plan(&attempt, |_, parts| parts.concat());
    assert!(plan.lines.len() >= plan.charges().count());
});
