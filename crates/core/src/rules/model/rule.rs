//! The compiled rules: valid, complete, immutable.

use super::cost::CostCases;
use super::counting::{Counting, Group};
use super::reserve::{Reserve, ReservedWindows};
use crate::decision::Cost;
use crate::limit::Limit;
use crate::network::Networks;
use crate::problem::Location;
use crate::rules::derive::Derivation;
use crate::rules::file::algorithm::AlgorithmOptions;
use crate::rules::matching::Index;
use crate::rules::model::SmallBytes;
use crate::rules::ratelimit::{Descriptor, Descriptors};
use crate::rules::rows::Rows;
use crate::settle::OnStoreFailure;
use crate::settle::counter::Counter;
use crate::units::time::Micros;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, OnceLock};

/// A compiled rule.
///
/// The fields that planning reads come first and adjacent: with thousands of rules each one is cold in the cache, and
/// planning waits for memory. For the same reason rules share attribute names and lists.
#[derive(Debug)]
#[repr(C)]
pub struct Rule {
    /// All of them must hold.
    pub(crate) when: Box<[Condition]>,
    /// One counter for each combination of their values; empty: one global counter.
    pub(crate) per: Arc<[Dimension]>,
    pub(crate) cost_source: CostSource,
    pub(crate) experiment: Option<Box<Experiment>>,
    pub(crate) mode: Mode,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) counting: Counting,
    /// Its relation to the other rules of one request. None: it applies independently of them.
    pub(crate) group: Option<Box<Group>>,
    pub(crate) selector: LimitSelector,
    pub(crate) id: Box<str>,
    pub(crate) domain: Box<str>,
    /// Its location.
    pub(crate) location: Location,
    /// The descriptor it was compiled from, if any: then the entries of a request select it, not its conditions.
    pub(crate) descriptor: Option<Box<Descriptor>>,
    /// The grammar of its limits, for rows. None for a descriptor, which has none.
    pub(in crate::rules) limit_grammar: Option<LimitGrammar>,
    /// True if denied callers return one after the other. None: as the settings say for rules without `per`.
    pub(crate) spread: Option<bool>,
    /// The part of its limits that only some attempts may use. Then all its windows are [`Windows::Reserved`].
    pub(crate) reserve: Option<Box<Reserve>>,
}

/// The options that the limits of a rule are parsed with.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) struct LimitGrammar {
    pub(in crate::rules) algorithm: AlgorithmOptions,
    /// The IPv6 prefix length.
    pub(in crate::rules) ipv6_prefix: u8,
}

/// A condition on one attribute.
#[derive(Debug)]
pub struct Condition {
    pub(crate) attribute: Arc<str>,
    pub(crate) test: Test,
}

/// A test of an attribute. One passing value of several is enough.
#[derive(Debug)]
pub enum Test {
    /// One of these values. Sorted.
    OneOf(Box<[Box<str>]>),
    /// The parts between the stars of a glob, in order: `/v1/*` is `["/v1/", ""]`. A star is any run of bytes.
    Glob(Box<[Box<str>]>),
    /// Alternatives: one that passes is enough.
    Any(Box<[Self]>),
    /// A regular expression, unanchored.
    Regex(Box<regex::bytes::Regex>),
    /// An address in one of these networks.
    Cidr(Networks),
    /// The presence or absence of the attribute.
    Present(bool),
}

/// An attribute that subjects are distinguished by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dimension {
    pub(crate) attribute: Arc<str>,
    /// The prefix length of IPv6 addresses, if it holds addresses. None: the bytes as they are.
    pub(crate) ipv6_prefix: Option<u8>,
}

/// The limits of a rule and how one is selected: the first matching override, else by an attribute, else `limit`.
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
    /// Sorted. Separate from the terms, because many rules name the same values.
    pub(crate) values: Arc<[SmallBytes]>,
    /// The terms of each value.
    pub(crate) terms: TermsList,
}

/// Terms in the order of their values. A few are stored inline, because every rule has its own.
#[derive(Debug)]
pub(crate) enum TermsList {
    /// As many as most rules have; entries after the last value are unused.
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
    /// Every window that it can select.
    fn windows_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        let by = self.by.iter_mut().flat_map(|by| by.terms.as_mut_slice());
        let overrides = self.overrides.iter_mut().flat_map(|set| set.terms.values_mut());
        let terms = by.chain(overrides.map(|(_, terms)| terms)).chain([&mut self.limit]);
        terms.flat_map(|terms| match terms {
            Terms::Limited(Windows::One(window)) => std::slice::from_mut(window),
            Terms::Limited(Windows::Several(windows)) => windows,
            Terms::Limited(Windows::Reserved(reserved)) => reserved.windows_mut(),
            Terms::Banned(_) | Terms::Unlimited => &mut [],
        })
    }
}

