//! The messages of one webhook: which alerts go into the next one, and when it is due.
//!
//! Changes are collected for a while and sent as one message; an alert that goes on firing is repeated. Three bounds keep a receiver
//! readable: an alert that flaps has [`CHANGES_PER_ALERT`] changes sent per hour, a webhook so many messages as configured, and what
//! could not be sent then comes as one digest.

use super::model::{Alert, AlertKey, AlertSeverity, AlertState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Decides what one webhook is sent. Time is an argument: milliseconds since the start, on a clock that is never set back.
#[derive(Clone, Debug)]
pub(super) struct Notifier {
    pace: NotifyPace,
    sent: BTreeMap<AlertKey, SentAlert>,
    /// The time at which the first change was seen that is not sent yet.
    changed_at: Option<u64>,
    /// Times of the messages of the last hour.
    messages: VecDeque<u64>,
    /// True while messages are held back because there were too many.
    is_limited: bool,
    /// Alerts that would have been sent as firing meanwhile.
    missed: BTreeMap<AlertKey, Alert>,
}

/// The pace of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyPace {
    /// Changes within this time are one message.
    pub group: Duration,
    /// An alert that goes on firing is sent again after this time.
    pub repeat: Duration,
    /// Messages in any hour.
    pub max_per_hour: u32,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlertMessage {
    /// Its alerts, firing and resolved, the most severe first.
    pub alerts: Vec<Alert>,
    /// The number of alerts that are left for the next message.
    pub left_out: usize,
    /// True if it stands for the messages that were held back because there were too many.
    pub is_digest: bool,
}

/// The end of an alert that was sent as firing.
#[derive(Clone, Copy, Debug)]
pub(super) enum AlertEnd<'a> {
    /// It is resolved.
    Resolved(&'a Alert),
    /// It goes on, or it is held back by a silence, or by another alert that explains it.
    HeldBack,
    /// It ended before this Unix time in milliseconds, and nothing more is known of it.
    Forgotten(u64),
}

/// The messages about one alert.
#[derive(Clone, Debug)]
struct SentAlert {
    is_firing: bool,
    /// It as it was sent last.
    alert: Alert,
    /// The time of the last message: a repetition counts from it.
    last: u64,
    /// True if it is repeated at once: another control service may not have sent it.
    is_unsure: bool,
    /// Times of the messages of the last hour that said that it fires or is resolved. Repetitions are not among them.
    changes: VecDeque<u64>,
}

impl Default for NotifyPace {
    fn default() -> Self {
        Self {
            group: Duration::from_secs(30),
            repeat: Duration::from_secs(4 * 3_600),
            max_per_hour: 20,
        }
    }
}

const HOUR_MS: u64 = 3_600_000;
/// Alerts in one message; the others are in the next one.
pub(super) const ALERTS_MAX: usize = 100;
/// Alerts whose messages are known. Of firing ones there are fewer: each is active, or is soon sent as resolved.
const SENT_MAX: usize = 5_000;
/// Alerts that are kept for a digest.
const MISSED_MAX: usize = 500;
/// Changes of one alert that are sent in an hour: it fired, it resolved, it fires again. What happens then is sent when the hour is
/// over.
const CHANGES_PER_ALERT: usize = 3;

impl Notifier {
    /// A notifier that has sent nothing.
    pub(super) fn new(pace: NotifyPace) -> Self {
        Self {
            pace,
            sent: BTreeMap::new(),
            changed_at: None,
            messages: VecDeque::new(),
            is_limited: false,
            missed: BTreeMap::new(),
        }
    }

    /// Returns the message that is due, and counts it as sent.
    ///
    /// `firing` are the alerts that fire and are to be sent; `end` is asked about the others that were sent as firing.
    pub(super) fn due<'a>(
        &mut self,
        now: u64,
        firing: &[&'a Alert],
        end: impl Fn(&AlertKey) -> AlertEnd<'a>,
    ) -> Option<AlertMessage> {
        let mut alerts: Vec<Alert> = Vec::new();
        let mut is_change = false;
        for alert in firing {
            let sent = self.sent.get(&alert.key);
            let is_new = sent.is_none_or(|sent| !sent.is_firing);
            let is_repeated = sent.is_some_and(|sent| sent.is_firing && sent.is_older(now, self.pace.repeat));
            if is_repeated || (is_new && sent.is_none_or(|sent| sent.may_change(now))) {
                is_change = true;
                alerts.push((*alert).clone());
            }
        }
        for (key, sent) in &self.sent {
            let is_still_firing = firing.iter().any(|alert| alert.key == *key);
            if !sent.is_firing || is_still_firing || !sent.may_change(now) {
                continue;
            }
            let resolved = match end(key) {
                AlertEnd::HeldBack => continue,
                AlertEnd::Resolved(alert) => alert.clone(),
                AlertEnd::Forgotten(at) => resolved_at(&sent.alert, at),
            };
            is_change = true;
            alerts.push(resolved);
        }
        // What fired and ended while messages were held back is in the digest.
        self.missed.retain(|key, missed| {
            if firing.iter().any(|alert| alert.key == *key) {
                return true;
            }
            let ended = match end(key) {
                AlertEnd::HeldBack => return false,
                AlertEnd::Resolved(alert) => alert.clone(),
                AlertEnd::Forgotten(at) => resolved_at(missed, at),
            };
            is_change = true;
            if alerts.iter().all(|alert| alert.key != *key) {
                alerts.push(ended);
            }
            true
        });
        self.forget(now);
        if !is_change {
            self.is_limited = false;
            self.changed_at = None;
            return None;
        }
        let changed_at = *self.changed_at.get_or_insert(now);
        if now < changed_at.saturating_add(millis(self.pace.group)) {
            return None;
        }
        if self.messages.len() >= self.pace.max_per_hour as usize {
            self.is_limited = true;
            for alert in alerts {
                if alert.state == AlertState::Firing && self.missed.len() < MISSED_MAX {
                    self.missed.insert(alert.key.clone(), alert);
                }
            }
            return None;
        }
        self.changed_at = None;
        self.messages.push_back(now);
        alerts.sort_by_key(urgency);
        let left_out = alerts.len().saturating_sub(ALERTS_MAX);
        alerts.truncate(ALERTS_MAX);
        for alert in &alerts {
            self.missed.remove(&alert.key);
            let is_firing = alert.state == AlertState::Firing;
            let sent = self.sent.entry(alert.key.clone());
            let sent = sent.or_insert_with(|| SentAlert {
                is_firing: false,
                alert: alert.clone(),
                last: now,
                is_unsure: false,
                changes: VecDeque::new(),
            });
            sent.alert = alert.clone();
            if sent.is_firing != is_firing {
                sent.changes.push_back(now);
            }
            sent.is_firing = is_firing;
            sent.last = now;
            sent.is_unsure = false;
        }
        let is_digest = std::mem::take(&mut self.is_limited);
        Some(AlertMessage {
            alerts,
            left_out,
            is_digest,
        })
    }

    /// Goes on where another control service stopped: what this one returned was not sent, but the other one saw about the same.
    /// What fires is sent again, and so is the end of what has ended within `since`, which the other one may not have seen.
    pub(super) fn take_over(&mut self, now: u64, since: Duration) {
        for sent in self.sent.values_mut() {
            if !sent.is_firing && now < sent.last.saturating_add(millis(since)) {
                sent.is_firing = true;
                sent.changes.pop_back();
            }
            sent.is_unsure = true;
        }
        self.messages.clear();
        self.missed.clear();
        self.is_limited = false;
    }

    /// Drops times that are an hour old, and alerts that were sent as resolved and have none.
    fn forget(&mut self, now: u64) {
        let is_old = |&time: &u64| time.saturating_add(HOUR_MS) <= now;
        while self.messages.front().is_some_and(is_old) {
            self.messages.pop_front();
        }
        self.sent.retain(|_, sent| {
            while sent.changes.front().is_some_and(is_old) {
                sent.changes.pop_front();
            }
            sent.is_firing || !sent.changes.is_empty()
        });
        if self.sent.len() > SENT_MAX {
            // Those that are resolved only bound how often they are sent again.
            self.sent.retain(|_, sent| sent.is_firing);
        }
    }
}

impl SentAlert {
    fn is_older(&self, now: u64, age: Duration) -> bool {
        self.is_unsure || now >= self.last.saturating_add(millis(age))
    }

    fn may_change(&self, now: u64) -> bool {
        let recent = self.changes.iter().filter(|&&time| now < time.saturating_add(HOUR_MS));
        recent.count() < CHANGES_PER_ALERT
    }
}

/// The place of an alert in a message: anomalies, which may be many, after all others.
fn urgency(alert: &Alert) -> (Reverse<AlertSeverity>, bool, bool) {
    let kind = alert.key.kind;
    let is_over = alert.state == AlertState::Resolved;
    (Reverse(kind.severity()), kind.is_anomaly(), is_over)
}

fn resolved_at(alert: &Alert, at: u64) -> Alert {
    Alert {
        state: AlertState::Resolved,
        resolved_at: Some(at),
        ..alert.clone()
    }
}

/// A duration in whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::hysteresis::AlertLevel;
    use crate::alerts::model::{AlertKind, AlertRule, Reading};
    use crate::alerts::table::{AlertTable, DetectorKind};
    use crate::alerts::thresholds::{AlertCondition, TICK_SECONDS, ThresholdDetector};

    fn key(rule: &str) -> AlertKey {
        AlertKey::with_rule(
            AlertKind::DenialsJump,
            Some(AlertRule {
                domain: "default".into(),
                rule: rule.into(),
            }),
        )
    }

    fn end<'a>(table: &'a AlertTable, key: &AlertKey) -> AlertEnd<'a> {
        match (table.get(key), table.last_resolved(key)) {
            (Some(alert), _) if alert.state == AlertState::Firing => AlertEnd::HeldBack,
            (_, Some(alert)) => AlertEnd::Resolved(alert),
            (_, None) => AlertEnd::Forgotten(0),
        }
    }

    const SECOND: u64 = 1_000;
    const MINUTE: u64 = 60 * SECOND;

    /// A table of alerts and the notifier of one webhook.
    struct Site {
        table: AlertTable,
        notifier: Notifier,
    }

    impl Site {
        fn new() -> Self {
            Self {
                table: AlertTable::default(),
                notifier: Notifier::new(NotifyPace::default()),
            }
        }

        /// The message at a time at which these rules have an alert, as letters: `+a` fires, `-a` is resolved.
        fn at(&mut self, now: u64, rules: &[&str]) -> Option<String> {
            let readings = rules.iter().map(|rule| Reading {
                key: key(rule),
                level: AlertLevel::Firing,
                value: 1,
                baseline: 0,
                summary: String::new(),
            });
            self.table.update(DetectorKind::Anomalies, readings.collect(), now);
            let firing: Vec<&Alert> = self.table.active().collect();
            let message = self.notifier.due(now, &firing, |key| end(&self.table, key))?;
            let alerts = message.alerts.iter().map(|alert| {
                let sign = if alert.state == AlertState::Firing { '+' } else { '-' };
                format!("{sign}{}", alert.key.rule.as_ref().map_or("", |name| &name.rule))
            });
            let digest = if message.is_digest { " digest" } else { "" };
            Some(format!("{}{digest}", alerts.collect::<Vec<_>>().join(" ")))
        }
    }

    #[test]
    fn changes_of_half_a_minute_are_one_message() {
        let mut site = Site::new();
        assert_eq!(site.at(0, &["a"]), None);
        assert_eq!(site.at(20 * SECOND, &["a", "b"]), None);
        assert_eq!(site.at(30 * SECOND, &["a", "b"]).as_deref(), Some("+a +b"));
        assert_eq!(site.at(35 * SECOND, &["a", "b"]), None);
        assert_eq!(site.at(40 * SECOND, &["b", "c"]), None);
        assert_eq!(site.at(70 * SECOND, &["b", "c"]).as_deref(), Some("+c -a"));
        assert_eq!(site.at(75 * SECOND, &["b", "c"]), None);
    }

    #[test]
    fn a_storm_comes_in_several_messages_and_the_critical_alert_first() {
        let reading = |kind, rule: Option<String>| Reading {
            key: AlertKey::with_rule(
                kind,
                rule.map(|rule| AlertRule {
                    domain: "default".into(),
                    rule: rule.into(),
                }),
            ),
            level: AlertLevel::Firing,
            value: 1,
            baseline: 0,
            summary: String::new(),
        };
        let mut table = AlertTable::default();
        let mut notifier = Notifier::new(NotifyPace::default());
        let jumps = |count| (0..count).map(|rule| reading(AlertKind::ChecksJump, Some(format!("r{rule}"))));
        let mut sent = Vec::new();
        for tick in 0..120 {
            let now = tick * 5 * SECOND;
            // All begin at once, and end after five minutes.
            let (rules, states) = match now < 5 * MINUTE {
                true => (
                    130,
                    vec![reading(AlertKind::Drift, None), reading(AlertKind::ControlForked, None)],
                ),
                false => (0, Vec::new()),
            };
            table.update(DetectorKind::Anomalies, jumps(rules).collect(), now);
            table.update(DetectorKind::Thresholds, states, now);
            let firing: Vec<&Alert> = table.active().collect();
            if let Some(message) = notifier.due(now, &firing, |key| end(&table, key)) {
                let kinds = message.alerts.iter().take(3).map(|alert| alert.key.kind.name());
                sent.push((message.alerts.len(), message.left_out, kinds.collect::<Vec<_>>()));
            }
        }
        let worst = vec!["control_forked", "drift", "checks_jump"];
        let others = vec!["checks_jump"; 3];
        let expected = [
            (100, 32, worst.clone()),
            (32, 0, others.clone()),
            (100, 32, worst),
            (32, 0, others),
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn the_end_of_an_alert_is_sent_though_five_hundred_others_ended_since() {
        let mut site = Site::new();
        let names: Vec<String> = (0..450).map(|number| format!("r{number}")).collect();
        let others: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(site.at(0, &["a"]), None);
        assert_eq!(site.at(30 * SECOND, &["a"]).as_deref(), Some("+a"));
        // It ends, and is pushed out of the table before the end could be sent.
        site.at(35 * SECOND, &others);
        site.at(40 * SECOND, &[]);
        site.at(45 * SECOND, &others);
        site.at(50 * SECOND, &[]);
        assert!(site.table.last_resolved(&key("a")).is_none());
        let message = site.at(65 * SECOND, &[]);
        assert_eq!(message.as_deref(), Some("-a"));
        // Nothing of it stays behind.
        site.at(2 * 60 * MINUTE, &[]);
        assert!(site.notifier.sent.is_empty());
    }

    #[test]
    fn who_takes_over_sends_what_fires_and_what_has_just_ended() {
        let mut site = Site::new();
        // Another one sends this.
        site.at(0, &["a", "b", "c"]);
        assert_eq!(site.at(30 * SECOND, &["a", "b", "c"]).as_deref(), Some("+a +b +c"));
        site.at(10 * MINUTE, &["b", "c"]);
        site.at(11 * MINUTE, &["b", "c"]);
        site.at(20 * MINUTE, &["c"]);
        assert_eq!(site.at(20 * MINUTE + 30 * SECOND, &["c"]).as_deref(), Some("-b"));
        site.notifier
            .take_over(20 * MINUTE + 40 * SECOND, Duration::from_secs(60));
        site.at(20 * MINUTE + 40 * SECOND, &["c"]);
        let message = site.at(20 * MINUTE + 70 * SECOND, &["c"]);
        assert_eq!(message.as_deref(), Some("+c -b"));
        site.at(20 * MINUTE + 75 * SECOND, &["c"]);
        assert_eq!(site.at(22 * MINUTE, &["c"]), None);
    }

    #[test]
    fn what_is_over_before_it_was_sent_is_not_sent() {
        let mut site = Site::new();
        assert_eq!(site.at(0, &["a"]), None);
        assert_eq!(site.at(25 * SECOND, &[]), None);
        assert_eq!(site.at(40 * SECOND, &[]), None);
    }

    #[test]
    fn an_alert_that_goes_on_is_repeated_after_four_hours() {
        let mut site = Site::new();
        let mut messages = Vec::new();
        for tick in 0..=(9 * 60 * 2) {
            let now = tick * 30 * SECOND;
            if let Some(message) = site.at(now, &["a"]) {
                messages.push((now / MINUTE, message));
            }
        }
        let times: Vec<u64> = messages.iter().map(|(minute, _)| *minute).collect();
        assert_eq!(times, [0, 241, 481]);
        assert!(messages.iter().all(|(_, message)| message == "+a"));
    }

    #[test]
    fn repetitions_do_not_delay_the_end() {
        let mut site = Site::new();
        site.notifier = Notifier::new(NotifyPace {
            repeat: Duration::from_secs(5 * 60),
            ..NotifyPace::default()
        });
        let mut messages = Vec::new();
        // It fires for half an hour.
        for tick in 0..40 * 12 {
            let now = tick * 5 * SECOND;
            let rules: &[&str] = if now < 30 * MINUTE { &["a"] } else { &[] };
            if let Some(message) = site.at(now, rules) {
                messages.push((now / SECOND, message));
            }
        }
        let (end, repeated) = messages.split_last().expect("there are messages");
        assert_eq!((end.0, &*end.1), (30 * 60 + 30, "-a"));
        let times: Vec<u64> = repeated.iter().map(|(second, _)| *second).collect();
        assert_eq!(times, [30, 360, 690, 1_020, 1_350, 1_680]);
        assert!(repeated.iter().all(|(_, message)| message == "+a"));
    }

    #[test]
    fn an_alert_that_flaps_has_three_messages_an_hour() {
        let mut site = Site::new();
        let mut messages = Vec::new();
        // Six minutes with it, six without, for two hours.
        for tick in 0..2 * 720 {
            let now = tick * 5 * SECOND;
            let rules: &[&str] = if now / MINUTE % 12 < 6 { &["a"] } else { &[] };
            if let Some(message) = site.at(now, rules) {
                messages.push((now / MINUTE, message));
            }
        }
        let in_first_hour = messages.iter().filter(|(minute, _)| *minute < 60).count();
        assert_eq!(in_first_hour, 3, "{messages:?}");
        assert!(messages.len() <= 6, "{messages:?}");
        let alternates = messages.windows(2).all(|pair| pair[0].1 != pair[1].1);
        assert!(alternates, "{messages:?}");
    }

    /// Row 50.
    #[test]
    fn a_store_that_flaps_for_an_hour_has_at_most_four_messages() {
        // Seconds for which it is away, and for which it is back.
        for (away, back) in [
            (5, 5),
            (10, 20),
            (20, 10),
            (30, 60),
            (60, 240),
            (60, 320),
            (300, 300),
            (600, 600),
        ] {
            let mut detector = ThresholdDetector::default();
            let mut table = AlertTable::default();
            let mut notifier = Notifier::new(NotifyPace::default());
            let mut messages = Vec::new();
            for tick in 0..3_600 / TICK_SECONDS {
                let second = tick * TICK_SECONDS;
                let now = second * SECOND;
                let condition = AlertCondition {
                    kind: AlertKind::StoreUnavailable,
                    summary: String::new(),
                    value: 1,
                    threshold: 0,
                };
                let conditions = match second % (away + back) < away {
                    true => vec![condition],
                    false => Vec::new(),
                };
                table.update(DetectorKind::Thresholds, detector.tick(&conditions, &[]), now);
                let firing = table.active().filter(|alert| alert.state == AlertState::Firing);
                let firing: Vec<&Alert> = firing.collect();
                if notifier.due(now, &firing, |key| end(&table, key)).is_some() {
                    messages.push(second);
                }
            }
            assert!(messages.len() <= 4, "{away} s away, {back} s back: {messages:?}");
        }
    }

    #[test]
    fn after_twenty_messages_in_an_hour_one_digest_has_the_rest() {
        let mut site = Site::new();
        let names: Vec<String> = (0..60).map(|number| format!("r{number:02}")).collect();
        let mut messages = Vec::new();
        // One more alert each minute.
        for tick in 0..=(70 * 12) {
            let now = tick * 5 * SECOND;
            let count = usize::try_from(now / MINUTE + 1).unwrap_or(0).min(60);
            let rules: Vec<&str> = names.iter().take(count).map(String::as_str).collect();
            if let Some(message) = site.at(now, &rules) {
                messages.push((now / MINUTE, message));
            }
        }
        let (first, rest) = messages.split_at(20);
        assert!(first.iter().all(|(_, message)| message.len() == 4), "{first:?}");
        let (minute, digest) = rest.first().expect("a digest");
        assert_eq!(*minute, 60);
        assert!(
            digest.ends_with(" digest") && digest.split(' ').count() == 41,
            "{digest}"
        );
        assert!(rest.len() < 10, "{rest:?}");
    }

    #[test]
    fn a_digest_has_what_fired_and_ended_while_messages_were_held_back() {
        let pace = NotifyPace {
            max_per_hour: 1,
            ..NotifyPace::default()
        };
        let mut site = Site::new();
        site.notifier = Notifier::new(pace);
        let mut messages = Vec::new();
        for tick in 0..70 * 12 {
            let now = tick * 5 * SECOND;
            let rules: &[&str] = match now / MINUTE {
                0 => &["a"],
                // Ten minutes of it, and nothing for the rest of the hour.
                10..20 => &["a", "b"],
                _ => &["a"],
            };
            if let Some(message) = site.at(now, rules) {
                messages.push((now / MINUTE, message));
            }
        }
        assert_eq!(messages, [(0, "+a".to_owned()), (60, "-b digest".to_owned())]);
    }

    #[test]
    fn a_message_after_a_time_without_changes_is_no_digest() {
        let mut site = Site::new();
        site.notifier = Notifier::new(NotifyPace {
            max_per_hour: 1,
            ..NotifyPace::default()
        });
        let mut messages = Vec::new();
        for tick in 0..90 * 12 {
            let now = tick * 5 * SECOND;
            let rules: &[&str] = match now / MINUTE {
                0..30 => &["a"],
                // It ended, and fires again before that could be sent.
                30..35 => &[],
                35..80 => &["a"],
                _ => &["a", "b"],
            };
            if let Some(message) = site.at(now, rules) {
                messages.push((now / MINUTE, message));
            }
        }
        assert_eq!(messages, [(0, "+a".to_owned()), (80, "+b".to_owned())]);
    }
}
