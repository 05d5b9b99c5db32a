//! The compiled rules: valid, complete, immutable.
//!
//! `model/rule.rs` holds the types; `model/selector.rs` selects the limit and the cost for an attempt;
//! `model/cost.rs` holds costs by condition; `model/counting.rs` counts denied attempts and relates rules to each other;
//! `model/meaning.rs` compares rules by meaning; `model/reserve.rs` keeps a part of a limit for some attempts.

mod cost;
mod counting;
mod meaning;
mod reserve;
mod rule;
mod selector;

pub use cost::{CostCase, CostCases, CostOrigin};
pub use counting::{Counting, Group};
pub use meaning::OverrideTerms;
pub use reserve::{Reserve, ReservedWindows};
pub(in crate::rules) use reserve::{ReserveTerms, whole_allows};
pub(in crate::rules) use rule::LimitGrammar;
pub(crate) use rule::{By, Overrides};
pub use rule::{
    Condition, CostSource, CounterId, CounterPart, CounterSpec, Dimension, Experiment, LimitSelector, Mode, Rule,
    RuleSet, Terms, Test, Variant, Window, Windows,
};
pub(crate) use selector::CostValidity;
pub use selector::LimitOrigin;

/// Byte strings as keys of tables, inline up to 24 bytes, so that a lookup touches no second cache line.
pub(crate) type SmallBytes = smallvec::SmallVec<[u8; 24]>;
