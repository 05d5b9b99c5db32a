//! One verdict from the decisions of all limits.

use super::model::{Mode, Rule, Terms, Variant, Window};
use super::plan::{Line, Plan};
use crate::decision::{Decision, Retry};
use crate::settle::OnStoreFailure;
use crate::settle::source::Source;
use crate::units::time::Micros;

/// What a store says of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// Its decision, and who decided.
    Decided(Decision, Source),
    /// The same, and the attempt was not counted: another limit refuses it, and only that one counts it then.
    Uncounted(Decision, Source),
    /// Nothing: it could not be asked.
    Failed,
    /// Nothing: the request was refused without asking for this one.
    Skipped,
}

/// May the attempt go on?
#[derive(Debug)]
pub struct Verdict<'r> {
    /// Whether it may.
    pub allowed: bool,
    /// The ruling the answer speaks for, as an index into `rulings`: on allow the enforced limit with the least remaining
    /// (the first on a tie), on deny the violated one with the longest wait. None if no enforced limit was met.
    pub nearest: Option<usize>,
    /// How long to hold the attempt before it goes on: the longest delay of its shaped limits.
    pub delay: Micros,
    /// The least exact of the rulings' sources.
    pub source: Source,
    /// For each line of the plan that was asked for.
    pub rulings: Vec<Ruling<'r>>,
}

/// What one limit says.
#[derive(Clone, Copy, Debug)]
pub struct Ruling<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The name of the limit in answers.
    pub name: &'r str,
    /// The window, unless the rule bans or does not limit.
    pub window: Option<&'r Window>,
    /// The side of the rule's experiment.
    pub variant: Variant,
    /// Whether it binds.
    pub mode: Mode,
    /// What it says. Nothing if it does not limit, or if its store could not be asked.
    pub decision: Option<Decision>,
    /// Who decided.
    pub source: Source,
    /// What its window holds, where what is refused is counted too.
    pub counted: Option<WindowCount>,
}

/// What a window holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCount {
    /// With the attempt, if that was counted.
    pub after: u64,
    /// Whether it was.
    pub includes_attempt: bool,
}

impl<'r, K> Plan<'r, K> {
    /// One verdict out of what the store answered to each charge, in order. A charge without an answer is one the store
    /// could not be asked for; one that was left unasked has no ruling. `own` is the source of what needs no asking: the one of a store that is well.
    pub fn verdict(&self, default_source: Source, results: impl IntoIterator<Item = ChargeResult>) -> Verdict<'r> {
        Verdict::new(default_source, self.rulings(default_source, results))
    }

    /// How the limits stand, from what the store answered, for one who takes nothing: that is always allowed.
    pub fn standings(&self, default_source: Source, results: impl IntoIterator<Item = ChargeResult>) -> Verdict<'r> {
        let mut rulings = self.rulings(default_source, results);
        for ruling in &mut rulings {
            ruling.decision = ruling.decision.map(Decision::as_peek);
        }
        Verdict::new(default_source, rulings)
    }

    fn rulings(&self, default_source: Source, results: impl IntoIterator<Item = ChargeResult>) -> Vec<Ruling<'r>> {
        let mut results = results.into_iter();
        self.lines
            .iter()
            .filter_map(|line| {
                let mut includes_attempt = true;
                let (decision, source) = match line.terms {
                    Terms::Limited(_) => match results.next().unwrap_or(ChargeResult::Failed) {
                        ChargeResult::Decided(decision, source) => (Some(decision), source),
                        ChargeResult::Uncounted(decision, source) => {
                            includes_attempt = false;
                            (Some(decision), source)
                        }
                        ChargeResult::Failed => (None, line.rule.source_without_store()),
                        ChargeResult::Skipped => return None,
                    },
                    Terms::Banned => (Some(Decision::banned(line.cost)), default_source),
                    Terms::Unlimited => (None, default_source),
                };
                Some(line.ruling(decision, source, includes_attempt))
            })
            .collect()
    }
}

impl<'r> Verdict<'r> {
    fn new(default_source: Source, rulings: Vec<Ruling<'r>>) -> Self {
        let enforced = || {
            rulings
                .iter()
                .enumerate()
                .filter(|(_, ruling)| ruling.mode == Mode::Enforce)
        };
        let violated = enforced().filter(|(_, ruling)| !ruling.is_allow());
        // The first of the longest: `max_by_key` alone would give the last.
        let longest = violated.rev().max_by_key(|(_, ruling)| ruling.wait());
        let allowed = longest.is_none();
        let nearest = longest.or_else(|| {
            let standing =
                |(index, ruling): (usize, &'_ Ruling<'r>)| Some((ruling.decision?.standing().remaining, index));
            let least = enforced().filter_map(standing).min();
            least.and_then(|(_, index)| rulings.get(index).map(|ruling| (index, ruling)))
        });
        let nearest = nearest.map(|(index, _)| index);
        let delays = enforced().filter_map(|(_, ruling)| match ruling.decision {
            Some(Decision::Allow { delay, .. }) if allowed => Some(delay),
            _ => None,
        });
        let delay = delays.max().unwrap_or(Micros::ZERO);
        let source = rulings
            .iter()
            .map(|ruling| ruling.source)
            .max()
            .unwrap_or(default_source);
        Self {
            allowed,
            nearest,
            delay,
            source,
            rulings,
        }
    }

    /// The ruling the answer speaks for.
    pub fn nearest(&self) -> Option<&Ruling<'r>> {
        self.rulings.get(self.nearest?)
    }

    /// Whether it is refused because the store could not be asked and a rule says `closed`.
    pub fn is_closed(&self) -> bool {
        self.source == Source::Closed
    }
}

impl Ruling<'_> {
    /// Whether this limit lets the attempt pass. Whether that binds is its `mode`.
    pub fn is_allow(&self) -> bool {
        match &self.decision {
            Some(decision) => decision.is_allow(),
            None => self.source != Source::Closed,
        }
    }

    /// How long a refused attempt waits. A rule that is closed says it never knows.
    fn wait(&self) -> Option<Retry> {
        match &self.decision {
            Some(decision) => decision.retry(),
            None => Some(Retry::Unknown),
        }
    }
}

impl<'r> Line<'r> {
    fn ruling(&self, decision: Option<Decision>, source: Source, includes_attempt: bool) -> Ruling<'r> {
        let (decision, counted) = match (decision, &self.rule.descriptor) {
            (Some(decision), Some(descriptor)) if self.window.is_some() => {
                let (decision, after) = descriptor.apply_limit(decision);
                (
                    Some(decision),
                    after.map(|after| WindowCount {
                        after,
                        includes_attempt,
                    }),
                )
            }
            (decision, _) => (decision, None),
        };
        Ruling {
            rule: self.rule,
            name: self.window.map_or(&self.rule.id, |window| &window.name),
            window: self.window,
            variant: self.variant,
            mode: self.rule.mode,
            decision,
            source,
            counted,
        }
    }
}

impl Rule {
    /// What it says when its store cannot be asked. A shadow refuses nothing in this case either.
    const fn source_without_store(&self) -> Source {
        match (self.on_store_failure, self.mode) {
            (OnStoreFailure::Closed, Mode::Enforce) => Source::Closed,
            _ => Source::Open,
        }
    }
}

#[cfg(test)]
mod tests;
