//! What an attempt is to be charged for.

use super::attempt::Attempt;
use super::rule::{CounterId, Mode, Rule, RuleSet, Terms, Variant, Window};
use super::terms::Odd;
use crate::decision::Cost;
use crate::settle::{Charge, Policy};

/// The charges of one attempt, line by line, in the order of the rules. Nothing has been taken yet.
#[derive(Debug)]
pub struct Plan<'r, K> {
    /// One for each window of each rule that is met, and one for each rule that bans or does not limit.
    pub lines: Vec<Line<'r>>,
    /// What the store is asked to settle: one for each line that has a window, in their order.
    pub charges: Vec<Charge<K>>,
    /// How often a cost attribute was not a whole number, and the default was taken.
    pub odd_costs: u32,
}

/// One limit an attempt meets.
#[derive(Clone, Copy, Debug)]
pub struct Line<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// What it says of the attempt.
    pub terms: &'r Terms,
    /// The window, if limited.
    pub window: Option<&'r Window>,
    /// The side of the rule's experiment.
    pub variant: Variant,
    /// What it takes.
    pub cost: Cost,
}

impl RuleSet {
    /// Which rules an attempt meets, and what is to be charged where. `key` names the counter of a subject, given by the
    /// parts of its key, as the store knows it.
    #[inline]
    pub fn plan<K>(&self, attempt: &Attempt<'_>, mut key: impl FnMut(CounterId, &[&[u8]]) -> K) -> Plan<'_, K> {
        let mut plan = Plan {
            lines: Vec::new(),
            charges: Vec::new(),
            odd_costs: 0,
        };
        let candidates = self.index.candidates(attempt);
        // One that was touched twice is met once.
        for touched in candidates.as_slice().chunk_by(|one, next| one == next) {
            if let Some(rule) = touched.first().and_then(|&place| self.rules.get(place as usize)) {
                plan.add(rule, attempt, &mut key);
            }
        }
        plan
    }
}

impl<'r, K> Plan<'r, K> {
    /// Adds what one rule charges, if it is met.
    #[inline]
    fn add(&mut self, rule: &'r Rule, attempt: &Attempt<'_>, key: &mut impl FnMut(CounterId, &[&[u8]]) -> K) {
        if !rule.holds(attempt) {
            return;
        }
        let Some(subject) = rule.subject(attempt) else { return };
        let parts = subject.parts();
        let variant = rule.side(parts.as_slice());
        let (terms, _) = rule.choice(variant).terms(attempt);
        let (cost, odd) = rule.price.of(attempt);
        self.odd_costs += u32::from(odd == Odd::Yes);
        let line = Line {
            rule,
            terms,
            window: None,
            variant,
            cost,
        };
        let Terms::Limited(windows) = terms else {
            self.lines.push(line);
            return;
        };
        for window in windows {
            let window_of = Some(window);
            self.lines.push(Line {
                window: window_of,
                ..line
            });
            self.charges.push(Charge {
                key: key(window.counter, parts.as_slice()),
                limit: window.limit,
                cost,
                policy: rule.policy(),
            });
        }
    }

    /// Whether an enforced rule bans it: then nothing may be charged, and the store is only to be looked at.
    pub fn is_banned(&self) -> bool {
        let bans = |line: &Line<'_>| matches!(line.terms, Terms::Banned) && line.cost > Cost::ZERO;
        self.lines
            .iter()
            .any(|line| line.rule.mode == Mode::Enforce && bans(line))
    }
}

impl Rule {
    /// What a refusal by it means. A disabled one is never asked.
    pub(crate) const fn policy(&self) -> Policy {
        match self.mode {
            Mode::Enforce => Policy::Enforce,
            Mode::Shadow | Mode::Disabled => Policy::Shadow,
        }
    }
}

#[cfg(test)]
mod tests;
