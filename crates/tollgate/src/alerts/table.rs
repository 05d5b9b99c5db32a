//! The alerts of an instance: those that are active, and the last ones that resolved.

use super::hysteresis::AlertLevel;
use super::model::{Alert, AlertKey, AlertKind, AlertState, Reading};
use std::collections::{BTreeMap, HashSet, VecDeque};

/// Active and resolved alerts. Time is an argument: Unix time in milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct AlertTable {
    active: BTreeMap<AlertKey, Alert>,
    /// The newest last.
    resolved: VecDeque<Alert>,
}

/// The alerts that one detector reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectorKind {
    /// Anomalies of counts.
    Anomalies,
    /// Thresholds of states.
    Thresholds,
}

/// Active alerts. Further anomalies are left out: in that many, those that are there say enough. Of the others there are only a few.
pub(super) const ACTIVE_MAX: usize = 500;
/// Resolved alerts.
const RESOLVED_MAX: usize = 500;
/// An unavailable store explains other alerts for so long after it is back.
const AFTER_STORE_MS: u64 = 5 * 60_000;

impl AlertTable {
    /// Takes all readings of one detector. What it does not report any more is resolved, or forgotten if it never fired.
    pub(super) fn update(&mut self, detector: DetectorKind, readings: Vec<Reading>, now: u64) {
        let is_own = |key: &AlertKey| key.kind.is_anomaly() == (detector == DetectorKind::Anomalies);
        let present: HashSet<&AlertKey> = readings.iter().map(|reading| &reading.key).collect();
        let gone: Vec<AlertKey> = self
            .active
            .keys()
            .filter(|key| is_own(key) && !present.contains(key))
            .cloned()
            .collect();
        for key in gone {
            let Some(alert) = self.active.remove(&key) else {
                continue;
            };
            if alert.state == AlertState::Firing {
                self.resolve(alert, now);
            }
        }
        for reading in readings {
            self.take(reading, now);
        }
    }

    fn take(&mut self, reading: Reading, now: u64) {
        let state = match reading.level {
            AlertLevel::Firing => AlertState::Firing,
            AlertLevel::Pending | AlertLevel::Quiet => AlertState::Pending,
        };
        let count = self.active.len();
        let alert = match self.active.get_mut(&reading.key) {
            Some(alert) => alert,
            None if count >= ACTIVE_MAX && reading.key.kind.is_anomaly() => return,
            None => self
                .active
                .entry(reading.key.clone())
                .or_insert_with(|| Alert::new(reading.key, now)),
        };
        alert.state = state;
        alert.value = reading.value;
        alert.baseline = reading.baseline;
        alert.summary = reading.summary;
    }

    fn resolve(&mut self, alert: Alert, now: u64) {
        if self.resolved.len() >= RESOLVED_MAX {
            self.resolved.pop_front();
        }
        self.resolved.push_back(Alert {
            state: AlertState::Resolved,
            resolved_at: Some(now),
            ..alert
        });
    }

    /// The active alert of a key.
    pub(super) fn get(&self, key: &AlertKey) -> Option<&Alert> {
        self.active.get(key)
    }

    /// Pending and firing alerts.
    pub(super) fn active(&self) -> impl Iterator<Item = &Alert> {
        self.active.values()
    }

    /// Resolved alerts, the newest first.
    pub(super) fn resolved(&self) -> impl Iterator<Item = &Alert> {
        self.resolved.iter().rev()
    }

    /// The last alert of a key that resolved.
    pub(super) fn last_resolved(&self, key: &AlertKey) -> Option<&Alert> {
        self.resolved().find(|alert| alert.key == *key)
    }

    /// The number of alerts that fire.
    pub(super) fn firing(&self) -> usize {
        self.active().filter(|alert| alert.state == AlertState::Firing).count()
    }

    /// True if an alert says no more than that the store is unavailable, or was a moment ago.
    pub(super) fn is_explained(&self, alert: &Alert, now: u64) -> bool {
        let store = AlertKey::new(AlertKind::StoreUnavailable);
        let was_away = |resolved: &Alert| {
            resolved
                .resolved_at
                .is_some_and(|at| now < at.saturating_add(AFTER_STORE_MS))
        };
        alert.key.kind.follows_from_store()
            && (self.active.contains_key(&store) || self.last_resolved(&store).is_some_and(was_away))
    }
}

