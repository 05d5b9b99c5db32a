//! Parser of one rule.

use super::algorithm::{AlgorithmOptions, OPTIONS};
use super::limits::{Counters, LimitFields, LimitsParser};
use super::{RulesParser, parse_domain, parse_name};
use crate::decision::Cost;
use crate::problem::{Problem, Problems};
use crate::quantity;
use crate::rules::model::{CostSource, Counting, Dimension, Experiment, LimitGrammar, Mode, Rule, Variant};
use crate::settle::OnStoreFailure;
use crate::yaml::{Fields, MapKey, Node, NodeKind, excerpt};
use std::sync::Arc;

/// The keys of a rule.
pub(in crate::rules) const RULE_KEYS: [&str; 19] = [
    "id",
    "domain",
    "when",
    "per",
    "limit",
    "by",
    "overrides",
    "algorithm",
    "min_interval",
    "lease_ttl",
    "shape",
    "calendar",
    "cost",
    "mode",
    "on_store_failure",
    "experiment",
    "ipv6_prefix",
    "spread",
    "reserve",
];
/// The keys of an experiment.
pub(in crate::rules) const EXPERIMENT_KEYS: [&str; 9] = [
    "share",
    "algorithm",
    "limit",
    "by",
    "overrides",
    "min_interval",
    "lease_ttl",
    "shape",
    "calendar",
];

/// The maximum number of `per` attributes.
const DIMENSIONS_MAX: usize = 16;
/// The maximum length of an id, in bytes.
const ID_MAX: usize = 64;

const MODES: [(&str, Mode); 3] = [
    ("enforce", Mode::Enforce),
    ("shadow", Mode::Shadow),
    ("disabled", Mode::Disabled),
];
const ON_STORE_FAILURE: [(&str, OnStoreFailure); 3] = [
    ("local", OnStoreFailure::Local),
    ("open", OnStoreFailure::Open { cap: None }),
    ("closed", OnStoreFailure::Closed),
];

impl RulesParser {
    /// Parses one rule and keeps it if it is valid.
    pub(super) fn parse_rule(&mut self, node: &Node, file_domain: &str) {
        let errors = self.problems.error_count();
        let Some(fields) = node.fields("a rule", &RULE_KEYS, &mut self.problems) else {
            return;
        };
        let domain = match fields.find("domain") {
            Some(node) => parse_domain(node, &mut self.problems).unwrap_or(file_domain),
            None => file_domain,
        };
        let index = self.seen;
        let id = self.parse_id(&fields);
        let location = fields.find("id").map_or(&node.location, |id| &id.location);
        if let Some(id) = &id {
            self.claim(domain, id, index, location);
        }
        // The other errors of a rule without a valid id are reported too.
        let id = id.unwrap_or_else(|| "?".into());
        let when = fields
            .find("when")
            .map(|node| self.parse_when(node))
            .unwrap_or_default();
        let ipv6_prefix = self.parse_ipv6_prefix(&fields);
        let per = self.parse_per(&fields, ipv6_prefix);
        let cost_source = fields.find("cost").and_then(|node| self.parse_cost(node));
        let mode = fields
            .find("mode")
            .map(|node| node.keyword("a mode", &MODES, &mut self.problems));
        let on_store_failure = fields
            .find("on_store_failure")
            .map(|node| parse_on_store_failure(node, &mut self.problems));
        let spread = fields.find("spread").and_then(|node| node.flag(&mut self.problems));
        let limit_fields = fields
            .require("a rule", "limit", "limit: 100/min", &mut self.problems)
            .map(|limit| LimitFields {
                limit,
                by: fields.find("by"),
                overrides: fields.find("overrides"),
            });
        let algorithm = AlgorithmOptions::parse(&fields, "token_bucket", &mut self.problems);
        let (Some(written), Some(method)) = (limit_fields, algorithm) else {
            return;
        };
        let rule_index = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
        let reserve = self.parse_reserve(&fields, method);
        let mut counters = Counters::new(&mut self.counters, domain, Arc::clone(&id), rule_index);
        let mut limits = LimitsParser {
            algorithm: method,
            variant: Variant::Control,
            reserve: reserve.as_ref().map(|reserve| reserve.terms),
            ipv6_prefix,
            counters: &mut counters,
            subjects: &mut self.subjects,
            problems: &mut self.problems,
        };
        let selector = limits.parse(written);
        let limits_are_valid = selector.is_some();
        let experiment = fields.find("experiment").map(|node| {
            if per.is_empty() {
                limits.problems.error_with(
                    &node.location,
                    "an experiment splits subjects, and this rule has no `per`",
                    "say with `per` what a subject is: `per: [merchant]`",
                );
            }
            // Errors of limits inherited from the rule were reported there.
            selector.as_ref().and_then(|_| limits.parse_experiment(node, written))
        });
        if let Some((key, _)) = fields.entry("calendar")
            && !counters.has_calendar()
            && limits_are_valid
            && method.name() == "fixed_window"
        {
            self.problems.push(
                Problem::warning(
                    &key.location,
                    "`calendar` has no effect: no limit is per day, week, month or year",
                )
                .with_hint("shorter windows are the same in every time zone; remove it"),
            );
        }
        for name in counters.into_names() {
            self.claim(domain, &name, index, location);
        }
        if self.problems.error_count() > errors {
            return;
        }
        if let Some(selector) = selector {
            self.rules.push(Rule {
                id: (&*id).into(),
                domain: domain.into(),
                when,
                per: per.into(),
                selector,
                cost_source: cost_source.unwrap_or(CostSource::Fixed(Cost::ONE)),
                mode: mode.flatten().unwrap_or(Mode::Enforce),
                on_store_failure: on_store_failure.flatten().unwrap_or(OnStoreFailure::Local),
                experiment: experiment.flatten().map(Box::new),
                location: location.clone(),
                counting: Counting::OnAllow,
                group: None,
                descriptor: None,
                limit_grammar: Some(LimitGrammar {
                    algorithm: method,
                    ipv6_prefix,
                }),
                spread,
                reserve: reserve.map(Box::new),
            });
        }
    }

