//! Parser of a rule's limits: the default, those by an attribute, and overrides of single subjects.

use super::algorithm::{AlgorithmOptions, ParsedLimit};
use super::check_count;
use crate::limit::Limit;
use crate::problem::{Location, Problem, Problems};
use crate::quantity::{Period, parse_quota};
use crate::rules::matching::Value;
use crate::rules::model::SmallBytes;
use crate::rules::model::{
    By, CounterId, CounterPart, CounterSpec, Dimension, LimitSelector, Overrides, ReserveTerms, ReservedWindows, Terms,
    Variant, Window, Windows,
};
use crate::yaml::{MapKey, Node, NodeKind, excerpt};
use std::collections::HashMap;
use std::sync::Arc;

/// The nodes of a rule's limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitFields<'n> {
    pub(super) limit: &'n Node,
    pub(super) by: Option<&'n Node>,
    pub(super) overrides: Option<&'n Node>,
}

/// The counters of one rule: limits of the same variant, algorithm and period share one, alone or in a list.
#[derive(Debug)]
pub(super) struct Counters<'r> {
    list: &'r mut Vec<CounterSpec>,
    domain: &'r str,
    id: Arc<str>,
    rule: u32,
    /// Window names by their period.
    names: HashMap<Period, Arc<str>>,
    known: HashMap<CounterIdentity, CounterId>,
}

