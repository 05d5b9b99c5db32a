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
mod tests;
