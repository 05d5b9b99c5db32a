//! One verdict from the decisions of all limits.

use super::model::{Mode, Rule, Terms, Variant, Window, whole_allows};
use super::plan::{Line, LinePart, Plan, PlannedCharge, Undecided};
use crate::decision::{Cost, Decision, Retry};
use crate::limit::Limit;
use crate::settle::source::Source;
use crate::settle::{Charge, OnStoreFailure, Policy, undecided_source};
use crate::units::time::Micros;

/// The result for one attempt.
#[derive(Debug)]
pub struct Verdict<'r> {
    /// True if no enforced limit denies the attempt.
    pub allowed: bool,
    /// The ruling that responses report, as an index into `rulings`: on allow the enforced limit with the least
    /// remaining (the first on a tie), on deny the violated one with the longest retry. None if no enforced limit matched.
    pub nearest: Option<usize>,
    /// The time to delay the attempt: the longest delay of its shaped limits.
    pub delay: Micros,
    /// The least exact of the rulings' sources.
    pub source: Source,
    /// One ruling per line of the plan, without the skipped ones. One for both lines of a limit with a reserve.
    pub rulings: Vec<Ruling<'r>>,
}

/// The entry of one limit in a verdict.
#[derive(Clone, Copy, Debug)]
pub struct Ruling<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The name of the limit in responses.
    pub name: &'r str,
    /// The window. None if the rule bans or does not limit.
    pub window: Option<&'r Window>,
    /// The period that a ban was written with.
    pub ban_period: Option<Micros>,
    /// The variant of the rule's experiment.
    pub variant: Variant,
    /// The effect of its denial.
    pub mode: Mode,
    /// The decision. None if the rule does not limit, or if the store could not decide.
    pub decision: Option<Decision>,
    /// The time until one more unit is free, where the outcome determines it. See [`Limit::next_unit_after`](crate::Limit::next_unit_after).
    pub next_unit_after: Option<Micros>,
    /// The part of the system that decided.
    pub source: Source,
    /// The count of its window, if all attempts are counted.
    pub counted: Option<WindowCount>,
    /// True if it denies only because a part of its limit is kept for others.
    pub reserved: bool,
}

/// The reason of a denial, where it is not that the limit is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// The limit is used up, or cannot hold the cost.
    Limit,
    /// The last allowed request is less than this `min_interval` ago.
    MinInterval(Micros),
    /// The memory store has no memory for a new key, and `overflow` is `deny`.
    NoMemory,
}

/// The count of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCount {
    /// The count after the attempt.
    pub after: u64,
    /// True if the attempt was counted. A store that knows the window to be exceeded may deny without counting.
    pub includes_attempt: bool,
}

impl<'r, K> Plan<'r, K> {
    /// True if no enforced limit denies the attempt, by the outcomes recorded so far.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        let mut enforced = self.lines.iter().filter(|line| line.rule.mode == Mode::Enforce);
        enforced.all(Line::is_allow)
    }

    /// Combines the recorded outcomes into one verdict. A charge without an outcome has failed; a skipped one has no
    /// ruling. `default` is the source of rulings that need no store.
    pub fn verdict(self, default: Source) -> Verdict<'r> {
        // Not collected in place: lines are larger than rulings, and their memory would be moved to shrink it.
        let mut rulings = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            let Some(ruling) = line.ruling(default) else { continue };
            match line.part {
                LinePart::Whole => rulings.push(ruling),
                part => push_part(&mut rulings, ruling, part),
            }
        }
        Verdict::new(default, rulings)
    }

    /// The rulings of the counters of limits with a reserve, each on its own, in rule order.
    pub fn reserve_rulings(&self, default: Source) -> Vec<(LinePart, Ruling<'r>)> {
        let lines = self.lines.iter().filter(|line| line.rule.reserve().is_some());
        lines
            .filter_map(|line| Some((line.part, line.ruling(default)?)))
            .collect()
    }

    /// Returns the standings of all limits, for a request that consumes nothing and is always allowed.
    pub fn standings(self, default: Source) -> Verdict<'r> {
        let peek = |line: &Line<'r, K>| {
            let is_local = |planned: &PlannedCharge<K>| planned.charge.on_failure == OnStoreFailure::Local;
            let has_share = line.charge.as_ref().is_some_and(is_local);
            let ruling = line.ruling(default)?;
            Some(Ruling {
                decision: ruling.decision.map(Decision::as_peek),
                // Nothing is consumed, so a share that was not decided denies nothing.
                source: match ruling.source {
                    Source::Closed if has_share => Source::Open,
                    source => source,
                },
                reserved: false,
                ..ruling
            })
        };
        let mut rulings = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            if let Some(ruling) = peek(line) {
                push_part(&mut rulings, ruling, line.part);
            }
        }
        Verdict::new(default, rulings)
    }
}

