//! Why an attempt is answered as it is: every rule, met or not, with what it looked at and what it found.
//!
//! Here as data, for machines; [`words`] makes sentences of it.

mod words;

use super::attempt::Attempt;
use super::envoy::DescriptorMatch;
use super::rule::{Condition, CounterId, Dimension, Mode, Rule, RuleSet, Terms, Variant};
use super::terms::Grounds;
use super::verdict::{Ruling, Verdict};
use crate::decision::Cost;
use std::borrow::Cow;

/// All there is to say of one attempt.
#[derive(Debug)]
pub struct Explanation<'r> {
    /// What it would come to.
    pub verdict: Verdict<'r>,
    /// For each rule, in the order they are written.
    pub stories: Vec<Story<'r>>,
}

/// What one rule has to do with the attempt.
#[derive(Debug)]
pub struct Story<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// Whether it applies.
    pub fit: Fit<'r>,
}

/// Whether a rule applies to an attempt.
#[derive(Debug)]
pub enum Fit<'r> {
    /// It does.
    Met(Met<'r>),
    /// It does not, for all of these reasons.
    Missed(Vec<Miss<'r>>),
}

/// How a rule applies.
#[derive(Debug)]
pub struct Met<'r> {
    /// Whom it counts for: each of its dimensions, and the value as it is counted. Values too long to show are cut.
    pub subject: Vec<(Cow<'r, str>, String)>,
    /// The side of its experiment.
    pub variant: Variant,
    /// What it says.
    pub terms: &'r Terms,
    /// Why it says that.
    pub grounds: Grounds<'r>,
    /// What it would take.
    pub cost: Cost,
    /// For each of its limits.
    pub limits: Vec<Held<'r>>,
}

/// One limit of a rule that applies.
#[derive(Debug)]
pub struct Held<'r> {
    /// How it stands and what it says.
    pub ruling: Ruling<'r>,
    /// The key of its counter in the store. Nothing where nothing is counted.
    pub key: Option<String>,
}

/// Why a rule does not apply.
#[derive(Debug, PartialEq, Eq)]
pub enum Miss<'r> {
    /// It is disabled.
    Disabled,
    /// It belongs to another domain.
    Domain {
        /// The domain of the attempt.
        was: String,
    },
    /// A condition does not hold.
    Condition {
        /// The attribute it looks at.
        attribute: &'r str,
        /// What it wants, as rules write it.
        wanted: String,
        /// The values there were. Values too long to show are cut.
        was: Vec<String>,
    },
    /// Subjects are told apart by an attribute that is not there.
    Lacks {
        /// The attribute.
        attribute: &'r str,
    },
    /// It is a descriptor, and the entries are not the way to it.
    Way {
        /// The rule they lead to, if they lead to one.
        leads_to: Option<&'r str>,
    },
}

/// What is told of all rules that apply.
struct Telling<'a, 'r, K> {
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
        let described = self.match_descriptor(attempt);
        let mut telling = Telling {
            attempt,
            rulings: &verdict.rulings,
            key,
        };
        let story = |rule: &'r Rule| Story {
            rule,
            fit: match rule.descriptor {
                None => rule.fit(&mut telling),
                Some(_) => rule.fit_of_descriptor(described.as_ref(), &mut telling),
            },
        };
        let stories = self.rules.iter().map(story).collect();
        Explanation { verdict, stories }
    }
}

