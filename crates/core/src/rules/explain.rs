//! Explanations: for every rule, whether it matched an attempt and why, with the values it compared.
//!
//! This file holds the data; [`text`] renders it.

mod text;

use super::attempt::Attempt;
use super::derive::DerivedValue;
use super::domain::UnknownDomain;
use super::model::{Condition, CounterId, Dimension, Mode, Reserve, Rule, RuleSet, Terms, Variant};
use super::model::{CostOrigin, LimitOrigin};
use super::plan::{LinePart, NO_ROWS};
use super::ratelimit::DescriptorMatch;
use super::rows::RowProbe;
use super::verdict::{Ruling, Verdict};
use crate::decision::Cost;
use std::borrow::Cow;

/// The explanation of one attempt.
#[derive(Debug)]
pub struct Explanation<'r> {
    /// The verdict it would get.
    pub verdict: Verdict<'r>,
    /// One trace per rule, in file order.
    pub traces: Vec<RuleTrace<'r>>,
    /// The attributes that are derived, whether or not rules use them.
    pub derived: Vec<DerivedValue<'r>>,
    /// The reason no rule can match, if the attempt's domain has none.
    pub unknown_domain: Option<UnknownDomain>,
}

/// The relation of one rule to the attempt.
#[derive(Debug)]
pub struct RuleTrace<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The relation.
    pub rule_match: RuleMatch<'r>,
}

/// The relation of a rule to an attempt.
#[derive(Debug)]
pub enum RuleMatch<'r> {
    /// It matched.
    Matched(MatchedRule<'r>),
    /// It was skipped, for all of these reasons.
    Skipped(Vec<SkipReason<'r>>),
}

/// A rule that matched.
#[derive(Debug)]
pub struct MatchedRule<'r> {
    /// The subject: each dimension and its value as counted. Long values are truncated.
    pub subject: Vec<(Cow<'r, str>, String)>,
    /// The variant of its experiment.
    pub variant: Variant,
    /// The terms that apply.
    pub terms: &'r Terms,
    /// The origin of these terms.
    pub origin: LimitOrigin<'r>,
    /// The cost it would charge.
    pub cost: Cost,
    /// The origin of this cost.
    pub cost_origin: CostOrigin,
    /// Its limits.
    pub limits: Vec<LimitTrace<'r>>,
    /// Its reserve, if it has one.
    pub reserve: Option<ReserveTrace<'r>>,
}

/// The reserve of a rule that matched.
#[derive(Debug)]
pub struct ReserveTrace<'r> {
    /// The reserve.
    pub reserve: &'r Reserve,
    /// True if the attempt may use it.
    pub is_for_attempt: bool,
    /// The counters, each by itself: that of all attempts and that of the others, for each window. Of a reserve that is
    /// lent there is only one.
    pub counters: Vec<(LinePart, LimitTrace<'r>)>,
}

/// One limit of a rule that matched.
#[derive(Debug)]
pub struct LimitTrace<'r> {
    /// Its ruling.
    pub ruling: Ruling<'r>,
    /// The key of its counter in the store. None where nothing is counted.
    pub key: Option<String>,
}

/// A reason for which a rule was skipped.
#[derive(Debug, PartialEq, Eq)]
pub enum SkipReason<'r> {
    /// It is disabled.
    Disabled,
    /// It belongs to another domain.
    Domain {
        /// The domain of the attempt.
        actual: String,
    },
    /// A condition does not hold.
    Condition {
        /// The attribute it tests.
        attribute: &'r str,
        /// The expected value, as rules write it.
        expected: String,
        /// The actual values. Long ones are truncated.
        actual: Vec<String>,
    },
    /// A `per` attribute is missing.
    MissingAttribute {
        /// The attribute.
        attribute: &'r str,
    },
    /// It is a descriptor, and the entries do not lead to it.
    Descriptor {
        /// The rule they lead to, if any.
        matched_rule: Option<&'r str>,
    },
}

/// Builds the traces of rules that matched.
struct TraceBuilder<'a, 'r, K> {
    rules: &'r RuleSet,
    attempt: &'a Attempt<'a>,
    /// The rulings not assigned yet. They are in rule order, so those of the next rule are at the front.
    rulings: &'a [Ruling<'r>],
    /// The same for the counters of reserves.
    reserve_rulings: &'a [(LinePart, Ruling<'r>)],
    key: K,
}

