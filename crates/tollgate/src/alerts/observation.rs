//! The observation of a running instance: its counts of the last minute, and the states that thresholds are about.

use super::anomalies::{CheckCounts, MinuteCounts, RuleMinute};
use super::conditions::ObservedStates;
use super::model::AlertRule;
use crate::control::Control;
use crate::control::model::SubjectValues;
use crate::server::gate::Gate;
use crate::server::telemetry::watch::series::{Resolution, RuleName, StepCounts};
use crate::server::telemetry::watch::top::{PartRow, join};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tollgate_limiter::store::{BreakerState, StoreStatus};

/// Reads the instance, and keeps what it needs to see differences.
#[derive(Debug, Default)]
pub(super) struct Observer {
    /// The newest minute that the series have.
    minute: Option<u64>,
    /// Checks and errors since the start, at each tick of the last minute.
    errors: VecDeque<ErrorCounts>,
    /// The time since which neither the database nor the shared store tells of new rules.
    sources_unavailable_since: Option<u64>,
}

/// One observation.
#[derive(Debug)]
pub(super) struct Observation {
    /// The states.
    pub(super) states: ObservedStates,
    /// The last minute, once it has ended.
    pub(super) minute: Option<(u64, MinuteCounts)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ErrorCounts {
    checks: u64,
    errors: u64,
}

const MINUTE_MS: u64 = 60_000;
/// Ticks of a minute.
const ERROR_TICKS: usize = 12;
/// Subjects of a rule in one minute.
const TOP_MAX: usize = 20;

impl Observer {
    /// Observes the instance at a Unix time in milliseconds.
    pub(super) async fn observe(&mut self, gate: &Gate, control: &Control, now: u64) -> Observation {
        let fleet = control.recent_instances().await;
        let status = control.status();
        let store = gate.store().status();
        let control_metrics = &gate.metrics().control;
        let (checks, errors) = self.errors_of_a_minute(gate, &store);
        let is_git_only = status.edits == "git" && status.version > 0;
        let source = if is_git_only { control.live_source().await } else { None };
        let is_origin_unknown = is_git_only && source.is_none();
        let is_cache_unavailable = status.cache.as_ref().is_none_or(|cache| !cache.up);
        let is_followed = status.revision > 0 || control.options().is_managed;
        let is_unavailable = is_followed && !status.database.up && is_cache_unavailable;
        let unavailable_since = is_unavailable.then(|| *self.sources_unavailable_since.get_or_insert(now));
        self.sources_unavailable_since = unavailable_since;
        let breakers_open = fleet
            .instances
            .iter()
            .filter(|instance| instance.status.breaker == BreakerState::Open.name());
        let rejected_rows = fleet.instances.iter().map(|instance| instance.status.rejected_rows);
        let last_minute = gate.watch().series().totals(Resolution::Minute);
        let last_totals = last_minute.values.last().copied().flatten();
        ObservedStates {
            instances: fleet.instances.len(),
            store_error: store.calls.is_some() && !store.is_connected(),
            breakers_open: breakers_open.count(),
            store_p99_us: last_totals.and_then(|totals| totals.store.percentile_us(990)),
            store_deadline_us: store.round_trip.map(|round_trip| round_trip.deadline.get()),
            checks,
            errors,
            reload_failed: gate.rules_error().is_some(),
            rejected_rows: rejected_rows.max().unwrap_or(0),
            lag_seconds: control_metrics.lag_seconds.get(),
            sources_unavailable_ms: unavailable_since.map(|since| now.saturating_sub(since)),
            differ: fleet.differ,
            forked: status.forked,
            regressed: status.regressed.is_some(),
            audit_broken: control_metrics.audit_broken.get() > 0,
            drift_source: source.filter(|source| !source.starts_with("push")),
            is_fleet_unknown: fleet.error.is_some(),
            is_origin_unknown,
        }
        .with_minute(self.minute(gate))
    }

