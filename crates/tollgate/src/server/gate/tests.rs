use super::*;
use tollgate_limiter::core::rules::{Attribute, ParserOptions, RulesParser};
use tollgate_limiter::core::{problem, yaml};
use tollgate_limiter::store::memory::Memory;

fn rules(text: &str) -> RuleSet {
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&yaml::parse(&problem::Origin::new("rules.yaml", text)).expect("it is YAML"));
    parser.finish().expect("sound rules").rules
}

fn row(terms: Option<&str>) -> RowEdit {
    RowEdit {
        domain: Attempt::DOMAIN.into(),
        rule: "plan".into(),
        subject: [("user".into(), "u".into())].into(),
        terms: terms.map(Box::from),
    }
}

async fn remaining(gate: &Gate) -> Option<u64> {
    let attributes = [Attribute {
        name: "user",
        value: b"u",
    }];
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes: &attributes,
        cost: Cost::ONE,
    };
    let snapshot = gate.snapshot(Protocol::Http);
    let verdict = snapshot.check(&attempt).await.verdict;
    let standing = verdict.rulings.first()?.decision?;
    Some(standing.standing().remaining)
}

#[tokio::test]
async fn an_amendment_applies_at_once_and_everything_counted_continues() {
    const RULES: &str = "rules: [{ id: plan, per: user, limit: 10/h }, { id: idle, per: other, limit: 10/h }]";
    let gate = Gate::new(rules(RULES), Arc::new(Memory::default()));
    assert_eq!(remaining(&gate).await, Some(9));
    assert_eq!((gate.rules_never_matched(), gate.rules_installed()), (1, 1));
    let before = gate.snapshot(Protocol::Http);
    assert_eq!(gate.amend_rules(&[row(Some("100/h"))], &[]), []);
    assert_eq!(remaining(&gate).await, Some(98));
    // Not a reload: rules that matched have matched, and their series continue.
    assert_eq!((gate.rules_never_matched(), gate.rules_installed()), (1, 1));
    let decisions = r#"tollgate_decisions_total{rule="plan",result="allow",source="memory",protocol="http"} 2"#;
    assert!(gate.metrics_text().contains(decisions), "{}", gate.metrics_text());
    assert_eq!(
        before.limiter().rules().row_count(),
        0,
        "a request in progress keeps its rules"
    );
    let problems = gate.amend_rules(&[row(Some("lots"))], &[]);
    assert_eq!(problems.first().map(|problem| problem.index), Some(0));
    assert_eq!(remaining(&gate).await, Some(97));
    assert_eq!(gate.amend_rules(&[row(None)], &[]), []);
    assert_eq!(remaining(&gate).await, Some(6));
}
