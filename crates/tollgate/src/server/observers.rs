//! Verdict observers: the gate hands them every verdict, so that counting happens nowhere else.
//!
//! They are statically dispatched: the observers of a gate are a tuple, and a new one is one more element.

use super::telemetry::Protocol;
use tollgate_limiter::Direction;
use tollgate_limiter::core::rules::{Attempt, RuleSet, Verdict, WindowCount};
use tollgate_limiter::core::{Decision, Source};

/// Receives every verdict of a gate.
pub(crate) trait VerdictObserver {
    /// Looked up once per rule set, so that recording a verdict needs no search.
    type RuleState;

    /// Prepares for the verdicts of a rule set that is about to be installed.
    fn rule_state(&self, rules: &RuleSet) -> Self::RuleState;

    /// Records one verdict.
    fn record(&self, state: &Self::RuleState, event: &VerdictEvent<'_>);
}

/// One attempt and its verdict.
#[derive(Clone, Copy)]
pub(crate) struct VerdictEvent<'a> {
    /// The rules it was planned with.
    pub(crate) rules: &'a RuleSet,
    /// The attempt.
    pub(crate) attempt: &'a Attempt<'a>,
    /// Consumption or refund of its cost.
    pub(crate) direction: Direction,
    /// Its verdict.
    pub(crate) verdict: ObservedVerdict<'a>,
    /// True if the whole request is allowed, of which this may be one of several attempts.
    pub(crate) request_allowed: bool,
    /// True if the request lacks a `per` attribute of rules in its domain.
    pub(crate) lacks_key: bool,
    /// The protocol it arrived over.
    pub(crate) protocol: Protocol,
}

/// The verdict of one attempt.
#[derive(Clone, Copy)]
pub(crate) enum ObservedVerdict<'a> {
    /// Of the rules that matched.
    Rules(&'a Verdict<'a>),
    /// Of an inline limit.
    Inline {
        /// True if it allows.
        allowed: bool,
        /// The decision, if the store made one.
        decision: Option<&'a Decision>,
        /// The source of the decision.
        source: Source,
        /// The count of its window, where denied hits are counted too.
        count: Option<WindowCount>,
    },
}

impl<A, B, C, D, E> VerdictObserver for (&A, &B, &C, &D, &E)
where
    A: VerdictObserver,
    B: VerdictObserver,
    C: VerdictObserver,
    D: VerdictObserver,
    E: VerdictObserver,
{
    type RuleState = (A::RuleState, B::RuleState, C::RuleState, D::RuleState, E::RuleState);

    fn rule_state(&self, rules: &RuleSet) -> Self::RuleState {
        (
            self.0.rule_state(rules),
            self.1.rule_state(rules),
            self.2.rule_state(rules),
            self.3.rule_state(rules),
            self.4.rule_state(rules),
        )
    }

    #[inline]
    fn record(&self, state: &Self::RuleState, event: &VerdictEvent<'_>) {
        self.0.record(&state.0, event);
        self.1.record(&state.1, event);
        self.2.record(&state.2, event);
        self.3.record(&state.3, event);
        self.4.record(&state.4, event);
    }
}
