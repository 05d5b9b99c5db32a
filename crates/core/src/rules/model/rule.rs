//! Rules as they are meant: checked, complete, immutable. What stands here cannot be wrong any more.

use crate::decision::Cost;
use crate::limit::Limit;
use crate::network::Networks;
use crate::problem::Location;
use crate::rules::matching::Index;
use crate::rules::model::SmallBytes;
use crate::rules::ratelimit::{Descriptor, Descriptors};
use crate::settle::OnStoreFailure;
use crate::settle::counter::Counter;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

/// One rule.
///
/// What planning reads stands first and together: with thousands of rules each one is cold, and what an attempt waits for is
/// memory. Names of attributes and lists of them, which many rules have in common, are shared by them for the same reason.
#[derive(Debug)]
#[repr(C)]
pub struct Rule {
    /// All must hold.
    pub(crate) when: Box<[Condition]>,
    /// One counter for each combination of their values; empty: one counter for everybody.
    pub(crate) per: Arc<[Dimension]>,
    pub(crate) cost_source: CostSource,
    pub(crate) experiment: Option<Box<Experiment>>,
    pub(crate) mode: Mode,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) selector: LimitSelector,
    pub(crate) id: Box<str>,
    pub(crate) domain: Box<str>,
    /// Where it is written.
    pub(crate) location: Location,
    /// What it was made of, if that was a descriptor: then it is met by the way to it, and not by its conditions.
    pub(crate) descriptor: Option<Box<Descriptor>>,
}

/// What one attribute must be like for a rule to be met.
#[derive(Debug)]
pub struct Condition {
    pub(crate) attribute: Arc<str>,
    pub(crate) test: Test,
}

/// A test of an attribute. Where it has several values, one that fits is enough.
#[derive(Debug)]
pub enum Test {
    /// One of these, exactly. Sorted.
    OneOf(Box<[Box<str>]>),
    /// The parts between the stars of a glob, in order: `/v1/*` is `["/v1/", ""]`. A star is any run of bytes.
    Glob(Box<[Box<str>]>),
    /// Several of what may stand alone: one that fits is enough.
    Any(Box<[Self]>),
    /// A regular expression that is found somewhere in it.
    Regex(Box<regex::bytes::Regex>),
    /// An address in one of these networks.
    Cidr(Networks),
    /// Whether it is there at all.
    Present(bool),
}

/// One of the attributes that subjects are told apart by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dimension {
    pub(crate) attribute: Arc<str>,
    /// Holds addresses: an IPv6 one counts by so many leading bits. None: its bytes as they are.
    pub(crate) ipv6_prefix: Option<u8>,
}

/// Which of its limits a rule applies to an attempt: the first override that fits, else by an attribute, else `limit`.
#[derive(Debug)]
#[repr(C)]
pub struct LimitSelector {
    pub(crate) overrides: Box<[Overrides]>,
    pub(crate) by: Option<By>,
    pub(crate) limit: Terms,
}

/// Limits by the value of one attribute.
#[derive(Debug)]
pub(crate) struct By {
    pub(crate) attribute: Arc<str>,
    /// Sorted. Apart from the terms, because many rules name the same values.
    pub(crate) values: Arc<[SmallBytes]>,
    /// For each of the values.
    pub(crate) terms: TermsList,
}

/// Terms in the order of the values they are for. Those of few values stand in place, because every rule has its own.
#[derive(Debug)]
pub(crate) enum TermsList {
    /// So many that few plans have more; what is behind the last value means nothing.
    Inline([Terms; 3]),
    Boxed(Box<[Terms]>),
}

impl TermsList {
    fn new(mut terms: Vec<Terms>) -> Self {
        while terms.len() < 3 {
            terms.push(Terms::Unlimited);
        }
        terms
            .try_into()
            .map_or_else(|terms: Vec<Terms>| Self::Boxed(terms.into()), Self::Inline)
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Terms] {
        match self {
            Self::Inline(terms) => terms,
            Self::Boxed(terms) => terms,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Terms] {
        match self {
            Self::Inline(terms) => terms,
            Self::Boxed(terms) => terms,
        }
    }
}

impl LimitSelector {
    /// Every window that it can choose.
    fn windows_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        let by = self.by.iter_mut().flat_map(|by| by.terms.as_mut_slice());
        let overrides = self.overrides.iter_mut().flat_map(|set| set.terms.values_mut());
        let terms = by.chain(overrides.map(|(_, terms)| terms)).chain([&mut self.limit]);
        terms.flat_map(|terms| match terms {
            Terms::Limited(Windows::One(window)) => std::slice::from_mut(window),
            Terms::Limited(Windows::Several(windows)) => windows,
            Terms::Banned | Terms::Unlimited => &mut [],
        })
    }
}

