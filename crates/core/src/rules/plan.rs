//! The charges of an attempt, before and after settling.

use super::attempt::Attempt;
use super::matching::{Candidate, Lookup};
use super::model::{
    CostValidity, CounterId, Counting, Mode, ReservedWindows, Rule, RuleSet, Terms, Variant, Window, Windows,
};
use super::ratelimit::CounterTarget;
use super::rows::RowProbe;
use crate::decision::Cost;
use crate::settle::{Charge, Outcome, Policy};

/// The limits that apply to one attempt, in rule order. Planning consumes nothing.
#[derive(Debug)]
pub struct Plan<'r, K> {
    /// One line for each window of each matching rule, and one for each rule that bans or does not limit. Two for a window
    /// with a reserve, if the attempt may not use it.
    pub lines: Vec<Line<'r, K>>,
    /// Number of cost attributes that were not whole numbers; the default was charged.
    pub invalid_costs: u32,
    /// True if the attempt lacks a `per` attribute that rules of its domain count by: [`RuleSet::missing_keys`] tells
    /// which of them would have matched.
    pub lacks_key: bool,
    /// True if both counters of a reserve are looked at, whatever the attempt may use.
    explains: bool,
    /// True if a rule in shadow mode has two lines for a window.
    has_shadow_reserve: bool,
}

/// One limit that applies to an attempt.
#[derive(Debug)]
pub struct Line<'r, K> {
    /// The rule.
    pub rule: &'r Rule,
    /// The terms of the rule for the attempt.
    pub terms: &'r Terms,
    /// The window, if the rule limits.
    pub window: Option<&'r Window>,
    /// The variant of the rule's experiment.
    pub variant: Variant,
    /// The part of a reserve that its counter counts.
    pub part: LinePart,
    /// The cost.
    pub cost: Cost,
    /// The charge and its outcome, if the rule limits.
    pub charge: Option<PlannedCharge<K>>,
}

/// The part of a reserve that a line stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinePart {
    /// The whole limit: the rule has no reserve, or the attempt may use it.
    #[default]
    Whole,
    /// The whole limit, for an attempt that may not use the reserve. The line of the others' part follows.
    All,
    /// The part of those that may not use the reserve.
    Others,
    /// The same, of a reserve that is lent: the only line of its window.
    Lent,
    /// The part of the others where it is only looked at. It takes nothing and has no ruling.
    Idle,
}

/// A charge and its outcome.
#[derive(Debug)]
pub struct PlannedCharge<K> {
    /// The charge.
    pub charge: Charge<K>,
    /// The counter for stores that count all attempts themselves; see [`Counting::Always`].
    pub target: Option<CounterTarget>,
    /// The outcome. None until it is recorded.
    pub outcome: Option<Result<Outcome, Undecided>>,
}

/// Asks memory for an item before it is read. Not done here: the instruction is behind `unsafe`, and a read instead of it waits.
pub trait Prefetch {
    /// Asks for the item at an index, and does nothing else.
    fn prefetch<T>(&self, items: &[T], index: usize);
}

/// Asks for nothing.
impl Prefetch for () {
    fn prefetch<T>(&self, _: &[T], _: usize) {}
}

/// The reason for which a charge has no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The store could not decide; the rule's failure policy applies.
    Failed,
    /// The request was denied before this charge was sent.
    Skipped,
}

impl RuleSet {
    /// Plans the charges of an attempt. `key` returns the store's key of a counter for the subject of these parts.
    /// Derived attributes are added before.
    #[inline]
    pub fn plan<K>(&self, attempt: &Attempt<'_>, key: impl FnMut(CounterId, &[&[u8]]) -> K) -> Plan<'_, K> {
        self.plan_with(attempt, key, &())
    }

    /// The same, and asks memory early for what is read late.
    #[inline]
    pub fn plan_with<K>(
        &self,
        attempt: &Attempt<'_>,
        key: impl FnMut(CounterId, &[&[u8]]) -> K,
        memory: &impl Prefetch,
    ) -> Plan<'_, K> {
        if !self.derivation.is_empty()
            && let Some(attributes) = self.derive(attempt)
        {
            let attributes = &attributes;
            return self.plan_given(&Attempt { attributes, ..*attempt }, false, key, memory);
        }
        self.plan_given(attempt, false, key, memory)
    }

