//! The compiled rules: valid, complete, immutable.
//!
//! `model/rule.rs` holds the types; `model/selector.rs` selects the limit and the cost for an attempt;
//! `model/counting.rs` counts denied attempts and relates rules to each other.

mod counting;
mod rule;
mod selector;
mod small_bytes;

pub use counting::{Counting, Group};
pub(crate) use rule::{By, Overrides};
pub use rule::{
    Condition, CostSource, CounterId, CounterSpec, Dimension, Experiment, LimitSelector, Mode, Rule, RuleSet, Terms,
    Test, Variant, Window, Windows,
};
pub(crate) use selector::CostValidity;
pub use selector::LimitOrigin;
pub(crate) use small_bytes::SmallBytes;
