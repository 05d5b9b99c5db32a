//! One answer out of many decisions.

use super::rule::{Mode, Rule, Variant, Window};
use crate::decision::Decision;
use crate::source::Source;

/// What a store says of one charge: its decision and who decided, or nothing if it could not be asked.
pub type Answer = Option<(Decision, Source)>;

/// May the attempt go on?
#[derive(Debug)]
pub struct Verdict<'r> {
    /// Whether it may.
    pub allowed: bool,
    /// The ruling the answer speaks for, as an index into `rulings`: on allow the enforced limit with the least remaining
    /// (the first on a tie), on deny the violated one with the longest wait. None if no enforced limit was met.
    pub nearest: Option<usize>,
    /// How long to hold the attempt before it goes on: the longest delay of its shaped limits.
    pub delay: crate::Micros,
    /// The least exact of the rulings' sources.
    pub source: Source,
    /// For each line of the plan.
    pub rulings: Vec<Ruling<'r>>,
}

/// What one limit says.
#[derive(Debug)]
pub struct Ruling<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The name of the limit in answers.
    pub name: &'r str,
    /// The window, unless the rule bans or does not limit.
    pub window: Option<&'r Window>,
    /// The side of the rule's experiment.
    pub variant: Variant,
    /// Whether it binds.
    pub mode: Mode,
    /// What it says. Nothing if it does not limit.
    pub decision: Option<Decision>,
    /// Who decided.
    pub source: Source,
}
