//! Parses descriptor files. Error texts are those of envoyproxy/ratelimit, because alerts search for them; locations
//! and hints are ours.

mod go_scalar;
mod load_error;
mod native_limit;
mod unit;
mod wildcard;

pub use self::load_error::parse;
pub use self::native_limit::NativeLimit;
pub use self::unit::Unit;

use self::load_error::read_value;
use self::native_limit::NATIVE_KEYS;
pub(super) use self::wildcard::Pattern;
use super::lint::lint;
use super::tree::{DescriptorLevel, DescriptorLimit, DescriptorNode as Descriptor, Descriptors};
use crate::problem::{Problem, Problems, did_you_mean};
use crate::yaml::{self, Fields, Node, NodeKind, excerpt};
use std::collections::hash_map::Entry;

/// True if a file is a descriptor file and not one of rules: it has `descriptors`.
pub fn is_descriptor_file(node: &Node) -> bool {
    let NodeKind::Map(entries) = &node.kind else {
        return false;
    };
    let has = |name: &str| entries.iter().any(|(key, _)| &*key.text == name);
    has("descriptors") && !has("rules")
}

/// Parser of several descriptor files, which result in one tree or none.
#[derive(Debug)]
pub struct DescriptorFiles {
    descriptors: Descriptors,
    problems: Problems,
    merge_domains: bool,
    limits: usize,
}

impl DescriptorFiles {
    /// Returns an empty parser. A second file with the same domain is an error unless `merge_domains` is set.
    pub fn new(merge_domains: bool) -> Self {
        Self {
            descriptors: Descriptors::default(),
            problems: Problems::new(),
            merge_domains,
            limits: 0,
        }
    }

    /// Adds one file.
    pub fn add_file(&mut self, node: &Node) {
        self.check_keys(node, &[]);
        self.warn_second_document(node);
        let start = "start it with `domain: …` and put `descriptors:` below it";
        match node.kind {
            NodeKind::Map(_) => {}
            NodeKind::Null => {
                let text = "config file cannot have empty domain";
                self.problems.error_with(&node.location, text, start);
                return;
            }
            _ => {
                read_value(&mut self.problems, |problems| {
                    node.report_unexpected("a map with `domain` and `descriptors`", start, problems);
                });
                return;
            }
        }
        let errors = self.problems.error_count();
        let Some(fields) = node.fields("a file", &KEYS, &mut Problems::new()) else {
            return;
        };
        let domain = fields.find("domain").and_then(Node::scalar).unwrap_or_default();
        if domain.is_empty() {
            self.problems.error_with(
                &node.location,
                "config file cannot have empty domain",
                "add one: `domain: my_api`; it is what Envoy's filter names",
            );
        }
        self.warn_misplaced(&fields, &["domain", "descriptors"], "a file");
        let mut level = match self.descriptors.domains.entry(domain.into()) {
            Entry::Occupied(found) if self.merge_domains => found.remove(),
            Entry::Occupied(_) if !domain.is_empty() => {
                let text = format!("duplicate domain '{}' in config file", excerpt(domain));
                let hint = "put the descriptors of one domain into one file, or merge them (MERGE_DOMAIN_CONFIG=true)";
                self.problems.error_with(&node.location, text, hint);
                return;
            }
            Entry::Occupied(_) | Entry::Vacant(_) => DescriptorLevel::default(),
        };
        self.parse_level(&mut level, &fields, domain);
        if self.problems.error_count() == errors || self.merge_domains {
            self.descriptors.domains.insert(domain.into(), level);
        } else {
            // Reserves the domain, so that the next file with it is reported as a duplicate.
            self.descriptors.domains.entry(domain.into()).or_default();
        }
    }

    /// Warns that only the first document of a file is read.
    fn warn_second_document(&mut self, node: &Node) {
        if let Some(location) = yaml::second_document(&node.location.origin) {
            let text = "a second document starts here; only the first is read, and these limits are ignored";
            let hint = "move it into a file of its own, with a domain of its own";
            self.problems.push(Problem::warning(&location, text).with_hint(hint));
        }
    }

    /// Returns the descriptors and the lint warnings.
    ///
    /// # Errors
    /// All problems. Files are accepted together or not at all.
    pub fn finish(mut self) -> Result<(Descriptors, Vec<Problem>), Vec<Problem>> {
        if self.problems.has_errors() {
            return Err(self.problems.sorted());
        }
        lint(&self.descriptors, &mut self.problems);
        Ok((self.descriptors, self.problems.sorted()))
    }

    fn parse_level(&mut self, level: &mut DescriptorLevel, fields: &Fields<'_>, parent: &str) {
        let Some(node) = fields.value("descriptors") else {
            return;
        };
        let list = |problems: &mut Problems| node.list("a list of descriptors", problems);
        let Some(items) = read_value(&mut self.problems, list) else {
            return;
        };
        // The YAML parser bounds the depth.
        for item in items {
            self.parse_descriptor(level, item, parent);
        }
    }

