//! The charges of an attempt, before and after settling.

use super::attempt::Attempt;
use super::matching::Candidate;
use super::model::CostValidity;
use super::model::{CounterId, Mode, Rule, RuleSet, Terms, Variant, Window};
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
    pub invalid_costs: u32,
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
        let candidates = self.index.candidates(attempt);
        // Most rules that are touched are met, in one window.
        let expected_lines = candidates.as_slice().len();
        let mut plan = Plan {
            lines: Vec::with_capacity(expected_lines),
            charges: Vec::with_capacity(expected_lines),
            invalid_costs: 0,
        };
        self.prefetch(candidates.as_slice());
        // One that was touched twice is met once.
        for touched in candidates.as_slice().chunk_by(|one, next| one.rule == next.rule) {
            let Some(candidate) = touched.first() else { continue };
            if let Some(rule) = self.rules.get(candidate.rule as usize)
                && rule.holds_except(candidate.proven, attempt)
                && let Some(subject) = rule.subject(attempt)
            {
                plan.add(rule, attempt, subject.parts().as_slice(), &mut key);
            }
        }
        if let Some((rule, found)) = self.match_descriptor(attempt) {
            plan.add(
                rule,
                attempt,
                &found.key_parts(attempt, &found.counter_name(attempt)),
                &mut key,
            );
        }
        plan
    }
}

impl RuleSet {
    /// Asks memory for all rules that were touched before the first is looked at: of many rules each is cold, and so it
    /// is waited for once and not again and again.
    #[inline]
    fn prefetch(&self, candidates: &[Candidate]) {
        let rules = candidates
            .iter()
            .filter_map(|candidate| self.rules.get(candidate.rule as usize));
        // Fields all over what planning reads.
        let lengths = rules.map(|rule| {
            let by = rule.selector.by.as_ref().and_then(|by| by.terms.as_slice().get(1));
            let is_by = matches!(by, Some(Terms::Limited(_)));
            rule.when.len() ^ rule.selector.overrides.len() ^ usize::from(is_by) ^ rule.id.len()
        });
        std::hint::black_box(lengths.fold(0, |all, length| all ^ length));
    }
}

impl<'r, K> Plan<'r, K> {
    /// Adds what a rule charges whose conditions hold, for the subject of these parts.
    #[inline]
    fn add(
        &mut self,
        rule: &'r Rule,
        attempt: &Attempt<'_>,
        parts: &[&[u8]],
        key: &mut impl FnMut(CounterId, &[&[u8]]) -> K,
    ) {
        let variant = rule.variant_of(parts);
        let (terms, _) = rule.selector(variant).terms(attempt);
        let (cost, validity) = rule.cost(attempt);
        self.invalid_costs += u32::from(validity == CostValidity::Invalid);
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
        for window in windows.as_slice() {
            let window_of = Some(window);
            self.lines.push(Line {
                window: window_of,
                ..line
            });
            self.charges.push(Charge {
                key: key(window.counter, parts),
                limit: match &rule.descriptor {
                    None => *window.limit,
                    Some(descriptor) => descriptor.counting_limit(&window.limit),
                },
                cost,
                policy: rule.policy(),
                on_failure: rule.on_store_failure,
            });
        }
    }

    /// The names of the limits that do not hold for a request that this is a part of.
    pub fn replaced_limits(&self) -> impl Iterator<Item = &'r str> {
        let descriptors = self.lines.iter().filter_map(|line| line.rule.descriptor());
        descriptors.flat_map(|descriptor| descriptor.replaces.iter().map(|name| &**name))
    }

    /// Leaves out the limits of these names, and what they would charge. What is unlimited stays so.
    pub fn drop_replaced(&mut self, replaced: &[&str]) {
        let is_replaced = |line: &Line<'_>| {
            if matches!(line.terms, Terms::Unlimited) {
                return false;
            }
            let name = line.rule.descriptor().map(|descriptor| &*descriptor.name);
            name.is_some_and(|name| replaced.contains(&name))
        };
        let mut limited = self.lines.iter().filter(|line| line.window.is_some());
        self.charges.retain(|_| !limited.next().is_some_and(is_replaced));
        self.lines.retain(|line| !is_replaced(line));
    }

    /// Whether an enforced rule bans it: then nothing may be charged, and the store is only to be looked at. A quota of nothing
    /// does not: whether it refuses is known when all quotas are.
    pub fn is_banned(&self) -> bool {
        let bans = |line: &Line<'_>| matches!(line.terms, Terms::Banned) && line.cost > Cost::ZERO;
        let is_quota = |line: &Line<'_>| line.rule.descriptor().is_some_and(|descriptor| descriptor.is_quota);
        self.lines
            .iter()
            .any(|line| line.rule.mode == Mode::Enforce && bans(line) && !is_quota(line))
    }
}

impl Rule {
    /// What a refusal by it means. A disabled one is never asked.
    pub(crate) fn policy(&self) -> Policy {
        match &self.descriptor {
            Some(descriptor) if descriptor.counts.is_some() => return Policy::Count,
            // Whether it refuses is known when all are.
            Some(descriptor) if descriptor.is_quota => return Policy::Shadow,
            Some(_) | None => {}
        }
        match self.mode {
            Mode::Enforce => Policy::Enforce,
            Mode::Shadow | Mode::Disabled => Policy::Shadow,
        }
    }
}

#[cfg(test)]
mod tests;