impl Rule {
    fn fit<'r>(&'r self, telling: &mut Telling<'_, 'r, impl FnMut(CounterId, &[&[u8]]) -> String>) -> Fit<'r> {
        let attempt = telling.attempt;
        let misses = self.misses(attempt);
        let subject = match self.subject(attempt) {
            Some(subject) if misses.is_empty() => subject,
            _ => return Fit::Missed(misses),
        };
        // An attribute of several values is counted by all of them, one after the other.
        let names = self.per.iter().flat_map(|dimension| {
            let count = attempt.values(&dimension.attribute).count();
            std::iter::repeat_n(dimension, count)
        });
        let values = names.zip(subject.values());
        let values = values.map(|(dimension, value)| ((&*dimension.attribute).into(), dimension.shown(value)));
        Fit::Met(telling.met(self, values.collect(), subject.parts().as_slice()))
    }

    /// A descriptor applies if the entries lead to it, whatever its conditions would be in another order.
    fn fit_of_descriptor<'r>(
        &'r self,
        described: Option<&(&'r Self, DescriptorMatch<'_>)>,
        telling: &mut Telling<'_, 'r, impl FnMut(CounterId, &[&[u8]]) -> String>,
    ) -> Fit<'r> {
        let attempt = telling.attempt;
        match described {
            Some((rule, way)) if std::ptr::eq(*rule, self) => {
                let values = way.counted_values(attempt.attributes);
                let values = values.map(|(name, value)| (shown(name.as_bytes()).into(), shown(value)));
                let (values, name) = (values.collect(), way.counter_name(attempt));
                Fit::Met(telling.met(self, values, &way.key_parts(attempt, &name)))
            }
            _ if *self.domain != *attempt.domain => Fit::Missed(vec![Miss::Domain {
                was: shown(attempt.domain.as_bytes()),
            }]),
            other => Fit::Missed(vec![Miss::Way {
                leads_to: other.map(|(rule, _)| rule.id()),
            }]),
        }
    }

    /// Everything that keeps it from being met.
    fn misses<'r>(&'r self, attempt: &Attempt<'_>) -> Vec<Miss<'r>> {
        let is_elsewhere = *self.domain != *attempt.domain;
        let disabled = (self.mode == Mode::Disabled).then_some(Miss::Disabled);
        let domain = is_elsewhere.then(|| Miss::Domain {
            was: shown(attempt.domain.as_bytes()),
        });
        let failed = self.when.iter().filter(|condition| !condition.holds(attempt));
        let conditions = failed.map(|condition| condition.miss(attempt));
        let lacking = self
            .per
            .iter()
            .filter(|dimension| attempt.value(&dimension.attribute).is_none());
        let lacks = lacking.map(|dimension| Miss::Lacks {
            attribute: &dimension.attribute,
        });
        disabled
            .into_iter()
            .chain(domain)
            .chain(conditions)
            .chain(lacks)
            .collect()
    }
}

impl<'r, K: FnMut(CounterId, &[&[u8]]) -> String> Telling<'_, 'r, K> {
    /// How a rule applies to the subject of these parts, and what its rulings are.
    fn met(&mut self, rule: &'r Rule, subject: Vec<(Cow<'r, str>, String)>, parts: &[&[u8]]) -> Met<'r> {
        let variant = rule.side(parts);
        let (terms, grounds) = rule.choice(variant).terms(self.attempt);
        let is_own = |ruling: &&Ruling<'r>| std::ptr::eq(ruling.rule, rule);
        let own = self.rulings.iter().take_while(is_own).count();
        let (own, others) = self.rulings.split_at_checked(own).unwrap_or_default();
        self.rulings = others;
        let limits = own.iter().map(|ruling| Held {
            ruling: *ruling,
            key: ruling.window.map(|window| (self.key)(window.counter, parts)),
        });
        let limits = limits.collect();
        Met {
            subject,
            variant,
            terms,
            grounds,
            cost: rule.cost(self.attempt).0,
            limits,
        }
    }
}

impl Condition {
    fn miss<'r>(&'r self, attempt: &Attempt<'_>) -> Miss<'r> {
        Miss::Condition {
            attribute: &self.attribute,
            wanted: cut(&self.test.to_string()),
            was: attempt.values(&self.attribute).take(VALUES_MAX).map(shown).collect(),
        }
    }
}

impl Dimension {
    /// A value as it is counted; a network of addresses with its length.
    fn shown(&self, value: &super::subject::Value<'_>) -> String {
        let text = shown(value.bytes());
        match self.ipv6_prefix {
            Some(prefix) if prefix < 128 && value.is_ipv6() => format!("{text}/{prefix}"),
            _ => text,
        }
    }
}

impl Fit<'_> {
    /// Whether the rule applies.
    pub const fn is_met(&self) -> bool {
        matches!(self, Self::Met(_))
    }
}

/// A value as text that can be printed anywhere: control characters are spelled out, and it is cut when it is too long.
fn shown(value: &[u8]) -> String {
    cut(&String::from_utf8_lossy(value))
}

fn cut(text: &str) -> String {
    let mut shown = String::new();
    for (place, c) in text.chars().enumerate() {
        if place == SHOWN_MAX {
            shown.push('…');
            break;
        }
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The most characters of a value that are shown, and the most values of an attribute: there is a line for every rule, so
/// a long value would be told thousands of times.
const SHOWN_MAX: usize = 120;
const VALUES_MAX: usize = 8;

#[cfg(test)]
mod tests;
