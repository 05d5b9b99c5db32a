//! Runs worked examples against the limits of this crate, as a store with one key would.

use super::{Action, ChargeOp, Expected, ExpectedDecision, ExpectedVerdict, ScenarioStep, parse};
use crate::algorithm::{LeaseId, Mark, Receipt};
use crate::{Cell, Change, Cost, Decision, Limit, Micros, Now, Retry, State};
use std::collections::HashMap;
use std::fmt;

/// Runs a file of worked examples against [`Limit`] and returns the number of cases.
///
/// # Errors
/// The line that cannot be parsed, or for every case that differs its line, the expected and the actual result.
pub fn check(text: &str) -> Result<usize, String> {
    let mut cases = 0;
    let mut differences = Vec::new();
    for scenario in parse(text)? {
        let mut key = TestKey::new(scenario.limit);
        for step in &scenario.steps {
            cases += usize::from(!matches!(step.action, Action::Edit(_)));
            if let Err(difference) = key.run(step) {
                differences.push(format!("line {} ({}): {difference}", step.line, scenario.title));
            }
        }
    }
    if differences.is_empty() {
        Ok(cases)
    } else {
        Err(differences.join("\n"))
    }
}

/// One key as a store would hold it.
struct TestKey {
    limit: Limit,
    state: Option<State>,
    charges: HashMap<String, Receipt>,
    leases: u64,
}

impl TestKey {
    fn new(limit: Limit) -> Self {
        Self {
            limit,
            state: None,
            charges: HashMap::new(),
            leases: 0,
        }
    }

    /// Runs a line with its repetitions, and stops at the first difference.
    fn run(&mut self, step: &ScenarioStep) -> Result<(), String> {
        for time in 0..step.repeat {
            let now = Now::new(step.at + Micros::new(step.interval.get() * time));
            let (expected, got) = match &step.action {
                Action::Edit(limit) => {
                    self.limit = *limit;
                    continue;
                }
                Action::Decide { cost, name, expected } => self.decide(*cost, name.as_ref(), expected, now),
                Action::Refund { cost, done } => {
                    let change = self.limit.refund(self.state.as_ref(), *cost, now);
                    (outcome_text(*done), outcome_text(self.keep(change, LeaseId::default())))
                }
                Action::Charge { op: how, name, done } => {
                    let got = self.apply_op(*how, name, now);
                    (outcome_text(*done), outcome_text(got))
                }
            };
            if got != expected {
                let repetition = match step.repeat {
                    1 => String::new(),
                    times => format!("time {} of {times}: ", time + 1),
                };
                return Err(format!("{repetition}expected {expected}, got {got}"));
            }
        }
        Ok(())
    }

    fn decide(&mut self, cost: Cost, name: Option<&String>, expected: &Expected, now: Now) -> (String, String) {
        let step = self.limit.decide(self.state.as_ref(), cost, now);
        self.leases += 1;
        let lease = LeaseId(self.leases);
        let allowed = step.decision.is_allow();
        self.keep(
            if allowed {
                step.next.or(step.repair)
            } else {
                step.repair
            },
            lease,
        );
        if let (Some(name), true) = (name, allowed) {
            let mark = step.mark;
            self.charges.insert(name.clone(), Receipt { cost, mark, lease });
        }
        match (expected, self.limit) {
            (Expected::Reply(expected), Limit::Cell(cell)) => {
                let reply = reply(&cell, &step.decision, &step.mark, cost);
                (integers(expected), integers(&reply))
            }
            (Expected::Reply(expected), _) => (integers(expected), "no reply: not a cell".to_owned()),
            (Expected::Decision(expected), _) => (expected.to_string(), expected.project(&step.decision).to_string()),
        }
    }

    fn apply_op(&mut self, op: ChargeOp, name: &str, now: Now) -> bool {
        let Some(&receipt) = self.charges.get(name) else {
            return false;
        };
        let change = match (op, self.limit, self.state.as_ref()) {
            (ChargeOp::Undo, limit, state) => limit.undo(state, &receipt, now),
            (ChargeOp::Release, Limit::Concurrency(limit), Some(State::Concurrency(leases))) => {
                limit.release(leases, receipt.lease, now).map(Change::Concurrency)
            }
            (ChargeOp::Renew, Limit::Concurrency(limit), Some(State::Concurrency(leases))) => {
                limit.renew(leases, receipt.lease, now).map(Change::Concurrency)
            }
            (ChargeOp::Release | ChargeOp::Renew, _, _) => None,
        };
        self.keep(change, receipt.lease)
    }

    fn keep(&mut self, change: Option<Change>, lease: LeaseId) -> bool {
        let Some(change) = change else { return false };
        self.limit.keep(&mut self.state, change, lease);
        true
    }
}

impl ExpectedDecision {
    /// A decision in the form of a file, with a `*` where this one has it.
    fn project(&self, decision: &Decision) -> Self {
        let standing = decision.standing();
        let verdict = match (*decision, self.verdict) {
            (Decision::Allow { .. }, ExpectedVerdict::Allow { delay: None }) => ExpectedVerdict::Allow { delay: None },
            (Decision::Allow { delay, .. }, _) => ExpectedVerdict::Allow { delay: Some(delay) },
            (Decision::Deny { .. }, ExpectedVerdict::Deny { retry: None }) => ExpectedVerdict::Deny { retry: None },
            (Decision::Deny { retry, .. }, _) => ExpectedVerdict::Deny { retry: Some(retry) },
        };
        Self {
            verdict,
            limit: standing.limit,
            remaining: self.remaining.map(|_| standing.remaining),
            reset: self.reset.map(|_| standing.reset_after),
        }
    }
}

impl fmt::Display for ExpectedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            remaining,
            reset,
            ..
        } = self;
        let (remaining, reset) = (or_wildcard(*remaining), or_wildcard(*reset));
        match self.verdict {
            ExpectedVerdict::Allow { delay } => {
                write!(
                    f,
                    "allow (limit {limit}, remaining {remaining}, reset {reset}, delay {})",
                    or_wildcard(delay)
                )
            }
            ExpectedVerdict::Deny { retry } => {
                let retry = match retry {
                    Some(Retry::After(span)) => span.to_string(),
                    Some(Retry::Unknown) => "unknown".to_owned(),
                    Some(Retry::Never) => "never".to_owned(),
                    None => "*".to_owned(),
                };
                write!(
                    f,
                    "deny (limit {limit}, remaining {remaining}, retry {retry}, reset {reset})"
                )
            }
        }
    }
}

fn or_wildcard(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "*".to_owned(), |value| value.to_string())
}

fn outcome_text(done: bool) -> String {
    if done { "done" } else { "nothing" }.to_owned()
}

fn integers(reply: &[i64; 5]) -> String {
    reply.map(|integer| integer.to_string()).join(" ")
}

/// The five integers as they go on the wire.
fn reply(cell: &Cell, decision: &Decision, mark: &Mark, cost: Cost) -> [i64; 5] {
    let reply = cell.reply(decision, mark, cost);
    let integer = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    [
        i64::from(reply.limited),
        integer(reply.limit),
        integer(reply.remaining),
        reply.retry_after_s.map_or(-1, integer),
        integer(reply.reset_after_s),
    ]
}
