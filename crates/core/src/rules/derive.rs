//! Derived attributes: attributes of a subject that a table knows, such as the tier of a merchant, so that callers need
//! not send them and cannot forge them.

use super::attempt::{Attempt, Attribute};
use super::file::holds_addresses;
use super::matching::{Value, network};
use super::model::RuleSet;
use super::rows::{RowProblem, Table};
use crate::yaml::excerpt;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;

/// An attribute that is added to attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedAttribute {
    /// Its name, such as `tier`.
    pub name: Box<str>,
    /// The attribute that names the subject, such as `merchant`. Never a derived one.
    pub from: Box<str>,
    /// Its value where the table has none.
    pub default: Option<Box<str>>,
    /// True if a value that the caller sends is used where the table has none. Otherwise it is ignored.
    pub accept_caller: bool,
}

/// An edit of the table: one attribute of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeEdit {
    /// The attribute that names the subject, such as `merchant`.
    pub source: Box<str>,
    /// The subject, such as `m_42`.
    pub subject: Box<str>,
    /// The attribute, such as `tier`.
    pub name: Box<str>,
    /// Its value. None: it is deleted.
    pub value: Option<Box<str>>,
}

/// The origin of a derived attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DerivedOrigin {
    /// The table of subject attributes.
    Table,
    /// The caller, whose value is accepted.
    Caller,
    /// The default of the setting.
    Default,
    /// None: the attempt has no such attribute, whatever the caller sent.
    Missing,
}

/// One derived attribute of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedValue<'r> {
    /// The setting.
    pub attribute: &'r DerivedAttribute,
    /// Its values, as text. Long ones are truncated.
    pub values: Vec<String>,
    /// Their origin.
    pub origin: DerivedOrigin,
}

/// The attributes to derive, and the table.
#[derive(Clone, Debug, Default)]
pub(in crate::rules) struct Derivation {
    attributes: Arc<[DerivedAttribute]>,
    /// By source, name and subject.
    values: Table<Arc<str>>,
}

/// Attempts that lack the attribute a derived one comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingSource {
    /// They get the default.
    Default,
    /// They are part of a subject, and say nothing about the rest.
    AsGiven,
}

/// The prefix of keys: they have none.
const NO_PREFIX: u64 = 0;
/// The maximum number of subject attributes.
const VALUES_MAX: usize = 1_000_000;
/// The maximum lengths of a name, and of a subject or a value.
const NAME_BYTES_MAX: usize = 256;
const VALUE_BYTES_MAX: usize = 4_096;

impl RuleSet {
    /// Returns the same rules with these attributes derived before they are applied.
    #[must_use]
    pub fn with_derived(mut self, attributes: Arc<[DerivedAttribute]>) -> Self {
        self.derivation.attributes = attributes;
        self
    }

    /// The attributes that are derived.
    pub fn derived_attributes(&self) -> &[DerivedAttribute] {
        &self.derivation.attributes
    }

    /// Returns the same rules with these edits of subject attributes applied in order, and the edits that could not be
    /// applied. An attribute whose new value cannot be used has none.
    pub fn amend_attributes(&self, edits: &[AttributeEdit]) -> (Self, Vec<RowProblem>) {
        let mut next = self.clone();
        let values = &mut next.derivation.values;
        let mut problems = Vec::new();
        // There are few different ones.
        let mut known: HashSet<Arc<str>> = HashSet::new();
        for (index, edit) in edits.iter().enumerate() {
            let key = attribute_key(&edit.source, &edit.name, edit.subject.as_bytes());
            let problem = edit.value.as_ref().and_then(|_| edit.problem());
            match (&edit.value, problem) {
                (Some(value), None) if values.len() < VALUES_MAX || values.find(NO_PREFIX, &key).is_some() => {
                    if !known.contains(&**value) {
                        known.insert((&**value).into());
                    }
                    values.insert(
                        NO_PREFIX,
                        &key,
                        known.get(&**value).map_or_else(|| (&**value).into(), Arc::clone),
                    );
                }
                (Some(_), problem) => {
                    values.remove(NO_PREFIX, &key);
                    let (text, hint) = problem.unwrap_or_else(too_many);
                    problems.push(RowProblem { index, text, hint });
                }
                (None, _) => {
                    values.remove(NO_PREFIX, &key);
                }
            }
        }
        (next, problems)
    }

