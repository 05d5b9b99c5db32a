//! The state of alerts: what detectors found, the table that is shown, and the messages of each webhook.

use super::ListedAlert;
use super::anomalies::AnomalyDetector;
use super::conditions::{conditions, unknown_kinds};
use super::model::{Alert, AlertKey, AlertState, Silence};
use super::notifier::{AlertEnd, AlertMessage, Notifier, NotifyPace};
use super::observation::Observation;
use super::table::{AlertTable, DetectorKind};
use super::thresholds::ThresholdDetector;
use std::collections::BTreeMap;
use std::time::Duration;

/// Detectors, alerts, silences, and what webhooks were sent. Time is an argument: Unix time in milliseconds.
#[derive(Debug, Default)]
pub(super) struct AlertEngine {
    anomalies: AnomalyDetector,
    thresholds: ThresholdDetector,
    table: AlertTable,
    /// One for each webhook.
    notifiers: Vec<Notifier>,
    silences: Vec<Silence>,
    /// The number of the last message.
    messages: u64,
    /// The states that were passed on last, by id.
    published: BTreeMap<String, AlertState>,
}

impl AlertEngine {
    /// One that has seen nothing, for so many webhooks.
    pub(super) fn new(pace: NotifyPace, webhooks: usize) -> Self {
        Self {
            notifiers: vec![Notifier::new(pace); webhooks],
            ..Self::default()
        }
    }

    /// Takes the states of a tick, and the counts of a minute that has ended.
    pub(super) fn take(&mut self, observation: Observation, now: u64) {
        if let Some((minute, counts)) = observation.minute {
            let readings = self.anomalies.minute(minute, &counts);
            self.table.update(DetectorKind::Anomalies, readings, now);
        }
        let readings = self
            .thresholds
            .tick(&conditions(&observation.states), &unknown_kinds(&observation.states));
        self.table.update(DetectorKind::Thresholds, readings, now);
    }

    /// The number of alerts that fire.
    pub(super) fn firing(&self) -> usize {
        self.table.firing()
    }

    /// All alerts: active ones, then resolved ones, each the newest first.
    pub(super) fn list(&self, now: u64) -> Vec<ListedAlert> {
        let mut active: Vec<&Alert> = self.table.active().collect();
        active.sort_by(|one, other| (other.since, &other.id).cmp(&(one.since, &one.id)));
        let alerts = active.into_iter().chain(self.table.resolved());
        alerts.map(|alert| self.listed(alert, now)).collect()
    }

    /// Replaces the silences.
    pub(super) fn set_silences(&mut self, silences: Vec<Silence>) {
        self.silences = silences;
    }

    /// The silences that have not ended.
    pub(super) fn silences(&self, now: u64) -> Vec<Silence> {
        let lasting = self.silences.iter().filter(|silence| now < silence.until);
        lasting.cloned().collect()
    }

    /// The messages that are due: the index of the webhook, the number of the message, the message. `elapsed` is the time since the
    /// start in milliseconds, by which messages are paced.
    pub(super) fn due(&mut self, now: u64, elapsed: u64) -> Vec<(usize, u64, AlertMessage)> {
        let mut notifiers = std::mem::take(&mut self.notifiers);
        let firing = self.table.active().filter(|alert| alert.state == AlertState::Firing);
        let firing: Vec<&Alert> = firing.filter(|alert| self.is_sent(alert, now)).collect();
        let mut due = Vec::new();
        for (index, notifier) in notifiers.iter_mut().enumerate() {
            if let Some(message) = notifier.due(elapsed, &firing, |key| self.end(key, now)) {
                due.push((index, message));
            }
        }
        self.notifiers = notifiers;
        let numbers = self.messages + 1..;
        self.messages += due.len() as u64;
        due.into_iter()
            .zip(numbers)
            .map(|((index, message), number)| (index, number, message))
            .collect()
    }

    /// Goes on where the control service stopped that sent messages so far.
    pub(super) fn take_over(&mut self, elapsed: u64, since: Duration) {
        for notifier in &mut self.notifiers {
            notifier.take_over(elapsed, since);
        }
    }

