//! Rules as they are written: YAML into [`RuleSet`], or everything that is wrong with it.
//!
//! One rule is read in `file/rule.rs`, what it asks of attributes in `file/when.rs`, its limits in `file/limits.rs` and
//! its algorithm in `file/method.rs`. A key is added there, in the schema and in `docs/rules.md`; tests hold the three
//! together.

pub(super) mod algorithm;
mod expressions;
mod limits;
mod rule;
mod when;

use super::attempt::Attempt;
use super::lint::lint;
use super::model::{CounterSpec, Rule, RuleSet};
use super::ratelimit::{Descriptors, RatelimitOptions};
use crate::problem::{Location, Problem, Problems};
use crate::yaml::{Node, NodeKind, excerpt};
use expressions::Expressions;
pub use rule::holds_addresses;
use std::collections::HashMap;
use std::sync::Arc;
#[cfg(test)]
pub(super) use {
    algorithm::ALGORITHMS,
    rule::{COST_KEYS, EXPERIMENT_KEYS, RULE_KEYS},
    when::CONDITION_KEYS,
};

/// What rules take from the configuration around them.
#[derive(Clone, Copy, Debug)]
pub struct ParserOptions {
    /// By how many leading bits IPv6 addresses are told apart where a rule does not say it.
    pub ipv6_prefix: u8,
}

/// Reads rules from several places and then makes one set of them, or none.
#[derive(Debug)]
pub struct RulesParser {
    options: ParserOptions,
    problems: Problems,
    rules: Vec<Rule>,
    counters: Vec<CounterSpec>,
    expressions: Expressions,
    /// Per domain, each name that stands in answers.
    names: HashMap<Box<str>, HashMap<Arc<str>, NameClaim>>,
    /// Rules that were seen, sound or not.
    seen: u32,
    /// Subjects that overrides have named.
    subjects: usize,
    /// What files of envoyproxy/ratelimit say.
    descriptors: Descriptors,
}

/// Whose a name is: the rule by its number, and where that is written.
#[derive(Debug)]
struct NameClaim {
    rule: u32,
    location: Location,
}

/// A set of rules, and what is odd about it.
#[derive(Debug)]
pub struct ParsedRules {
    /// The rules.
    pub rules: RuleSet,
    /// What was taken, but is hardly meant. Sorted by place.
    pub warnings: Vec<Problem>,
}

/// The keys of a rules file.
pub(super) const FILE_KEYS: [&str; 2] = ["domain", "rules"];
/// The most rules of one set.
pub const RULES_MAX: u32 = 100_000;

impl Default for ParserOptions {
    fn default() -> Self {
        Self { ipv6_prefix: 64 }
    }
}

impl RulesParser {
    /// Nothing read yet.
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
        }
    }

    /// Takes descriptors of envoyproxy/ratelimit beside rules. Strict ones are all or nothing, as rules are; others count
    /// what they refuse, as they did where they come from.
    pub fn set_descriptors(&mut self, descriptors: Descriptors, options: RatelimitOptions) {
        self.descriptors = descriptors;
        self.descriptors.options = options;
    }

    /// Reads a rules file: a map of `domain`, if its rules share one, and `rules`.
    pub fn add_file(&mut self, node: &Node) {
        if !matches!(node.kind, NodeKind::Map(_)) {
            self.problems.error_with(
                &node.location,
                format!("a rules file is a map, and this is {}", node.kind_name()),
                "begin it with `rules:` and put the list of rules below it; `rules: []` limits nothing",
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
            // Of an unreadable domain the rules are read all the same: they may have faults too.
            self.add_rules(rules, domain.unwrap_or(Attempt::DOMAIN));
        }
    }

    /// Reads a list of rules whose domain is `domain` unless they name another.
    pub fn add_rules(&mut self, node: &Node, domain: &str) {
        let Some(rules) = node.list("a list of rules", &mut self.problems) else {
            return;
        };
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
            self.parse_rule(rule, domain);
        }
    }

    /// The rules that were read.
    ///
    /// # Errors
    /// Every problem there is, warnings too, sorted by place. Rules are taken whole or not at all.
    pub fn finish(mut self) -> Result<ParsedRules, Vec<Problem>> {
        let mut descriptors = std::mem::take(&mut self.descriptors);
        if let Some(rule) = self.rules.iter().find(|rule| descriptors.has_domain(&rule.domain)) {
            self.problems.error_with(
                &rule.location,
                format!(
                    "the domain `{}` is one of envoyproxy/ratelimit's files",
                    excerpt(&rule.domain)
                ),
                "rules of our own need another domain: the two settle requests in different ways",
            );
        }
        if self.problems.has_errors() {
            return Err(self.problems.sorted());
        }
        self.problems.extend(lint(&self.rules));
        descriptors.compile(&mut self.rules, &mut self.counters);
        Ok(ParsedRules {
            rules: RuleSet::new(self.rules, self.counters, descriptors),
            warnings: self.problems.sorted(),
        })
    }

    /// Takes a name for a rule of a domain. A name that another rule has is a problem.
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
                format!("the first is at {first}; names stand in answers and must differ: choose another id"),
            ),
            None => {
                let location = location.clone();
                names.insert(Arc::clone(name), NameClaim { rule, location });
            }
        }
    }
}

/// The domain that rules belong to.
fn parse_domain<'n>(node: &'n Node, problems: &mut Problems) -> Option<&'n str> {
    let text = node.text("the name of a domain", problems)?;
    parse_name("a domain", text, &node.location, problems)
}

/// A name as rules give it: of a domain or an attribute.
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