/// The identity of a counter within a rule: the variant, the attempts it counts, the algorithm and the period.
type CounterIdentity = (Variant, CounterPart, &'static str, Option<Period>);

/// Parser of the limits of one variant of a rule.
pub(super) struct LimitsParser<'a, 'r> {
    pub(super) algorithm: AlgorithmOptions,
    pub(super) variant: Variant,
    /// The part of each limit that is kept for some attempts.
    pub(super) reserve: Option<ReserveTerms>,
    /// The IPv6 prefix length.
    pub(super) ipv6_prefix: u8,
    pub(super) counters: &'a mut Counters<'r>,
    /// Number of subjects that overrides have named so far, in this rule and those before it.
    pub(super) subjects: &'a mut usize,
    pub(super) problems: &'a mut Problems,
}

/// The maximum number of windows of a limit.
pub(in crate::rules) const WINDOWS_MAX: usize = 16;
/// The maximum number of different attribute sets in the overrides of a rule: each costs a lookup.
pub(in crate::rules) const SETS_MAX: usize = 16;
/// The maximum number of attributes of an override.
pub(in crate::rules) const ATTRIBUTES_MAX: usize = 8;
/// The maximum number of combinations that one override of several attributes expands to.
const COMBINATIONS_MAX: usize = 10_000;
/// The maximum number of subjects that all overrides of a set expand to, counted per window and per combination of
/// values: a short text can expand to very many, and each is stored.
pub(super) const SUBJECTS_MAX: usize = 1_000_000;

impl<'r> Counters<'r> {
    pub(super) fn new(list: &'r mut Vec<CounterSpec>, domain: &'r str, id: Arc<str>, rule: u32) -> Self {
        Self {
            list,
            domain,
            id,
            rule,
            names: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// True if one of its limits has windows of a calendar.
    pub(super) fn has_calendar(&self) -> bool {
        self.known.values().any(|counter| match self.list.get(counter.index()) {
            Some(spec) => matches!(spec.limit, Limit::FixedWindow(window) if window.calendar().is_some()),
            None => false,
        })
    }

    /// All limit names of this rule.
    pub(super) fn into_names(self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.names.into_values().collect();
        names.sort_unstable();
        names
    }

    /// Returns a window, named by its period if it is one of a list.
    fn window(&mut self, limit: Limit, (variant, part): (Variant, CounterPart), named: Option<Period>) -> Window {
        let window_name = named.map(|period| {
            let id = &self.id;
            let make = || format!("{id}.{}", period.name()).into();
            Arc::clone(self.names.entry(period).or_insert_with(make))
        });
        let identity = (variant, part, limit.algorithm(), limit.counter_period());
        let counter = *self.known.entry(identity).or_insert_with(|| {
            let counter = CounterId(u32::try_from(self.list.len()).unwrap_or(u32::MAX));
            self.list.push(CounterSpec {
                domain: self.domain.into(),
                id: Arc::clone(&self.id),
                window_name: None,
                variant,
                part,
                limit,
                rule: self.rule,
            });
            counter
        });
        if let (Some(spec), Some(name)) = (self.list.get_mut(counter.index()), &window_name) {
            spec.window_name = Some(Arc::clone(name));
        }
        Window {
            name: window_name.unwrap_or_else(|| Arc::clone(&self.id)),
            limit: Arc::new(limit),
            counter,
        }
    }
}

impl LimitsParser<'_, '_> {
    /// Parses all of them; None if one is invalid.
    pub(super) fn parse(&mut self, fields: LimitFields<'_>) -> Option<LimitSelector> {
        let errors = self.problems.error_count();
        let limit = self.parse_terms(fields.limit);
        let by = fields.by.map(|node| self.parse_by(node));
        let overrides = fields
            .overrides
            .map(|node| self.parse_overrides(node))
            .unwrap_or_default();
        if self.problems.error_count() > errors {
            return None;
        }
        Some(LimitSelector {
            limit: limit?,
            by: by.flatten(),
            overrides,
        })
    }

    fn parse_terms(&mut self, node: &Node) -> Option<Terms> {
        let NodeKind::List(items) = &node.kind else {
            return Some(match self.parse_limit(node)? {
                ParsedLimit::Unlimited => Terms::Unlimited,
                ParsedLimit::Banned(period) => Terms::Banned(period),
                ParsedLimit::Limited(limit, _) => {
                    let window = self.window(limit, None);
                    Terms::Limited(match self.window_of_others(limit, None, node)? {
                        None => Windows::One(window),
                        Some(others) => Windows::Reserved(Box::new(ReservedWindows::new(vec![window], vec![others]))),
                    })
                }
            });
        };
        check_count(items.len(), WINDOWS_MAX, &node.location, self.problems, || {
            (
                format!("a limit is a list of {} windows", items.len()),
                format!("give one to {WINDOWS_MAX}: `[10/s, 100/min]`"),
            )
        })?;
        let mut windows: Vec<Window> = Vec::with_capacity(items.len());
        let mut others: Vec<Window> = Vec::new();
        let mut seen: Vec<(Period, &Location)> = Vec::with_capacity(items.len());
        for item in items {
            match self.parse_limit(item) {
                Some(ParsedLimit::Limited(limit, Some(period))) => {
                    if let Some((_, first)) = seen.iter().find(|(known, _)| *known == period) {
                        self.problems.error_with(
                            &item.location,
                            format!("two windows of {} in one limit", period.name()),
                            format!("the first is at {first}; the smaller one is enough"),
                        );
                    }
                    seen.push((period, &item.location));
                    windows.push(self.window(limit, Some(period)));
                    others.extend(self.window_of_others(limit, Some(period), item).flatten());
                }
                Some(ParsedLimit::Limited(_, None)) => self.problems.error_with(
                    &item.location,
                    "`concurrency` has no windows",
                    "write one number alone: `limit: 20`",
                ),
                Some(ParsedLimit::Banned(_) | ParsedLimit::Unlimited) => self.problems.error_with(
                    &item.location,
                    "a ban or `unlimited` cannot be one of several windows",
                    "write it alone, without a list",
                ),
                None => {}
            }
        }
        Some(Terms::Limited(match self.reserve {
            None => Windows::Several(windows.into()),
            // One of them was rejected, and with it the rule.
            Some(_) if others.len() != windows.len() => return None,
            Some(_) => Windows::Reserved(Box::new(ReservedWindows::new(windows, others))),
        }))
    }

    fn window(&mut self, limit: Limit, named: Option<Period>) -> Window {
        self.counters.window(limit, (self.variant, CounterPart::All), named)
    }

    /// The window of the attempts that may not use the reserve, if the rule has one. None if the limit is too small for
    /// it, which is reported.
    fn window_of_others(&mut self, limit: Limit, named: Option<Period>, node: &Node) -> Option<Option<Window>> {
        let Some(reserve) = self.reserve else {
            return Some(None);
        };
        match reserve.limit_of_others(&limit) {
            Ok(others) => {
                let counted = (self.variant, reserve.counter_part());
                Some(Some(self.counters.window(others, counted, named)))
            }
            Err(error) => {
                self.problems.push(error.at(&node.location));
                None
            }
        }
    }

    fn parse_limit(&mut self, node: &Node) -> Option<ParsedLimit> {
        let algorithm = &self.algorithm;
        let parse = |text: &str| parse_quota(text).and_then(|quota| algorithm.limit(quota));
        node.read("a limit like 100/min", parse, self.problems)
    }

    fn parse_by(&mut self, node: &Node) -> Option<By> {
        let entries = node.entries(
            "a map of one attribute and its limits",
            "{ tier: { free: 100/min } }",
            self.problems,
        )?;
        let [(key, values)] = entries else {
            self.problems.error_with(
                &node.location,
                format!("`by` names {} attributes", entries.len()),
                "name one: `by: { tier: { free: 100/min } }`; for several use `overrides`",
            );
            return None;
        };
        let attribute = super::parse_name("an attribute", &key.text, &key.location, self.problems)?;
        let values = values.entries("a map of values and limits", "{ free: 100/min }", self.problems)?;
        if values.is_empty() {
            self.problems.error_with(
                &node.location,
                format!("`by` names no value of `{}`", excerpt(attribute)),
                "name some: `by: { tier: { free: 100/min } }`, or remove it",
            );
        }
        let terms = values
            .iter()
            .filter_map(|(value, limit)| Some((value.text.as_bytes().into(), self.parse_terms(limit)?)))
            .collect();
        Some(By::new(attribute, terms))
    }

    fn parse_overrides(&mut self, node: &Node) -> Box<[Overrides]> {
        let mut sets = OverrideSets::default();
        let items = node.list("a list of overrides", self.problems).unwrap_or_default();
        for (index, item) in (0..).zip(items) {
            if let Some((subjects, limit)) = self.parse_override(item)
                && let Some(terms) = self.parse_terms(limit)
            {
                sets.add(index, item, &subjects, &terms, self);
            }
        }
        sets.finish()
    }

    /// Parses the subjects of an override and its limit.
    fn parse_override<'n>(&mut self, item: &'n Node) -> Option<(OverrideSubjects<'n>, &'n Node)> {
        let entries = item.entries("an override", "{ merchant: m_42, limit: 20000/min }", self.problems)?;
        let mut limit = None;
        let mut subjects: OverrideSubjects<'n> = Vec::new();
        for (key, value) in entries {
            if &*key.text == "limit" {
                limit = Some(value);
            } else if super::parse_name("an attribute", &key.text, &key.location, self.problems).is_some() {
                subjects.push((key, self.parse_values(value)?));
            }
        }
        if limit.is_none() {
            self.problems.error_with(
                &item.location,
                "an override has no `limit`",
                "add one: `{ merchant: m_42, limit: 20000/min }`",
            );
        }
        check_count(subjects.len(), ATTRIBUTES_MAX, &item.location, self.problems, || {
            (
                format!("an override names {} attributes", subjects.len()),
                format!("name one to {ATTRIBUTES_MAX}: `{{ merchant: m_42, limit: 20000/min }}`"),
            )
        })?;
        subjects.sort_unstable_by_key(|(key, _)| &key.text);
        Some((subjects, limit?))
    }

    /// Parses the values of one attribute of an override.
    fn parse_values<'n>(&mut self, node: &'n Node) -> Option<Vec<&'n str>> {
        let values: Option<Vec<&str>> = node
            .one_or_more()
            .iter()
            .map(|value| {
                let text = value.text("a value, or a list of values", self.problems)?;
                if text.contains('*') {
                    self.problems.push(
                        Problem::warning(&value.location, "a star in an override is a literal star")
                            .with_hint("overrides are for single subjects; for a pattern make a rule with `when`"),
                    );
                }
                Some(text)
            })
            .collect();
        values.filter(|values| {
            if values.is_empty() {
                self.problems.error_with(
                    &node.location,
                    "an override for no value at all",
                    "name one: `{ merchant: m_42, limit: 20000/min }`",
                );
            }
            !values.is_empty()
        })
    }
}

