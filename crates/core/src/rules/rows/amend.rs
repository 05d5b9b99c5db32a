//! Edits of rows: a new rule set that shares everything with the one before but the shards they touch.

use super::sets::RuleRows;
use super::terms::{ParsedTerms, RowTerms};
use super::{ORPHAN_RULE, ROWS_MAX, RowEdit, RowKey, RowProblem, Rows, key_prefix, push_value};
use crate::limit::Limit;
use crate::problem::ValueError;
use crate::quantity::Period;
use crate::rules::file::algorithm::AlgorithmOptions;
use crate::rules::file::limits::{ATTRIBUTES_MAX, SETS_MAX};
use crate::rules::model::{
    CounterId, CounterPart, CounterSpec, Dimension, LimitGrammar, ReservedWindows, Rule, RuleSet, Terms, Variant,
    Window, Windows,
};
use crate::yaml::excerpt;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of counters that the rows of one rule add: one for each period that the rule itself has not.
const COUNTERS_MAX: usize = 64;
/// The maximum length of a value in a subject.
const VALUE_BYTES_MAX: usize = 4_096;

impl RuleSet {
    /// Returns the same rules with these edits of rows applied in order, and the edits that could not be applied. A row
    /// whose new terms cannot be used has no effect, so that rules depend on the rows, not on how they came about.
    pub fn amend(&self, edits: &[RowEdit]) -> (Self, Vec<RowProblem>) {
        let mut amendment = Amendment {
            set: self,
            rows: self.rows.clone(),
            added: Cow::Borrowed(&*self.added_counters),
            known_terms: HashMap::new(),
            reserved: Vec::new(),
        };
        let mut problems = Vec::new();
        for (index, edit) in edits.iter().enumerate() {
            if let Err(ValueError { text, hint }) = amendment.apply(edit) {
                problems.push(RowProblem { index, text, hint });
            }
        }
        let Amendment { rows, added, .. } = amendment;
        let mut next = self.clone();
        next.rows = rows;
        if let Cow::Owned(added) = added {
            next.added_counters = added.into();
        }
        (next, problems)
    }

    /// Returns a value in the subject of a row as the rule counts it: an IPv6 address becomes the first address of its
    /// network. Rows are stored under that value, because two of the same network would be one row.
    pub fn counted_value<'v>(&self, domain: &str, rule: &str, attribute: &str, value: &'v str) -> Cow<'v, str> {
        let index = self.find_rule(domain, rule);
        let rule = index.and_then(|index| self.rules.get(index as usize));
        let Some(grammar) = rule.and_then(|rule| rule.limit_grammar.as_ref()) else {
            return Cow::Borrowed(value);
        };
        let dimension = Dimension::new(attribute, grammar.ipv6_prefix);
        match String::from_utf8(dimension.value(value.as_bytes()).bytes().to_vec()) {
            Ok(counted) if counted != value => Cow::Owned(counted),
            _ => Cow::Borrowed(value),
        }
    }
}

/// Edits being applied.
struct Amendment<'e> {
    set: &'e RuleSet,
    rows: Rows,
    /// The counters that rows use and rules do not.
    added: Cow<'e, [CounterSpec]>,
    /// By rule and text: many rows have equal terms, and share them.
    known_terms: HashMap<(u32, &'e str), RowTerms>,
    /// The added counters of terms that no row has yet, with their rules.
    reserved: Vec<(u32, CounterId)>,
}

/// The rule of a row and its index.
#[derive(Clone, Copy)]
struct Target<'e> {
    rule: &'e Rule,
    index: u32,
    grammar: &'e LimitGrammar,
}

/// A counter, the name of its window in a list, and the id of its rule.
type NamedCounter = (CounterId, Option<Arc<str>>, Arc<str>);

