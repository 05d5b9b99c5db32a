//! Any text as a rules file: read or refused with places that can be shown, and what is read can be planned with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::problem::Origin;
use tollgate_core::rules::{Attempt, Attribute, Reader, Settings};
use tollgate_core::{Cost, yaml};

fuzz_target!(|text: &str| {
    let problems = match yaml::parse(&Origin::new("rules.yaml", text)) {
        Err(problems) => problems,
        Ok(node) => {
            let mut reader = Reader::new(Settings::default());
            reader.file(&node);
            match reader.finish() {
                Err(problems) => problems,
                Ok(read) => {
                    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').take(64).collect();
                    let attributes: Vec<Attribute<'_>> = words
                        .windows(2)
                        .map(|pair| Attribute { name: pair[0], value: pair[1].as_bytes() })
                        .collect();
                    let attempt = Attempt { domain: Attempt::DOMAIN, attributes: &attributes, cost: Cost::ONE };
                    let plan = read.rules.plan(&attempt, |_, parts| parts.concat());
                    assert!(plan.lines.len() >= plan.charges.len());
                    read.warnings
                }
            }
        }
    };
    for problem in problems {
        assert!(problem.to_string().len() < 16 << 10, "a problem is shown in a few lines");
    }
});
