//! Why an attempt is answered as it is: every rule, met or not, with what it looked at and what it found.
//!
//! Here as data, for machines; [`text`] makes sentences of it.

mod text;

use super::attempt::Attempt;
use super::model::LimitOrigin;
use super::model::{Condition, CounterId, Dimension, Mode, Rule, RuleSet, Terms, Variant};
use super::ratelimit::DescriptorMatch;
use super::verdict::{Ruling, Verdict};
use crate::decision::Cost;
use std::borrow::Cow;

/// All there is to say of one attempt.
#[derive(Debug)]
pub struct Explanation<'r> {
    /// What it would come to.
    pub verdict: Verdict<'r>,
    /// For each rule, in the order they are written.
    pub traces: Vec<RuleTrace<'r>>,
}

/// What one rule has to do with the attempt.
#[derive(Debug)]
pub struct RuleTrace<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// Whether it applies.
    pub rule_match: RuleMatch<'r>,
}

/// Whether a rule applies to an attempt.
#[derive(Debug)]
pub enum RuleMatch<'r> {
    /// It does.
    Matched(MatchedRule<'r>),
    /// It does not, for all of these reasons.
    Skipped(Vec<SkipReason<'r>>),
}

/// How a rule applies.
#[derive(Debug)]
pub struct MatchedRule<'r> {
    /// Whom it counts for: each of its dimensions, and the value as it is counted. Values too long to show are cut.
    pub subject: Vec<(Cow<'r, str>, String)>,
    /// The side of its experiment.
    pub variant: Variant,
    /// What it says.
    pub terms: &'r Terms,
    /// Why it says that.
    pub origin: LimitOrigin<'r>,
    /// What it would take.
    pub cost: Cost,
    /// For each of its limits.
    pub limits: Vec<LimitTrace<'r>>,
}

/// One limit of a rule that applies.
#[derive(Debug)]
pub struct LimitTrace<'r> {
    /// How it stands and what it says.
    pub ruling: Ruling<'r>,
    /// The key of its counter in the store. Nothing where nothing is counted.
    pub key: Option<String>,
}

/// Why a rule does not apply.
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
        /// The attribute it looks at.
        attribute: &'r str,
        /// What it wants, as rules write it.
        expected: String,
        /// The values there were. Values too long to show are cut.
        actual: Vec<String>,
    },
    /// Subjects are told apart by an attribute that is not there.
    MissingAttribute {
        /// The attribute.
        attribute: &'r str,
    },
    /// It is a descriptor, and the entries are not the way to it.
    Descriptor {
        /// The rule they lead to, if they lead to one.
        matched_rule: Option<&'r str>,
    },
}

/// What is told of all rules that apply.
struct TraceBuilder<'a, 'r, K> {
    attempt: &'a Attempt<'a>,
    /// The rulings not told yet: they come in the order of the rules, so each rule finds its own at the front.
    rulings: &'a [Ruling<'r>],
    key: K,
}

impl RuleSet {
    /// Tells for every rule what it has to do with `attempt`. `verdict` is what a look at the store came to, and `key`
    /// tells how the store prints the key of a counter.
    pub fn explain<'r>(
        &'r self,
        attempt: &Attempt<'_>,
        verdict: Verdict<'r>,
        key: impl FnMut(CounterId, &[&[u8]]) -> String,
    ) -> Explanation<'r> {
        let descriptor_match = self.match_descriptor(attempt);
        let mut builder = TraceBuilder {
            attempt,
            rulings: &verdict.rulings,
            key,
        };
        let trace = |rule: &'r Rule| RuleTrace {
            rule,
            rule_match: match rule.descriptor {
                None => rule.trace(&mut builder),
                Some(_) => rule.trace_descriptor(descriptor_match.as_ref(), &mut builder),
            },
        };
        let traces = self.rules.iter().map(trace).collect();
        Explanation { verdict, traces }
    }
}

impl Rule {
    fn trace<'r>(
        &'r self,
        builder: &mut TraceBuilder<'_, 'r, impl FnMut(CounterId, &[&[u8]]) -> String>,
    ) -> RuleMatch<'r> {
        let attempt = builder.attempt;
        let reasons = self.skip_reasons(attempt);
        let subject = match self.subject(attempt) {
            Some(subject) if reasons.is_empty() => subject,
            _ => return RuleMatch::Skipped(reasons),
        };
        // An attribute of several values is counted by all of them, one after the other.
        let names = self.per.iter().flat_map(|dimension| {
            let count = attempt.values(&dimension.attribute).count();
            std::iter::repeat_n(dimension, count)
        });
        let values = names.zip(subject.values());
        let values = values.map(|(dimension, value)| ((&*dimension.attribute).into(), dimension.printable(value)));
        RuleMatch::Matched(builder.matched_rule(self, values.collect(), subject.parts().as_slice()))
    }

    /// A descriptor applies if the entries lead to it, whatever its conditions would be in another order.
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
                RuleMatch::Matched(builder.matched_rule(self, values, &descriptor.key_parts(attempt, &name)))
            }
            _ if *self.domain != *attempt.domain => RuleMatch::Skipped(vec![SkipReason::Domain {
                actual: printable(attempt.domain.as_bytes()),
            }]),
            other => RuleMatch::Skipped(vec![SkipReason::Descriptor {
                matched_rule: other.map(|(rule, _)| rule.id()),
            }]),
        }
    }

    /// Everything that keeps it from being met.
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
    /// How a rule applies to the subject of these parts, and what its rulings are.
    fn matched_rule(
        &mut self,
        rule: &'r Rule,
        subject: Vec<(Cow<'r, str>, String)>,
        parts: &[&[u8]],
    ) -> MatchedRule<'r> {
        let variant = rule.variant_of(parts);
        let (terms, origin) = rule.selector(variant).terms(self.attempt);
        let is_of_rule = |ruling: &&Ruling<'r>| std::ptr::eq(ruling.rule, rule);
        let count = self.rulings.iter().take_while(is_of_rule).count();
        let (rulings, others) = self.rulings.split_at_checked(count).unwrap_or_default();
        self.rulings = others;
        let limits = rulings.iter().map(|ruling| LimitTrace {
            ruling: *ruling,
            key: ruling.window.map(|window| (self.key)(window.counter, parts)),
        });
        let limits = limits.collect();
        MatchedRule {
            subject,
            variant,
            terms,
            origin,
            cost: rule.cost(self.attempt).0,
            limits,
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
    /// A value as it is counted; a network of addresses with its length.
    fn printable(&self, value: &super::matching::Value<'_>) -> String {
        let text = printable(value.bytes());
        match self.ipv6_prefix {
            Some(prefix) if prefix < 128 && value.is_ipv6() => format!("{text}/{prefix}"),
            _ => text,
        }
    }
}

impl RuleMatch<'_> {
    /// Whether the rule applies.
    pub const fn is_matched(&self) -> bool {
        matches!(self, Self::Matched(_))
    }
}

/// A value as text that can be printed anywhere: control characters are spelled out, and it is cut when it is too long.
fn printable(value: &[u8]) -> String {
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

/// The most characters of a value that are shown, and the most values of an attribute: there is a line for every rule, so
/// a long value would be told thousands of times.
const VALUE_CHARS_MAX: usize = 120;
const VALUES_MAX: usize = 8;

#[cfg(test)]
mod tests;