    fn parse_id(&mut self, fields: &Fields<'_>) -> Option<Arc<str>> {
        let node = fields.require("a rule", "id", "id: merchant-plan", &mut self.problems)?;
        let text = node.text("the id of a rule", &mut self.problems)?;
        let is_id_byte = |b: u8| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b);
        if text.is_empty() || text.len() > ID_MAX || !text.bytes().all(is_id_byte) {
            self.problems.error_with(
                &node.location,
                format!("`{}` is not an id", excerpt(text)),
                format!("write 1 to {ID_MAX} letters, digits and any of `_ . : / -`"),
            );
            return None;
        }
        Some(text.into())
    }

    /// Parses the IPv6 prefix length of the rule.
    fn parse_ipv6_prefix(&mut self, fields: &Fields<'_>) -> u8 {
        let bits = fields.find("ipv6_prefix");
        let bits = bits.and_then(|node| node.integer("a number of leading bits", 1..=128, &mut self.problems));
        bits.and_then(|value| u8::try_from(value).ok())
            .unwrap_or(self.options.ipv6_prefix)
    }

    fn parse_per(&mut self, fields: &Fields<'_>, ipv6_prefix: u8) -> Box<[Dimension]> {
        let problems = &mut self.problems;
        let node = fields.find("per");
        let items = node.map(Node::one_or_more).unwrap_or_default();
        let mut per: Vec<Dimension> = Vec::with_capacity(items.len().min(DIMENSIONS_MAX));
        for item in items {
            let text = item.text("the name of an attribute, or a list of them", problems);
            let Some(attribute) = text.and_then(|text| parse_name("an attribute", text, &item.location, problems))
            else {
                continue;
            };
            if per.len() >= DIMENSIONS_MAX {
                problems.error_with(
                    &item.location,
                    format!("`per` names more than {DIMENSIONS_MAX} attributes"),
                    "name only what distinguishes subjects",
                );
                break;
            }
            if per.iter().any(|known| *known.attribute == *attribute) {
                problems.error_with(
                    &item.location,
                    format!("`per` names `{}` twice", excerpt(attribute)),
                    "remove one",
                );
            }
            per.push(Dimension::new(attribute, ipv6_prefix));
        }
        if let Some(node) = fields.find("ipv6_prefix")
            && per.iter().all(|dimension| dimension.ipv6_prefix.is_none())
            && !fields.find("overrides").is_some_and(has_address_attributes)
        {
            problems.push(
                Problem::warning(
                    &node.location,
                    "`ipv6_prefix` has no effect: no attribute of `per` or `overrides` holds addresses",
                )
                .with_hint(
                    "an attribute does if one of the words of its name is ip, ipv6, addr or address: `client_ip`",
                ),
            );
        }
        per.into()
    }
}