    /// Plans the charges of an attempt for an explanation: where a rule has a reserve, both counters are looked at.
    pub fn plan_to_explain<K>(&self, attempt: &Attempt<'_>, key: impl FnMut(CounterId, &[&[u8]]) -> K) -> Plan<'_, K> {
        match self.derive(attempt) {
            None => self.plan_given(attempt, true, key, &()),
            Some(attributes) => {
                let attributes = &attributes;
                self.plan_given(&Attempt { attributes, ..*attempt }, true, key, &())
            }
        }
    }

    /// Plans the charges of an attempt that has its derived attributes.
    #[inline]
    fn plan_given<K>(
        &self,
        attempt: &Attempt<'_>,
        explains: bool,
        mut key: impl FnMut(CounterId, &[&[u8]]) -> K,
        memory: &impl Prefetch,
    ) -> Plan<'_, K> {
        let Lookup { candidates, lacks_key } = self.index.lookup(attempt);
        let mut plan = Plan {
            // Most candidates match, in one window.
            lines: Vec::with_capacity(candidates.len()),
            invalid_costs: 0,
            lacks_key,
            explains,
            has_shadow_reserve: false,
        };
        self.prefetch(&candidates);
        let probes = self.rows.probe(&candidates, attempt, memory);
        let mut position = 0;
        // A rule found through several postings matches once.
        for repeated in candidates.chunk_by(|one, next| one.rule == next.rule) {
            let Some(candidate) = repeated.first() else { continue };
            let probe = probes.get(position).unwrap_or(&RowProbe::Unknown);
            position += repeated.len();
            if let Some(rule) = self.rules.get(candidate.rule as usize)
                && rule.holds_except(candidate.proven, attempt)
            {
                match rule.subject(attempt) {
                    Some(subject) => {
                        let matched = (self, rule, candidate.rule);
                        plan.add(matched, attempt, (&subject.parts(), probe), &mut key);
                    }
                    None => plan.lacks_key = true,
                }
            }
        }
        if let Some((rule, found)) = self.match_descriptor(attempt) {
            let name = found.counter_name(attempt);
            let matched = (self, rule, NO_ROWS);
            plan.add(
                matched,
                attempt,
                (&found.key_parts(attempt, &name), &RowProbe::NoRows),
                &mut key,
            );
            if let Counting::Always { capacity: limit } = rule.counting
                && let Some(charge) = plan.lines.last_mut().and_then(|line| line.charge.as_mut())
            {
                charge.target = Some(CounterTarget { name, limit });
            }
        }
        plan
    }

    /// The index of one of its rules in [`RuleSet::rules`], without a search.
    #[inline]
    pub fn index_of(&self, rule: &Rule) -> usize {
        let from_start = std::ptr::from_ref(rule).addr().wrapping_sub(self.rules.as_ptr().addr());
        from_start / size_of::<Rule>()
    }

    /// Returns the rules whose conditions an attempt meets, but that do not apply because it lacks one of their `per`
    /// attributes: their indices in [`RuleSet::rules`], in order. Takes as long as planning an attempt that has them.
    #[cold]
    pub fn missing_keys(&self, attempt: &Attempt<'_>) -> Vec<usize> {
        match self.derive(attempt) {
            None => self.missing_keys_given(attempt),
            Some(attributes) => self.missing_keys_given(&Attempt {
                attributes: &attributes,
                ..*attempt
            }),
        }
    }

