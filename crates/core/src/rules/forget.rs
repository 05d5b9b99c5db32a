//! The counters of a subject, whatever it attempts.

use super::attempt::Attempt;
use super::model::{CounterId, Rule, RuleSet};
use crate::limit::Limit;
use crate::problem::closest_match;
use crate::yaml::excerpt;
use std::fmt;

/// A name of no rule and no window in its domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRule {
    name: Box<str>,
    domain: Box<str>,
    /// The closest known name.
    suggestion: Option<Box<str>>,
}

impl RuleSet {
    /// Returns all counters of the subject that `attempt` names, in both variants of experiments.
    ///
    /// Attributes are derived from those that are given. A rule is included if all its `per` attributes are given and no
    /// given attribute contradicts a condition; a descriptor is included if the attempt itself matches it. Rules without
    /// `per` have one global counter and are included only by name: by the rule's id, or by the name of one window, which
    /// is then the only one. A name excludes all other rules.
    ///
    /// # Errors
    /// A name that nothing in the domain has: an empty result would be misleading.
    pub fn counters_of<'r, K>(
        &'r self,
        attempt: &Attempt<'_>,
        named: Option<&str>,
        mut key: impl FnMut(CounterId, &[&[u8]]) -> K,
    ) -> Result<Vec<(K, &'r Limit)>, UnknownRule> {
        let derived = self.derive_for_subject(attempt);
        let attempt = &Attempt {
            attributes: derived.as_deref().unwrap_or(attempt.attributes),
            ..*attempt
        };
        if let Some(name) = named
            && !self.names(attempt.domain).any(|known| known == name)
        {
            return Err(UnknownRule {
                name: name.into(),
                domain: attempt.domain.into(),
                suggestion: closest_match(name, self.names(attempt.domain)).map(Box::from),
            });
        }
        let descriptor_match = self.match_descriptor(attempt);
        let mut found = Vec::new();
        for (id, counter) in self.counters_in_use() {
            let Some(rule) = self.rules.get(counter.rule as usize) else {
                continue;
            };
            let is_named = |named: &str| *rule.id == *named || counter.window_name.as_deref() == Some(named);
            if *rule.domain != *attempt.domain || !named.map_or(!rule.per.is_empty(), is_named) {
                continue;
            }
            if rule.descriptor.is_some() {
                if let Some((_, descriptor)) = descriptor_match
                    .as_ref()
                    .filter(|(matched, _)| std::ptr::eq(*matched, rule))
                {
                    let name = descriptor.counter_name(attempt);
                    found.push((key(id, &descriptor.key_parts(attempt, &name)), &counter.limit));
                }
                continue;
            }
            if rule.excludes(attempt) {
                continue;
            }
            if let Some(subject) = rule.subject(attempt) {
                found.push((key(id, &subject.parts()), &counter.limit));
            }
        }
        Ok(found)
    }

    /// The names of all rules and windows of a domain, with duplicates.
    fn names<'r>(&'r self, domain: &str) -> impl Iterator<Item = &'r str> {
        let rules = self.rules.iter().map(|rule| (&*rule.domain, &*rule.id));
        let windows = self.counters_in_use().filter_map(|(_, counter)| {
            let name = counter.window_name.as_deref()?;
            Some((&*counter.domain, name))
        });
        let names = rules.chain(windows);
        names.filter_map(move |(owner, name)| (owner == domain).then_some(name))
    }
}

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, domain) = (excerpt(&self.name), excerpt(&self.domain));
        write!(f, "is `{name}`, and the domain `{domain}` has no such rule; ")?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "did you mean `{suggestion}`?"),
            None => f.write_str("write the id of a rule, or the name of one of its windows, such as `search.1min`"),
        }
    }
}

impl std::error::Error for UnknownRule {}

impl Rule {
    /// True if a given attribute contradicts a condition, so the attempt can never match this rule.
    fn excludes(&self, attempt: &Attempt<'_>) -> bool {
        let is_given = |attribute: &str| attempt.value(attribute).is_some();
        self.when
            .iter()
            .any(|condition| is_given(&condition.attribute) && !condition.holds(attempt))
    }
}