impl By {
    /// Limits by these values of an attribute, each named once.
    pub(crate) fn new(attribute: &str, mut limits: Vec<(SmallBytes, Terms)>) -> Self {
        limits.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let (values, terms): (Vec<SmallBytes>, Vec<Terms>) = limits.into_iter().unzip();
        Self {
            attribute: attribute.into(),
            values: values.into(),
            terms: TermsList::new(terms),
        }
    }
}

/// All overrides of one rule that name the same attributes: one look-up finds the one that fits.
#[derive(Debug)]
pub(crate) struct Overrides {
    /// In the order their values stand in the key. An address stands there as it counts in `per`, however it is written.
    pub(crate) attributes: Box<[Dimension]>,
    /// Keyed by [`Overrides::key`]; beside the terms their place in the rule, because the first that fits wins.
    pub(crate) terms: HashMap<SmallBytes, (u32, Terms)>,
}

/// What a rule says of one attempt.
#[derive(Clone, Debug)]
pub enum Terms {
    /// All of these limits hold. Never empty.
    Limited(Windows),
    /// Nothing passes: a limit of zero.
    Banned,
    /// Everything passes, nothing is counted.
    Unlimited,
}

/// The limits of a rule that all hold. One stands in place: with thousands of rules, looking elsewhere for it is a good part
/// of what planning takes.
#[derive(Clone, Debug)]
pub enum Windows {
    /// One.
    One(Window),
    /// Several.
    Several(Box<[Window]>),
}

impl Windows {
    /// All of them, as one list.
    #[inline]
    pub fn as_slice(&self) -> &[Window] {
        match self {
            Self::One(window) => std::slice::from_ref(window),
            Self::Several(windows) => windows,
        }
    }
}

/// One limit of a rule, under the name it has in answers: the rule's id, and with several windows the period too.
#[derive(Clone, Debug)]
pub struct Window {
    pub(crate) name: Arc<str>,
    pub(crate) limit: Arc<Limit>,
    pub(crate) counter: CounterId,
}

/// Stands for one entry of [`RuleSet::counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterId(pub(crate) u32);

/// What all counters of one kind have in common: a [`Counter`](crate::Counter) without its subject.
#[derive(Clone, Debug)]
pub struct CounterSpec {
    /// The domain.
    pub domain: Box<str>,
    /// The name of the window: the rule's id, and with several windows the period too.
    pub name: Arc<str>,
    /// The side of an experiment.
    pub variant: Variant,
    /// One of the limits it is counted for: of it only the algorithm and the period of a window are identity.
    pub limit: Limit,
    /// The rule, as an index into [`RuleSet::rules`].
    pub rule: u32,
}

/// A side of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The rule as it is, with or without an experiment. Its counters go on when one begins.
    #[default]
    Control,
    /// The variant on trial.
    Experiment,
}

/// What a rule charges for an attempt of cost one.
#[derive(Debug)]
pub enum CostSource {
    /// Always this.
    Fixed(Cost),
    /// What an attribute says, if that is a whole number.
    Attribute {
        /// The attribute.
        name: Box<str>,
        /// What else.
        default: Cost,
    },
}

/// Whether a rule can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It can.
    Enforce,
    /// It decides and counts, but never refuses.
    Shadow,
    /// It is not asked. Kept so that it can be shown.
    Disabled,
}

/// A part of a rule's subjects is limited in another way.
#[derive(Debug)]
pub struct Experiment {
    /// Of 2^32: a subject whose hash is below it is on trial. So the trial grows without moving anybody out.
    pub(crate) share: u64,
    pub(crate) selector: LimitSelector,
}

/// All rules in force, compiled.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) rules: Box<[Rule]>,
    pub(crate) counters: Box<[CounterSpec]>,
    pub(crate) index: Index,
    pub(crate) descriptors: Descriptors,
    has_local_fallback: bool,
}

impl RuleSet {
    /// The same rules for instances that decide nothing on their own: `local` ones are closed while the store is away.
    pub fn closed_without_store(mut self) -> Self {
        self.has_local_fallback = false;
        for rule in &mut self.rules {
            if rule.on_store_failure == OnStoreFailure::Local {
                rule.on_store_failure = OnStoreFailure::Closed;
            }
        }
        self
    }

    /// Rules in the order they are written, and the counters their windows name.
    pub(crate) fn new(mut rules: Vec<Rule>, counters: Vec<CounterSpec>, descriptors: Descriptors) -> Self {
        intern_parts(&mut rules);
        let index = Index::new(&rules);
        Self {
            rules: rules.into(),
            counters: counters.into(),
            index,
            descriptors,
            has_local_fallback: true,
        }
    }