impl<'e> Amendment<'e> {
    fn apply(&mut self, edit: &'e RowEdit) -> Result<(), ValueError> {
        check_subject(edit)?;
        let Some(index) = self.set.find_rule(&edit.domain, &edit.rule) else {
            return self.apply_orphan(edit);
        };
        let rule = self.set.rules.get(index as usize);
        let target = rule.and_then(|rule| {
            let grammar = rule.limit_grammar.as_ref()?;
            Some(Target { rule, index, grammar })
        });
        let (target, text) = match (target, &edit.terms) {
            (Some(target), text) => (target, text),
            // There is none to delete.
            (None, None) => return Ok(()),
            (None, Some(_)) => {
                return Err(ValueError::new(
                    format!(
                        "`{}` comes from a file of envoyproxy/ratelimit, whose limits have no overrides",
                        edit.rule
                    ),
                    "change its limit in that file, or make a rule of it in a domain of its own",
                ));
            }
        };
        let attributes: Vec<Dimension> = edit
            .subject
            .iter()
            .map(|(name, _)| Dimension::new(name, target.grammar.ipv6_prefix))
            .collect();
        check_values(edit, &attributes)?;
        let result = match text {
            Some(text) => self.set_row(target, edit, &attributes, text),
            None => Ok(()),
        };
        if text.is_none() || result.is_err() {
            self.delete_row(target, edit, &attributes);
        }
        for (rule, counter) in std::mem::take(&mut self.reserved) {
            self.count_use(rule, counter, -1);
        }
        result
    }

    fn set_row(
        &mut self,
        target: Target<'e>,
        edit: &RowEdit,
        attributes: &[Dimension],
        text: &'e str,
    ) -> Result<(), ValueError> {
        let terms = self.terms(target, text)?;
        let known_set = self.rows.rules.find(target.index).and_then(|rows| rows.set(attributes));
        if let Some(number) = known_set.map(|set| set.number) {
            let key = subject_key(attributes, edit);
            if self.rows.table.find(key_prefix(target.index, number), &key).is_some() {
                self.insert(target.index, number, &key, terms);
                return Ok(());
            }
        }
        self.check_space()?;
        let number = self
            .rule_rows(target.index)
            .and_then(|rows| rows.add_row(attributes, &target.rule.per, SETS_MAX));
        let Some(number) = number else {
            return Err(ValueError::new(
                format!(
                    "rows of `{}` name more than {SETS_MAX} different sets of attributes",
                    edit.rule
                ),
                "name the same attributes as the other rows of the rule, or make several rules of it",
            ));
        };
        self.insert(target.index, number, &subject_key(attributes, edit), terms);
        Ok(())
    }

    /// Sets the terms of a row, and counts the rows that use an added counter.
    fn insert(&mut self, rule: u32, set: u8, key: &[u8], terms: RowTerms) {
        self.count_uses(rule, &terms, 1);
        if let Some(Some(before)) = self.rows.table.insert(key_prefix(rule, set), key, Some(terms)) {
            self.count_uses(rule, &before, -1);
        }
    }

    fn delete_row(&mut self, target: Target<'_>, edit: &RowEdit, attributes: &[Dimension]) {
        let set = self.rows.rules.find(target.index).and_then(|rows| rows.set(attributes));
        let Some(number) = set.map(|set| set.number) else {
            return;
        };
        let (prefix, key) = (key_prefix(target.index, number), subject_key(attributes, edit));
        if let Some(Some(before)) = self.rows.table.remove(prefix, &key) {
            self.count_uses(target.index, &before, -1);
            if let Some(rows) = self.rule_rows(target.index) {
                rows.remove_row(number);
            }
        }
    }

    /// Adds to the uses of each counter of these terms.
    fn count_uses(&mut self, rule: u32, terms: &RowTerms, change: i32) {
        terms.for_each_counter(|counter| self.count_use(rule, counter, change));
    }

