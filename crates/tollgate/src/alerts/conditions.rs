//! The thresholds: which of the observed states are conditions that an operator should know of.

use super::anomalies::MinuteCounts;
use super::model::AlertKind;
use super::observation::Observation;
use super::thresholds::AlertCondition;

/// The states of an instance and its fleet at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedStates {
    /// Live instances.
    pub(super) instances: usize,
    /// True while a shared store cannot be reached from here.
    pub(super) store_error: bool,
    /// Instances whose circuit breaker is open.
    pub(super) breakers_open: usize,
    /// The time that 99 % of the calls of the last minute did not exceed.
    pub(super) store_p99_us: Option<u64>,
    pub(super) store_deadline_us: Option<u64>,
    /// Checks of the last minute, and those among them that met an error.
    pub(super) checks: u64,
    pub(super) errors: u64,
    /// True while rules that were read cannot be used.
    pub(super) reload_failed: bool,
    /// The most rows that an instance cannot use.
    pub(super) rejected_rows: usize,
    /// The age of the newest state that is not applied.
    pub(super) lag_seconds: u64,
    /// The time since which no source of managed rules answers.
    pub(super) sources_unavailable_ms: Option<u64>,
    pub(super) differ: bool,
    pub(super) forked: bool,
    pub(super) regressed: bool,
    pub(super) audit_broken: bool,
    /// The origin of the live version, where only pushes are expected and it is another.
    pub(super) drift_source: Option<String>,
    /// True while the other instances cannot be seen: what is known is that of this one.
    pub(super) is_fleet_unknown: bool,
    /// True while the origin of the live version cannot be read.
    pub(super) is_origin_unknown: bool,
}

/// One in so many checks may meet an error.
const ERROR_RATIO: u64 = 100;
/// Fewer errors in a minute are no alert.
const ERRORS_MIN: u64 = 10;
const LAG_SECONDS_MAX: u64 = 60;
const SOURCES_UNAVAILABLE_MS_MAX: u64 = 5 * 60_000;

impl ObservedStates {
    /// The observation of these states with the counts of a minute.
    pub(super) fn with_minute(self, minute: Option<(u64, MinuteCounts)>) -> Observation {
        Observation { states: self, minute }
    }
}

/// The kinds of which it is not known whether their condition holds, unless it was found. The others of them may go on.
pub(super) fn unknown_kinds(states: &ObservedStates) -> Vec<AlertKind> {
    let of_fleet = [
        AlertKind::StoreUnavailable,
        AlertKind::RulesRejected,
        AlertKind::RulesDiffer,
    ];
    let of_fleet = of_fleet.into_iter().filter(|_| states.is_fleet_unknown);
    of_fleet
        .chain(states.is_origin_unknown.then_some(AlertKind::Drift))
        .collect()
}

/// The conditions that hold.
pub(super) fn conditions(states: &ObservedStates) -> Vec<AlertCondition> {
    let mut conditions = Vec::new();
    let mut add = |kind, value: u64, threshold: u64, summary: String| {
        conditions.push(AlertCondition {
            kind,
            summary,
            value,
            threshold,
        });
    };
    if states.breakers_open > 0 || states.store_error {
        let summary = match states.breakers_open {
            0 => "the shared store cannot be reached; limits follow on_store_failure".to_owned(),
            open => format!(
                "the circuit breaker of the shared store is open on {open} of {} instances; limits follow on_store_failure",
                states.instances
            ),
        };
        add(
            AlertKind::StoreUnavailable,
            states.breakers_open.max(1) as u64,
            0,
            summary,
        );
    }
    if let (Some(p99_us), Some(deadline_us)) = (states.store_p99_us, states.store_deadline_us)
        && p99_us > deadline_us / 2
    {
        let summary = format!(
            "1 % of the calls to the shared store take {} or longer; their deadline is {}",
            time_text(p99_us),
            time_text(deadline_us)
        );
        add(AlertKind::StoreSlow, p99_us, deadline_us / 2, summary);
    }
    if states.errors >= ERRORS_MIN && states.errors.saturating_mul(ERROR_RATIO) > states.checks {
        let summary = format!(
            "{} of {} checks in a minute met an error; see the log",
            states.errors, states.checks
        );
        add(AlertKind::Errors, states.errors, states.checks / ERROR_RATIO, summary);
    }
    if states.reload_failed {
        let summary = "newer rules cannot be used, so the previous ones stay; see /readyz and the log".to_owned();
        add(AlertKind::RulesRejected, 1, 0, summary);
    } else if states.rejected_rows > 0 {
        let summary = format!("{} override rows cannot be used; see /v1/status", states.rejected_rows);
        add(AlertKind::RulesRejected, states.rejected_rows as u64, 0, summary);
    }
    if states.lag_seconds > LAG_SECONDS_MAX {
        let lag = states.lag_seconds;
        let summary = format!("newer rules are known for {lag} s and not applied; see /readyz and the log");
        add(AlertKind::RulesStale, lag, LAG_SECONDS_MAX, summary);
    } else if let Some(unavailable_ms) = states
        .sources_unavailable_ms
        .filter(|unavailable_ms| *unavailable_ms >= SOURCES_UNAVAILABLE_MS_MAX)
    {
        let seconds = unavailable_ms / 1_000;
        let summary = format!(
            "neither the database nor the shared store has answered for {seconds} s; changes of rules do not arrive"
        );
        add(
            AlertKind::RulesStale,
            seconds,
            SOURCES_UNAVAILABLE_MS_MAX / 1_000,
            summary,
        );
    }
    if states.differ {
        let instances = states.instances;
        let summary =
            format!("{instances} instances do not all have the same rules; compare their digests in /v1/instances");
        add(AlertKind::RulesDiffer, instances as u64, 0, summary);
    }
    for (holds, kind, summary) in [
        (
            states.forked,
            AlertKind::ControlForked,
            "the database has another history than this instance, which keeps its rules; run `tollgate control adopt`",
        ),
        (
            states.regressed,
            AlertKind::ControlRegressed,
            "the database is behind what was seen of it, so it is not written; run `tollgate control adopt`",
        ),
        (
            states.audit_broken,
            AlertKind::AuditBroken,
            "the audit log does not verify; run `tollgate audit --verify`",
        ),
    ] {
        if holds {
            add(kind, 1, 0, summary.to_owned());
        }
    }
    if let Some(source) = &states.drift_source {
        let origin = source.split(' ').next().unwrap_or_default();
        let summary =
            format!("the live rules are not those of the repository: made by `{origin}`; push to replace them");
        add(AlertKind::Drift, 1, 0, summary);
    }
    conditions
}