    /// The number of subject attributes.
    pub const fn attribute_count(&self) -> usize {
        self.derivation.values.len()
    }

    /// Returns the attributes of an attempt with the derived ones. None if nothing is derived: in domains of descriptors,
    /// whose entries are matched as they are, and where no attribute is configured.
    ///
    /// The value of the table applies, else the caller's if it is accepted, else the default. An attempt with several
    /// values of the source names no single subject: it gets the default, because one of them may be in the table.
    pub fn derive<'a>(&'a self, attempt: &Attempt<'a>) -> Option<Vec<Attribute<'a>>> {
        self.derive_attributes(attempt, MissingSource::Default)
    }

    /// Does the same for an attempt that names only a subject: nothing is derived from an attribute it lacks.
    pub(in crate::rules) fn derive_for_subject<'a>(&'a self, attempt: &Attempt<'a>) -> Option<Vec<Attribute<'a>>> {
        self.derive_attributes(attempt, MissingSource::AsGiven)
    }

    /// Returns the derived attributes of an attempt and their origins.
    pub fn derived_values(&self, attempt: &Attempt<'_>) -> Vec<DerivedValue<'_>> {
        let Some(attributes) = self.derive(attempt) else {
            return Vec::new();
        };
        let derived = Attempt {
            attributes: &attributes,
            ..*attempt
        };
        let attributes = self.derivation.attributes.iter();
        let values = attributes.map(|attribute| {
            let values = derived.values(&attribute.name).take(VALUES_SHOWN);
            DerivedValue {
                attribute,
                values: values.map(super::explain::printable).collect(),
                origin: self.derivation.resolve(attribute, attempt).1,
            }
        });
        values.collect()
    }

    #[inline(never)]
    fn derive_attributes<'a>(&'a self, attempt: &Attempt<'a>, missing: MissingSource) -> Option<Vec<Attribute<'a>>> {
        let derivation = &self.derivation;
        if derivation.attributes.is_empty() || self.descriptors.has_domain(attempt.domain) {
            return None;
        }
        let mut all = Vec::with_capacity(attempt.attributes.len() + derivation.attributes.len());
        all.extend_from_slice(attempt.attributes);
        for attribute in derivation.attributes.iter() {
            if missing == MissingSource::AsGiven && attempt.value(&attribute.from).is_none() {
                continue;
            }
            let (value, origin) = derivation.resolve(attribute, attempt);
            if origin != DerivedOrigin::Caller {
                all.retain(|given: &Attribute<'_>| *given.name != *attribute.name);
            }
            let name = &*attribute.name;
            all.extend(value.map(|value| Attribute {
                name,
                value: value.as_bytes(),
            }));
        }
        Some(all)
    }
}

impl Derivation {
    /// True if nothing is derived.
    #[inline]
    pub(in crate::rules) fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }

    /// The value of an attribute for an attempt, unless the caller's own are used.
    fn resolve<'d>(
        &'d self,
        attribute: &'d DerivedAttribute,
        attempt: &Attempt<'_>,
    ) -> (Option<&'d str>, DerivedOrigin) {
        let DerivedAttribute { name, from, .. } = attribute;
        let mut subjects = attempt.values(from);
        let subject = subjects.next();
        let is_ambiguous = subjects.next().is_some();
        if let Some(subject) = subject.filter(|_| !is_ambiguous)
            && !self.values.is_empty()
            && let Some((_, value)) = self.values.find(NO_PREFIX, &attribute_key(from, name, subject))
        {
            return (Some(value), DerivedOrigin::Table);
        }
        if attribute.accept_caller && !is_ambiguous && attempt.value(name).is_some() {
            return (None, DerivedOrigin::Caller);
        }
        match &attribute.default {
            Some(default) => (Some(default), DerivedOrigin::Default),
            None => (None, DerivedOrigin::Missing),
        }
    }
}