/// The attributes of an override, sorted, with the values it is for.
type OverrideSubjects<'n> = Vec<(&'n MapKey, Vec<&'n str>)>;

/// Overrides by the attributes they name.
#[derive(Default)]
struct OverrideSets<'n> {
    sets: Vec<Overrides>,
    /// The location where each subject was first named.
    locations: Vec<HashMap<SmallBytes, &'n Location>>,
}

impl<'n> OverrideSets<'n> {
    fn add(
        &mut self,
        index: u32,
        item: &'n Node,
        subjects: &OverrideSubjects<'n>,
        terms: &Terms,
        limits: &mut LimitsParser<'_, '_>,
    ) {
        let combinations = subjects
            .iter()
            .try_fold(1_usize, |product, (_, values)| product.checked_mul(values.len()));
        if subjects.len() > 1 && combinations.is_none_or(|combinations| combinations > COMBINATIONS_MAX) {
            limits.problems.error_with(
                &item.location,
                format!("one override expands to more than {COMBINATIONS_MAX} combinations of values"),
                "name fewer values, or make several rules of it",
            );
            return;
        }
        // Each of them stores every window.
        let windows = match terms {
            Terms::Limited(windows) => windows.as_slice().len() + windows.others().len(),
            Terms::Banned(_) | Terms::Unlimited => 1,
        };
        let before = *limits.subjects;
        *limits.subjects = before.saturating_add(combinations.unwrap_or(usize::MAX).saturating_mul(windows));
        if *limits.subjects > SUBJECTS_MAX {
            // Reported once: later overrides are not to blame.
            if before <= SUBJECTS_MAX {
                limits.problems.error_with(
                    &item.location,
                    format!(
                        "the overrides of all rules name more than {SUBJECTS_MAX} subjects, each as often as its \
                         limit has windows"
                    ),
                    "name fewer; limits of many subjects are better chosen with `by`",
                );
            }
            return;
        }
        let has_same_attributes = |set: &Overrides| {
            let names = set.attributes.iter().map(|dimension| &*dimension.attribute);
            names.eq(subjects.iter().map(|(key, _)| &*key.text))
        };
        let set_index = self.sets.iter().position(has_same_attributes).unwrap_or_else(|| {
            self.sets.push(Overrides {
                attributes: subjects
                    .iter()
                    .map(|(key, _)| Dimension::new(&key.text, limits.ipv6_prefix))
                    .collect(),
                terms: HashMap::new(),
            });
            self.locations.push(HashMap::new());
            self.sets.len() - 1
        });
        if set_index >= SETS_MAX {
            limits.problems.error_with(
                &item.location,
                format!("overrides of one rule name more than {SETS_MAX} different sets of attributes"),
                "make several rules of it",
            );
            return;
        }
        let (Some(set), Some(locations)) = (self.sets.get_mut(set_index), self.locations.get_mut(set_index)) else {
            return;
        };
        for number in 0..combinations.unwrap_or(0) {
            let given = combination(subjects, number);
            let counted: Vec<Value<'_>> = set
                .attributes
                .iter()
                .zip(given)
                .map(|(dimension, value)| dimension.value(value))
                .collect();
            let values: Vec<&[u8]> = counted.iter().map(Value::bytes).collect();
            let key = SmallBytes::from(&*Overrides::key(&values));
            if let Some(first) = locations.get(&key) {
                limits.problems.push(
                    Problem::warning(
                        &item.location,
                        "this override is never used: an earlier one is for the same subject",
                    )
                    .with_hint(format!("the first is at {first}; remove one")),
                );
                continue;
            }
            set.terms.insert(key.clone(), (index, terms.clone()));
            locations.insert(key, &item.location);
        }
    }

    fn finish(self) -> Box<[Overrides]> {
        self.sets.into()
    }
}

/// Returns one combination of values, by its number.
fn combination<'n>(subjects: &OverrideSubjects<'n>, mut number: usize) -> Vec<&'n [u8]> {
    subjects
        .iter()
        .filter_map(|(_, values)| {
            let value = values.get(number % values.len())?;
            number /= values.len();
            Some(value.as_bytes())
        })
        .collect()
}
