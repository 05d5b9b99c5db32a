//! Any text as a rules file: parsed or rejected with problems that can be shown; parsed rules can plan an attempt.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::problem::Origin;
use tollgate_core::rules::{Attempt, Attribute, ParserOptions, RulesParser};
use tollgate_core::{Cost, yaml};

fuzz_target!(|text: &str| {
    let problems = match yaml::parse(&Origin::new("rules.yaml", text)) {
        Err(problems) => problems,
        Ok(node) => {
            let mut parser = RulesParser::new(ParserOptions::default());
            parser.add_file(&node);
            match parser.finish() {
                Err(problems) => problems,
                Ok(parsed) => {
                    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').take(64).collect();
                    let attributes: Vec<Attribute<'_>> = words
                        .windows(2)
                        .map(|pair| Attribute { name: pair[0], value: pair[1].as_bytes() })
                        .collect();
                    let attempt = Attempt { domain: Attempt::DOMAIN, attributes: &attributes, cost: Cost::ONE };
                    let plan = parsed.rules.plan(&attempt, |_, parts| parts.concat());
                    assert!(plan.lines.len() >= plan.charges().count());
                    parsed.warnings
                }
            }
        }
    };
    for problem in problems {
        assert!(problem.to_string().len() < 16 << 10, "a problem fits into a few lines");
    }
});
