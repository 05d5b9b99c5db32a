use super::*;
use crate::decision::Cost;
use crate::rules::model::RuleSet;
use crate::rules::{Attribute, sample};
use crate::testing::random::Random;
use std::fmt::Write;

const NAMES: [&str; 4] = ["path", "method", "ip", "tier"];
const VALUES: [&str; 10] = [
    "",
    "/",
    "/v1",
    "/v1/",
    "/v1/a",
    "/v1/b/c",
    "GET",
    "10.0.0.7",
    "::ffff:10.0.0.7",
    "free",
];
const TESTS: [&str; 13] = [
    "/v1/a",
    "GET",
    "\"\"",
    "[GET, free, /]",
    "\"/v1/*\"",
    "\"/v1*\"",
    "\"*\"",
    "\"*a\"",
    "[\"/v1/*\", GET]",
    "{regex: \"^/v1\"}",
    "{cidr: [10.0.0.0/8]}",
    "{present: true}",
    "{present: false}",
];

/// Rules of all kinds, in two domains.
fn rules(random: &mut Random) -> RuleSet {
    let mut text = String::from("rules:\n");
    for id in 0..random.between(1, 30) {
        let domain = random.pick(&["default", "other"]);
        let mode = random.pick(&["enforce", "enforce", "shadow", "disabled"]);
        let mut conditions = Vec::new();
        let mut per = Vec::new();
        for name in NAMES {
            if random.one_in(3) {
                conditions.push(format!("{name}: {}", random.pick(&TESTS)));
            } else if random.one_in(6) {
                per.push(name);
            }
        }
        writeln!(
            text,
            "- {{id: r{id}, domain: {domain}, mode: {mode}, when: {{{}}}, per: [{}], limit: 1/s}}",
            conditions.join(", "),
            per.join(", ")
        )
        .expect("a string takes all");
    }
    sample(&text.replace("when: {}, ", "").replace("per: [], ", ""))
}

fn attributes(random: &mut Random) -> Vec<Attribute<'static>> {
    let attribute = |random: &mut Random| Attribute {
        name: random.pick(&["path", "method", "ip", "tier", "unknown"]),
        value: random.pick(&VALUES).as_bytes(),
    };
    (0..random.below(6)).map(|_| attribute(random)).collect()
}

#[test]
fn every_rule_that_is_met_is_found_in_order_and_no_other() {
    let mut matched = 0;
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let rules = rules(&mut random);
        for _ in 0..10 {
            let attributes = attributes(&mut random);
            let attempt = Attempt {
                domain: random.pick(&["default", "other", "third"]),
                attributes: &attributes,
                cost: Cost::ONE,
            };
            let is_met = |rule: &&Rule| {
                rule.mode != Mode::Disabled
                    && *rule.domain == *attempt.domain
                    && rule.holds(&attempt)
                    && rule
                        .per
                        .iter()
                        .all(|dimension| attempt.value(&dimension.attribute).is_some())
            };
            let expected: Vec<&str> = rules.rules.iter().filter(is_met).map(|rule| &*rule.id).collect();
            let plan = rules.plan(&attempt, |_, _| ());
            let planned: Vec<&str> = plan.lines.iter().map(|line| &*line.rule.id).collect();
            assert_eq!(planned, expected, "seed {seed}, {attempt:?}, {rules:#?}");
            matched += expected.len();
        }
    }
    assert!(
        matched > 20_000,
        "only {matched} rules were met: too few to tell anything"
    );
}

#[test]
fn of_ten_thousand_rules_an_attempt_touches_those_of_its_endpoint() {
    let mut text = String::from("rules:\n");
    for endpoint in 0..5_000 {
        writeln!(
            text,
            "- {{id: c{endpoint}, when: {{method: POST, endpoint: /v1/e{endpoint}}}, limit: 10000/s}}"
        )
        .expect("a string takes all");
        writeln!(
            text,
            "- {{id: m{endpoint}, when: {{method: POST, endpoint: \"/v1/e{endpoint}/*\"}}, per: merchant, limit: 1/s}}"
        )
        .expect("a string takes all");
    }
    let rules = sample(&text);
    for (endpoint, expected) in [("/v1/e4321", 1), ("/v1/e4321/refunds", 1), ("/v1/none", 0)] {
        let attributes = crate::rules::attributes(&[
            ("merchant", b"m_1"),
            ("endpoint", endpoint.as_bytes()),
            ("method", b"POST"),
        ]);
        let attempt = Attempt {
            domain: Attempt::DOMAIN,
            attributes: &attributes,
            cost: Cost::ONE,
        };
        assert_eq!(rules.index.lookup(&attempt).candidates.len(), expected, "{endpoint}");
    }
}
