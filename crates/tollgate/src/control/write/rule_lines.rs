//! The lines of one rule in a rule file: found, replaced and removed without touching the others.

use std::ops::Range;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::yaml::{self, Node, NodeKind};

/// The lines of a rule in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleLines {
    /// Its first line, from 0.
    start: usize,
    /// The line after its last one.
    end: usize,
    /// The column of its dash.
    indent: usize,
    /// True if its list has no other rule.
    pub(super) is_only: bool,
}

impl RuleLines {
    /// Finds the rule whose id is at a line, from 1. None if it does not have lines of its own, as in `[{ id: a }, { id: b }]`.
    pub(super) fn find(text: &str, id_line: u32) -> Option<Self> {
        let root = yaml::parse(&Origin::new("rules", text)).ok()?;
        let list = rules_list(&root)?;
        let index = list.iter().rposition(|rule| rule.location.line <= id_line)?;
        let start = (list.get(index)?.location.line as usize).checked_sub(1)?;
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.get(start)?;
        let indent = indent_of(first);
        if !first.get(indent..)?.starts_with("- ") {
            return None;
        }
        let next = list.get(index + 1).map(|rule| rule.location.line as usize);
        if next.is_some_and(|next| next <= start + 1) {
            return None;
        }
        let is_inside = |line: &&str| line.trim().is_empty() || is_comment(line) || indent_of(line) > indent;
        let inside = lines.iter().skip(start + 1).take_while(|line| is_inside(line)).count();
        let mut end = start + 1 + inside;
        // Blank lines and comments before the next rule belong to that.
        while end > start + 1
            && lines
                .get(end - 1)
                .is_some_and(|line| line.trim().is_empty() || (is_comment(line) && indent_of(line) <= indent))
        {
            end -= 1;
        }
        Some(Self {
            start,
            end,
            indent,
            is_only: list.len() == 1,
        })
    }

    /// The rule as a mapping, without its dash and its indentation.
    pub(super) fn yaml(self, text: &str) -> String {
        let width = self.indent + 2;
        let lines = text.lines().skip(self.start).take(self.end - self.start);
        let mut yaml = String::new();
        for line in lines {
            yaml.push_str(line.get(width.min(line.len())..).unwrap_or_default());
            yaml.push('\n');
        }
        yaml
    }

    /// The lines, from 1, that a mapping has in the place of the rule.
    pub(super) fn lines_of(self, yaml: &str) -> Range<u32> {
        let number = |line: usize| u32::try_from(line).unwrap_or(u32::MAX);
        let count = yaml.trim_end().lines().count().max(1);
        number(self.start + 1)..number(self.start + 1 + count)
    }

    /// The file with the rule replaced by a mapping, or removed.
    pub(super) fn replace(self, text: &str, yaml: Option<&str>) -> String {
        let mut result = String::with_capacity(text.len());
        for (index, line) in text.split_inclusive('\n').enumerate() {
            if index == self.start
                && let Some(yaml) = yaml
            {
                result.push_str(&list_item(yaml, self.indent));
            }
            if index < self.start || index >= self.end {
                result.push_str(line);
            }
        }
        result
    }
}

/// A mapping as an item of a list.
pub(super) fn list_item(yaml: &str, indent: usize) -> String {
    let mut item = String::new();
    for (index, line) in yaml.trim_end().lines().enumerate() {
        let lead = match index {
            0 => "- ",
            _ if line.trim().is_empty() => "",
            _ => "  ",
        };
        if !lead.is_empty() {
            item.extend(std::iter::repeat_n(' ', indent));
        }
        item.push_str(lead);
        item.push_str(line);
        item.push('\n');
    }
    item
}

/// The list of rules of a file.
fn rules_list(root: &Node) -> Option<&[Node]> {
    let NodeKind::Map(entries) = &root.kind else {
        return None;
    };
    let (_, rules) = entries.iter().find(|(key, _)| &*key.text == "rules")?;
    match &rules.kind {
        NodeKind::List(list) => Some(list),
        _ => None,
    }
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# Limits of the shop.
domain: shop
rules:
  # Everyone.
  - id: all
    limit: 10/s

  # Search is expensive.
  - id: search
    when:
      path: /search
    # Raised in May.
    limit: 1/s
  - id: last
    limit: 5/s
";

    #[test]
    fn a_rule_is_replaced_and_everything_else_stays() {
        let lines = RuleLines::find(FILE, 9).expect("search");
        assert_eq!(
            lines.yaml(FILE),
            "id: search\nwhen:\n  path: /search\n# Raised in May.\nlimit: 1/s\n"
        );
        let replaced = lines.replace(FILE, Some("id: search\nlimit: 2/s\n"));
        let expected = FILE.replace(
            "  - id: search\n    when:\n      path: /search\n    # Raised in May.\n    limit: 1/s\n",
            "  - id: search\n    limit: 2/s\n",
        );
        assert_eq!(replaced, expected);
        // Its own text leaves the file as it is.
        assert_eq!(lines.replace(FILE, Some(&lines.yaml(FILE))), FILE);
    }

    #[test]
    fn a_rule_is_removed_with_its_lines_only() {
        let lines = RuleLines::find(FILE, 5).expect("all");
        assert_eq!(
            lines.replace(FILE, None),
            FILE.replace("  - id: all\n    limit: 10/s\n", "")
        );
        let lines = RuleLines::find(FILE, 14).expect("last");
        assert_eq!(
            lines.replace(FILE, None),
            FILE.replace("  - id: last\n    limit: 5/s\n", "")
        );
        assert!(!lines.is_only);
    }

    #[test]
    fn rules_without_lines_of_their_own_are_not_found() {
        assert_eq!(
            RuleLines::find("rules: [{ id: a, limit: 1/s }, { id: b, limit: 1/s }]\n", 1),
            None
        );
        assert_eq!(RuleLines::find("rules: []\n", 1), None);
        assert_eq!(RuleLines::find("domain: [", 1), None);
    }

    #[test]
    fn lists_without_indentation_end_at_the_next_key() {
        let file = "rules:\n- id: a\n  limit: 1/s\ndomain: shop\n";
        let lines = RuleLines::find(file, 2).expect("a");
        assert!(lines.is_only);
        assert_eq!(
            lines.replace(file, Some("id: a\nlimit: 2/s")),
            "rules:\n- id: a\n  limit: 2/s\ndomain: shop\n"
        );
    }
}
