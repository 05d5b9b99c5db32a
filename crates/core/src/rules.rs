//! Which limits an attempt meets, and one verdict out of their decisions.
//!
//! - [`Reader`] takes rules as they are written and gives a [`RuleSet`], or everything that is wrong with them.
//! - [`RuleSet::plan`] says for an [`Attempt`] which counters are to be charged, and how much.
//! - [`Plan::verdict`] makes one [`Verdict`] of what the store answers.

mod attempt;
mod explain;
mod few;
mod file;
mod forget;
mod lint;
mod matching;
mod model;
mod plan;
pub mod ratelimit;
mod schema;
mod verdict;

pub use crate::settle::OnStoreFailure;
pub use attempt::{Attempt, Attribute};
pub use explain::{Explanation, LimitTrace, MatchedRule, RuleMatch, RuleTrace, SkipReason};
pub use file::{ParsedRules, ParserOptions, RULES_MAX, RulesParser, holds_addresses};
pub use forget::UnknownRule;
pub use model::{
    Condition, CostSource, CounterId, CounterSpec, Dimension, Experiment, LimitOrigin, LimitSelector, Mode, Rule,
    RuleSet, Terms, Test, Variant, Window, Windows,
};
pub use plan::{Line, Plan};
pub use schema::SCHEMA;
pub use verdict::{ChargeResult, Ruling, Verdict, WindowCount};

/// Rules of a text, for the tests of this module.
#[cfg(test)]
pub(crate) fn sample(text: &str) -> RuleSet {
    let origin = crate::problem::Origin::new("sample.yaml", text);
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&crate::yaml::parse(&origin).expect("yaml"));
    reader.finish().expect("sound rules").rules
}

/// An attempt of one unit in the usual domain, for the tests of this module.
#[cfg(test)]
pub(crate) fn attributes<'a>(pairs: &[(&'a str, &'a [u8])]) -> Vec<Attribute<'a>> {
    pairs.iter().map(|&(name, value)| Attribute { name, value }).collect()
}