    /// Adds to the uses of a counter, if it is an added one.
    fn count_use(&mut self, rule: u32, counter: CounterId, change: i32) {
        if counter.index() >= self.set.counters.len()
            && let Some(rows) = self.rule_rows(rule)
        {
            rows.count_use(counter, change);
        }
    }

    /// Keeps a row whose rule does not exist, so that it is counted.
    fn apply_orphan(&mut self, edit: &RowEdit) -> Result<(), ValueError> {
        let (prefix, mut key) = (key_prefix(ORPHAN_RULE, 0), RowKey::new());
        for name in [&edit.domain, &edit.rule] {
            push_value(&mut key, name.as_bytes(), false);
        }
        for text in edit.subject.iter().flat_map(|(name, value)| [name, value]) {
            push_value(&mut key, text.as_bytes(), false);
        }
        let is_known = self.rows.table.find(prefix, &key).is_some();
        match (&edit.terms, is_known) {
            (Some(_), false) => {
                self.check_space()?;
                self.rows.table.insert(prefix, &key, None);
                self.rows.orphans += 1;
            }
            (None, true) => {
                self.rows.table.remove(prefix, &key);
                self.rows.orphans -= 1;
            }
            (Some(_), true) | (None, false) => {}
        }
        Ok(())
    }

    fn check_space(&self) -> Result<(), ValueError> {
        if self.rows.table.len() < ROWS_MAX {
            return Ok(());
        }
        Err(ValueError::new(
            format!("there are {ROWS_MAX} rows, and no more are possible"),
            "delete rows that are not used any more; limits of many subjects are better chosen with `by`",
        ))
    }

    fn rule_rows(&mut self, rule: u32) -> Option<&mut RuleRows> {
        self.rows.rules.find_mut(rule, self.set.rules.len())
    }

    /// The terms of a text for a rule, in both variants.
    fn terms(&mut self, target: Target<'e>, text: &'e str) -> Result<RowTerms, ValueError> {
        if let Some(known) = self.known_terms.get(&(target.index, text)) {
            return Ok(known.clone());
        }
        // Parsed before a counter is added: a row is accepted whole or not at all.
        let control = ParsedTerms::parse(text, &target.grammar.algorithm)?;
        let experiment = target.rule.experiment().map(|experiment| {
            let algorithm: &AlgorithmOptions = &experiment.algorithm;
            ParsedTerms::parse(text, algorithm).map_err(|error| ValueError {
                text: format!("for the experiment of the rule: {}", error.text),
                ..error
            })
        });
        let experiment = experiment.transpose()?;
        // The experiment has windows of the same periods.
        self.check_names(target.rule, &control)?;
        if let Some(reserve) = target.rule.reserve() {
            control
                .limits()
                .try_for_each(|limit| reserve.terms.limit_of_others(limit).map(drop))?;
        }
        let control = self.compile(target, Variant::Control, control)?;
        let experiment = experiment.map(|parsed| self.compile(target, Variant::Experiment, parsed));
        let experiment = experiment.transpose()?;
        let terms = RowTerms::new(control, experiment);
        self.known_terms.insert((target.index, text), terms.clone());
        Ok(terms)
    }

    /// Rejects windows that would have the id of another rule.
    fn check_names(&self, rule: &Rule, parsed: &ParsedTerms) -> Result<(), ValueError> {
        let ParsedTerms::Several(windows) = parsed else {
            return Ok(());
        };
        let mut names = windows.iter().map(|(_, period)| window_name(rule, *period));
        match names.find(|name| self.set.find_rule(&rule.domain, name).is_some()) {
            None => Ok(()),
            Some(name) => Err(ValueError::new(
                format!(
                    "a window of this row would be named `{}`, as another rule is",
                    excerpt(&name)
                ),
                "names appear in responses and must be unique: use another period, or change the id of the other rule",
            )),
        }
    }

