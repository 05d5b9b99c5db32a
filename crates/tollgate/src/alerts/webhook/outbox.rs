//! The messages that wait for one webhook: delivered in order, each tried for an hour.

use super::{Delivery, Webhook};
use crate::alerts::AlertMetrics;
use crate::control::database::now_ms;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// The queue of one webhook.
#[derive(Debug)]
pub(in crate::alerts) struct Outbox {
    webhook: Webhook,
    state: Mutex<OutboxState>,
    changed: Notify,
    metrics: Arc<AlertMetrics>,
}

#[derive(Debug, Default)]
struct OutboxState {
    waiting: VecDeque<WaitingMessage>,
    /// Unix time in milliseconds.
    last_delivery: Option<u64>,
    last_error: Option<String>,
}

#[derive(Clone, Debug)]
struct WaitingMessage {
    number: u64,
    body: Bytes,
    since: Instant,
}

/// Messages that wait for one webhook. With another one the oldest is dropped.
const WAITING_MAX: usize = 32;
/// A message is tried for so long.
const KEPT: Duration = Duration::from_secs(3_600);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

impl Outbox {
    pub(in crate::alerts) fn new(webhook: Webhook, metrics: Arc<AlertMetrics>) -> Self {
        Self {
            webhook,
            state: Mutex::default(),
            changed: Notify::new(),
            metrics,
        }
    }

    pub(in crate::alerts) const fn webhook(&self) -> &Webhook {
        &self.webhook
    }

    /// Appends a message.
    pub(in crate::alerts) fn push(&self, number: u64, body: Bytes) {
        let mut state = self.state();
        if state.waiting.len() >= WAITING_MAX {
            state.waiting.pop_front();
            self.metrics.dropped.add(1);
            tracing::warn!(
                webhook = self.webhook.name,
                "too many alert messages wait for a webhook; dropped the oldest"
            );
        }
        let since = Instant::now();
        state.waiting.push_back(WaitingMessage { number, body, since });
        drop(state);
        self.changed.notify_one();
    }

    /// The time of the last delivery, and the error since then.
    pub(in crate::alerts) fn last(&self) -> (Option<u64>, Option<String>) {
        let state = self.state();
        (state.last_delivery, state.last_error.clone())
    }

    /// Delivers messages without end.
    pub(in crate::alerts) async fn run(&self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let Some(message) = self.next() else {
                self.changed.notified().await;
                continue;
            };
            let delivery = self.deliver(message.body).await;
            if delivery.error.is_none() {
                self.remove(message.number);
                backoff = BACKOFF_MIN;
                continue;
            }
            // Spread, so that a receiver of many servers does not get all retries at once.
            sleep(backoff / 100 * fastrand::u32(75..=125)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Delivers one message now, and records the result.
    pub(in crate::alerts) async fn deliver(&self, body: Bytes) -> Delivery {
        let delivery = self.webhook.deliver(body, now_ms()).await;
        let mut state = self.state();
        match &delivery.error {
            None => {
                self.metrics.delivered.add(1);
                state.last_delivery = Some(now_ms());
                state.last_error = None;
            }
            Some(error) => {
                self.metrics.failed.add(1);
                if state.last_error.is_none() {
                    let webhook = &self.webhook.name;
                    tracing::warn!(
                        webhook,
                        error,
                        "an alert message was not delivered; trying again for an hour"
                    );
                }
                state.last_error = Some(error.clone());
            }
        }
        drop(state);
        delivery
    }

    /// The message to try next. One that is too old is dropped.
    fn next(&self) -> Option<WaitingMessage> {
        let mut state = self.state();
        while let Some(message) = state.waiting.front() {
            if message.since.elapsed() < KEPT {
                return Some(message.clone());
            }
            state.waiting.pop_front();
            self.metrics.dropped.add(1);
            tracing::warn!(
                webhook = self.webhook.name,
                "an alert message could not be delivered for an hour; dropped"
            );
        }
        None
    }

    fn remove(&self, number: u64) {
        self.state().waiting.retain(|message| message.number != number);
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_wait_are_bounded_and_the_newest_stay() {
        let webhook = Webhook::sample("https://hooks.example/", "0123456789abcdef");
        let metrics = Arc::new(AlertMetrics::default());
        let outbox = Outbox::new(webhook, Arc::clone(&metrics));
        for number in 1..=100 {
            outbox.push(number, Bytes::from_static(b"{}"));
        }
        let waiting: Vec<u64> = outbox.state().waiting.iter().map(|message| message.number).collect();
        assert_eq!(waiting, (69..=100).collect::<Vec<u64>>());
        assert_eq!(metrics.dropped.get(), 68);
        outbox.remove(69);
        assert_eq!(outbox.next().map(|message| message.number), Some(70));
    }
}
