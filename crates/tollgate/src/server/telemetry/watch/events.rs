//! Events of the streams, with those of the last minute for clients that connect again.

use super::live::SampledDecision;
use super::series::StepTotals;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;
use tollgate_limiter::clock::Clock;

/// An event.
#[derive(Clone, Debug)]
pub(crate) enum WatchEvent {
    /// The totals of one second.
    Totals {
        /// The Unix second.
        second: u64,
        /// Its totals.
        totals: Box<StepTotals>,
    },
    /// A sampled decision.
    Decision(Box<SampledDecision>),
    /// Another revision of the managed rules is active.
    Revision(RevisionEvent),
    /// The state of an alert changed.
    Alert {
        /// Its domain; none: of no domain.
        domain: Option<String>,
        /// True if it tells counts of all domains.
        is_total: bool,
        /// The alert as the API has it.
        item: serde_json::Value,
    },
}

/// Another revision of the managed rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RevisionEvent {
    /// Unix time in milliseconds.
    pub(crate) at: u64,
    /// The epoch.
    pub(crate) epoch: u64,
    /// The revision.
    pub(crate) revision: u64,
    /// The version in use.
    pub(crate) version: u64,
    /// `publish`, `rollback`, `row` or `attribute`.
    pub(crate) kind: String,
    /// The principal; empty if it is not known.
    pub(crate) actor: String,
    /// The reason that was given.
    pub(crate) text: String,
    /// The domain, if it is about one only.
    pub(crate) domain: Option<String>,
}

/// An event with its number.
#[derive(Clone, Debug)]
pub(crate) struct LoggedEvent {
    /// Its number. Those of a later start are higher.
    pub(crate) id: u64,
    /// Unix time in milliseconds.
    pub(crate) at: u64,
    /// The event.
    pub(crate) event: WatchEvent,
}

/// The events of the last minute, and those to come.
#[derive(Debug)]
pub(crate) struct EventLog {
    recent: Mutex<RecentEvents>,
    sender: broadcast::Sender<Arc<LoggedEvent>>,
}

#[derive(Debug, Default)]
struct RecentEvents {
    last: u64,
    events: VecDeque<Arc<LoggedEvent>>,
}

/// The events of one client.
#[derive(Debug)]
pub(crate) struct EventReader {
    /// Those it has missed.
    pub(crate) missed: Vec<Arc<LoggedEvent>>,
    /// True if it has missed others, which are gone.
    pub(crate) has_gap: bool,
    /// Those to come. A client that falls behind by more than [`BEHIND_MAX`] loses some.
    pub(crate) coming: broadcast::Receiver<Arc<LoggedEvent>>,
    /// The number of the last event so far.
    pub(crate) last: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        Self {
            recent: Mutex::default(),
            sender: broadcast::Sender::new(BEHIND_MAX),
        }
    }
}

impl EventLog {
    /// Sends an event to all streams.
    pub(crate) fn publish(&self, event: WatchEvent) {
        self.publish_at(Clock::wall().now().as_micros() / 1_000, event);
    }

    fn publish_at(&self, now_ms: u64, event: WatchEvent) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbers begin at the time, so that those of an earlier start are known to be old.
        recent.last = if recent.last == 0 { now_ms } else { recent.last + 1 };
        let logged = Arc::new(LoggedEvent {
            id: recent.last,
            at: now_ms,
            event,
        });
        recent.events.push_back(Arc::clone(&logged));
        let is_old = |event: &Arc<LoggedEvent>| now_ms.saturating_sub(event.at) > REPLAY_MS;
        while recent.events.len() > EVENTS_MAX || recent.events.front().is_some_and(is_old) {
            recent.events.pop_front();
        }
        // Under the lock, so that events arrive in the order of their numbers. Without a stream there is no receiver.
        let _ = self.sender.send(logged);
    }

    /// The events after a number, and those to come.
    pub(crate) fn read_after(&self, last_seen: Option<u64>) -> EventReader {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let coming = self.sender.subscribe();
        let Some(last_seen) = last_seen else {
            return EventReader {
                missed: Vec::new(),
                has_gap: false,
                coming,
                last: recent.last,
            };
        };
        let oldest = recent.events.front().map_or(recent.last + 1, |event| event.id);
        let has_gap = last_seen > recent.last || last_seen + 1 < oldest;
        let later = recent.events.iter().filter(|event| !has_gap && event.id > last_seen);
        EventReader {
            missed: later.cloned().collect(),
            has_gap,
            coming,
            last: recent.last,
        }
    }
}

/// Events that a client may be behind.
pub(crate) const BEHIND_MAX: usize = 64;
const REPLAY_MS: u64 = 60_000;
/// Twenty decisions a second for a minute, and the others.
const EVENTS_MAX: usize = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: u64) -> WatchEvent {
        WatchEvent::Revision(RevisionEvent {
            revision,
            ..RevisionEvent::default()
        })
    }

    #[test]
    fn events_of_the_last_minute_are_read_again() {
        let log = EventLog::default();
        for number in 0..100 {
            log.publish_at(1_000_000 + 1_000 * number, event(number));
        }
        let reader = log.read_after(Some(1_000_097));
        assert_eq!(
            reader.missed.iter().map(|event| event.id).collect::<Vec<_>>(),
            [1_000_098, 1_000_099]
        );
        assert!(!reader.has_gap);
        assert!(log.read_after(Some(1_000_099)).missed.is_empty());
        let oldest = log.read_after(Some(1_000_038));
        assert_eq!((oldest.missed.len(), oldest.has_gap), (61, false));
        for unknown in [0, 1_000_037, 1_000_100, u64::MAX] {
            let reader = log.read_after(Some(unknown));
            assert!(reader.missed.is_empty() && reader.has_gap, "{unknown}");
        }
        let new = log.read_after(None);
        assert_eq!((new.missed.len(), new.has_gap, new.last), (0, false, 1_000_099));
    }

    #[test]
    fn events_are_bounded_and_a_reader_that_is_behind_is_told_so() {
        let log = EventLog::default();
        let mut reader = log.read_after(None);
        for number in 0..2_000 {
            log.publish_at(1_000_000, event(number));
        }
        assert_eq!(log.recent.lock().unwrap().events.len(), EVENTS_MAX);
        let lagged = reader.coming.try_recv().expect_err("it is behind");
        assert_eq!(
            lagged,
            broadcast::error::TryRecvError::Lagged(2_000 - BEHIND_MAX as u64)
        );
        assert_eq!(
            reader.coming.try_recv().unwrap().id,
            1_000_000 + 2_000 - BEHIND_MAX as u64
        );
    }
}