impl Alert {
    fn new(key: AlertKey, since: u64) -> Self {
        Self {
            // Random: one that is made from the key would show viewers which subject is behind a mask.
            id: format!("{:016x}", fastrand::u64(..)),
            key,
            state: AlertState::Pending,
            since,
            resolved_at: None,
            summary: String::new(),
            value: 0,
            baseline: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::model::AlertRule;

    fn reading(kind: AlertKind, rule: Option<&str>, level: AlertLevel) -> Reading {
        let rule = rule.map(|rule| AlertRule {
            domain: "default".into(),
            rule: rule.into(),
        });
        Reading {
            key: AlertKey::with_rule(kind, rule),
            level,
            value: 10,
            baseline: 1,
            summary: "ten".into(),
        }
    }

    #[test]
    fn an_alert_begins_fires_and_resolves_under_one_id() {
        let mut table = AlertTable::default();
        let at = |table: &mut AlertTable, level: Option<AlertLevel>, now| {
            let readings = level.map(|level| reading(AlertKind::DenialsJump, Some("plan"), level));
            table.update(DetectorKind::Anomalies, readings.into_iter().collect(), now);
        };
        at(&mut table, Some(AlertLevel::Pending), 1_000);
        at(&mut table, Some(AlertLevel::Firing), 2_000);
        // The other detector does not report it, and does not resolve it.
        table.update(DetectorKind::Thresholds, Vec::new(), 2_500);
        let firing = table.active().next().expect("it is active").clone();
        assert_eq!((firing.state, firing.since), (AlertState::Firing, 1_000));
        at(&mut table, None, 3_000);
        assert_eq!(table.active().count(), 0);
        let resolved = table.resolved().next().expect("it is resolved").clone();
        assert_eq!(
            (resolved.state, resolved.resolved_at, &resolved.id),
            (AlertState::Resolved, Some(3_000), &firing.id)
        );
        // What never fired is forgotten; what begins again is another alert.
        at(&mut table, Some(AlertLevel::Pending), 4_000);
        assert_ne!(table.active().next().expect("it is active").id, firing.id);
        at(&mut table, None, 5_000);
        assert_eq!((table.active().count(), table.resolved().count()), (0, 1));
    }

    #[test]
    fn an_unavailable_store_explains_denials_for_five_minutes_more() {
        let mut table = AlertTable::default();
        let denials = reading(AlertKind::DenialsJump, None, AlertLevel::Firing);
        table.update(DetectorKind::Anomalies, vec![denials], 0);
        let forked = reading(AlertKind::ControlForked, None, AlertLevel::Firing);
        let store = reading(AlertKind::StoreUnavailable, None, AlertLevel::Pending);
        let is_explained = |table: &AlertTable, now| {
            let explained = table.active().filter(|alert| table.is_explained(alert, now));
            explained.map(|alert| alert.key.kind).collect::<Vec<_>>()
        };
        assert_eq!(is_explained(&table, 0), []);
        table.update(DetectorKind::Thresholds, vec![forked.clone(), store.clone()], 1_000);
        assert_eq!(is_explained(&table, 1_000), [AlertKind::DenialsJump]);
        let store = Reading {
            level: AlertLevel::Firing,
            ..store
        };
        table.update(DetectorKind::Thresholds, vec![forked.clone(), store], 2_000);
        table.update(DetectorKind::Thresholds, vec![forked], 3_000);
        assert_eq!(
            is_explained(&table, 3_000 + AFTER_STORE_MS - 1),
            [AlertKind::DenialsJump]
        );
        assert_eq!(is_explained(&table, 3_000 + AFTER_STORE_MS), []);
    }

    #[test]
    fn rules_that_do_not_arrive_are_told_while_the_store_is_unavailable() {
        let mut table = AlertTable::default();
        let store = reading(AlertKind::StoreUnavailable, None, AlertLevel::Firing);
        let stale = reading(AlertKind::RulesStale, None, AlertLevel::Firing);
        table.update(DetectorKind::Thresholds, vec![store, stale], 0);
        assert!(table.active().all(|alert| !table.is_explained(alert, 0)));
    }

    #[test]
    fn it_is_bounded() {
        let mut table = AlertTable::default();
        for round in 0..3 {
            let readings = (0..2_000).map(|index| {
                let rule = format!("r{round}-{index}");
                reading(AlertKind::DenialsJump, Some(&rule), AlertLevel::Firing)
            });
            table.update(DetectorKind::Anomalies, readings.collect(), round);
            assert_eq!(table.firing(), ACTIVE_MAX);
        }
        assert_eq!(table.resolved().count(), RESOLVED_MAX);
        let store = reading(AlertKind::StoreUnavailable, None, AlertLevel::Firing);
        table.update(DetectorKind::Thresholds, vec![store.clone()], 3);
        assert_eq!(table.firing(), ACTIVE_MAX + 1);
        assert!(table.active().any(|alert| alert.key == store.key));
    }
}
