//! Converts descriptor files to rules of our own, with comments where the meaning differs.

use super::id::unique_id;
use super::tree::{DescriptorLevel, DescriptorLimit, DescriptorNode, Descriptors};
use std::collections::HashSet;
use std::fmt::Write;

/// The head of every converted file.
const PREAMBLE: &str = "\
# Converted from descriptors of envoyproxy/ratelimit. Differences, for all rules below:
# - a denied request consumes nothing: hits above a limit are not counted, and of several limits none is charged;
# - a rule matches the names and values of entries, in any order, also when there are further entries;
# - all matching rules apply: one for a single value applies in addition to the one for all values,
#   unless it is one of the `overrides`.
";

/// Renders the rules of all domains as one file.
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

/// The path from the domain to a node, as conditions and dimensions.
#[derive(Clone, Default)]
struct DescriptorPath {
    /// Names of the nodes.
    names: Vec<String>,
    when: Vec<(String, String)>,
    per: Vec<String>,
    /// A key with a star, which no attribute can be named.
    has_starred_key: bool,
}

struct Writer<'d> {
    out: String,
    /// The domain each rule has to name, unless the file names it.
    domain: Option<&'d str>,
    /// Ids in use in the domain.
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
            (limit.quota, "quota_mode has no equivalent: this rule denies on its own"),
            (
                !limit.replaces.is_empty(),
                "replaces has no equivalent: the limits it replaced apply as well",
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
                .push_str("\n# Not converted: a key with a star matches many attributes.");
            self.out.push_str(&commented);
        } else {
            self.out.push_str(&rule);
        }
    }

    /// Returns an id that is new in its domain, from the name of the limit or from its path.
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
            // A star is any run of characters in rules too; matching values are counted separately or share a counter.
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

/// True if a node is a single value of a node for all values, so that both become one rule.
fn is_override_of(all: &DescriptorNode, one: &DescriptorNode) -> bool {
    let is_alike = |limit: &DescriptorLimit| {
        let plain = !limit.quota && limit.replaces.is_empty() && limit.name.is_empty() && limit.native.is_none();
        plain && all.limit.as_ref().is_some_and(|of_all| of_all.shadow == limit.shadow)
    };
    // A window cannot override another algorithm.
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

/// Renders a text as YAML, quoted unless it certainly needs no quotes.
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
