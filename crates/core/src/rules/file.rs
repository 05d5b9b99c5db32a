//! The rules parser: YAML to [`RuleSet`], or every problem in it.
//!
//! `file/rule.rs` parses a rule, `file/when.rs` its conditions, `file/limits.rs` its limits, `file/reserve.rs` its reserve,
//! `file/cost.rs` its cost and `file/algorithm.rs` its algorithm. A new key is added there, in the schema and in `docs/rules.md`; tests keep the three consistent.

pub(super) mod algorithm;
mod cost;
mod expressions;
pub(super) mod limits;
mod reserve;
mod rule;
mod when;

use super::attempt::Attempt;
use super::lint::{KnownAttributes, NamesUsed, lint};
use super::model::{CounterSpec, Rule, RuleSet};
use super::ratelimit::{self, Descriptors, RatelimitOptions};
use crate::problem::{Location, Problem, Problems};
use crate::yaml::{Node, NodeKind, excerpt};
use expressions::Expressions;
pub use rule::holds_addresses;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
#[cfg(test)]
pub(super) use {
    algorithm::ALGORITHMS,
    cost::{COST_CASE_KEYS, COST_KEYS},
    reserve::RESERVE_KEYS,
    rule::{EXPERIMENT_KEYS, RULE_KEYS},
    when::CONDITION_KEYS,
};

/// Settings of the configuration that rules depend on.
#[derive(Clone, Copy, Debug)]
pub struct ParserOptions {
    /// The IPv6 prefix length of rules that set none.
    pub ipv6_prefix: u8,
}

/// Parser of rules from several files, which result in one set or none.
#[derive(Debug)]
pub struct RulesParser {
    options: ParserOptions,
    problems: Problems,
    rules: Vec<Rule>,
    counters: Vec<CounterSpec>,
    expressions: Expressions,
    /// Per domain, each limit name in use.
    names: HashMap<Box<str>, HashMap<Arc<str>, NameClaim>>,
    /// Number of rules seen, valid or not.
    seen: u32,
    /// Number of subjects that overrides have named.
    subjects: usize,
    /// The descriptors to compile with the rules.
    descriptors: Descriptors,
    /// The domains with an empty list of rules.
    empty_domains: HashSet<Box<str>>,
    /// The names that the rules use, to compare them when all are known.
    names_used: NamesUsed,
    /// The attributes that callers provide.
    known_attributes: KnownAttributes,
}

/// The owner of a name: the index and the location of its rule.
#[derive(Debug)]
struct NameClaim {
    rule: u32,
    location: Location,
}

/// A rule set and its warnings.
#[derive(Debug)]
pub struct ParsedRules {
    /// The rules.
    pub rules: RuleSet,
    /// Warnings about rules that are probably mistakes, sorted by location.
    pub warnings: Vec<Problem>,
}

/// The keys of a rules file.
pub(super) const FILE_KEYS: [&str; 2] = ["domain", "rules"];
/// The maximum number of rules in a set.
pub const RULES_MAX: u32 = 100_000;

impl Default for ParserOptions {
    fn default() -> Self {
        Self { ipv6_prefix: 64 }
    }
}

impl RulesParser {
    /// Returns an empty parser.
    pub fn new(options: ParserOptions) -> Self {
        Self {
            options,
            problems: Problems::new(),
            rules: Vec::new(),
            counters: Vec::new(),
            expressions: Expressions::new(),
            names: HashMap::new(),
            seen: 0,
            subjects: 0,
            descriptors: Descriptors::default(),
            empty_domains: HashSet::new(),
            names_used: NamesUsed::default(),
            known_attributes: KnownAttributes::default(),
        }
    }

    /// Sets the attributes that callers provide, so that rules about others are reported.
    pub fn set_known_attributes(&mut self, known: KnownAttributes) {
        self.known_attributes = known;
    }

    /// Sets the descriptors to compile with the rules. Strict ones are all or nothing, as rules are; others count
    /// denied hits.
    pub fn set_descriptors(&mut self, descriptors: Descriptors, options: RatelimitOptions) {
        self.descriptors = descriptors;
        self.descriptors.options = options;
    }

