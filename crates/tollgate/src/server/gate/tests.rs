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
    RowEdit::new(Attempt::DOMAIN, "plan", [("user", "u")], terms)
}

const ATTEMPT: Attempt<'static> = Attempt {
    domain: Attempt::DOMAIN,
    attributes: &[Attribute {
        name: "user",
        value: b"u",
    }],
    cost: Cost::ONE,
};

async fn remaining(gate: &Gate) -> Option<u64> {
    let snapshot = gate.snapshot(Protocol::Http);
    let verdict = snapshot.check(&ATTEMPT).await.verdict;
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
    assert_eq!(gate.amend_rules(&[row(Some("100/h"))], &[]), EditProblems::default());
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
    assert_eq!(gate.amend_rules(&[row(None)], &[]), EditProblems::default());
    assert_eq!(remaining(&gate).await, Some(7));
    // A row with terms that cannot be used has no effect.
    assert_eq!(gate.amend_rules(&[row(Some("100/h"))], &[]), EditProblems::default());
    let problems = gate.amend_rules(&[row(Some("lots"))], &[]);
    assert_eq!(problems.rows.first().map(|problem| problem.index), Some(0));
    assert_eq!(remaining(&gate).await, Some(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_check_sees_half_of_an_amendment() {
    const RULES: &str = "rules: [{ id: a, per: user, limit: 10/s }, { id: b, per: user, limit: 10/s }]";
    let gate = Arc::new(Gate::new(rules(RULES), Arc::new(Memory::default())));
    let terms = |rule: &str, terms: &str| RowEdit {
        rule: rule.into(),
        ..row(Some(terms))
    };
    // One of the two bans in every state, and never both.
    let states = [
        [terms("a", "0/s"), terms("b", "unlimited")],
        [terms("a", "unlimited"), terms("b", "0/s")],
    ];
    gate.amend_rules(&states[0], &[]);
    let checks = (0..2).map(|_| {
        let gate = Arc::clone(&gate);
        tokio::spawn(async move {
            for _ in 0..5_000 {
                let snapshot = gate.snapshot(Protocol::Http);
                let results = snapshot.check_each(&[ATTEMPT, ATTEMPT]).await;
                let bans: Vec<Vec<bool>> = results
                    .iter()
                    .map(|result| {
                        result
                            .verdict
                            .rulings
                            .iter()
                            .map(|ruling| ruling.decision.is_some())
                            .collect()
                    })
                    .collect();
                assert!(
                    bans == [[true, false], [true, false]] || bans == [[false, true], [false, true]],
                    "{bans:?}"
                );
                tokio::task::yield_now().await;
            }
        })
    });
    let checks: Vec<_> = checks.collect();
    let mut amendments = 0_usize;
    while checks.iter().any(|check| !check.is_finished()) {
        amendments += 1;
        assert_eq!(gate.amend_rules(&states[amendments % 2], &[]), EditProblems::default());
        tokio::task::yield_now().await;
    }
    for check in checks {
        check.await.expect("every answer is of one state");
    }
    assert!(amendments > 10, "{amendments} amendments during the checks");
}

#[tokio::test]
async fn an_attribute_that_cannot_be_used_is_reported() {
    let gate = Gate::new(
        rules("rules: [{ id: plan, per: user, limit: 10/h }]"),
        Arc::new(Memory::default()),
    );
    let tier = |name: &str| AttributeEdit {
        source: "user".into(),
        subject: "u".into(),
        name: name.into(),
        value: Some("gold".into()),
    };
    let problems = gate.amend_rules(&[], &[tier("tier"), tier("")]);
    assert_eq!(
        problems
            .attributes
            .iter()
            .map(|problem| problem.index)
            .collect::<Vec<_>>(),
        [1]
    );
    assert_eq!(gate.active_rules().attribute_count(), 1);
}

#[test]
fn a_request_never_frees_the_rules_that_it_was_the_last_to_use() {
    let gate = Gate::new(rules("rules: [{ id: a, limit: 10/h }]"), Arc::new(Memory::default()));
    let first = Arc::downgrade(&gate.active_rules.load_full());
    let request = gate.snapshot(Protocol::Http);
    gate.install_rules(rules("rules: [{ id: b, limit: 10/h }]"));
    drop(request);
    assert!(first.upgrade().is_some(), "freed by the request");
    gate.retired.free_unused();
    assert!(first.upgrade().is_none());
    // Without a request they are freed when they are replaced.
    let second = Arc::downgrade(&gate.active_rules.load_full());
    gate.amend_rules(&[], &[]);
    assert!(second.upgrade().is_none());
}