impl By {
    /// Returns limits by these values of an attribute, each named once.
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

/// All overrides of a rule that name the same attributes, so one lookup finds the matching one.
#[derive(Debug)]
pub(crate) struct Overrides {
    /// In the order of their values in the key. Addresses are normalized as in `per`.
    pub(crate) attributes: Box<[Dimension]>,
    /// Keyed by [`Overrides::key`], with the index in the rule, because the first match wins.
    pub(crate) terms: HashMap<SmallBytes, (u32, Terms)>,
}

/// The terms of a rule for one attempt.
#[derive(Clone, Debug)]
pub enum Terms {
    /// All of these limits apply. Never empty.
    Limited(Windows),
    /// Denies everything: a limit of zero, with the period it was written with.
    Banned(Option<Micros>),
    /// Allows everything and counts nothing.
    Unlimited,
}

/// The limits of a rule that all apply. A single one is stored inline: with thousands of rules, a pointer to it would
/// cost a good part of planning.
#[derive(Clone, Debug)]
pub enum Windows {
    /// One.
    One(Window),
    /// Several.
    Several(Box<[Window]>),
    /// Those of a rule with a reserve.
    Reserved(Box<ReservedWindows>),
}

impl Windows {
    /// Returns all of them. Of a rule with a reserve, those of all attempts.
    #[inline]
    pub fn as_slice(&self) -> &[Window] {
        match self {
            Self::One(window) => std::slice::from_ref(window),
            Self::Several(windows) => windows,
            Self::Reserved(reserved) => reserved.all(),
        }
    }

    /// Returns those of the attempts that may not use the reserve. Empty without a reserve.
    pub fn others(&self) -> &[Window] {
        match self {
            Self::One(_) | Self::Several(_) => &[],
            Self::Reserved(reserved) => reserved.others(),
        }
    }
}

/// One limit of a rule, with its name in responses: the rule's id, followed by the period if there are several windows.
#[derive(Clone, Debug)]
pub struct Window {
    pub(crate) name: Arc<str>,
    pub(crate) limit: Arc<Limit>,
    pub(crate) counter: CounterId,
}

/// The number of a counter; see [`RuleSet::counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterId(pub(crate) u32);

/// The common part of the counters of all subjects: a [`Counter`](crate::Counter) without its subject.
#[derive(Clone, Debug)]
pub struct CounterSpec {
    /// The domain.
    pub domain: Box<str>,
    /// The rule's id.
    pub id: Arc<str>,
    /// The name of its window where that is one of a list: the rule's id, followed by the period. Not part of the
    /// identity: the same window alone has the same counter.
    pub window_name: Option<Arc<str>>,
    /// The variant of an experiment.
    pub variant: Variant,
    /// The attempts it counts.
    pub part: CounterPart,
    /// One of the limits that share the counter: only its algorithm and its period are part of the identity.
    pub limit: Limit,
    /// The rule, as an index into [`RuleSet::rules`].
    pub rule: u32,
}

/// The attempts that a counter of a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CounterPart {
    /// All of them.
    #[default]
    All,
    /// Those that may not use the reserve.
    Others,
}

/// A variant of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The rule itself, with or without an experiment. Its counters continue when an experiment starts.
    #[default]
    Control,
    /// The variant under test.
    Experiment,
}

/// The cost of an attempt of cost one.
#[derive(Debug)]
pub enum CostSource {
    /// The cost of the attempt alone. It may exceed [`Cost::MAX`]: hits do.
    Attempt,
    /// A constant.
    Fixed(Cost),
    /// The value of an attribute, if it is a whole number.
    Attribute {
        /// The attribute.
        name: Box<str>,
        /// The cost otherwise.
        default: Cost,
    },
    /// That of the first case that holds.
    Cases(Box<CostCases>),
}

/// The effect of a rule's denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denials are enforced.
    Enforce,
    /// It decides and counts, but never denies.
    Shadow,
    /// It is skipped. Kept for display.
    Disabled,
}

/// Other limits for a share of a rule's subjects.
#[derive(Debug)]
pub struct Experiment {
    /// Of 2^32: subjects whose hash is below it get the experiment. So a growing share never moves a subject out.
    pub(crate) share: u64,
    pub(crate) selector: LimitSelector,
    /// The algorithm that its limits are parsed with.
    pub(in crate::rules) algorithm: AlgorithmOptions,
}

