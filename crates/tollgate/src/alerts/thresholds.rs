//! Thresholds: conditions of the store, the rules and the control plane that hold or do not, looked at every few seconds.

use super::hysteresis::{AlertLevel, Finding, Hysteresis, Persistence};
use super::model::{AlertKey, AlertKind, Reading};
use std::collections::BTreeMap;

/// Watches the conditions that are no anomalies. Its steps are [`TICK_SECONDS`] apart.
#[derive(Clone, Debug, Default)]
pub(super) struct ThresholdDetector {
    watches: BTreeMap<AlertKind, ThresholdWatch>,
}

/// A condition that holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlertCondition {
    /// Its kind.
    pub kind: AlertKind,
    /// The reason, for people, with the next step.
    pub summary: String,
    /// The measured value.
    pub value: u64,
    /// The limit it is above.
    pub threshold: u64,
}

#[derive(Clone, Debug, Default)]
struct ThresholdWatch {
    state: Hysteresis,
    /// The condition as it last held.
    last: Option<AlertCondition>,
}

/// The time between two steps.
pub(super) const TICK_SECONDS: u64 = 5;

const fn persistence(kind: AlertKind) -> Persistence {
    const MINUTE: u32 = 60 / TICK_SECONDS as u32;
    match kind {
        // A store that flaps has one alert.
        AlertKind::StoreUnavailable => Persistence::new(2, 3, 5 * MINUTE),
        // Found over a whole minute already.
        AlertKind::StoreSlow | AlertKind::Errors => Persistence::new(3, 3, 5 * MINUTE),
        // While a publish arrives, instances differ for a moment.
        AlertKind::RulesDiffer => Persistence::new(MINUTE / 2, MINUTE / 2, MINUTE),
        AlertKind::ControlForked | AlertKind::ControlRegressed => Persistence::new(1, 1, MINUTE),
        _ => Persistence::new(1, 1, 2),
    }
}

impl ThresholdDetector {
    /// Takes the conditions that hold now, and those of which that is not known, which keep their level. Returns every alert that is
    /// pending or fires.
    pub(super) fn tick(&mut self, conditions: &[AlertCondition], unknown: &[AlertKind]) -> Vec<Reading> {
        let mut readings = Vec::new();
        for (kind, _) in AlertKind::ALL {
            if kind.is_anomaly() {
                continue;
            }
            let watch = self.watches.entry(kind).or_default();
            let found = conditions.iter().find(|condition| condition.kind == kind);
            if let Some(found) = found {
                watch.last = Some(found.clone());
            }
            let level = match found {
                Some(_) => watch.state.step(Finding::Holds, persistence(kind)),
                None if unknown.contains(&kind) => watch.state.level(),
                None => watch.state.step(Finding::Gone, persistence(kind)),
            };
            match (&watch.last, level) {
                (_, AlertLevel::Quiet) => watch.last = None,
                (Some(condition), level) => readings.push(Reading {
                    key: AlertKey::new(kind),
                    level,
                    value: condition.value,
                    baseline: condition.threshold,
                    summary: condition.summary.clone(),
                }),
                (None, _) => {}
            }
        }
        readings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: AlertKind) -> AlertCondition {
        AlertCondition {
            kind,
            summary: format!("{} holds", kind.name()),
            value: 2,
            threshold: 1,
        }
    }

    /// The ticks that a condition needs to fire, and the ticks without it that resolve it.
    fn ticks(kind: AlertKind) -> (usize, usize) {
        let mut detector = ThresholdDetector::default();
        let is_firing = |readings: Vec<Reading>| {
            readings.len() == 1 && readings.iter().all(|reading| reading.level == AlertLevel::Firing)
        };
        let condition = [condition(kind)];
        let to_fire = (1..=1_000).find(|_| is_firing(detector.tick(&condition, &[])));
        let to_resolve = (1..=1_000).find(|_| detector.tick(&[], &[]).is_empty());
        (to_fire.unwrap_or(0), to_resolve.unwrap_or(0))
    }

    #[test]
    fn every_threshold_fires_and_resolves() {
        for (kind, expected) in [
            (AlertKind::StoreUnavailable, (2, 60)),
            (AlertKind::StoreSlow, (3, 60)),
            (AlertKind::Errors, (3, 60)),
            (AlertKind::RulesRejected, (1, 2)),
            (AlertKind::RulesStale, (1, 2)),
            (AlertKind::RulesDiffer, (6, 12)),
            (AlertKind::ControlForked, (1, 12)),
            (AlertKind::ControlRegressed, (1, 12)),
            (AlertKind::AuditBroken, (1, 2)),
            (AlertKind::Drift, (1, 2)),
        ] {
            assert_eq!(ticks(kind), expected, "{}", kind.name());
        }
    }

    #[test]
    fn a_store_that_flaps_keeps_one_alert() {
        let mut detector = ThresholdDetector::default();
        let mut levels = Vec::new();
        // Away for 10 s of every minute, for an hour.
        for tick in 0..720 {
            let away = [condition(AlertKind::StoreUnavailable)];
            let readings = detector.tick(if tick % 12 < 2 { &away } else { &[] }, &[]);
            levels.push(readings.first().map_or(AlertLevel::Quiet, |reading| reading.level));
        }
        levels.dedup();
        assert_eq!(levels, [AlertLevel::Pending, AlertLevel::Firing]);
    }

    #[test]
    fn an_alert_does_not_end_while_its_source_cannot_be_read() {
        let mut detector = ThresholdDetector::default();
        let drift = [condition(AlertKind::Drift)];
        let firing = detector.tick(&drift, &[]);
        assert_eq!(firing.len(), 1);
        for _ in 0..100 {
            assert_eq!(detector.tick(&[], &[AlertKind::Drift]), firing);
        }
        assert_eq!(detector.tick(&[], &[]), firing);
        assert!(detector.tick(&[], &[]).is_empty());
        // Nor does one begin.
        assert!(detector.tick(&[], &[AlertKind::Drift]).is_empty());
    }

    #[test]
    fn an_alert_keeps_the_summary_of_its_condition_until_it_resolves() {
        let mut detector = ThresholdDetector::default();
        detector.tick(&[condition(AlertKind::ControlForked)], &[]);
        let readings = detector.tick(&[], &[]);
        let expected = Reading {
            key: AlertKey::new(AlertKind::ControlForked),
            level: AlertLevel::Firing,
            value: 2,
            baseline: 1,
            summary: "control_forked holds".into(),
        };
        assert_eq!(readings, [expected]);
    }
}