impl RuleSet {
    /// Explains every rule for `attempt`. `verdict` is the result of a peek with the rulings of
    /// [`Plan::reserve_rulings`](super::Plan::reserve_rulings), and `key` prints the key of a counter.
    pub fn explain<'r>(
        &'r self,
        attempt: &Attempt<'_>,
        (verdict, reserve_rulings): (Verdict<'r>, Vec<(LinePart, Ruling<'r>)>),
        key: impl FnMut(CounterId, &[&[u8]]) -> String,
    ) -> Explanation<'r> {
        let derived_values = self.derived_values(attempt);
        let derived = self.derive(attempt);
        let attempt = &Attempt {
            attributes: derived.as_deref().unwrap_or(attempt.attributes),
            ..*attempt
        };
        let descriptor_match = self.match_descriptor(attempt);
        let mut builder = TraceBuilder {
            rules: self,
            attempt,
            rulings: &verdict.rulings,
            reserve_rulings: &reserve_rulings,
            key,
        };
        let trace = |(rule, index): (&'r Rule, u32)| RuleTrace {
            rule,
            rule_match: match rule.descriptor {
                None => rule.trace(index, &mut builder),
                Some(_) => rule.trace_descriptor(descriptor_match.as_ref(), &mut builder),
            },
        };
        let traces = self.rules.iter().zip(0..).map(trace).collect();
        Explanation {
            verdict,
            traces,
            derived: derived_values,
            unknown_domain: self.unknown_domain(attempt.domain),
        }
    }
}

impl Rule {
    fn trace<'r>(
        &'r self,
        index: u32,
        builder: &mut TraceBuilder<'_, 'r, impl FnMut(CounterId, &[&[u8]]) -> String>,
    ) -> RuleMatch<'r> {
        let attempt = builder.attempt;
        let reasons = self.skip_reasons(attempt);
        let subject = match self.subject(attempt) {
            Some(subject) if reasons.is_empty() => subject,
            _ => return RuleMatch::Skipped(reasons),
        };
        // All values of an attribute with several values are part of the subject, in order.
        let names = self.per.iter().flat_map(|dimension| {
            let count = attempt.values(&dimension.attribute).count();
            std::iter::repeat_n(dimension, count)
        });
        let values = names.zip(subject.values());
        let values = values.map(|(dimension, value)| ((&*dimension.attribute).into(), dimension.printable(value)));
        RuleMatch::Matched(builder.matched_rule((self, index), values.collect(), &subject.parts()))
    }

    /// A descriptor matches if the entries lead to it, whatever its conditions would match in another order.
    fn trace_descriptor<'r>(
        &'r self,
        descriptor_match: Option<&(&'r Self, DescriptorMatch<'_>)>,
        builder: &mut TraceBuilder<'_, 'r, impl FnMut(CounterId, &[&[u8]]) -> String>,
    ) -> RuleMatch<'r> {
        let attempt = builder.attempt;
        match descriptor_match {
            Some((rule, descriptor)) if std::ptr::eq(*rule, self) => {
                let values = descriptor.counted_values(attempt.attributes);
                let values = values.map(|(name, value)| (printable(name.as_bytes()).into(), printable(value)));
                let (values, name) = (values.collect(), descriptor.counter_name(attempt));
                RuleMatch::Matched(builder.matched_rule((self, NO_ROWS), values, &descriptor.key_parts(attempt, &name)))
            }
            _ if *self.domain != *attempt.domain => RuleMatch::Skipped(vec![SkipReason::Domain {
                actual: printable(attempt.domain.as_bytes()),
            }]),
            other => RuleMatch::Skipped(vec![SkipReason::Descriptor {
                matched_rule: other.map(|(rule, _)| rule.id()),
            }]),
        }
    }

    /// Returns all reasons for which it was skipped.
    fn skip_reasons<'r>(&'r self, attempt: &Attempt<'_>) -> Vec<SkipReason<'r>> {
        let is_other_domain = *self.domain != *attempt.domain;
        let disabled = (self.mode == Mode::Disabled).then_some(SkipReason::Disabled);
        let domain = is_other_domain.then(|| SkipReason::Domain {
            actual: printable(attempt.domain.as_bytes()),
        });
        let failed = self.when.iter().filter(|condition| !condition.holds(attempt));
        let conditions = failed.map(|condition| condition.skip_reason(attempt));
        let missing = self
            .per
            .iter()
            .filter(|dimension| attempt.value(&dimension.attribute).is_none());
        let missing_attributes = missing.map(|dimension| SkipReason::MissingAttribute {
            attribute: &dimension.attribute,
        });
        disabled
            .into_iter()
            .chain(domain)
            .chain(conditions)
            .chain(missing_attributes)
            .collect()
    }
}