/// A time as people write it, rounded down: `800 µs`, `5.3 ms`, `40 ms`.
fn time_text(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 if !(us / 100).is_multiple_of(10) => format!("{}.{} ms", us / 1_000, us / 100 % 10),
        _ => format!("{} ms", us / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(states: ObservedStates, expected: &[(AlertKind, u64, u64)]) {
        let found = conditions(&states);
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.kind, found.value, found.threshold))
            .collect();
        assert_eq!(found, expected, "{states:?}");
    }

    #[test]
    fn times_are_written_for_people() {
        for (us, text) in [
            (800, "800 µs"),
            (1_000, "1 ms"),
            (5_834, "5.8 ms"),
            (10_000, "10 ms"),
            (25_600, "25 ms"),
        ] {
            assert_eq!(time_text(us), text);
        }
    }

    #[test]
    fn each_state_beyond_its_limit_is_a_condition() {
        let usual = ObservedStates {
            instances: 3,
            store_p99_us: Some(12_500),
            store_deadline_us: Some(25_000),
            checks: 2_000,
            errors: 20,
            lag_seconds: 60,
            sources_unavailable_ms: Some(SOURCES_UNAVAILABLE_MS_MAX - 1),
            ..ObservedStates::default()
        };
        check(usual.clone(), &[]);
        let with = |change: fn(&mut ObservedStates)| {
            let mut states = usual.clone();
            change(&mut states);
            states
        };
        for (change, expected) in [
            (
                (|states: &mut ObservedStates| states.store_error = true) as fn(&mut ObservedStates),
                (AlertKind::StoreUnavailable, 1, 0),
            ),
            (|states| states.breakers_open = 2, (AlertKind::StoreUnavailable, 2, 0)),
            (
                |states| states.store_p99_us = Some(12_501),
                (AlertKind::StoreSlow, 12_501, 12_500),
            ),
            (|states| states.errors = 21, (AlertKind::Errors, 21, 20)),
            (|states| states.reload_failed = true, (AlertKind::RulesRejected, 1, 0)),
            (|states| states.rejected_rows = 4, (AlertKind::RulesRejected, 4, 0)),
            (|states| states.lag_seconds = 61, (AlertKind::RulesStale, 61, 60)),
            (
                |states| states.sources_unavailable_ms = Some(301_000),
                (AlertKind::RulesStale, 301, 300),
            ),
            (|states| states.differ = true, (AlertKind::RulesDiffer, 3, 0)),
            (|states| states.forked = true, (AlertKind::ControlForked, 1, 0)),
            (|states| states.regressed = true, (AlertKind::ControlRegressed, 1, 0)),
            (|states| states.audit_broken = true, (AlertKind::AuditBroken, 1, 0)),
            (
                |states| states.drift_source = Some("api".into()),
                (AlertKind::Drift, 1, 0),
            ),
        ] {
            check(with(change), &[expected]);
        }
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let mut states = ObservedStates::default();
        assert_eq!(unknown_kinds(&states), []);
        states.is_origin_unknown = true;
        assert_eq!(unknown_kinds(&states), [AlertKind::Drift]);
        states.is_fleet_unknown = true;
        let kinds = unknown_kinds(&states);
        assert!(kinds.contains(&AlertKind::RulesDiffer) && kinds.contains(&AlertKind::StoreUnavailable));
        assert!(!kinds.contains(&AlertKind::StoreSlow));
    }

    #[test]
    fn a_few_errors_are_no_alert() {
        let states = |checks, errors| ObservedStates {
            checks,
            errors,
            ..ObservedStates::default()
        };
        check(states(0, 9), &[]);
        check(states(0, 10), &[(AlertKind::Errors, 10, 0)]);
        check(states(100, 10), &[(AlertKind::Errors, 10, 1)]);
        check(states(1_000, 10), &[]);
    }

    #[test]
    fn no_summary_quotes_a_rule_or_a_reason() {
        let states = ObservedStates {
            drift_source: Some("rollback hunter2".into()),
            ..ObservedStates::default()
        };
        assert!(
            !conditions(&states)
                .iter()
                .any(|condition| condition.summary.contains("hunter2"))
        );
    }
}
