//! Rules as data: parsing them, planning the charges of an attempt, and combining decisions into one verdict.
//!
//! - [`RulesParser`] parses rules and returns a [`RuleSet`], or every problem found.
//! - [`RuleSet::plan`] lists the charges of an [`Attempt`].
//! - [`Plan::verdict`] combines the recorded outcomes into one [`Verdict`].

mod attempt;
mod derive;
mod domain;
mod explain;
mod file;
mod forget;
mod lint;
mod matching;
mod model;
mod plan;
pub mod ratelimit;
mod rows;
mod schema;
mod verdict;

pub use crate::settle::OnStoreFailure;
pub use attempt::{Attempt, Attribute};
pub use derive::{AttributeEdit, DerivedAttribute, DerivedOrigin, DerivedValue};
pub use domain::UnknownDomain;
pub use explain::{Explanation, LimitTrace, MatchedRule, ReserveTrace, RuleMatch, RuleTrace, SkipReason};
pub use file::{ParsedRules, ParserOptions, RULES_MAX, RulesParser, holds_addresses};
pub use forget::UnknownRule;
pub use lint::{Coverage, KnownAttributes};
pub use model::{
    Condition, CostCase, CostCases, CostOrigin, CostSource, CounterId, CounterPart, CounterSpec, Counting, Dimension,
    Experiment, Group, LimitOrigin, LimitSelector, Mode, OverrideTerms, Reserve, ReservedWindows, Rule, RuleSet, Terms,
    Test, Variant, Window, Windows,
};
pub use plan::{Line, LinePart, Plan, PlannedCharge, Prefetch, Undecided, record};
pub use rows::{EditProblems, RowEdit, RowProblem, RowSubject};
pub use schema::SCHEMA;
pub use verdict::{DenialReason, Ruling, Verdict, WindowCount};

/// Parses rules from a text, for the tests of this module.
#[cfg(test)]
pub(crate) fn sample(text: &str) -> RuleSet {
    let origin = crate::problem::Origin::new("sample.yaml", text);
    let mut reader = RulesParser::new(ParserOptions::default());
    reader.add_file(&crate::yaml::parse(&origin).expect("yaml"));
    reader.finish().expect("sound rules").rules
}

/// Attributes from pairs, for the tests of this module.
#[cfg(test)]
pub(crate) fn attributes<'a>(pairs: &[(&'a str, &'a [u8])]) -> Vec<Attribute<'a>> {
    pairs.iter().map(|&(name, value)| Attribute { name, value }).collect()
}
