//! Files of envoyproxy/ratelimit as rules of our own, with comments where they do not mean the same.

use super::id::fresh_id;
use super::tree::{Branch, Descriptors, Limited, Node};
use std::collections::HashSet;
use std::fmt::Write;

/// What stands above all converted rules.
const PREAMBLE: &str = "\
# Converted from descriptors of envoyproxy/ratelimit. What is different now, for all rules below:
# - a refused request takes nothing: hits beyond a limit are not counted, and of several limits none is charged;
# - a rule is met by the names and values of entries, in any order, also when there are further entries;
# - all rules that are met hold together: one for a single value is met beside the one for all values,
#   unless it stands in `overrides`.
";

/// Writes the rules of all domains as one file.
pub(super) fn rules(descriptors: &Descriptors) -> String {
    let mut domains: Vec<_> = descriptors.domains.iter().collect();
    domains.sort_by_key(|(name, _)| *name);
    let mut out = PREAMBLE.to_owned();
    let is_one = domains.len() == 1;
    for (domain, _) in domains.iter().filter(|_| is_one) {
        let _ = writeln!(out, "domain: {}", text(domain));
    }
    out.push_str("rules:");
    let mut has_rules = false;
    for (domain, branch) in domains {
        let mut writer = Writer {
            out,
            domain: (!is_one).then_some(domain),
            ids: HashSet::new(),
        };
        writer.branch(branch, &Way::default());
        has_rules |= !writer.ids.is_empty();
        out = writer.out;
    }
    out.push_str(if has_rules { "\n" } else { " []\n" });
    out
}

/// What a request must have come by.
#[derive(Clone, Default)]
struct Way {
    /// Names of nodes.
    path: Vec<String>,
    when: Vec<(String, String)>,
    per: Vec<String>,
    /// A key with a star: no attribute has such a name.
    has_starred_key: bool,
}

struct Writer<'d> {
    out: String,
    /// What each rule has to name, unless the file does.
    domain: Option<&'d str>,
    /// Of the domain.
    ids: HashSet<String>,
}

impl Writer<'_> {
    fn branch(&mut self, branch: &Branch, way: &Way) {
        for node in &branch.nodes {
            let way = way.with(node);
            if let Some(limit) = &node.limit
                && !is_override(branch, node)
            {
                self.rule(branch, node, limit, &way);
            }
            self.branch(&node.below, &way);
        }
    }

    fn rule(&mut self, branch: &Branch, node: &Node, limit: &Limited, way: &Way) {
        let mut rule = format!("\n- id: {}", text(&self.id(limit, way)));
        if let Some(domain) = self.domain {
            let _ = write!(rule, "\n  domain: {}", text(domain));
        }
        let list = |parts: Vec<String>| parts.join(", ");
        if !way.when.is_empty() {
            let when = way.when.iter().map(|(key, value)| format!("{}: {value}", text(key)));
            let _ = write!(rule, "\n  when: {{ {} }}", list(when.collect()));
        }
        if !way.per.is_empty() {
            let _ = write!(
                rule,
                "\n  per: [{}]",
                list(way.per.iter().map(|key| text(key)).collect())
            );
        }
        match &limit.exact {
            Some(exact) => rule.push_str(&exact.written),
            None => {
                let _ = write!(rule, "\n  limit: {}", rate(limit));
            }
        }
        if limit.rate.is_some() {
            rule.push_str("\n  algorithm: fixed_window");
        }
        if limit.shadow {
            rule.push_str("\n  mode: shadow");
        }
        let overrides: Vec<&Node> = branch.nodes.iter().filter(|other| overrides(node, other)).collect();
        if !overrides.is_empty() {
            rule.push_str("\n  overrides:");
        }
        for other in overrides {
            let value = other.value().unwrap_or_default();
            let limit = other.limit.as_ref().map_or("unlimited".to_owned(), rate);
            let _ = write!(
                rule,
                "\n    - {{ {}: {}, limit: {limit} }}",
                text(&other.key),
                text(value)
            );
        }
        for (is_so, words) in [
            (limit.quota, "quota_mode has no equivalent: this rule refuses by itself"),
            (
                !limit.replaces.is_empty(),
                "replaces has no equivalent: the limits it replaced hold as well",
            ),
            (limit.metadata.is_some(), "metadata is not carried over"),
        ] {
            if is_so {
                let _ = write!(rule, "\n  # {words}");
            }
        }
        if way.has_starred_key {
            let said = rule.replace('\n', "\n# ");
            self.out
                .push_str("\n# Not converted: a key with a star stands for many attributes.");
            self.out.push_str(&said);
        } else {
            self.out.push_str(&rule);
        }
    }

    /// A name that is new in its domain: that of the limit, or of the way to it.
    fn id(&mut self, limit: &Limited, way: &Way) -> String {
        let name = if limit.name.is_empty() {
            way.path.join(".")
        } else {
            limit.name.to_string()
        };
        fresh_id(&name, &way.path, &mut self.ids)
    }
}

impl Way {
    fn with(&self, node: &Node) -> Self {
        let mut way = self.clone();
        way.path.push(node.name.to_string());
        way.has_starred_key |= node.key.contains('*');
        match node.value() {
            // A star stands for any run of characters there too, and for those that fit are counted apart or together.
            Some(value) => {
                way.when.push((node.key.to_string(), text(value)));
                if node.pattern.is_some() && !node.shares {
                    way.per.push(node.key.to_string());
                }
            }
            None => way.per.push(node.key.to_string()),
        }
        way
    }
}

/// Whether a node is a single value of a node for all values, so that both are one rule.
fn overrides(all: &Node, one: &Node) -> bool {
    let is_alike = |limit: &Limited| {
        let plain = !limit.quota && limit.replaces.is_empty() && limit.name.is_empty() && limit.exact.is_none();
        plain && all.limit.as_ref().is_some_and(|of_all| of_all.shadow == limit.shadow)
    };
    // Windows are no overrides of another algorithm.
    let is_window = |limit: &Limited| limit.exact.is_none();
    !all.has_value
        && all.limit.as_ref().is_none_or(is_window)
        && one.has_value
        && one.key == all.key
        && one.pattern.is_none()
        && one.limit.as_ref().is_none_or(is_alike)
}

fn is_override(branch: &Branch, node: &Node) -> bool {
    let all = branch.by_name.get(&node.key).and_then(|&place| branch.nodes.get(place));
    all.is_some_and(|all| all.limit.is_some() && overrides(all, node))
}

fn rate(limit: &Limited) -> String {
    let Some((requests, unit)) = limit.rate else {
        return "unlimited".into();
    };
    format!("{requests}/{}", unit.short())
}

/// A text as YAML, in quotes unless it surely needs none.
pub(super) fn text(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_./-".contains(letter);
    let is_plain = text.starts_with(|letter: char| letter.is_ascii_alphabetic()) && text.chars().all(plain);
    if is_plain
        && !matches!(
            text,
            "true" | "false" | "null" | "True" | "False" | "Null" | "TRUE" | "FALSE" | "NULL"
        )
    {
        return text.into();
    }
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