/// All active rules, compiled, with override rows and the attributes that are derived. Cheap to clone: copies share their
/// parts.
#[derive(Clone, Debug)]
pub struct RuleSet {
    pub(crate) rules: Arc<[Rule]>,
    /// Of the rules themselves, in rule order.
    pub(crate) counters: Arc<[CounterSpec]>,
    /// Those that only rows use. They follow the others.
    pub(crate) added_counters: Arc<[CounterSpec]>,
    pub(crate) index: Index,
    pub(crate) descriptors: Arc<Descriptors>,
    /// The domains of all rules and of empty lists of rules, sorted.
    pub(crate) domains: Arc<[Box<str>]>,
    has_local_fallback: bool,
    pub(in crate::rules) rows: Rows,
    pub(in crate::rules) derivation: Derivation,
    /// The rules sorted by domain and id, as indices. Made when it is first needed.
    by_name: Arc<OnceLock<Box<[u32]>>>,
}

impl RuleSet {
    /// Returns the same rules for instances without local fallback: `local` becomes `closed`.
    pub fn closed_without_store(mut self) -> Self {
        self.has_local_fallback = false;
        self
    }

    /// Returns a rule set of these rules, in file order, and the counters of their windows. `empty_domains` are those
    /// that were given an empty list of rules.
    pub(crate) fn new(
        mut rules: Vec<Rule>,
        counters: Vec<CounterSpec>,
        descriptors: Descriptors,
        empty_domains: HashSet<Box<str>>,
    ) -> Self {
        intern_parts(&mut rules);
        let index = Index::new(&rules);
        let mut domains = empty_domains;
        for rule in &rules {
            if !domains.contains(&rule.domain) {
                domains.insert(rule.domain.clone());
            }
        }
        let mut domains: Vec<Box<str>> = domains.into_iter().collect();
        domains.sort_unstable();
        Self {
            rules: rules.into(),
            counters: counters.into(),
            added_counters: Arc::default(),
            index,
            descriptors: Arc::new(descriptors),
            domains: domains.into(),
            has_local_fallback: true,
            rows: Rows::default(),
            derivation: Derivation::default(),
            by_name: Arc::default(),
        }
    }

    /// The failure policy of limits that no rule has, such as inline limits.
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        match self.has_local_fallback {
            true => OnStoreFailure::Local,
            false => OnStoreFailure::Closed,
        }
    }

    /// The failure policy of a rule on this instance.
    #[inline]
    pub(in crate::rules) fn failure_policy_of(&self, rule: &Rule) -> OnStoreFailure {
        match rule.on_store_failure {
            OnStoreFailure::Local if !self.has_local_fallback => OnStoreFailure::Closed,
            policy => policy,
        }
    }

    /// All rules, in file order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The descriptors among them.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// True if an active rule has this domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.index.has_domain(domain)
    }

    /// The counters of the rules, without their subjects.
    pub fn counters(&self) -> &[CounterSpec] {
        &self.counters
    }

    /// The counters that only rows use. They are numbered after those of the rules.
    pub fn added_counters(&self) -> &[CounterSpec] {
        &self.added_counters
    }

    /// The counter with this id.
    #[inline]
    pub fn counter(&self, id: CounterId) -> Option<&CounterSpec> {
        let index = id.index();
        let added = || self.added_counters.get(index.checked_sub(self.counters.len())?);
        self.counters.get(index).or_else(added)
    }

    /// The counters of one rule, without those that rows added.
    pub(in crate::rules) fn compiled_counters_of(&self, rule: u32) -> impl Iterator<Item = (CounterId, &CounterSpec)> {
        let first = self.counters.partition_point(|spec| spec.rule < rule);
        let from_first = self.counters.get(first..).unwrap_or_default();
        let of_rule = from_first.iter().take_while(move |spec| spec.rule == rule);
        of_rule
            .zip(first..)
            .map(|(spec, index)| (CounterId(index as u32), spec))
    }

    /// The rule with this id, if there is one.
    pub fn rule(&self, domain: &str, id: &str) -> Option<&Rule> {
        self.rules.get(self.find_rule(domain, id)? as usize)
    }

    /// The index of the rule with this id.
    pub(in crate::rules) fn find_rule(&self, domain: &str, id: &str) -> Option<u32> {
        let name = |index: u32| {
            let rule = self.rules.get(index as usize);
            rule.map(|rule| (&*rule.domain, &*rule.id))
        };
        let by_name = self.by_name.get_or_init(|| {
            let mut indices: Vec<u32> = (0..).take(self.rules.len()).collect();
            indices.sort_unstable_by_key(|index| name(*index));
            indices.into()
        });
        let found = by_name.binary_search_by(|index| name(*index).cmp(&Some((domain, id))));
        by_name.get(found.ok()?).copied()
    }
}

