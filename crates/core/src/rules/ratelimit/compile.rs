//! Compiles descriptors into rules, so that they are planned, settled and reported like all others. They differ in how
//! a request matches them, and in counting denied hits.

use super::id::rule_id;
use super::stat_path::{PathLevel, StatPath};
use super::tree::{DescriptorLevel, DescriptorLimit, DescriptorNode, Descriptors};
use crate::algorithm::fixed_window::FixedWindow;
use crate::limit::Limit;
use crate::rules::model::{
    Condition, CostSource, CounterId, CounterPart, CounterSpec, Counting, Dimension, Group, LimitSelector, Mode, Rule,
    Terms, Test, Variant, Window, Windows,
};
use crate::settle::OnStoreFailure;
use crate::units::rate::Rate;
use crate::yaml;
use std::collections::HashSet;
use std::sync::Arc;

/// The parts of a descriptor that its rule keeps for responses and statistics.
#[derive(Debug)]
pub struct Descriptor {
    /// The name as reported in responses; empty if it has none, or one with characters a header cannot carry.
    pub name: Box<str>,
    /// The name of its statistics.
    pub path: StatPath,
    /// A map returned to the callers it allows.
    pub metadata: Option<yaml::Node>,
}

/// True if a name can be reported: Envoy copies it into a quoted header value unescaped.
pub(super) fn is_reportable(name: &str) -> bool {
    name.bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

impl Descriptors {
    /// Appends a rule for each of its limits.
    pub(in crate::rules) fn compile(&mut self, rules: &mut Vec<Rule>, counters: &mut Vec<CounterSpec>) {
        let strict = self.options.strict;
        let mut domains: Vec<_> = self.domains.iter_mut().collect();
        domains.sort_by_key(|(name, _)| *name);
        for (domain, level) in domains {
            let mut compiler = Compiler {
                domain,
                strict,
                ids: HashSet::new(),
                rules,
                counters,
            };
            compiler.compile_level(level, &DescriptorPath::default());
        }
    }
}

/// The path from the domain to a node.
#[derive(Clone, Default)]
struct DescriptorPath {
    names: Vec<Box<str>>,
    levels: Vec<PathLevel>,
    when: Vec<(Arc<str>, Box<str>)>,
    per: Vec<Arc<str>>,
}

struct Compiler<'c> {
    domain: &'c str,
    strict: bool,
    ids: HashSet<String>,
    rules: &'c mut Vec<Rule>,
    counters: &'c mut Vec<CounterSpec>,
}

impl Compiler<'_> {
    fn compile_level(&mut self, level: &mut DescriptorLevel, path: &DescriptorPath) {
        for node in &mut level.nodes {
            let mut path = path.clone();
            path.add(node);
            if let Some(limit) = &mut node.limit {
                limit.rule = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
                let rule = self.compile_rule(limit, &path);
                self.rules.push(rule);
            }
            self.compile_level(&mut node.children, &path);
        }
    }

    fn compile_rule(&mut self, limit: &DescriptorLimit, path: &DescriptorPath) -> Rule {
        let id = rule_id(&path.names, &mut self.ids);
        let terms = match limit.rate {
            None => match &limit.native {
                Some(native) => self.window(&id, native.limit),
                None => Terms::Unlimited,
            },
            // Where denied hits are counted, those of a ban are counted too.
            Some((0, unit)) if self.strict => Terms::Banned(Some(unit.period())),
            Some((requests, unit)) => {
                let window = FixedWindow::new(Rate::for_hits(requests.into(), unit.period()));
                self.window(&id, Limit::FixedWindow(window))
            }
        };
        let condition = |(key, value): &(Arc<str>, Box<str>)| Condition {
            attribute: Arc::clone(key),
            test: match value.contains('*') {
                true => Test::Glob(value.split('*').map(Box::from).collect()),
                false => Test::OneOf([value.clone()].into()),
            },
        };
        let dimension = |key: &Arc<str>| Dimension {
            attribute: Arc::clone(key),
            ipv6_prefix: None,
        };
        let is_quota = limit.quota && !matches!(terms, Terms::Unlimited);
        let is_grouped = is_quota || !limit.name.is_empty() || !limit.replaces.is_empty();
        let group = is_grouped.then(|| Group {
            name: limit.name.clone(),
            replaces: limit.replaces.clone(),
            is_quota,
        });
        let descriptor = Descriptor {
            name: if is_reportable(&limit.name) {
                limit.name.clone()
            } else {
                Box::default()
            },
            path: StatPath::new(self.domain, &path.levels, limit.detailed),
            metadata: limit.metadata.clone(),
        };
        let counting = match limit.rate {
            Some((capacity, _)) if !self.strict => Counting::Always { capacity },
            _ => Counting::OnAllow,
        };
        Rule {
            when: path.when.iter().map(condition).collect(),
            per: path.per.iter().map(dimension).collect(),
            cost_source: CostSource::Attempt,
            experiment: None,
            mode: if limit.shadow { Mode::Shadow } else { Mode::Enforce },
            selector: LimitSelector {
                overrides: Box::default(),
                by: None,
                limit: terms,
            },
            id: id.into(),
            domain: self.domain.into(),
            on_store_failure: OnStoreFailure::Local,
            counting,
            group: group.map(Box::new),
            location: limit.location.clone(),
            descriptor: Some(Box::new(descriptor)),
            limit_grammar: None,
            spread: None,
            reserve: None,
        }
    }

    fn window(&mut self, id: &str, limit: Limit) -> Terms {
        let counter = CounterId(u32::try_from(self.counters.len()).unwrap_or(u32::MAX));
        let name: Arc<str> = id.into();
        self.counters.push(CounterSpec {
            domain: self.domain.into(),
            id: Arc::clone(&name),
            window_name: None,
            variant: Variant::Control,
            part: CounterPart::All,
            limit,
            rule: u32::try_from(self.rules.len()).unwrap_or(u32::MAX),
        });
        Terms::Limited(Windows::One(Window {
            name,
            limit: Arc::new(limit),
            counter,
        }))
    }
}

impl DescriptorPath {
    /// Appends a node: its key, its value as a condition if it has one, and the key as a dimension unless all values
    /// share a counter.
    fn add(&mut self, node: &DescriptorNode) {
        let key: Arc<str> = (*node.key).into();
        self.names.push(node.name.clone());
        self.levels.push(PathLevel::new(node));
        if let Some(value) = node.value() {
            self.when.push((Arc::clone(&key), value.into()));
        }
        if !node.is_for_all() && !self.per.contains(&key) {
            self.per.push(key);
        }
    }
}
