//! Misspelt names: attributes, domains and the values of `by`. Any name is valid, so they are compared with those that
//! callers provide and with each other. The names are collected from the text, where their locations are.

use crate::problem::{Location, Problem, closest_match};
use crate::spelling::{is_misspelling, is_plural};
use crate::yaml::{Node, NodeKind, excerpt};
use std::collections::HashMap;

/// The attributes that callers provide, as far as the configuration says.
#[derive(Clone, Debug, Default)]
pub struct KnownAttributes {
    /// Their names.
    pub names: Vec<Box<str>>,
    /// Those that are taken from a header of the request, which its caller may have written.
    pub from_headers: Vec<Box<str>>,
    /// The part of all attributes that they are.
    pub coverage: Coverage,
}

/// The part of all attributes that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coverage {
    /// Callers choose what they send, and the configuration says little about it.
    #[default]
    Unknown,
    /// Some callers provide only these, others may send more.
    Partial,
    /// Callers provide only these.
    Complete,
}

/// The names that rules use.
#[derive(Debug, Default)]
pub(in crate::rules) struct NamesUsed {
    rules: u32,
    attributes: Names,
    domains: Names,
    /// The values that `by` and `when` name, by attribute: a closed set if a rule chooses its limit by them.
    values: HashMap<Box<str>, Names>,
}

/// Names and their uses, in the order of the text.
#[derive(Debug, Default)]
struct Names {
    /// True for names of which a rule lists several that are all meant, such as tiers.
    is_closed_set: bool,
    indices: HashMap<Box<str>, usize>,
    uses: Vec<NameUse>,
}

/// The uses of one name.
#[derive(Debug)]
struct NameUse {
    name: Box<str>,
    /// The number of rules that use it.
    rules: u32,
    /// The last rule that used it.
    last_rule: u32,
    /// The first use in each of the first rules.
    locations: Vec<Location>,
}

impl NamesUsed {
    /// Adds the names of a rule, valid or not, in `domain` unless it names another. A disabled rule matches nothing and
    /// is left out.
    pub(in crate::rules) fn add_rule(&mut self, rule: &Node, domain: &str) {
        let find = |key| member(rule, key);
        if find("mode").and_then(Node::scalar) == Some("disabled") {
            return;
        }
        self.rules += 1;
        match find("domain") {
            Some(node) => self.add_domain(node.scalar().unwrap_or_default(), &node.location),
            None => self.add_domain(domain, &rule.location),
        }
        self.add_when(find("when"));
        self.add_when(find("reserve").and_then(|reserve| member(reserve, "for")));
        for node in find("per").map(Node::one_or_more).unwrap_or_default() {
            self.add_attribute(node.scalar().unwrap_or_default(), &node.location);
        }
        for limits in [Some(rule), find("experiment")].into_iter().flatten() {
            self.add_limits(limits);
        }
        let Some(cost) = find("cost") else { return };
        for part in cost.one_or_more() {
            self.add_when(member(part, "when"));
            if let Some(node) = member(part, "attribute") {
                self.add_attribute(node.scalar().unwrap_or_default(), &node.location);
            }
        }
    }

    /// Returns the names that are probably misspelt: errors where callers are known to provide no such attribute,
    /// otherwise warnings.
    pub(in crate::rules) fn problems(&self, known: &KnownAttributes) -> Vec<Problem> {
        let mut problems = Vec::new();
        for name_use in &self.attributes.uses {
            let problem = self.attribute_problem(name_use, known);
            problems.extend(problem.into_iter().flatten());
        }
        for (name_use, meant) in self.domains.misspelt(&["default"]) {
            let text = format!("the domain `{}` may be misspelt", excerpt(&name_use.name));
            let hint = format!(
                "did you mean `{}`? attempts meet only the rules of their own domain",
                excerpt(meant)
            );
            problems.extend(name_use.warnings(&text, &hint));
        }
        for (attribute, values) in self.values.iter().filter(|(_, values)| values.is_closed_set) {
            for (name_use, meant) in values.misspelt(&[]) {
                let value = excerpt(&name_use.name);
                let text = format!("`{value}` may be a misspelt value of `{}`", excerpt(attribute));
                let hint = format!("other rules have `{0}`; did you mean `{0}`?", excerpt(meant));
                problems.extend(name_use.warnings(&text, &hint));
            }
        }
        problems
    }