    /// What holds for a limit that no rule has while the store is away, such as one that a caller brings along.
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        match self.has_local_fallback {
            true => OnStoreFailure::Local,
            false => OnStoreFailure::Closed,
        }
    }

    /// All rules, in the order they are written.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The descriptors of envoyproxy/ratelimit among them.
    pub const fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Whether a rule that is asked is of this domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.index.has_domain(domain)
    }

    /// All kinds of counters. A [`CounterId`] is a place in this list.
    pub fn counters(&self) -> &[CounterSpec] {
        &self.counters
    }
}

/// Lets rules have in one place what they have in common: names of attributes and lists of them, the values that `by` names,
/// the numbers of limits. What is shared is at hand, however many rules there are.
fn intern_parts(rules: &mut [Rule]) {
    let (mut names, mut lists, mut values, mut limits) = <(HashSet<_>, HashSet<_>, HashSet<_>, HashSet<_>)>::default();
    for rule in rules {
        for condition in &mut rule.when {
            intern(&mut condition.attribute, &mut names);
        }
        // The names in a list that is shared are shared with it.
        intern(&mut rule.per, &mut lists);
        let selectors = [
            Some(&mut rule.selector),
            rule.experiment.as_mut().map(|trial| &mut trial.selector),
        ];
        for selector in selectors.into_iter().flatten() {
            if let Some(by) = &mut selector.by {
                intern(&mut by.attribute, &mut names);
                intern(&mut by.values, &mut values);
            }
            for window in selector.windows_mut() {
                intern(&mut window.limit, &mut limits);
            }
        }
    }
}

/// Replaces what equals something known by that, and knows it from now on.
fn intern<T: ?Sized + Eq + Hash>(value: &mut Arc<T>, known: &mut HashSet<Arc<T>>) {
    match known.get(value) {
        Some(shared) => *value = Arc::clone(shared),
        None => {
            known.insert(Arc::clone(value));
        }
    }
}

impl CounterId {
    /// Its place in [`RuleSet::counters`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl CounterSpec {
    /// The identity of the counter of one subject.
    pub fn counter<'a>(&'a self, per: &'a [&'a [u8]]) -> Counter<'a> {
        Counter {
            domain: &self.domain,
            rule: &self.name,
            variant: self.variant.key(),
            limit: &self.limit,
            per,
        }
    }
}

impl Rule {
    /// Its name, unique in its domain.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The domain whose attempts it meets.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// What subjects are told apart by; empty: one counter for everybody.
    pub fn per(&self) -> &[Dimension] {
        &self.per
    }

    /// What must hold for it to be met.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// Whether it can refuse.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// What it charges.
    pub const fn cost_source(&self) -> &CostSource {
        &self.cost_source
    }

    /// What it does while the store is away.
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// The trial it runs, if any.
    pub fn experiment(&self) -> Option<&Experiment> {
        self.experiment.as_deref()
    }

    /// What it was made of, if that was a descriptor of envoyproxy/ratelimit.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.as_deref()
    }

    /// Where it is written.
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// The limits of one side of its experiment. Without one both are the rule's own.
    pub(crate) fn selector(&self, variant: Variant) -> &LimitSelector {
        match (&self.experiment, variant) {
            (Some(experiment), Variant::Experiment) => &experiment.selector,
            _ => &self.selector,
        }
    }
}

impl Condition {
    /// The attribute it looks at.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// What that must be like.
    pub const fn test(&self) -> &Test {
        &self.test
    }
}

impl Dimension {
    /// The attribute.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// By how many leading bits an IPv6 address counts, if it holds addresses.
    pub const fn ipv6_prefix(&self) -> Option<u8> {
        self.ipv6_prefix
    }
}

impl Window {
    /// Its name in answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is held to.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// What it is counted in.
    pub const fn counter(&self) -> CounterId {
        self.counter
    }
}

impl Overrides {
    /// The key under which the terms for these values stand, one for each of its attributes. One value is its own key;
    /// several stand each behind its length, so that no two lists are alike.
    pub(crate) fn key<'a>(values: &[&'a [u8]]) -> Cow<'a, [u8]> {
        if let [value] = values {
            return Cow::Borrowed(value);
        }
        let mut key = Vec::new();
        for value in values {
            key.extend_from_slice(&(value.len() as u64).to_le_bytes());
            key.extend_from_slice(value);
        }
        Cow::Owned(key)
    }
}

impl Experiment {
    /// The share that is every subject.
    pub(crate) const ALL: u64 = 1 << 32;
}

impl Mode {
    /// As rules and answers write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Disabled => "disabled",
        }
    }
}

impl Variant {
    /// As counters know it: the control side is the rule itself.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Control => "",
            Self::Experiment => "experiment",
        }
    }

    /// As metrics write it for a rule with an experiment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Experiment => "experiment",
        }
    }
}
