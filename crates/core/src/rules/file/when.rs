//! Parser of a rule's conditions.

use super::RulesParser;
use crate::network::Networks;
use crate::problem::ValueError;
use crate::rules::model::{Condition, Test};
use crate::yaml::{Node, NodeKind, excerpt};

/// The keys of a condition that is a map.
pub(in crate::rules) const CONDITION_KEYS: [&str; 3] = ["regex", "cidr", "present"];
/// The maximum number of conditions of a rule.
const CONDITIONS_MAX: usize = 32;
/// The maximum number of stars of a glob.
const STARS_MAX: usize = 16;

const EXPECTED: &str = "a value, a list of values, or one of { regex: … }, { cidr: … } and { present: … }";

impl RulesParser {
    /// Parses the conditions of a rule, leaving out invalid ones.
    pub(super) fn parse_when(&mut self, node: &Node) -> Box<[Condition]> {
        let entries = node.entries(
            "a map of attributes and what they must be",
            "{ endpoint: /v1/charges }",
            &mut self.problems,
        );
        let entries = entries.unwrap_or_default();
        if entries.len() > CONDITIONS_MAX {
            self.problems.error_with(
                &node.location,
                format!("a rule has {} conditions, more than {CONDITIONS_MAX}", entries.len()),
                "make several rules of it",
            );
            return Box::default();
        }
        let mut conditions = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let attribute = super::parse_name("an attribute", &key.text, &key.location, &mut self.problems);
            let test = self.parse_test(value);
            if let (Some(attribute), Some(test)) = (attribute, test) {
                conditions.push(Condition {
                    attribute: attribute.into(),
                    test,
                });
            }
        }
        conditions.into()
    }

    fn parse_test(&mut self, node: &Node) -> Option<Test> {
        match &node.kind {
            NodeKind::List(items) => self.parse_any_test(items),
            _ => self.parse_single_test(node),
        }
    }

    /// Parses a test that may be alone or in a list.
    fn parse_single_test(&mut self, node: &Node) -> Option<Test> {
        if let Some(text) = node.scalar() {
            return match parse_pattern(text) {
                Ok(test) => Some(test),
                Err(error) => {
                    self.problems.push(error.at(&node.location));
                    None
                }
            };
        }
        if !matches!(node.kind, NodeKind::Map(_)) {
            let hint = "write for example `/v1/charges`, `[free, trial]` or `{ present: true }`";
            node.report_unexpected(EXPECTED, hint, &mut self.problems);
            return None;
        }
        let fields = node.fields("a condition", &CONDITION_KEYS, &mut self.problems)?;
        let conditions: Vec<(&str, &Node)> = CONDITION_KEYS
            .iter()
            .filter_map(|key| Some((*key, fields.find(key)?)))
            .collect();
        let (key, value) = match conditions.as_slice() {
            [one] => *one,
            // None, because of a key that was already reported.
            [] if matches!(&node.kind, NodeKind::Map(entries) if !entries.is_empty()) => return None,
            _ => {
                self.problems.error_with(
                    &node.location,
                    "a condition is exactly one of `regex`, `cidr` and `present`",
                    "for alternatives, make a list: `[{ regex: … }, { cidr: … }]`",
                );
                return None;
            }
        };
        match key {
            "regex" => {
                let expressions = &mut self.expressions;
                let compile = |text: &str| expressions.compile(text);
                let regex = value.read("a regular expression", compile, &mut self.problems)?;
                Some(Test::Regex(Box::new(regex)))
            }
            "cidr" => Networks::read(value, &mut self.problems).map(Test::Cidr),
            _ => value.flag(&mut self.problems).map(Test::Present),
        }
    }

    fn parse_any_test(&mut self, items: &[Node]) -> Option<Test> {
        let mut values = Vec::new();
        let mut others = Vec::new();
        let errors = self.problems.error_count();
        for item in items {
            match self.parse_single_test(item) {
                Some(Test::OneOf(value)) => values.extend(value),
                Some(test) => others.push(test),
                None => {}
            }
        }
        if self.problems.error_count() > errors {
            return None;
        }
        values.sort_unstable();
        values.dedup();
        if others.is_empty() {
            return Some(Test::OneOf(values.into()));
        }
        if !values.is_empty() {
            others.push(Test::OneOf(values.into()));
        }
        Some(Test::Any(others.into()))
    }
}

/// Parses a value, or a glob if it contains a star. A backslash escapes a star or a backslash.
fn parse_pattern(text: &str) -> Result<Test, ValueError> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut letters = text.chars().peekable();
    let mut after_star = false;
    while let Some(letter) = letters.next() {
        match letter {
            // Consecutive stars are one.
            '*' if after_star => {}
            '*' => {
                parts.push(std::mem::take(&mut part).into());
                after_star = true;
                continue;
            }
            '\\' => part.push(letters.next_if(|next| matches!(next, '*' | '\\')).unwrap_or('\\')),
            _ => part.push(letter),
        }
        after_star = letter == '*';
    }
    parts.push(part.into());
    if parts.len() > STARS_MAX + 1 {
        return Err(ValueError::new(
            format!("`{}` has more than {STARS_MAX} stars", excerpt(text)),
            "use fewer, or a regular expression: `{ regex: … }`",
        ));
    }
    Ok(match parts.len() {
        1 => Test::OneOf(parts.into()),
        _ => Test::Glob(parts.into()),
    })
}
