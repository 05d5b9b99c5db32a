//! Files of envoyproxy/ratelimit as rules of our own, with comments where they do not mean the same.

use super::id::unique_id;
use super::tree::{DescriptorLevel, DescriptorLimit, DescriptorNode, Descriptors};
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
pub(super) fn render_rules(descriptors: &Descriptors) -> String {
    let mut domains: Vec<_> = descriptors.domains.iter().collect();
    domains.sort_by_key(|(name, _)| *name);
    let mut out = PREAMBLE.to_owned();
    let is_single_domain = domains.len() == 1;
    for (domain, _) in domains.iter().filter(|_| is_single_domain) {
        let _ = writeln!(out, "domain: {}", yaml_text(domain));
    }
    out.push_str("rules:");
    let mut has_rules = false;
    for (domain, level) in domains {
        let mut writer = Writer {
            out,
            domain: (!is_single_domain).then_some(domain),
            ids: HashSet::new(),
        };
        writer.render_level(level, &DescriptorPath::default());
        has_rules |= !writer.ids.is_empty();
        out = writer.out;
    }
    out.push_str(if has_rules { "\n" } else { " []\n" });
    out
}

/// What a request must have come by.
#[derive(Clone, Default)]
struct DescriptorPath {
    /// Names of nodes.
    names: Vec<String>,
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
    fn render_level(&mut self, level: &DescriptorLevel, path: &DescriptorPath) {
        for node in &level.nodes {
            let path = path.with(node);
            if let Some(limit) = &node.limit
                && !is_override(level, node)
            {
                self.render_rule(level, node, limit, &path);
            }
            self.render_level(&node.children, &path);
        }
    }

    fn render_rule(
        &mut self,
        level: &DescriptorLevel,
        node: &DescriptorNode,
        limit: &DescriptorLimit,
        path: &DescriptorPath,
    ) {
        let mut rule = format!("\n- id: {}", yaml_text(&self.id(limit, path)));
        if let Some(domain) = self.domain {
            let _ = write!(rule, "\n  domain: {}", yaml_text(domain));
        }
        let list = |parts: Vec<String>| parts.join(", ");
        if !path.when.is_empty() {
            let when = path
                .when
                .iter()
                .map(|(key, value)| format!("{}: {value}", yaml_text(key)));
            let _ = write!(rule, "\n  when: {{ {} }}", list(when.collect()));
        }
        if !path.per.is_empty() {
            let _ = write!(
                rule,
                "\n  per: [{}]",
                list(path.per.iter().map(|key| yaml_text(key)).collect())
            );
        }
        match &limit.native {
            Some(native) => rule.push_str(&native.rule_lines),
            None => {
                let _ = write!(rule, "\n  limit: {}", rate_text(limit));
            }
        }
        if limit.rate.is_some() {
            rule.push_str("\n  algorithm: fixed_window");
        }
        if limit.shadow {
            rule.push_str("\n  mode: shadow");
        }
        let overrides: Vec<&DescriptorNode> = level.nodes.iter().filter(|other| is_override_of(node, other)).collect();
        if !overrides.is_empty() {
            rule.push_str("\n  overrides:");
        }
        for other in overrides {
            let value = other.value().unwrap_or_default();
            let limit = other.limit.as_ref().map_or("unlimited".to_owned(), rate_text);
            let _ = write!(
                rule,
                "\n    - {{ {}: {}, limit: {limit} }}",
                yaml_text(&other.key),
                yaml_text(value)
            );
        }
        for (applies, note) in [
            (limit.quota, "quota_mode has no equivalent: this rule refuses by itself"),
            (
                !limit.replaces.is_empty(),
                "replaces has no equivalent: the limits it replaced hold as well",
            ),
            (limit.metadata.is_some(), "metadata is not carried over"),
        ] {
            if applies {
                let _ = write!(rule, "\n  # {note}");
            }
        }
        if path.has_starred_key {
            let commented = rule.replace('\n', "\n# ");
            self.out
                .push_str("\n# Not converted: a key with a star stands for many attributes.");
            self.out.push_str(&commented);
        } else {
            self.out.push_str(&rule);
        }
    }

    /// A name that is new in its domain: that of the limit, or of the way to it.
    fn id(&mut self, limit: &DescriptorLimit, path: &DescriptorPath) -> String {
        let name = if limit.name.is_empty() {
            path.names.join(".")
        } else {
            limit.name.to_string()
        };
        unique_id(&name, &path.names, &mut self.ids)
    }
}

impl DescriptorPath {
    fn with(&self, node: &DescriptorNode) -> Self {
        let mut path = self.clone();
        path.names.push(node.name.to_string());
        path.has_starred_key |= node.key.contains('*');
        match node.value() {
            // A star stands for any run of characters there too, and for those that fit are counted apart or together.
            Some(value) => {
                path.when.push((node.key.to_string(), yaml_text(value)));
                if node.pattern.is_some() && !node.is_shared {
                    path.per.push(node.key.to_string());
                }
            }
            None => path.per.push(node.key.to_string()),
        }
        path
    }
}

/// Whether a node is a single value of a node for all values, so that both are one rule.
fn is_override_of(all: &DescriptorNode, one: &DescriptorNode) -> bool {
    let is_alike = |limit: &DescriptorLimit| {
        let plain = !limit.quota && limit.replaces.is_empty() && limit.name.is_empty() && limit.native.is_none();
        plain && all.limit.as_ref().is_some_and(|of_all| of_all.shadow == limit.shadow)
    };
    // Windows are no overrides of another algorithm.
    let is_window = |limit: &DescriptorLimit| limit.native.is_none();
    !all.has_value
        && all.limit.as_ref().is_none_or(is_window)
        && one.has_value
        && one.key == all.key
        && one.pattern.is_none()
        && one.limit.as_ref().is_none_or(is_alike)
}

fn is_override(level: &DescriptorLevel, node: &DescriptorNode) -> bool {
    let all = level.by_name.get(&node.key).and_then(|&index| level.nodes.get(index));
    all.is_some_and(|all| all.limit.is_some() && is_override_of(all, node))
}

fn rate_text(limit: &DescriptorLimit) -> String {
    let Some((requests, unit)) = limit.rate else {
        return "unlimited".into();
    };
    format!("{requests}/{}", unit.rule_text())
}

/// A text as YAML, in quotes unless it surely needs none.
pub(super) fn yaml_text(text: &str) -> String {
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