    fn attribute_problem(&self, name_use: &NameUse, known: &KnownAttributes) -> Option<Vec<Problem>> {
        let name = &*name_use.name;
        let provided = || known.names.iter().map(|name| &**name);
        if provided().any(|other| other == name) {
            return None;
        }
        let shown = excerpt(name);
        let meant = closest_match(name, provided()).or_else(|| self.attributes.meant_by(name_use, &COMMON));
        let suggestion = meant.map(|meant| format!("did you mean `{}`? ", excerpt(meant)));
        let suggestion = suggestion.unwrap_or_default();
        let field = request_field(name);
        let hint = format!(
            "{suggestion}take it from the request with `attributes: {{ {shown}: {field} }}`, or write `{shown}: caller` \
             there if callers of the API send it"
        );
        match known.coverage {
            Coverage::Complete => Some(name_use.errors(&format!("no caller provides the attribute `{shown}`"), &hint)),
            Coverage::Partial => {
                let text = format!("`attributes` has no `{shown}`, so requests of the gateway never have it");
                Some(name_use.warnings(&text, &hint))
            }
            Coverage::Unknown => {
                let misspelt = provided().find(|other| is_misspelling(other, name));
                let meant = misspelt.or_else(|| self.attributes.meant_by(name_use, &COMMON))?;
                let text = format!("the attribute `{shown}` may be misspelt");
                let hint = format!(
                    "did you mean `{}`? if callers send `{shown}`, say so in the settings: `attributes: {{ {shown}: caller }}`",
                    excerpt(meant)
                );
                Some(name_use.warnings(&text, &hint))
            }
        }
    }

    fn add_domain(&mut self, name: &str, location: &Location) {
        self.domains.add(name, location, self.rules);
    }

    fn add_attribute(&mut self, name: &str, location: &Location) {
        self.attributes.add(name, location, self.rules);
    }

    fn add_value(&mut self, attribute: &str, value: &str, location: &Location) {
        if !self.values.contains_key(attribute) && self.values.len() < COMPARED_MAX {
            self.values.insert(attribute.into(), Names::default());
        }
        if let Some(values) = self.values.get_mut(attribute)
            && values.uses.len() < COMPARED_MAX
        {
            values.add(value, location, self.rules);
        }
    }

    /// Adds conditions: attributes, and the values they must have.
    fn add_when(&mut self, when: Option<&Node>) {
        let Some(NodeKind::Map(conditions)) = when.map(|node| &node.kind) else {
            return;
        };
        for (attribute, test) in conditions {
            self.add_attribute(&attribute.text, &attribute.location);
            for value in test.one_or_more() {
                if let Some(text) = value.scalar().filter(|text| !text.contains('*')) {
                    self.add_value(&attribute.text, text, &value.location);
                }
            }
        }
    }

    /// Adds the `by` and the `overrides` of a rule or an experiment.
    fn add_limits(&mut self, limits: &Node) {
        if let Some(NodeKind::Map(by)) = member(limits, "by").map(|node| &node.kind) {
            for (attribute, values) in by {
                self.add_attribute(&attribute.text, &attribute.location);
                let NodeKind::Map(values) = &values.kind else { continue };
                for (value, _) in values {
                    self.add_value(&attribute.text, &value.text, &value.location);
                }
                if let Some(values) = self.values.get_mut(&attribute.text) {
                    values.is_closed_set = true;
                }
            }
        }
        let Some(NodeKind::List(overrides)) = member(limits, "overrides").map(|node| &node.kind) else {
            return;
        };
        for single in overrides {
            let NodeKind::Map(entries) = &single.kind else { continue };
            for (attribute, _) in entries.iter().filter(|(key, _)| &*key.text != "limit") {
                self.add_attribute(&attribute.text, &attribute.location);
            }
        }
    }
}