    /// Adds a rules file: a map of `domain`, if its rules share one, and `rules`.
    pub fn add_file(&mut self, node: &Node) {
        if !matches!(node.kind, NodeKind::Map(_)) {
            self.problems.error_with(
                &node.location,
                format!("a rules file is a map, and this is {}", node.kind_name()),
                "start it with `rules:` and put the list of rules below it; `rules: []` limits nothing",
            );
            return;
        }
        let Some(fields) = node.fields("a rules file", &FILE_KEYS, &mut self.problems) else {
            return;
        };
        let domain = match fields.find("domain") {
            Some(node) => parse_domain(node, &mut self.problems),
            None => Some(Attempt::DOMAIN),
        };
        if let Some(rules) = fields.require("a rules file", "rules", "rules: []", &mut self.problems) {
            // Rules below an invalid domain are parsed all the same, to report their errors too.
            self.add_rules(rules, domain.unwrap_or(Attempt::DOMAIN));
        }
    }

    /// Adds a list of rules, in `domain` unless they name another.
    pub fn add_rules(&mut self, node: &Node, domain: &str) {
        let Some(rules) = node.list("a list of rules", &mut self.problems) else {
            return;
        };
        if rules.is_empty() {
            self.empty_domains.insert(domain.into());
        }
        for rule in rules {
            if self.seen >= RULES_MAX {
                self.problems.error_with(
                    &rule.location,
                    format!("there are more than {RULES_MAX} rules"),
                    "say with `by` and `overrides` what differs between subjects, in one rule",
                );
                return;
            }
            self.seen += 1;
            self.names_used.add_rule(rule, domain);
            self.parse_rule(rule, domain);
        }
    }

    /// Returns the rules.
    ///
    /// # Errors
    /// All problems, warnings included, sorted by location. Rules are accepted whole or not at all.
    pub fn finish(mut self) -> Result<ParsedRules, Vec<Problem>> {
        let mut descriptors = std::mem::take(&mut self.descriptors);
        if let Some(rule) = self.rules.iter().find(|rule| descriptors.has_domain(&rule.domain)) {
            self.problems.error_with(
                &rule.location,
                ratelimit::domain_taken(&excerpt(&rule.domain)),
                "rules of our own need another domain: the two settle requests in different ways",
            );
        }
        self.problems.extend(self.names_used.problems(&self.known_attributes));
        if self.problems.has_errors() {
            return Err(self.problems.sorted());
        }
        self.problems.extend(lint(&self.rules, &self.known_attributes));
        descriptors.compile(&mut self.rules, &mut self.counters);
        Ok(ParsedRules {
            rules: RuleSet::new(self.rules, self.counters, descriptors, self.empty_domains),
            warnings: self.problems.sorted(),
        })
    }

    /// Claims a name for a rule of a domain. A name of another rule is a problem.
    fn claim(&mut self, domain: &str, name: &Arc<str>, rule: u32, location: &Location) {
        if !self.names.contains_key(domain) {
            self.names.insert(domain.into(), HashMap::new());
        }
        let Some(names) = self.names.get_mut(domain) else {
            return;
        };
        match names.get(name) {
            Some(claim) if claim.rule == rule => {}
            Some(NameClaim { location: first, .. }) => self.problems.error_with(
                location,
                format!("another limit in the domain `{}` is named `{name}`", excerpt(domain)),
                format!("the first is at {first}; names appear in responses and must be unique: choose another id"),
            ),
            None => {
                let location = location.clone();
                names.insert(Arc::clone(name), NameClaim { rule, location });
            }
        }
    }
}

/// Parses the domain of rules.
fn parse_domain<'n>(node: &'n Node, problems: &mut Problems) -> Option<&'n str> {
    let text = node.text("the name of a domain", problems)?;
    parse_name("a domain", text, &node.location, problems)
}

/// Checks that a list has one to `max` items; `describe` is asked for the text and the hint of the problem.
fn check_count(
    count: usize,
    max: usize,
    location: &Location,
    problems: &mut Problems,
    describe: impl FnOnce() -> (String, String),
) -> Option<()> {
    if (1..=max).contains(&count) {
        return Some(());
    }
    let (text, hint) = describe();
    problems.error_with(location, text, hint);
    None
}

/// Validates the name of a domain or an attribute.
fn parse_name<'n>(what: &str, text: &'n str, location: &Location, problems: &mut Problems) -> Option<&'n str> {
    const NAME_BYTES_MAX: usize = 256;
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.contains(char::is_control) {
        problems.error_with(
            location,
            format!("`{}` is not the name of {what}", excerpt(text)),
            format!("write 1 to {NAME_BYTES_MAX} bytes without control characters"),
        );
        return None;
    }
    Some(text)
}