    fn parse_descriptor(&mut self, level: &mut DescriptorLevel, node: &Node, parent: &str) {
        let Some(fields) = node.fields("a descriptor", &KEYS, &mut Problems::new()) else {
            return;
        };
        self.warn_misplaced(&fields, &DESCRIPTOR_KEYS, "a descriptor");
        let text = |key| fields.find(key).and_then(Node::scalar).unwrap_or_default();
        let (key, value) = (text("key"), text("value"));
        if key.is_empty() {
            let hint = "add one: `key: remote_address`; it is the key of an entry that Envoy sends";
            self.problems
                .error_with(&node.location, "descriptor has empty key", hint);
            return;
        }
        let name = if value.is_empty() {
            key.to_owned()
        } else {
            format!("{key}_{value}")
        };
        let path = format!("{parent}.{name}");
        if level.by_name.contains_key(&*name) {
            self.problems.error_with(
                &node.location,
                format!("duplicate descriptor composite key '{}'", excerpt(&path)),
                "a key and its value are joined by an underscore, and the result must be unique in its list",
            );
            return;
        }
        let is_shared = self.parse_flag(&fields, "share_threshold");
        let pattern = Pattern::new(&name);
        if is_shared && pattern.is_none() {
            let text = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found key '{}'",
                excerpt(&name)
            );
            let hint = "put a star into the value, or remove `share_threshold`";
            self.problems.error_with(&node.location, text, hint);
        }
        let limit = fields.value("rate_limit");
        let limit = limit.and_then(|node| self.parse_limit(node, &fields));
        let mut children = DescriptorLevel::default();
        self.parse_level(&mut children, &fields, &path);
        level.by_name.insert(name.as_str().into(), level.nodes.len());
        level.nodes.push(Descriptor {
            key: key.into(),
            name: name.into(),
            has_value: !value.is_empty(),
            pattern,
            is_shared,
            value_to_metric: self.parse_flag(&fields, "value_to_metric"),
            limit,
            children,
            location: node.location.clone(),
        });
    }

    fn parse_limit(&mut self, node: &Node, descriptor: &Fields<'_>) -> Option<DescriptorLimit> {
        let fields = node.fields(
            "a rate_limit",
            &[&KEYS[..], &NATIVE_KEYS].concat(),
            &mut Problems::new(),
        )?;
        self.warn_misplaced(&fields, &LIMIT_KEYS, "a rate_limit");
        self.limits += 1;
        if self.limits > LIMITS_MAX {
            let hint = "use a descriptor without a value for all values that have the same limit";
            self.problems
                .error_with(&node.location, format!("there are more than {LIMITS_MAX} limits"), hint);
            return None;
        }
        let (rate, native) = if native_limit::is_native(&fields) {
            (None, Some(native_limit::parse(node, &fields, &mut self.problems)?))
        } else if self.parse_flag(&fields, "unlimited") {
            self.check_no_unit(node, &fields).then_some((None, None))?
        } else {
            (Some(self.parse_window(node, &fields)?), None)
        };
        let name = fields.find("name").and_then(Node::scalar).unwrap_or_default();
        Some(DescriptorLimit {
            rate,
            native,
            name: name.into(),
            replaces: self.parse_replaces(&fields, name),
            shadow: self.parse_flag(descriptor, "shadow_mode"),
            quota: self.parse_flag(descriptor, "quota_mode"),
            detailed: self.parse_flag(descriptor, "detailed_metric"),
            metadata: self.parse_metadata(descriptor),
            location: node.location.clone(),
            rule: 0,
        })
    }

    /// Parses the capacity and the length of a window.
    fn parse_window(&mut self, node: &Node, fields: &Fields<'_>) -> Option<(u32, Unit)> {
        let unit = fields.find("unit").and_then(Node::scalar).unwrap_or_default();
        if let Some(unit) = Unit::from_name(unit) {
            return Some((self.parse_requests(fields)?, unit));
        }
        let names = || Unit::ALL.into_iter().map(Unit::name);
        let lower: Vec<String> = names().map(str::to_lowercase).collect();
        self.problems.error_with(
            fields.find("unit").map_or(&node.location, |unit| &unit.location),
            format!("invalid rate limit unit '{}'", excerpt(unit)),
            did_you_mean(unit, || lower.iter().map(String::as_str)),
        );
        None
    }

    /// Reports a `unit` on an unlimited descriptor.
    fn check_no_unit(&mut self, node: &Node, fields: &Fields<'_>) -> bool {
        let unit = fields.find("unit").and_then(Node::scalar).and_then(Unit::from_name);
        if unit.is_some() {
            self.problems.error_with(
                &node.location,
                "should not specify rate limit unit when unlimited",
                "remove `unit` or `unlimited`",
            );
        }
        unit.is_none()
    }

    fn parse_requests(&mut self, fields: &Fields<'_>) -> Option<u32> {
        match fields.value("requests_per_unit") {
            // A missing number is zero, hence a ban.
            None => Some(0),
            Some(node) => {
                let max = u64::from(u32::MAX);
                let given = node.scalar().and_then(go_scalar::parse_integer);
                if let Some(requests) = given.and_then(|given| u32::try_from(given).ok()) {
                    return Some(requests);
                }
                let parse = |problems: &mut Problems| node.integer("a number of requests", 0..=max, problems);
                let number = read_value(&mut self.problems, parse);
                number.and_then(|number| u32::try_from(number).ok())
            }
        }
    }

    fn parse_replaces(&mut self, fields: &Fields<'_>, own_name: &str) -> Box<[Box<str>]> {
        let Some(node) = fields.value("replaces") else {
            return Box::default();
        };
        let list = |problems: &mut Problems| node.list("a list of names", problems);
        let Some(items) = read_value(&mut self.problems, list) else {
            return Box::default();
        };
        let mut names = Vec::new();
        for item in items {
            let fields = item.fields("a replaced limit", &KEYS, &mut Problems::new());
            let name = fields.and_then(|fields| fields.find("name").and_then(Node::scalar));
            match name {
                None | Some("") => self.problems.error_with(
                    &item.location,
                    "should not have an empty replaces entry",
                    "write the name of the limit that is replaced: `- name: …`",
                ),
                Some(name) if name == own_name => self.problems.error_with(
                    &item.location,
                    "replaces should not contain name of same descriptor",
                    "name another limit, or remove it",
                ),
                Some(name) => names.push(name.into()),
            }
        }
        names.into()
    }

    fn parse_metadata(&mut self, fields: &Fields<'_>) -> Option<Node> {
        let node = fields.value("metadata")?;
        if !matches!(node.kind, NodeKind::Map(_)) {
            let what = "`metadata`, which is a map";
            read_value(&mut self.problems, |problems| {
                node.report_unexpected(what, "write names and values below it", problems);
            });
            return None;
        }
        Some(node.clone())
    }

    fn parse_flag(&mut self, fields: &Fields<'_>, key: &str) -> bool {
        let node = fields.value(key);
        let flag = |node: &Node| match node.scalar().and_then(go_scalar::parse_bool) {
            Some(flag) => Some(flag),
            None => read_value(&mut self.problems, |problems| node.flag(problems)),
        };
        node.and_then(flag).unwrap_or_default()
    }

    /// Warns of known keys that have no effect where they are.
    fn warn_misplaced(&mut self, fields: &Fields<'_>, meaningful: &[&str], what: &str) {
        for key in KEYS.iter().filter(|key| !meaningful.contains(key)) {
            if let Some((key, _)) = fields.entry(key) {
                let text = format!("`{}` has no effect in {what}, and is ignored", key.text);
                let hint = format!("{what} has {}", meaningful.join(", "));
                self.problems
                    .push(Problem::warning(&key.location, text).with_hint(hint));
            }
        }
    }

    /// Checks every key against one list, whatever its level; anything is allowed below `metadata`. `native_keys` are
    /// our own keys that are also allowed here; they are parsed as those of rules are.
    fn check_keys(&mut self, node: &Node, native_keys: &[&str]) {
        let NodeKind::Map(entries) = &node.kind else { return };
        for (key, value) in entries {
            if native_keys.contains(&&*key.text) {
                continue;
            }
            if !KEYS.contains(&&*key.text) {
                let text = if is_a_number(&key.text) {
                    format!("config error, key is not of type string: {}", key.text)
                } else {
                    format!("config error, unknown key '{}'", excerpt(&key.text))
                };
                let known = || KEYS.into_iter().chain(native_keys.iter().copied());
                self.problems
                    .error_with(&key.location, text, did_you_mean(&key.text, known));
            } else if &*key.text != "metadata" {
                let native_keys: &[&str] = if &*key.text == "rate_limit" { &NATIVE_KEYS } else { &[] };
                self.check_value(value, native_keys);
            }
        }
    }

    fn check_value(&mut self, node: &Node, native_keys: &[&str]) {
        match &node.kind {
            NodeKind::Map(_) => self.check_keys(node, native_keys),
            NodeKind::List(items) => {
                for item in items {
                    match &item.kind {
                        NodeKind::Map(_) => self.check_keys(item, &[]),
                        _ => {
                            let found = item.scalar().unwrap_or(item.kind_name());
                            self.problems.error_with(
                                &item.location,
                                format!(
                                    "config error, yaml file contains list of type other than map: {}",
                                    excerpt(found)
                                ),
                                "write each as a map: `- key: …`",
                            );
                        }
                    }
                }
            }
            NodeKind::Number(text) if !is_integer(text) => {
                self.problems.error_with(
                    &node.location,
                    "error checking config",
                    "write a whole number, or a text in quotes",
                );
            }
            NodeKind::Null | NodeKind::Bool(_) | NodeKind::Number(_) | NodeKind::Text(_) => {}
        }
    }
}

fn is_integer(text: &str) -> bool {
    if go_scalar::parse_integer(text).is_some() {
        return true;
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// True if an unquoted key was a number. Keys are text at this point.
fn is_a_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Every known key, at any level.
const KEYS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const DESCRIPTOR_KEYS: [&str; 10] = [
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const LIMIT_KEYS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
/// The maximum number of limits: that of rules.
const LIMITS_MAX: usize = crate::rules::RULES_MAX as usize;
