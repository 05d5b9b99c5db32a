//! The plan between two rule sets: what a publish would change, rule by rule, and what happens to counters. It compares
//! meanings, not text.
//!
//! `plan/compare.rs` compares two rules, `plan/effect.rs` states the effect of a change, `plan/rows.rs` finds the override rows that a
//! change concerns, `plan/text.rs` renders the plan.

mod compare;
mod effect;
mod rows;
mod text;

pub use effect::{Effect, EffectKind};
pub use rows::{RowConcern, RowNote, RowSample};

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use tollgate_limiter::core::rules::{Rule, RuleSet};

/// The differences between the live rule set and the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePlan {
    /// The differences: those of the next set in file order, then what is removed.
    pub lines: Vec<PlanLine>,
    /// The override rows that the differences concern.
    pub rows: Vec<RowNote>,
    /// Number of rules that differ.
    pub changed: usize,
    /// Number of rules that only the next set has.
    pub added: usize,
    /// Number of rules that only the live set has.
    pub removed: usize,
    /// Number of rules of equal meaning.
    pub unchanged: usize,
    /// The grammar level that the next set needs.
    pub format: u32,
    /// Number of instances that can read it.
    pub supported: usize,
    /// Number of instances.
    pub instances: usize,
}

/// One difference. A rule that differs in several respects has several lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLine {
    /// The kind of the difference.
    pub op: PlanOp,
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule.
    pub rule: String,
    /// The difference: `limit 100/min -> 60/min`.
    pub what: String,
    /// Its effect on requests and counters, from a fixed list; empty if it has none.
    pub effect: String,
    /// The kind of the effect.
    pub effect_kind: EffectKind,
}

/// The kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanOp {
    /// Both sets have the rule, with different meanings.
    Changed,
    /// Only the next set has it.
    Added,
    /// Only the live set has it.
    Removed,
}

impl ChangePlan {
    /// Compares the live rule set with the next one, for one instance that reads it. Override rows are added by
    /// [`ChangePlan::with_rows`].
    pub fn between(live: &RuleSet, next: &RuleSet) -> Self {
        let known: HashMap<(&str, &str), &Rule> = live.rules().iter().map(|rule| (key(rule), rule)).collect();
        let mut plan = Self {
            format: FORMAT,
            supported: 1,
            instances: 1,
            ..Self::default()
        };
        for rule in next.rules() {
            let Some(before) = known.get(&key(rule)) else {
                plan.added += 1;
                plan.push(PlanOp::Added, rule, compare::added(rule));
                continue;
            };
            let differences = compare::differences(before, rule);
            if differences.is_empty() {
                plan.unchanged += 1;
                continue;
            }
            plan.changed += 1;
            for difference in differences {
                plan.push(PlanOp::Changed, rule, difference);
            }
        }
        let kept: HashSet<(&str, &str)> = next.rules().iter().map(key).collect();
        for rule in live.rules().iter().filter(|rule| !kept.contains(&key(rule))) {
            plan.removed += 1;
            plan.push(PlanOp::Removed, rule, compare::removed(rule));
        }
        plan
    }

    /// True if both sets have the same meaning.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn push(&mut self, op: PlanOp, rule: &Rule, (what, effect): (String, Effect)) {
        self.lines.push(PlanLine {
            op,
            domain: rule.domain().to_owned(),
            rule: rule.id().to_owned(),
            what,
            effect: effect.to_string(),
            effect_kind: effect.kind(),
        });
    }
}

fn key(rule: &Rule) -> (&str, &str) {
    (rule.domain(), rule.id())
}

/// The format of the rules and rows that this program writes, and the newest that it reads: the level of their grammar.
pub const FORMAT: u32 = 1;

#[cfg(test)]
mod tests;