impl Names {
    fn add(&mut self, name: &str, location: &Location, rule: u32) {
        if name.is_empty() {
            return;
        }
        let name_use = match self.indices.get(name) {
            Some(index) => self.uses.get_mut(*index),
            None => {
                self.indices.insert(name.into(), self.uses.len());
                self.uses.push(NameUse {
                    name: name.into(),
                    rules: 0,
                    last_rule: 0,
                    locations: Vec::new(),
                });
                self.uses.last_mut()
            }
        };
        let Some(name_use) = name_use.filter(|name_use| name_use.last_rule != rule) else {
            return;
        };
        name_use.last_rule = rule;
        name_use.rules += 1;
        if name_use.locations.len() < LOCATIONS_MAX {
            name_use.locations.push(location.clone());
        }
    }

    /// Names that are probably misspelt, each with the one that is meant.
    fn misspelt<'n>(&'n self, common: &'n [&'n str]) -> impl Iterator<Item = (&'n NameUse, &'n str)> {
        let each = self.uses.iter();
        each.filter_map(|name_use| Some((name_use, self.meant_by(name_use, common)?)))
    }

    /// The name that is meant by a probably misspelt one: a common one, or one that more rules use, or as many and
    /// first.
    fn meant_by<'n>(&'n self, name_use: &NameUse, common: &'n [&'n str]) -> Option<&'n str> {
        let name = &*name_use.name;
        let index = self.indices.get(name).copied().filter(|index| *index < COMPARED_MAX)?;
        if common.contains(&name) {
            return None;
        }
        let others = self.uses.iter().zip(0..).take(COMPARED_MAX);
        let used = others
            .filter(|(other, at)| (other.rules, index) > (name_use.rules, *at))
            .filter(|(other, _)| !self.is_closed_set || other.last_rule != name_use.last_rule)
            .find(|(other, _)| is_misspelling(&other.name, name));
        let common = common.iter().copied();
        let common = common.filter(|other| is_misspelling(other, name) && !is_plural(other, name));
        used.map(|(other, _)| &*other.name).or_else(|| common.min())
    }
}

impl NameUse {
    fn errors(&self, text: &str, hint: &str) -> Vec<Problem> {
        let each = self.locations.iter();
        each.map(|location| Problem::error(location, text).with_hint(hint))
            .collect()
    }

    fn warnings(&self, text: &str, hint: &str) -> Vec<Problem> {
        let each = self.locations.iter();
        each.map(|location| Problem::warning(location, text).with_hint(hint))
            .collect()
    }
}

/// The part of a request that an attribute of this name is usually taken from.
fn request_field(name: &str) -> &'static str {
    match name {
        "endpoint" | "path" | "route" => "path",
        "ip" | "client_ip" => "client_ip",
        "method" => "method",
        "host" => "host",
        _ => "header:NAME",
    }
}

/// A member of a map.
fn member<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let NodeKind::Map(entries) = &node.kind else {
        return None;
    };
    entries
        .iter()
        .find(|(known, _)| &*known.text == key)
        .map(|(_, node)| node)
}

/// Names that most attributes have, the ones of these documents and of Envoy's descriptors.
const COMMON: [&str; 23] = [
    "account",
    "api_key",
    "client_ip",
    "country",
    "customer",
    "destination_cluster",
    "endpoint",
    "generic_key",
    "host",
    "ip",
    "merchant",
    "method",
    "path",
    "plan",
    "points",
    "priority",
    "region",
    "remote_address",
    "service",
    "tenant",
    "tier",
    "user",
    "user_id",
];

/// The most names that one is compared with.
const COMPARED_MAX: usize = 256;
/// The most locations at which one name is reported.
const LOCATIONS_MAX: usize = 8;