    /// The counts of the minute that the series have since the last observation; none if there is no new one, or if observations were
    /// missed.
    fn minute(&mut self, gate: &Gate) -> Option<(u64, MinuteCounts)> {
        let totals = gate.watch().series().totals(Resolution::Minute);
        let end = totals.start_ms / MINUTE_MS + totals.values.len() as u64;
        let newest = end.checked_sub(1)?;
        let before = self.minute.replace(newest);
        if before != newest.checked_sub(1) {
            return None;
        }
        // A minute without a measurement has no counts.
        let total = totals.values.last().copied().flatten()?;
        Some((newest, minute_counts(gate, newest, total_counts(&total.counts))))
    }

    /// Checks and errors of the last minute.
    fn errors_of_a_minute(&mut self, gate: &Gate, store: &StoreStatus) -> (u64, u64) {
        let totals = gate.totals();
        // A charge that was not sent because its request was denied already is no error.
        let errors = store.errors.iter().filter(|(code, _)| *code != "skipped");
        let now = ErrorCounts {
            checks: totals.allowed + totals.denied,
            errors: errors.map(|(_, count)| count).sum::<u64>() + gate.metrics().faults.all_panics(),
        };
        let before = match self.errors.len() >= ERROR_TICKS {
            true => self.errors.pop_front(),
            false => self.errors.front().copied(),
        };
        self.errors.push_back(now);
        let before = before.unwrap_or(now);
        (
            now.checks.saturating_sub(before.checks),
            now.errors.saturating_sub(before.errors),
        )
    }
}

/// The checks of all rules. A shadow denial is an allowed check, and is counted once per rule.
fn total_counts(counts: &StepCounts) -> CheckCounts {
    CheckCounts {
        checks: u64::from(counts.allowed) + u64::from(counts.denied),
        denials: counts.denied.into(),
    }
}

fn check_counts(counts: &StepCounts) -> CheckCounts {
    CheckCounts {
        checks: counts.checks(),
        denials: counts.denied.into(),
    }
}

/// The counts of the last full minute of the series.
fn minute_counts(gate: &Gate, minute: u64, total: CheckCounts) -> MinuteCounts {
    let series = gate.watch().series();
    let mut tops = top_subjects(gate, minute);
    let rules = series.tracked().into_iter().map(|name| {
        let window = series.rule(&name, Resolution::Minute);
        let last = window.values.last().copied().flatten().unwrap_or_default();
        RuleMinute {
            counts: check_counts(&last),
            top: tops.remove(&name).unwrap_or_default(),
            name: AlertRule {
                domain: name.domain,
                rule: name.rule,
            },
        }
    });
    let mut rules: Vec<RuleMinute> = rules.collect();
    rules.sort_by(|one, other| (other.counts.checks, &one.name).cmp(&(one.counts.checks, &other.name)));
    MinuteCounts { total, rules }
}

/// The subjects that each rule denied most often in a minute, with the least number of their denials.
fn top_subjects(gate: &Gate, minute: u64) -> HashMap<RuleName, Vec<(Arc<SubjectValues>, u64)>> {
    let mut parts = gate.watch().top().parts(minute, usize::MAX);
    parts.retain(|part| part.minute == minute);
    let subject = |row: PartRow| {
        let values: SubjectValues = serde_json::from_str(&row.subject).ok()?;
        Some((Arc::new(values), row.lower)).filter(|(_, denials)| *denials > 0)
    };
    // A rule that was changed meanwhile has several parts.
    let rules = join(&parts, TOP_MAX).into_iter();
    rules
        .map(|part| (part.name, part.rows.into_iter().filter_map(subject).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_denials_are_no_further_checks_in_total() {
        let counts = StepCounts {
            allowed: 7,
            denied: 2,
            shadow_denied: 21,
        };
        let total = CheckCounts { checks: 9, denials: 2 };
        assert_eq!(total_counts(&counts), total);
        // Of a rule, those that its shadow mode allowed are not among the allowed ones.
        assert_eq!(check_counts(&counts).checks, 30);
    }
}