    /// Assigns counters to terms.
    fn compile(&mut self, target: Target<'e>, variant: Variant, parsed: ParsedTerms) -> Result<Terms, ValueError> {
        Ok(match parsed {
            ParsedTerms::Unlimited => Terms::Unlimited,
            ParsedTerms::Banned(period) => Terms::Banned(period),
            ParsedTerms::One(limit) if target.rule.reserve().is_some() => {
                self.reserved_windows(target, variant, &[(limit, None)])?
            }
            ParsedTerms::Several(windows) if target.rule.reserve().is_some() => {
                let windows: Vec<_> = windows
                    .into_iter()
                    .map(|(limit, period)| (limit, Some(period)))
                    .collect();
                self.reserved_windows(target, variant, &windows)?
            }
            ParsedTerms::One(limit) => Terms::Limited(Windows::One(self.window(
                target,
                (variant, CounterPart::All),
                limit,
                None,
            )?)),
            ParsedTerms::Several(windows) => {
                let windows = windows.into_iter();
                let windows: Result<Box<[Window]>, ValueError> = windows
                    .map(|(limit, period)| self.window(target, (variant, CounterPart::All), limit, Some(period)))
                    .collect();
                Terms::Limited(Windows::Several(windows?))
            }
        })
    }

    /// The windows of a rule with a reserve.
    fn reserved_windows(
        &mut self,
        target: Target<'e>,
        variant: Variant,
        windows: &[(Limit, Option<Period>)],
    ) -> Result<Terms, ValueError> {
        let Some(reserve) = target.rule.reserve() else {
            return Err(ValueError::new("the rule has no reserve", "load its rules again"));
        };
        let part = reserve.terms.counter_part();
        let (mut all, mut others) = (Vec::new(), Vec::new());
        for (limit, named) in windows {
            let others_limit = reserve.terms.limit_of_others(limit)?;
            all.push(self.window(target, (variant, CounterPart::All), *limit, *named)?);
            others.push(self.window(target, (variant, part), others_limit, *named)?);
        }
        let reserved = ReservedWindows::new(all, others);
        Ok(Terms::Limited(Windows::Reserved(Box::new(reserved))))
    }

    /// Returns a window, named by its period if it is one of a list. It has the counter of the same variant, algorithm and
    /// period, which is added if the rule has none.
    fn window(
        &mut self,
        target: Target<'e>,
        (variant, part): (Variant, CounterPart),
        limit: Limit,
        named: Option<Period>,
    ) -> Result<Window, ValueError> {
        let Target { rule, index, .. } = target;
        let name = named.map(|period| window_name(rule, period));
        let identity = |limit: &Limit| (limit.algorithm(), limit.counter_period());
        // The same counter under another name is listed again, so that it is found by either.
        let is_same = |spec: &CounterSpec| {
            let has_name = name.is_none() || spec.window_name.as_deref() == name.as_deref();
            (spec.variant, spec.part) == (variant, part) && identity(&spec.limit) == identity(&limit) && has_name
        };
        let known = self.counters_of(index).find(|(_, spec)| is_same(spec));
        let known = known.map(|(counter, spec)| (counter, spec.window_name.clone(), Arc::clone(&spec.id)));
        let (counter, window_name, id) = match known {
            Some(known) => known,
            None => self.add_counter(target, (variant, part), limit, name.as_deref().map(Arc::from))?,
        };
        // Until the row has it, so that the next window does not get the same one.
        self.count_use(index, counter, 1);
        self.reserved.push((index, counter));
        Ok(Window {
            name: window_name.filter(|_| name.is_some()).unwrap_or(id),
            limit: self.rows.limits.share(limit),
            counter,
        })
    }