    fn missing_keys_given(&self, attempt: &Attempt<'_>) -> Vec<usize> {
        let found = self.index.lookup(attempt).candidates;
        let candidates = found.iter().map(|candidate| candidate.rule);
        let is_missing = |index: &u32| {
            let rule = self.rules.get(*index as usize);
            rule.is_some_and(|rule| rule.holds_except(Candidate::UNPROVEN, attempt) && rule.subject(attempt).is_none())
        };
        let missing = candidates.chain(self.index.keyless(attempt)).filter(is_missing);
        let mut missing: Vec<usize> = missing.map(|index| index as usize).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Loads all candidates into the cache before the first is tested: with many rules each is cold, so their cache
    /// misses overlap.
    #[inline]
    fn prefetch(&self, candidates: &[Candidate]) {
        let rules = candidates
            .iter()
            .filter_map(|candidate| self.rules.get(candidate.rule as usize));
        // Fields on all cache lines that planning reads.
        let lengths = rules.map(|rule| {
            let by = rule.selector.by.as_ref().and_then(|by| by.terms.as_slice().get(1));
            let is_by = matches!(by, Some(Terms::Limited(_)));
            rule.when.len() ^ rule.selector.overrides.len() ^ usize::from(is_by) ^ rule.id.len()
        });
        std::hint::black_box(lengths.fold(0, |all, length| all ^ length));
    }
}

impl<'r, K> Plan<'r, K> {
    /// Adds the lines of a rule whose conditions hold, given with its set and its index there, for the subject of these
    /// parts.
    #[inline]
    fn add(
        &mut self,
        (rules, rule, index): (&'r RuleSet, &'r Rule, u32),
        attempt: &Attempt<'_>,
        (parts, probe): (&[&[u8]], &RowProbe<'r>),
        key: &mut impl FnMut(CounterId, &[&[u8]]) -> K,
    ) {
        let variant = rule.variant_of(parts);
        let (terms, _) = rules.terms((rule, index), variant, attempt, (parts, probe));
        let (cost, validity) = rule.cost(attempt);
        self.invalid_costs += u32::from(validity == CostValidity::Invalid);
        let line = |window, charge| Line {
            rule,
            terms,
            window,
            variant,
            part: LinePart::Whole,
            cost,
            charge,
        };
        let Terms::Limited(windows) = terms else {
            self.lines.push(line(None, None));
            return;
        };
        let mut charge = |window: &Window| {
            PlannedCharge::new(Charge {
                key: key(window.counter, parts),
                limit: rule.counting.charged_limit(&window.limit),
                cost,
                policy: rule.policy(),
                on_failure: rules.failure_policy_of(rule),
            })
        };
        if let Windows::Reserved(reserved) = windows {
            let line = |window, part, charge| Line {
                part,
                ..line(Some(window), Some(charge))
            };
            return self.add_reserved(rule, reserved, attempt, line, &mut charge);
        }
        for window in windows.as_slice() {
            self.lines.push(line(Some(window), Some(charge(window))));
        }
    }

    /// Adds the lines of a rule with a reserve.
    #[cold]
    #[inline(never)]
    fn add_reserved(
        &mut self,
        rule: &Rule,
        reserved: &'r ReservedWindows,
        attempt: &Attempt<'_>,
        line: impl Fn(&'r Window, LinePart, PlannedCharge<K>) -> Line<'r, K>,
        charge: &mut impl FnMut(&Window) -> PlannedCharge<K>,
    ) {
        let is_for_all = rule.reserve.as_ref().is_none_or(|reserve| reserve.is_for(attempt));
        let lends = rule.reserve.as_ref().is_some_and(|reserve| reserve.lends());
        for (all, others) in reserved.pairs() {
            match (is_for_all, lends) {
                (true, lends) => {
                    self.lines.push(line(all, LinePart::Whole, charge(all)));
                    if self.explains && !lends {
                        let mut idle = charge(others);
                        idle.charge.cost = Cost::ZERO;
                        self.lines.push(line(others, LinePart::Idle, idle));
                    }
                }
                (false, true) => self.lines.push(line(others, LinePart::Lent, charge(others))),
                (false, false) => {
                    self.has_shadow_reserve |= rule.mode == Mode::Shadow;
                    self.lines.push(line(all, LinePart::All, charge(all)));
                    self.lines.push(line(others, LinePart::Others, charge(others)));
                }
            }
        }
    }

    /// All charges, in order.
    #[inline]
    pub fn charges(&self) -> impl Iterator<Item = &PlannedCharge<K>> {
        self.lines.iter().filter_map(|line| line.charge.as_ref())
    }

    /// All charges, in order.
    #[inline]
    pub fn charges_mut(&mut self) -> impl Iterator<Item = &mut PlannedCharge<K>> {
        self.lines.iter_mut().filter_map(|line| line.charge.as_mut())
    }

    /// True if a rule in shadow mode has two charges for a window: see [`Plan::half_kept_mut`].
    #[inline]
    pub const fn has_shadow_reserve(&self) -> bool {
        self.has_shadow_reserve
    }

    /// The charges that a rule in shadow mode would not have made, of an allowed request: it has two for one window, and
    /// only the other one denies. In shadow mode each charge is kept by itself.
    #[cold]
    pub fn half_kept_mut(&mut self) -> Vec<&mut PlannedCharge<K>> {
        let mut found = Vec::new();
        let mut lines = self.lines.iter_mut();
        while let Some(all) = lines.next() {
            if all.part != LinePart::All || all.rule.mode != Mode::Shadow {
                continue;
            }
            let others = lines.next().and_then(|line| line.charge.as_mut());
            let (Some(all), Some(others)) = (all.charge.as_mut(), others) else {
                continue;
            };
            let is_allow =
                |planned: &PlannedCharge<K>| planned.decided().is_some_and(|outcome| outcome.decision.is_allow());
            match (is_allow(all), is_allow(others)) {
                (true, false) => found.push(all),
                (false, true) => found.push(others),
                _ => {}
            }
        }
        found
    }

    /// Records the outcomes of all charges, in order. A charge without one has failed.
    pub fn record(&mut self, outcomes: impl IntoIterator<Item = Result<Outcome, Undecided>>) {
        record(self.charges_mut(), outcomes);
    }

    /// The names of the rules that this plan replaces in its request.
    pub fn replaced_limits(&self) -> impl Iterator<Item = &'r str> {
        let groups = self.lines.iter().filter_map(|line| line.rule.group.as_deref());
        groups.flat_map(|group| group.replaces.iter().map(|name| &**name))
    }

    /// Removes the lines of the rules with these names. Unlimited rules stay.
    pub fn drop_replaced(&mut self, replaced: &[&str]) {
        self.lines.retain(|line| {
            let name = line.rule.group.as_ref().map(|group| &*group.name);
            matches!(line.terms, Terms::Unlimited) || !name.is_some_and(|name| replaced.contains(&name))
        });
    }

    /// True if an enforced rule bans the attempt: then nothing may be charged, and the store is only peeked. A quota of
    /// zero does not ban: it denies only together with all other quotas.
    pub fn is_banned(&self) -> bool {
        self.lines.iter().any(|line| {
            let bans = matches!(line.terms, Terms::Banned(_)) && line.cost > Cost::ZERO;
            bans && line.rule.mode == Mode::Enforce && !line.rule.is_quota()
        })
    }

    /// True if a quota applies to the attempt, as far as its charges were not skipped.
    pub fn is_quota(&self) -> bool {
        self.lines.iter().any(|line| {
            let outcome = line.charge.as_ref().and_then(|planned| planned.outcome);
            line.rule.is_quota() && !matches!(outcome, Some(Err(Undecided::Skipped)))
        })
    }
}

/// Records the outcomes of charges, in order. A charge without one has failed.
#[inline]
pub fn record<'c, K: 'c>(
    charges: impl IntoIterator<Item = &'c mut PlannedCharge<K>>,
    outcomes: impl IntoIterator<Item = Result<Outcome, Undecided>>,
) {
    let mut outcomes = outcomes.into_iter();
    for charge in charges {
        charge.outcome = Some(outcomes.next().unwrap_or(Err(Undecided::Failed)));
    }
}

impl<K> PlannedCharge<K> {
    /// A charge that is not settled yet.
    pub const fn new(charge: Charge<K>) -> Self {
        Self {
            charge,
            target: None,
            outcome: None,
        }
    }

