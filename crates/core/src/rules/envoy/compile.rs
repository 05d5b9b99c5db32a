//! Makes rules of descriptors, so that they are planned, settled and told like all others. What differs is how one is
//! found, and that it may count what it refuses.

use super::id::id;
use super::path::{Level, Path};
use super::tree::{Branch, Descriptors, Limited, Node};
use crate::algorithm::fixed_window::FixedWindow;
use crate::decision::{Cost, Decision, Retry, Standing};
use crate::limit::Limit;
use crate::muldiv::muldiv;
use crate::rate::Rate;
use crate::rules::rule::{
    Choice, Condition, CounterId, CounterOf, Dimension, Mode, Price, Rule, Terms, Test, Variant, Window, Windows,
};
use crate::settle::OnStoreFailure;
use crate::yaml;
use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

/// What a rule keeps of the descriptor it was made of.
#[derive(Debug)]
pub struct Descriptor {
    /// The name others replace it by; empty if it has none.
    pub name: Box<str>,
    /// The names of those that do not hold where it does.
    pub replaces: Box<[Box<str>]>,
    /// It refuses only together with all others of its kind. What limits nothing is none of them, whatever is written: it
    /// would always have room.
    pub is_quota: bool,
    /// The name of its statistics.
    pub path: Path,
    /// What is told to whoever it lets pass, a map.
    pub metadata: Option<yaml::Node>,
    /// How much passes in a window, where what is refused is counted too.
    pub(crate) counts: Option<u32>,
}

/// More than is ever counted, and what answers of the shared store still have room for: a window of so many never refuses,
/// and so all hits stay in it.
const ENDLESS: u64 = (1 << 32) - 1;
const PARTS: NonZeroU64 = NonZeroU64::new(ENDLESS).expect("more than nothing");

impl Descriptor {
    /// The name as answers tell it, or nothing if it cannot stand there.
    pub fn told_name(&self) -> &str {
        if can_be_told(&self.name) { &self.name } else { "" }
    }

    /// What is held against the store in place of `limit`: where what is refused counts too, a window that takes all.
    pub(crate) fn charged(&self, limit: &Limit) -> Limit {
        match self.counts {
            Some(_) => charged(limit),
            None => *limit,
        }
    }

    /// What was counted, as a decision, and where what is refused is counted too, the count.
    pub(crate) fn judged(&self, decision: Decision) -> (Decision, Option<u64>) {
        match self.counts {
            None => (decision, None),
            Some(requests) => {
                let (decision, counted) = judged(requests, decision);
                (decision, Some(counted))
            }
        }
    }
}

/// Whether a name can be told: Envoy writes it into a header between quotes, as it comes.
pub(super) fn can_be_told(name: &str) -> bool {
    name.bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

/// A window that takes all, as long as this one.
pub(super) const fn charged(limit: &Limit) -> Limit {
    match limit {
        Limit::FixedWindow(window) => {
            Limit::FixedWindow(FixedWindow::new(Rate::for_hits(ENDLESS, window.rate().period())))
        }
        _ => *limit,
    }
}

/// What was counted, as a decision under a limit: refused beyond it, and not at it. Beside it the count.
pub(super) fn judged(requests: u32, decision: Decision) -> (Decision, u64) {
    let requests = u64::from(requests);
    let counted = *decision.standing();
    let used = counted.limit.saturating_sub(counted.remaining);
    // Whoever counts for a share of the window holds it against the same share.
    let most = match counted.limit {
        ENDLESS => requests,
        part => muldiv(requests, part, PARTS).0.max(requests.min(1)),
    };
    let standing = Standing {
        limit: requests,
        remaining: most.saturating_sub(used),
        ..counted
    };
    // As if others had used up their shares.
    let count = (requests - most).saturating_add(used);
    if used > most || !decision.is_allow() {
        let retry = Retry::After(standing.reset_after);
        return (Decision::Deny { standing, retry }, count);
    }
    (Decision::allow(standing), count)
}

impl Descriptors {
    /// Adds a rule for each of its limits.
    pub(in crate::rules) fn compile(&mut self, rules: &mut Vec<Rule>, counters: &mut Vec<CounterOf>) {
        let strict = self.options.strict;
        let mut domains: Vec<_> = self.domains.iter_mut().collect();
        domains.sort_by_key(|(name, _)| *name);
        for (domain, branch) in domains {
            let mut compiler = Compiler {
                domain,
                strict,
                ids: HashSet::new(),
                rules,
                counters,
            };
            compiler.branch(branch, &Way::default());
        }
    }
}

/// What leads to a node.
#[derive(Clone, Default)]
struct Way {
    path: Vec<Box<str>>,
    levels: Vec<Level>,
    when: Vec<(Arc<str>, Box<str>)>,
    per: Vec<Arc<str>>,
}

struct Compiler<'c> {
    domain: &'c str,
    strict: bool,
    ids: HashSet<String>,
    rules: &'c mut Vec<Rule>,
    counters: &'c mut Vec<CounterOf>,
}

impl Compiler<'_> {
    fn branch(&mut self, branch: &mut Branch, way: &Way) {
        for node in &mut branch.nodes {
            let mut way = way.clone();
            way.add(node);
            if let Some(limit) = &mut node.limit {
                limit.rule = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
                let rule = self.rule(limit, &way);
                self.rules.push(rule);
            }
            self.branch(&mut node.below, &way);
        }
    }

    fn rule(&mut self, limit: &Limited, way: &Way) -> Rule {
        let id = id(&way.path, &mut self.ids);
        let terms = match limit.rate {
            None => match &limit.exact {
                Some(exact) => self.window(&id, exact.limit),
                None => Terms::Unlimited,
            },
            // Where all is counted, what a ban refuses is too.
            Some((0, _)) if self.strict => Terms::Banned,
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
        let descriptor = Descriptor {
            name: limit.name.clone(),
            replaces: limit.replaces.clone(),
            is_quota: limit.quota && !matches!(terms, Terms::Unlimited),
            path: Path::of(self.domain, &way.levels, limit.detailed),
            metadata: limit.metadata.clone(),
            counts: limit.rate.filter(|_| !self.strict).map(|(requests, _)| requests),
        };
        Rule {
            when: way.when.iter().map(condition).collect(),
            per: way.per.iter().map(dimension).collect(),
            price: Price::Fixed(Cost::ONE),
            experiment: None,
            mode: if limit.shadow { Mode::Shadow } else { Mode::Enforce },
            choice: Choice {
                overrides: Box::default(),
                by: None,
                limit: terms,
            },
            id: id.into(),
            domain: self.domain.into(),
            on_store_failure: OnStoreFailure::Local,
            place: limit.place.clone(),
            descriptor: Some(Box::new(descriptor)),
        }
    }

    fn window(&mut self, id: &str, limit: Limit) -> Terms {
        let counter = CounterId(u32::try_from(self.counters.len()).unwrap_or(u32::MAX));
        let name: Arc<str> = id.into();
        self.counters.push(CounterOf {
            domain: self.domain.into(),
            name: Arc::clone(&name),
            variant: Variant::Control,
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

impl Way {
    /// Whoever comes here has this key, with this value if there is one, and is counted by it unless all are counted
    /// together.
    fn add(&mut self, node: &Node) {
        let key: Arc<str> = (*node.key).into();
        self.path.push(node.name.clone());
        self.levels.push(Level::of(node));
        if let Some(value) = node.value() {
            self.when.push((Arc::clone(&key), value.into()));
        }
        if !node.is_for_all() && !self.per.contains(&key) {
            self.per.push(key);
        }
    }
}