    fn add_counter(
        &mut self,
        target: Target<'e>,
        (variant, part): (Variant, CounterPart),
        limit: Limit,
        window_name: Option<Arc<str>>,
    ) -> Result<NamedCounter, ValueError> {
        let Target { rule, index, .. } = target;
        let known_id = self.counters_of(index).next().map(|(_, spec)| Arc::clone(&spec.id));
        let id = known_id.unwrap_or_else(|| (&*rule.id).into());
        let spec = CounterSpec {
            domain: rule.domain.clone(),
            id: Arc::clone(&id),
            window_name: window_name.clone(),
            variant,
            part,
            limit,
            rule: index,
        };
        let first_added = self.set.counters.len();
        let next = CounterId(u32::try_from(first_added + self.added.len()).unwrap_or(u32::MAX));
        let Some(counter) = self
            .rule_rows(index)
            .and_then(|rows| rows.add_counter(next, COUNTERS_MAX))
        else {
            return Err(ValueError::new(
                format!("rows of `{}` have more than {COUNTERS_MAX} different periods", rule.id),
                "use the periods of the rule's own limits, or those of its other rows",
            ));
        };
        let added = self.added.to_mut();
        match added.get_mut(counter.index().saturating_sub(first_added)) {
            None => added.push(spec),
            Some(unused) => {
                *unused = spec;
                // Terms of rows that are deleted by now may name it.
                self.known_terms.clear();
            }
        }
        Ok((counter, window_name, id))
    }

    /// The counters of a rule, those that rows have added included.
    fn counters_of(&self, rule: u32) -> impl Iterator<Item = (CounterId, &CounterSpec)> {
        let compiled = self.set.compiled_counters_of(rule);
        let added = self.rows.rules.find(rule).into_iter().flat_map(|rows| &rows.counters);
        let added = added.filter_map(|added| {
            let index = added.id.index().checked_sub(self.set.counters.len())?;
            Some((added.id, self.added.get(index)?))
        });
        compiled.chain(added)
    }
}

/// The name of a window that is one of a list.
fn window_name(rule: &Rule, period: Period) -> String {
    format!("{}.{}", rule.id, period.name())
}

/// The key of the row for a subject.
fn subject_key(attributes: &[Dimension], edit: &RowEdit) -> RowKey {
    let mut key = RowKey::new();
    let last = attributes.len().saturating_sub(1);
    for (index, (dimension, (_, value))) in attributes.iter().zip(&edit.subject).enumerate() {
        push_value(&mut key, dimension.value(value.as_bytes()).bytes(), index == last);
    }
    key
}

fn check_subject(edit: &RowEdit) -> Result<(), ValueError> {
    let count = edit.subject.len();
    if count == 0 || count > ATTRIBUTES_MAX {
        return Err(ValueError::new(
            format!("the subject of a row names {count} attributes"),
            format!("name one to {ATTRIBUTES_MAX}: `merchant=m_42`"),
        ));
    }
    if !edit.subject.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Err(ValueError::new(
            "the attributes of a subject are not sorted, or one is named twice",
            "name each of them once, sorted by name",
        ));
    }
    for (name, value) in &edit.subject {
        if name.is_empty() || value.len() > VALUE_BYTES_MAX {
            return Err(ValueError::new(
                format!("`{}` is not an attribute of a subject", excerpt(name)),
                format!("give it a name and a value of at most {VALUE_BYTES_MAX} bytes"),
            ));
        }
    }
    Ok(())
}

/// Rejects values that the rule counts as others: two rows would be one.
fn check_values(edit: &RowEdit, attributes: &[Dimension]) -> Result<(), ValueError> {
    for (dimension, (name, value)) in attributes.iter().zip(&edit.subject) {
        let counted = dimension.value(value.as_bytes());
        if counted.bytes() != value.as_bytes() {
            let counted = excerpt(&String::from_utf8_lossy(counted.bytes()));
            return Err(ValueError::new(
                format!("`{}` counts `{}` as `{counted}`", edit.rule, excerpt(value)),
                format!(
                    "write `{}={counted}`, which stands for all addresses of its network",
                    excerpt(name)
                ),
            ));
        }
    }
    Ok(())
}