impl AttributeEdit {
    /// The reason for which it cannot be applied and the way to fix it, if there is one.
    fn problem(&self) -> Option<(String, String)> {
        let counted = counted_subject(&self.source, self.subject.as_bytes());
        if counted.bytes() != self.subject.as_bytes() {
            let counted = excerpt(&String::from_utf8_lossy(counted.bytes()));
            let text = format!("the address `{}` is written `{counted}`", excerpt(&self.subject));
            return Some((
                text,
                "write it so: two spellings of one address would be one subject".to_owned(),
            ));
        }
        let is_name = |text: &str| (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
        let is_value = |text: &str| (1..=VALUE_BYTES_MAX).contains(&text.len());
        let is_valid = [&self.source, &self.name].into_iter().all(|name| is_name(name))
            && is_value(&self.subject)
            && self.value.as_deref().is_none_or(is_value);
        (!is_valid).then(|| {
            let text = format!("`{}` is not an attribute of a subject", excerpt(&self.name));
            let hint = format!(
                "give it a source and a name of 1 to {NAME_BYTES_MAX} bytes without control characters, and a subject \
                 and a value of 1 to {VALUE_BYTES_MAX}"
            );
            (text, hint)
        })
    }
}

fn too_many() -> (String, String) {
    let text = format!("there are {VALUES_MAX} subject attributes, and no more are possible");
    let hint = "delete attributes that are not used any more; give most subjects the `default` of `derive`";
    (text, hint.to_owned())
}

impl DerivedOrigin {
    /// Its name in explanations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Caller => "caller",
            Self::Default => "default",
            Self::Missing => "missing",
        }
    }
}

/// A subject as it is looked up: however an address is spelled, it is one subject.
fn counted_subject<'s>(source: &str, subject: &'s [u8]) -> Value<'s> {
    let is_ipv6 = subject.contains(&b':') && holds_addresses(source);
    match is_ipv6 {
        true => network(subject, u8::MAX),
        false => Value::Given(subject),
    }
}

/// The key of a subject's attribute: names are prefixed by their length, so that no two keys are equal.
fn attribute_key(source: &str, name: &str, subject: &[u8]) -> SmallVec<[u8; 64]> {
    let mut key = SmallVec::new();
    for text in [source, name] {
        key.extend_from_slice(&(text.len() as u32).to_le_bytes());
        key.extend_from_slice(text.as_bytes());
    }
    key.extend_from_slice(counted_subject(source, subject).bytes());
    key
}