    /// The outcome, if the charge was decided.
    #[inline]
    pub fn decided(&self) -> Option<&Outcome> {
        self.outcome.as_ref()?.as_ref().ok()
    }

    /// True if its denial denies the request: then the store has kept no charge of the request that passes with it.
    #[inline]
    pub fn is_denied(&self) -> bool {
        self.charge.policy != Policy::Shadow && self.decided().is_some_and(|outcome| !outcome.decision.is_allow())
    }
}

impl LinePart {
    /// The attempts that its counter counts, as explanations name them.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole | Self::All => "all",
            Self::Others | Self::Idle => "others",
            Self::Lent => "all, lent to others",
        }
    }
}

impl Rule {
    /// The policy of its charges. Disabled rules are never planned.
    pub(crate) fn policy(&self) -> Policy {
        match (self.counting, self.mode) {
            (Counting::Always { .. }, _) => Policy::Count,
            // Whether a quota denies depends on the other quotas.
            (Counting::OnAllow, Mode::Enforce) if self.is_quota() => Policy::Shadow,
            (Counting::OnAllow, Mode::Enforce) => Policy::Enforce,
            (Counting::OnAllow, Mode::Shadow | Mode::Disabled) => Policy::Shadow,
        }
    }
}

/// The index of a rule that has no rows.
pub(super) const NO_ROWS: u32 = u32::MAX;

#[cfg(test)]
mod tests;