/// Adds the ruling of a line. The two lines of a limit with a reserve are one ruling.
#[cold]
fn push_part<'r>(rulings: &mut Vec<Ruling<'r>>, ruling: Ruling<'r>, part: LinePart) {
    match part {
        LinePart::Whole | LinePart::All | LinePart::Lent => rulings.push(ruling),
        LinePart::Idle => {}
        LinePart::Others => {
            match rulings.pop_if(|all| std::ptr::eq(all.rule, ruling.rule) && all.name == ruling.name) {
                Some(all) => rulings.push(all.combined(ruling)),
                // Its other line was skipped: the near cache knows of no reason for which the whole would deny.
                None => rulings.push(Ruling {
                    reserved: ruling.source == Source::Near && !ruling.is_allow(),
                    ..ruling
                }),
            }
        }
    }
}

impl<'r> Verdict<'r> {
    fn new(default: Source, rulings: Vec<Ruling<'r>>) -> Self {
        let enforced = || {
            rulings
                .iter()
                .enumerate()
                .filter(|(_, ruling)| ruling.mode == Mode::Enforce)
        };
        let violated = enforced().filter(|(_, ruling)| !ruling.is_allow());
        // The first of the longest: `max_by_key` alone would give the last.
        let longest = violated.rev().max_by_key(|(_, ruling)| ruling.retry());
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
        let source = rulings.iter().map(|ruling| ruling.source).max().unwrap_or(default);
        Self {
            allowed,
            nearest,
            delay,
            source,
            rulings,
        }
    }

    /// The ruling that responses report.
    pub fn nearest(&self) -> Option<&Ruling<'r>> {
        self.rulings.get(self.nearest?)
    }

    /// True if it is denied because the store is unavailable and a rule has `on_store_failure: closed`.
    pub fn is_closed(&self) -> bool {
        self.source == Source::Closed
    }
}

impl Ruling<'_> {
    /// True if this limit allows the attempt. Its `mode` says whether a denial is enforced.
    pub fn is_allow(&self) -> bool {
        match &self.decision {
            Some(decision) => decision.is_allow(),
            None => self.source != Source::Closed,
        }
    }

    /// The ruling of a limit with a reserve, of that for all attempts and that for the others: the one that binds.
    fn combined(self, others: Self) -> Self {
        let source = self.source.max(others.source);
        let remaining = |ruling: &Self| ruling.decision.map(|decision| decision.standing().remaining);
        let others_bind = match (self.is_allow(), others.is_allow()) {
            (true, true) => match (remaining(&self), remaining(&others)) {
                (Some(all), Some(others)) => others < all,
                (all, _) => all.is_none(),
            },
            (false, false) => others.retry() > self.retry(),
            (all_allow, _) => all_allow,
        };
        let reserved = self.is_allow() && !others.is_allow() && others.decision.is_some();
        let binding = if others_bind { others } else { self };
        Self {
            source,
            reserved,
            ..binding
        }
    }

    /// The reason of its denial. None if it allows, or was not decided.
    pub fn denial_reason(&self) -> Option<DenialReason> {
        let decision = self.decision?;
        let limit = self.window.map(Window::limit);
        Some(match (limit, decision.retry()?) {
            (Some(Limit::SlidingLog(log)), Retry::After(wait)) => {
                // The log is empty a period after the last request, so the reset tells when that was.
                let since_last = log
                    .rate()
                    .period()
                    .get()
                    .checked_sub(decision.standing().reset_after.get());
                let spacing = since_last.and_then(|since_last| log.min_interval().get().checked_sub(since_last));
                match spacing == Some(wait.get()) {
                    true => DenialReason::MinInterval(log.min_interval()),
                    false => DenialReason::Limit,
                }
            }
            (Some(limit), Retry::Unknown) if !matches!(limit, Limit::Concurrency(_)) => DenialReason::NoMemory,
            _ => DenialReason::Limit,
        })
    }

    /// When a denied attempt would pass. Unknown for a closed rule.
    fn retry(&self) -> Option<Retry> {
        match &self.decision {
            Some(decision) => decision.retry(),
            None => Some(Retry::Unknown),
        }
    }
}

