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
mod index;
mod lint;
mod matching;
mod plan;
mod rule;
mod subject;
mod terms;
mod verdict;

pub use attempt::{Attempt, Attribute};
pub use explain::{Explanation, Fit, Held, Met, Miss, Story};
pub use file::{RULES_MAX, Read, Reader, Settings};
pub use plan::{Line, Plan};
pub use rule::{
    Choice, Condition, CounterId, CounterOf, Dimension, Experiment, Mode, OnStoreFailure, Price, Rule, RuleSet, Terms,
    Test, Variant, Window,
};
pub use terms::Grounds;
pub use verdict::{Answer, Ruling, Verdict};
