//! Derived attributes over every protocol: what the table says applies, and what a caller sends upgrades nobody.

use crate::protocols::{PROTOCOLS, TestAttempt, forward};
use crate::server::TestServer;
use std::sync::Arc;
use tollgate::server::headers::Dialects;
use tollgate_limiter::core::rules::{AttributeEdit, DerivedAttribute, EditProblems, RowEdit};
use tollgate_limiter::core::testing::rules::derived;
use tollgate_limiter::store::memory::Memory;
use tollgate_test_kit::rule_set;

const RULES: &str = "
- { id: plan, per: [protocol, user], limit: 10/day, by: { tier: { gold: 20/day, basic: 5/day } } }
";

/// Starts a server that derives `tier` from `user`: `known` is gold, `vip` has a row for gold subjects.
fn server(default: Option<&str>, accept_caller: bool) -> TestServer {
    let tier = DerivedAttribute {
        accept_caller,
        ..derived("tier", "user", default)
    };
    let rules = rule_set(RULES).with_derived([tier].into());
    let store = || Arc::new(Memory::default()).into();
    let server = TestServer::serve(rules, Dialects::default(), store);
    let gold = |user: &str| AttributeEdit {
        source: "user".into(),
        subject: user.into(),
        name: "tier".into(),
        value: Some("gold".into()),
    };
    // A row may name a derived attribute.
    let row = RowEdit::new("default", "plan", [("tier", "gold"), ("user", "vip")], Some("50/day"));
    let problems = server.gate.amend_rules(&[row], &[gold("known"), gold("vip")]);
    assert_eq!(problems, EditProblems::default());
    server
}

/// The units that remain to each user after one attempt with these attributes.
fn check(server: &TestServer, cases: &[(&'static str, Option<&'static str>, u64)]) {
    let attempts: Vec<TestAttempt> = cases
        .iter()
        .map(|(user, tier, _)| {
            let tier = tier.map(|tier| ("tier", tier.to_owned()));
            TestAttempt {
                attributes: [("user", (*user).to_owned())].into_iter().chain(tier).collect(),
                cost: 1,
            }
        })
        .collect();
    let gateway = ("forward", "forward", forward as _);
    for (name, _, send) in PROTOCOLS.iter().chain([&gateway]) {
        let remaining: Vec<Option<u64>> = send(server, name, &attempts)
            .iter()
            .map(|verdict| verdict.remaining)
            .collect();
        let expected: Vec<Option<u64>> = cases.iter().map(|(_, _, remaining)| Some(*remaining)).collect();
        assert_eq!(remaining, expected, "{name}");
    }
}

#[test]
fn a_forged_attribute_upgrades_nobody() {
    let cases = [
        ("known", None, 19),
        ("vip", None, 49),
        // The table comes before what the caller sends.
        ("known", Some("basic"), 18),
        ("vip", Some("none"), 48),
    ];
    let server = server(None, false);
    check(&server, &cases);
    check(
        &server,
        &[("u", Some("gold"), 9), ("v", None, 9), ("w", Some("basic"), 9)],
    );
}

#[test]
fn the_default_applies_to_subjects_that_are_not_in_the_table() {
    let server = server(Some("basic"), false);
    check(&server, &[("known", None, 19), ("u", Some("gold"), 4), ("v", None, 4)]);
}

#[test]
fn an_accepted_caller_comes_after_the_table_and_before_the_default() {
    let server = server(Some("basic"), true);
    let cases = [
        ("known", Some("basic"), 19),
        ("u", Some("gold"), 19),
        ("v", None, 4),
        ("w", Some("other"), 9),
    ];
    check(&server, &cases);
}