impl<'r, K> Line<'r, K> {
    /// True if its ruling allows the attempt, or its charge was skipped. Every check asks this, so no ruling is built.
    #[inline]
    fn is_allow(&self) -> bool {
        match (&self.charge, self.terms) {
            (Some(planned), _) => match &planned.outcome {
                Some(Ok(outcome)) => self.rule.counting.decide(outcome.decision).0.is_allow(),
                Some(Err(Undecided::Skipped)) => true,
                Some(Err(Undecided::Failed)) | None => self.failure_source(&planned.charge) != Source::Closed,
            },
            (None, Terms::Banned(_)) => Decision::banned(self.cost).is_allow(),
            (None, Terms::Unlimited | Terms::Limited(_)) => true,
        }
    }

    /// Its ruling by the recorded outcome. None if the charge was skipped.
    #[inline]
    fn ruling(&self, default: Source) -> Option<Ruling<'r>> {
        let (mut counted, mut next_unit_after) = (None, None);
        let (decision, source) = match (&self.charge, self.terms) {
            (Some(planned), _) => match planned.outcome {
                Some(Ok(outcome)) => {
                    next_unit_after = planned.charge.limit.next_unit_after(&outcome);
                    let (decision, after) = self.rule.counting.decide(outcome.decision);
                    counted = after.map(|after| WindowCount {
                        after,
                        includes_attempt: outcome.receipt.cost > Cost::ZERO,
                    });
                    (Some(decision), outcome.source)
                }
                Some(Err(Undecided::Skipped)) => return None,
                Some(Err(Undecided::Failed)) | None => (None, self.failure_source(&planned.charge)),
            },
            (None, Terms::Banned(_)) => (Some(Decision::banned(self.cost)), default),
            (None, Terms::Unlimited | Terms::Limited(_)) => (None, default),
        };
        let reserved = self.part == LinePart::Lent && self.is_denied_by_lent_part(decision);
        Some(Ruling {
            rule: self.rule,
            name: self.window.map_or(&self.rule.id, |window| &window.name),
            window: self.window,
            ban_period: match self.terms {
                Terms::Banned(period) => *period,
                Terms::Limited(_) | Terms::Unlimited => None,
            },
            variant: self.variant,
            mode: self.rule.mode,
            decision,
            next_unit_after,
            source,
            counted,
            reserved,
        })
    }

    /// True if the whole limit would allow what its part for the others denies.
    #[cold]
    fn is_denied_by_lent_part(&self, decision: Option<Decision>) -> bool {
        let (Some(Decision::Deny { standing, .. }), Terms::Limited(windows), Some(part)) =
            (decision, self.terms, self.window)
        else {
            return false;
        };
        let mut all = windows.as_slice().iter();
        let whole = all.find(|window| window.counter == part.counter);
        whole.is_some_and(|window| whole_allows(&window.limit, &standing, self.cost))
    }

    /// The source of its ruling if the charge was not decided. The rule's mode counts, not the charge's policy: a quota
    /// is enforced.
    #[cold]
    fn failure_source(&self, charge: &Charge<K>) -> Source {
        let policy = match self.rule.mode {
            Mode::Enforce => Policy::Enforce,
            Mode::Shadow | Mode::Disabled => Policy::Shadow,
        };
        let charge = Charge {
            key: (),
            limit: charge.limit,
            cost: charge.cost,
            policy,
            on_failure: charge.on_failure,
        };
        undecided_source(&charge)
    }
}

#[cfg(test)]
mod tests;