/// Interns what rules have in common: attribute names and lists, the values of `by`, and limits. Shared parts stay in
/// the cache, however many rules there are.
fn intern_parts(rules: &mut [Rule]) {
    let (mut names, mut lists, mut values, mut limits) = <(HashSet<_>, HashSet<_>, HashSet<_>, HashSet<_>)>::default();
    for rule in rules {
        for condition in &mut rule.when {
            intern(&mut condition.attribute, &mut names);
        }
        // Sharing a list shares the names in it.
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

/// Replaces a value by its interned equal, or interns it.
fn intern<T: ?Sized + Eq + Hash>(value: &mut Arc<T>, known: &mut HashSet<Arc<T>>) {
    match known.get(value) {
        Some(shared) => *value = Arc::clone(shared),
        None => {
            known.insert(Arc::clone(value));
        }
    }
}

impl CounterId {
    /// Its index in [`RuleSet::counters`], followed by [`RuleSet::added_counters`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl CounterSpec {
    /// The identity of the counter of one subject.
    pub fn counter<'a>(&'a self, per: &'a [&'a [u8]]) -> Counter<'a> {
        Counter {
            domain: &self.domain,
            rule: &self.id,
            variant: match self.part {
                CounterPart::All => self.variant.key(),
                CounterPart::Others => Counter::OTHERS,
            },
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

    /// Its domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The attributes that subjects are distinguished by; empty: one global counter.
    pub fn per(&self) -> &[Dimension] {
        &self.per
    }

    /// Its conditions.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// The effect of its denials.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The cost it charges.
    pub const fn cost_source(&self) -> &CostSource {
        &self.cost_source
    }

    /// Its failure policy.
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// Its experiment, if any.
    pub fn experiment(&self) -> Option<&Experiment> {
        self.experiment.as_deref()
    }

    /// True if the return times of its denied callers are spread; `by_default` is the setting for rules without `per`,
    /// whose counter all callers share.
    pub fn spreads_retries(&self, by_default: bool) -> bool {
        self.spread.unwrap_or(by_default && self.per.is_empty())
    }

    /// Its `spread` as written, if it is.
    pub const fn spread(&self) -> Option<bool> {
        self.spread
    }

    /// The part of its limits that only some attempts may use, if any.
    pub fn reserve(&self) -> Option<&Reserve> {
        self.reserve.as_deref()
    }

    /// The attempts its limits count.
    pub const fn counting(&self) -> Counting {
        self.counting
    }

    /// True if it denies only together with all quotas of a request.
    pub fn is_quota(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.is_quota)
    }

    /// The descriptor it was compiled from, if any.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.as_deref()
    }

    /// Its location.
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// The limits of one variant. Without an experiment both variants have the rule's own.
    pub(crate) fn selector(&self, variant: Variant) -> &LimitSelector {
        match (&self.experiment, variant) {
            (Some(experiment), Variant::Experiment) => &experiment.selector,
            _ => &self.selector,
        }
    }
}

impl Condition {
    /// The attribute it tests.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// The test.
    pub const fn test(&self) -> &Test {
        &self.test
    }
}

impl Dimension {
    /// The attribute.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// The prefix length of IPv6 addresses, if it holds addresses.
    pub const fn ipv6_prefix(&self) -> Option<u8> {
        self.ipv6_prefix
    }
}

impl Window {
    /// Its name in responses.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Its counter.
    pub const fn counter(&self) -> CounterId {
        self.counter
    }
}

impl Overrides {
    /// The key of the terms for these values, one for each of its attributes. A single value is its own key; several
    /// are each prefixed by their length, so that no two lists are equal.
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
    /// The share that includes every subject.
    pub(crate) const ALL: u64 = 1 << 32;
}

impl Mode {
    /// Its name in rules and responses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
            Self::Disabled => "disabled",
        }
    }
}

impl Variant {
    /// Its name in counter identities: the control variant is the rule itself.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Control => "",
            Self::Experiment => "experiment",
        }
    }

    /// Its name in metrics of a rule with an experiment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Experiment => "experiment",
        }
    }
}
