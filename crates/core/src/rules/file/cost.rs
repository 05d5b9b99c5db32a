//! Parser of a rule's cost: a number, an attribute, or a list of cases.

use super::{RulesParser, check_count, parse_name};
use crate::decision::Cost;
use crate::problem::Problems;
use crate::rules::model::{CostCase, CostCases, CostSource};
use crate::yaml::{Node, NodeKind};

/// The keys of a cost that is a map.
pub(in crate::rules) const COST_KEYS: [&str; 2] = ["attribute", "default"];
/// The keys of an entry of a cost that is a list.
pub(in crate::rules) const COST_CASE_KEYS: [&str; 3] = ["when", "cost", "default"];

/// The maximum number of entries of a cost: each may be tested for every attempt.
const CASES_MAX: usize = 64;
const EXAMPLE: &str = "[{ when: { endpoint: /search }, cost: 5 }, { default: 1 }]";

impl RulesParser {
    /// Parses the cost of a rule; None if it is invalid.
    pub(super) fn parse_cost(&mut self, node: &Node) -> Option<CostSource> {
        let NodeKind::List(items) = &node.kind else {
            return parse_plain_cost(node, &mut self.problems);
        };
        check_count(items.len(), CASES_MAX, &node.location, &mut self.problems, || {
            (
                format!("a cost is a list of {} entries", items.len()),
                format!("give one to {CASES_MAX}: `{EXAMPLE}`"),
            )
        })?;
        let errors = self.problems.error_count();
        let mut cases = Vec::with_capacity(items.len());
        let mut default = None;
        for (index, item) in items.iter().enumerate() {
            let Some(fields) = item.fields("an entry of `cost`", &COST_CASE_KEYS, &mut self.problems) else {
                continue;
            };
            match (fields.entry("when"), fields.entry("cost"), fields.entry("default")) {
                (None, None, Some((_, cost))) => {
                    default = parse_plain_cost(cost, &mut self.problems);
                    if index + 1 < items.len() {
                        self.problems.error_with(
                            &item.location,
                            "the entries after the default of `cost` never apply",
                            "make the default the last entry: the first that matches wins",
                        );
                    }
                }
                (Some((_, when)), Some((_, cost)), None) => {
                    let conditions = self.parse_when(when);
                    if matches!(&when.kind, NodeKind::Map(entries) if entries.is_empty()) {
                        self.problems.error_with(
                            &when.location,
                            "an entry of `cost` has no conditions",
                            "write what it always costs as the last entry: `{ default: 1 }`",
                        );
                    }
                    if let Some(cost) = parse_plain_cost(cost, &mut self.problems) {
                        cases.push(CostCase { when: conditions, cost });
                    }
                }
                // The misspelt key was reported.
                _ if fields.has_unknown_keys() => {}
                _ => self.problems.error_with(
                    &item.location,
                    "an entry of `cost` is `when` and `cost`, or `default` alone",
                    format!("write for example `{EXAMPLE}`"),
                ),
            }
        }
        if self.problems.error_count() > errors {
            return None;
        }
        Some(CostSource::Cases(Box::new(CostCases {
            cases: cases.into(),
            default: default.unwrap_or(CostSource::Fixed(Cost::ONE)),
        })))
    }
}

/// Parses a number, or an attribute with its default.
fn parse_plain_cost(node: &Node, problems: &mut Problems) -> Option<CostSource> {
    let cost = |node: &Node, problems: &mut Problems| {
        let units = node.integer("a cost", 0..=Cost::MAX.get(), problems)?;
        Cost::new(units).ok()
    };
    if !matches!(node.kind, NodeKind::Map(_)) {
        return cost(node, problems).map(CostSource::Fixed);
    }
    let fields = node.fields("a cost", &COST_KEYS, problems)?;
    let attribute = fields.require("a cost", "attribute", "{ attribute: points, default: 1 }", problems)?;
    let text = attribute.text("the name of an attribute", problems)?;
    let name = parse_name("an attribute", text, &attribute.location, problems)?;
    let default = fields.find("default").map(|node| cost(node, problems));
    Some(CostSource::Attribute {
        name: name.into(),
        default: default.unwrap_or(Some(Cost::ONE))?,
    })
}