/// The maximum number of values that are shown of one attribute.
const VALUES_SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Cost;
    use crate::rules::{attributes, sample};
    use crate::testing::rules::derived;

    fn edit(subject: &str, value: Option<&str>) -> AttributeEdit {
        AttributeEdit {
            source: "merchant".into(),
            subject: subject.into(),
            name: "tier".into(),
            value: value.map(Box::from),
        }
    }

    fn rules(default: Option<&str>, accept_caller: bool) -> RuleSet {
        let tier = DerivedAttribute {
            accept_caller,
            ..derived("tier", "merchant", default)
        };
        let rules = sample("rules: [{ id: r, per: merchant, limit: 1/s, by: { tier: { gold: 9/s } } }]");
        amended(&rules.with_derived([tier].into()), &[edit("m_1", Some("gold"))])
    }

    fn amended(rules: &RuleSet, edits: &[AttributeEdit]) -> RuleSet {
        let (next, problems) = rules.amend_attributes(edits);
        assert_eq!(problems, []);
        next
    }

    fn attempt<'a>(attributes: &'a [Attribute<'a>]) -> Attempt<'a> {
        Attempt {
            domain: Attempt::DOMAIN,
            attributes,
            cost: Cost::ONE,
        }
    }

    #[test]
    fn the_table_comes_first_then_an_accepted_caller_then_the_default() {
        let forged: (&str, &[u8]) = ("tier", b"gold");
        for (default, accept_caller, merchant, sends, expected) in [
            (Some("free"), false, "m_1", false, (Some("gold"), "table")),
            (Some("free"), false, "m_2", false, (Some("free"), "default")),
            (Some("free"), false, "m_2", true, (Some("free"), "default")),
            (None, false, "m_2", true, (None, "missing")),
            (Some("free"), true, "m_2", true, (Some("gold"), "caller")),
            (Some("free"), true, "m_2", false, (Some("free"), "default")),
            (None, true, "m_1", true, (Some("gold"), "table")),
        ] {
            let rules = rules(default, accept_caller);
            let mut pairs: Vec<(&str, &[u8])> = vec![("merchant", merchant.as_bytes())];
            pairs.extend(sends.then_some(forged));
            let given = attributes(&pairs);
            let derived = rules.derive(&attempt(&given)).expect("one is configured");
            let tiers: Vec<&[u8]> = attempt(&derived).values("tier").collect();
            let expected_tiers: Vec<&[u8]> = expected.0.iter().map(|tier| tier.as_bytes()).collect();
            assert_eq!(tiers, expected_tiers, "{default:?} {accept_caller} {merchant} {sends}");
            let values = rules.derived_values(&attempt(&given));
            assert_eq!(values.first().map(|value| value.origin.name()), Some(expected.1));
        }
    }

    #[test]
    fn an_attempt_with_two_subjects_is_none_of_them() {
        let rules = rules(None, false);
        let given = attributes(&[("merchant", b"m_1"), ("merchant", b"m_2")]);
        let derived = rules.derive(&attempt(&given)).expect("one is configured");
        assert_eq!(attempt(&derived).value("tier"), None);
    }

    #[test]
    fn a_derived_attribute_selects_the_limit() {
        let rules = rules(Some("free"), false);
        let limit_of = |rules: &RuleSet, merchant: &str| {
            let given = attributes(&[("merchant", merchant.as_bytes()), ("tier", b"gold")]);
            let plan = rules.plan(&attempt(&given), |_, _| ());
            plan.charges().map(|planned| planned.charge.limit.capacity()).next()
        };
        assert_eq!((limit_of(&rules, "m_1"), limit_of(&rules, "m_2")), (Some(9), Some(1)));
        let next = amended(&rules, &[edit("m_1", None), edit("m_2", Some("gold"))]);
        assert_eq!((limit_of(&next, "m_1"), limit_of(&next, "m_2")), (Some(1), Some(9)));
        assert_eq!(limit_of(&rules, "m_1"), Some(9), "the set before is unchanged");
        assert_eq!(next.attribute_count(), 1);
    }

    #[test]
    fn a_subject_without_the_source_is_forgotten_as_it_is_given() {
        let rules = rules(Some("free"), false);
        let given = attributes(&[("user", b"u"), ("tier", b"gold")]);
        let derived = rules.derive_for_subject(&attempt(&given)).expect("one is configured");
        assert_eq!(derived, given);
    }

    #[test]
    fn an_accepted_caller_with_two_subjects_gets_the_default() {
        let rules = rules(Some("free"), true);
        let given = attributes(&[("merchant", b"m_1"), ("merchant", b"m_1"), ("tier", b"platinum")]);
        let derived = rules.derive(&attempt(&given)).expect("one is configured");
        let tiers: Vec<&[u8]> = attempt(&derived).values("tier").collect();
        assert_eq!(tiers, [b"free"]);
    }

    #[test]
    fn an_address_is_one_subject_however_it_is_written() {
        let tier = derived("tier", "client_ip", None);
        let address = |subject: &str| AttributeEdit {
            source: "client_ip".into(),
            ..edit(subject, Some("gold"))
        };
        let rules = rules(None, false).with_derived([tier].into());
        let (rules, problems) = rules.amend_attributes(&[address("2001:db8::1"), address("2001:DB8::2")]);
        assert_eq!(problems.iter().map(|problem| problem.index).collect::<Vec<_>>(), [1]);
        for (written, expected) in [("2001:DB8:0::1", true), ("2001:db8::1", true), ("2001:db8::2", false)] {
            let given = attributes(&[("client_ip", written.as_bytes())]);
            let derived = rules.derive(&attempt(&given)).expect("one is configured");
            assert_eq!(attempt(&derived).value("tier").is_some(), expected, "{written}");
        }
    }

    #[test]
    fn one_attribute_too_many_is_reported() {
        let mut rules = rules(None, false);
        for part in 0..10 {
            let subjects = (part * 100_000..(part + 1) * 100_000).map(|number| format!("s{number}"));
            let edits: Vec<AttributeEdit> = subjects.map(|subject| edit(&subject, Some("x"))).collect();
            let (next, problems) = rules.amend_attributes(&edits);
            // One was there before.
            assert_eq!(problems.len(), usize::from(part == 9));
            rules = next;
        }
        assert_eq!(rules.attribute_count(), VALUES_MAX);
        let (next, problems) = rules.amend_attributes(&[edit("m_1", Some("free")), edit("new", Some("x"))]);
        assert_eq!(problems.iter().map(|problem| problem.index).collect::<Vec<_>>(), [1]);
        assert_eq!(next.attribute_count(), VALUES_MAX, "a known one can still be changed");
    }
}