    /// The end of an alert that a webhook was sent as firing.
    fn end(&self, key: &AlertKey, now: u64) -> AlertEnd<'_> {
        let is_firing = self
            .table
            .get(key)
            .is_some_and(|alert| alert.state == AlertState::Firing);
        match self.table.last_resolved(key) {
            _ if is_firing || self.silenced_until(key, now).is_some() => AlertEnd::HeldBack,
            Some(alert) if self.is_sent(alert, now) => AlertEnd::Resolved(alert),
            Some(_) => AlertEnd::HeldBack,
            None => AlertEnd::Forgotten(now),
        }
    }

    fn silenced_until(&self, key: &AlertKey, now: u64) -> Option<u64> {
        let covering = self.silences.iter().filter(|silence| silence.covers(key, now));
        covering.map(|silence| silence.until).max()
    }

    /// True if messages about an alert are sent.
    fn is_sent(&self, alert: &Alert, now: u64) -> bool {
        self.silenced_until(&alert.key, now).is_none() && !self.table.is_explained(alert, now)
    }

    fn listed(&self, alert: &Alert, now: u64) -> ListedAlert {
        ListedAlert {
            silenced_until: self.silenced_until(&alert.key, now),
            is_explained: alert.state != AlertState::Resolved && self.table.is_explained(alert, now),
            alert: alert.clone(),
        }
    }

    /// The alerts whose state is not the one that was passed on last.
    pub(super) fn changed(&mut self, now: u64) -> Vec<ListedAlert> {
        let mut changed = Vec::new();
        let mut published = BTreeMap::new();
        let resolved = self.table.resolved().take_while(|alert| alert.resolved_at == Some(now));
        for alert in self.table.active().chain(resolved) {
            if self.published.get(&alert.id) != Some(&alert.state) {
                changed.push(self.listed(alert, now));
            }
            if alert.state != AlertState::Resolved {
                published.insert(alert.id.clone(), alert.state);
            }
        }
        self.published = published;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::conditions::ObservedStates;
    use crate::alerts::model::AlertKind;

    const SECOND: u64 = 1_000;

    /// States with drift, or without.
    fn drift(holds: bool) -> ObservedStates {
        ObservedStates {
            drift_source: holds.then(|| "api".to_owned()),
            ..ObservedStates::default()
        }
    }

    /// An engine with one webhook, and the messages of it as `+kind` and `-kind`.
    struct Site {
        engine: AlertEngine,
        now: u64,
        elapsed: u64,
        sent: Vec<String>,
    }

    impl Site {
        fn new() -> Self {
            Self {
                engine: AlertEngine::new(NotifyPace::default(), 1),
                now: 1_700_000_000_000,
                elapsed: 0,
                sent: Vec::new(),
            }
        }

        /// Two minutes of these states.
        fn go_on(&mut self, states: &ObservedStates) -> &[String] {
            self.sent.clear();
            for _ in 0..24 {
                self.now += 5 * SECOND;
                self.elapsed += 5 * SECOND;
                self.engine.take(states.clone().with_minute(None), self.now);
                for (_, _, message) in self.engine.due(self.now, self.elapsed) {
                    let alerts = message.alerts.iter().map(|alert| {
                        let sign = if alert.state == AlertState::Firing { "+" } else { "-" };
                        format!("{sign}{}", alert.key.kind.name())
                    });
                    self.sent.push(alerts.collect::<Vec<_>>().join(" "));
                }
            }
            &self.sent
        }
    }

    #[test]
    fn a_silence_holds_back_the_end_too() {
        let mut site = Site::new();
        assert_eq!(site.go_on(&drift(true)), ["+drift"]);
        site.engine.set_silences(vec![Silence {
            id: "1".into(),
            kind: Some(AlertKind::Drift),
            domain: None,
            rule: None,
            subject: None,
            until: site.now + 240 * SECOND,
            reason: String::new(),
            actor: String::new(),
        }]);
        assert!(site.go_on(&drift(false)).is_empty());
        site.go_on(&drift(false));
        assert_eq!(site.go_on(&drift(false)), ["-drift"]);
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_message() {
        let mut site = Site::new();
        site.engine.take(drift(true).with_minute(None), site.now);
        assert!(site.engine.due(site.now, site.elapsed).is_empty());
        site.now -= 3_600 * SECOND;
        assert_eq!(site.go_on(&drift(true)), ["+drift"]);
        site.now -= 3_600 * SECOND;
        assert_eq!(site.go_on(&drift(false)), ["-drift"]);
    }
}