impl<'r, K: FnMut(CounterId, &[&[u8]]) -> String> TraceBuilder<'_, 'r, K> {
    /// Returns how a rule matched for the subject of these parts, with its rulings.
    fn matched_rule(
        &mut self,
        (rule, index): (&'r Rule, u32),
        subject: Vec<(Cow<'r, str>, String)>,
        parts: &[&[u8]],
    ) -> MatchedRule<'r> {
        let variant = rule.variant_of(parts);
        let (terms, origin) = self
            .rules
            .terms((rule, index), variant, self.attempt, (parts, &RowProbe::Unknown));
        let is_of_rule = |ruling: &&Ruling<'r>| std::ptr::eq(ruling.rule, rule);
        let count = self.rulings.iter().take_while(is_of_rule).count();
        let (rulings, others) = self.rulings.split_at_checked(count).unwrap_or_default();
        self.rulings = others;
        let mut trace = |ruling: &Ruling<'r>| LimitTrace {
            ruling: *ruling,
            key: ruling.window.map(|window| (self.key)(window.counter, parts)),
        };
        let limits = rulings.iter().map(&mut trace).collect();
        let reserve = rule.reserve().map(|reserve| {
            let of_rule = |(_, ruling): &&(LinePart, Ruling<'r>)| std::ptr::eq(ruling.rule, rule);
            let count = self.reserve_rulings.iter().take_while(of_rule).count();
            let (counters, others) = self.reserve_rulings.split_at_checked(count).unwrap_or_default();
            self.reserve_rulings = others;
            ReserveTrace {
                reserve,
                is_for_attempt: reserve.is_for(self.attempt),
                counters: counters.iter().map(|(part, ruling)| (*part, trace(ruling))).collect(),
            }
        });
        MatchedRule {
            subject,
            variant,
            terms,
            origin,
            cost: rule.cost(self.attempt).0,
            cost_origin: rule.cost_origin(self.attempt),
            limits,
            reserve,
        }
    }
}

impl Condition {
    fn skip_reason<'r>(&'r self, attempt: &Attempt<'_>) -> SkipReason<'r> {
        SkipReason::Condition {
            attribute: &self.attribute,
            expected: truncate(&self.test.to_string()),
            actual: attempt
                .values(&self.attribute)
                .take(VALUES_MAX)
                .map(printable)
                .collect(),
        }
    }
}

impl Dimension {
    /// A value as counted; IPv6 networks with their prefix length.
    fn printable(&self, value: &super::matching::Value<'_>) -> String {
        let text = printable(value.bytes());
        match self.ipv6_prefix {
            Some(prefix) if prefix < 128 && value.is_ipv6() => format!("{text}/{prefix}"),
            _ => text,
        }
    }
}

impl RuleMatch<'_> {
    /// True if the rule matched.
    pub const fn is_matched(&self) -> bool {
        matches!(self, Self::Matched(_))
    }
}

/// Renders a value as printable text: control characters are escaped, and long values are truncated.
pub(super) fn printable(value: &[u8]) -> String {
    truncate(&String::from_utf8_lossy(value))
}

fn truncate(text: &str) -> String {
    let mut truncated = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == VALUE_CHARS_MAX {
            truncated.push('…');
            break;
        }
        if c.is_control() {
            truncated.extend(c.escape_default());
        } else {
            truncated.push(c);
        }
    }
    truncated
}

/// The maximum number of characters and of values that are shown: they repeat for every rule, so a long value would be
/// printed thousands of times.
const VALUE_CHARS_MAX: usize = 120;
const VALUES_MAX: usize = 8;

#[cfg(test)]
mod tests;