impl LimitsParser<'_, '_> {
    /// Parses an experiment: other limits for a share of the subjects. Unset fields are those of the rule.
    fn parse_experiment(&mut self, node: &Node, rule_fields: LimitFields<'_>) -> Option<Experiment> {
        let fields = node.fields("an experiment", &EXPERIMENT_KEYS, self.problems)?;
        let share = fields
            .require("an experiment", "share", "share: 10%", self.problems)
            .and_then(|node| node.read("a share like 10%", quantity::parse_share, self.problems));
        let changes = ["algorithm", "limit", "by", "overrides"];
        if !fields.has_unknown_keys() && changes.iter().all(|key| fields.find(key).is_none()) {
            self.problems.error_with(
                &node.location,
                "an experiment changes nothing",
                "say what changes: `algorithm: sliding_counter`, or another `limit`",
            );
            return None;
        }
        // Without an algorithm or an option of its own it changes only the numbers.
        let options = OPTIONS.iter().any(|(option, _)| fields.find(option).is_some());
        if options || fields.find("algorithm").is_some() {
            self.algorithm = AlgorithmOptions::parse(&fields, self.algorithm.name(), self.problems)?;
        }
        self.variant = Variant::Experiment;
        let errors = self.problems.error_count();
        let selector = self.parse(LimitFields {
            limit: fields.find("limit").unwrap_or(rule_fields.limit),
            by: fields.find("by").or(rule_fields.by),
            overrides: fields.find("overrides").or(rule_fields.overrides),
        });
        if self.problems.error_count() > errors && fields.find("limit").is_none() {
            self.problems.error_with(
                &node.location,
                "the limits of the rule are not for the algorithm of its experiment",
                "give the experiment limits of its own: `limit`, `by`, `overrides`",
            );
        }
        Some(Experiment {
            share: share?.part_of(Experiment::ALL),
            selector: selector?,
            algorithm: self.algorithm,
        })
    }
}

fn parse_on_store_failure(node: &Node, problems: &mut Problems) -> Option<OnStoreFailure> {
    if !matches!(node.kind, NodeKind::Map(_)) {
        return node.keyword("a failure policy", &ON_STORE_FAILURE, problems);
    }
    let fields = node.fields("`on_store_failure`", &["open"], problems)?;
    let open = fields.require("`on_store_failure`", "open", "{ open: { cap: 1000/s } }", problems)?;
    let fields = open.fields("`open`", &["cap"], problems)?;
    let cap = fields.require("`open`", "cap", "{ open: { cap: 1000/s } }", problems)?;
    let cap = cap.read("a rate like 1000/s", quantity::parse_rate, problems)?;
    Some(OnStoreFailure::Open { cap: Some(cap) })
}

/// True if overrides name attributes that hold addresses.
fn has_address_attributes(overrides: &Node) -> bool {
    let is_address = |(key, _): &(MapKey, Node)| holds_addresses(&key.text);
    let names = |item: &Node| matches!(&item.kind, NodeKind::Map(entries) if entries.iter().any(is_address));
    overrides.one_or_more().iter().any(names)
}

impl Dimension {
    /// Returns the dimension of an attribute; its name says whether it holds addresses.
    pub(in crate::rules) fn new(attribute: &str, ipv6_prefix: u8) -> Self {
        Self {
            attribute: attribute.into(),
            ipv6_prefix: holds_addresses(attribute).then_some(ipv6_prefix),
        }
    }
}

/// True if the name of an attribute says that it holds addresses.
pub fn holds_addresses(attribute: &str) -> bool {
    attribute.split(['_', '-', '.']).any(|word| {
        ["ip", "ipv6", "addr", "address"]
            .iter()
            .any(|known| word.eq_ignore_ascii_case(known))
    })
}
