//! What an attempt is to be charged for.

use super::rule::{Rule, Terms, Variant, Window};
use crate::decision::Cost;
use crate::settle::Charge;

/// The charges of one attempt, line by line, in the order of the rules. Nothing has been taken yet.
#[derive(Debug)]
pub struct Plan<'r, K> {
    /// One for each window of each rule that is met.
    pub lines: Vec<Line<'r, K>>,
    /// How often a cost attribute was not a whole number, and the default was taken.
    pub odd_costs: u32,
}

/// One limit an attempt meets.
#[derive(Debug)]
pub struct Line<'r, K> {
    /// The rule.
    pub rule: &'r Rule,
    /// What it says: banned, unlimited, or this window.
    pub terms: &'r Terms,
    /// The window, if limited.
    pub window: Option<&'r Window>,
    /// The side of the rule's experiment.
    pub variant: Variant,
    /// What it takes.
    pub cost: Cost,
    /// What the store is asked to settle, if limited.
    pub charge: Option<Charge<K>>,
}
