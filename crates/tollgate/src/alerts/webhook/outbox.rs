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
    ///
    /// While a message is rejected the ones behind it are tried. If one of them is accepted, it is the message that the receiver does not
    /// want: it is dropped. Otherwise all of them stay, in their order.
    pub(in crate::alerts) async fn run(&self) {
        let mut backoff = BACKOFF_MIN;
        let mut rejected: Vec<u64> = Vec::new();
        loop {
            let Some(message) = self.next(&rejected) else {
                match rejected.is_empty() {
                    true => self.changed.notified().await,
                    false => tokio::select! {
                        () = self.changed.notified() => {}
                        () = wait(&mut backoff) => rejected.clear(),
                    },
                }
                continue;
            };
            let delivery = self.deliver(message.body).await;
            if delivery.error.is_none() {
                self.remove(message.number);
                rejected.drain(..).for_each(|number| self.drop_rejected(number));
                backoff = BACKOFF_MIN;
            } else if delivery.is_rejected() {
                rejected.push(message.number);
            } else {
                rejected.clear();
                wait(&mut backoff).await;
            }
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

    /// The message to try next, but for those that were rejected. One that is too old is dropped.
    fn next(&self, rejected: &[u64]) -> Option<WaitingMessage> {
        let mut state = self.state();
        while state
            .waiting
            .front()
            .is_some_and(|message| message.since.elapsed() >= KEPT)
        {
            state.waiting.pop_front();
            self.metrics.dropped.add(1);
            tracing::warn!(
                webhook = self.webhook.name,
                "an alert message could not be delivered for an hour; dropped"
            );
        }
        let mut waiting = state.waiting.iter();
        waiting.find(|message| !rejected.contains(&message.number)).cloned()
    }

    /// Removes a message. False if it was dropped meanwhile.
    fn remove(&self, number: u64) -> bool {
        let mut state = self.state();
        let before = state.waiting.len();
        state.waiting.retain(|message| message.number != number);
        state.waiting.len() < before
    }

    fn drop_rejected(&self, number: u64) {
        if self.remove(number) {
            self.metrics.dropped.add(1);
            tracing::warn!(
                webhook = self.webhook.name,
                "a receiver rejected an alert message and accepted a later one; dropped it"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits before the next try, and longer each time.
async fn wait(backoff: &mut Duration) {
    let this = *backoff;
    *backoff = (this * 2).min(BACKOFF_MAX);
    // Spread, so that a receiver of many servers does not get all retries at once.
    sleep(this / 100 * fastrand::u32(75..=125)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::{WebhookSecret, WebhookUrl};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn outbox(url: &str) -> (Arc<Outbox>, Arc<AlertMetrics>) {
        let webhook = Webhook {
            name: "ops".into(),
            url: WebhookUrl::parse(url, true).expect("a URL"),
            secret: WebhookSecret::new("0123456789abcdef").expect("long enough"),
            allow_private: true,
        };
        let metrics = Arc::new(AlertMetrics::default());
        (Arc::new(Outbox::new(webhook, Arc::clone(&metrics))), metrics)
    }

    /// Answers requests without end: those with a body that has this text with a status, and others with 200. Returns the bodies that it
    /// accepted.
    async fn receive(listener: TcpListener, text: &str, status: u16, accepted: &Mutex<Vec<String>>) {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = String::new();
            while !request.contains("\r\n\r\n{") || !request.ends_with('}') {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).await.expect("a request");
                request.push_str(std::str::from_utf8(&bytes[..read]).expect("a text"));
            }
            let body = request.rsplit("\r\n").next().unwrap_or_default();
            let status = if body.contains(text) { status } else { 200 };
            if status == 200 {
                accepted.lock().expect("no panic").push(body.to_owned());
            }
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.expect("a connection");
        }
    }

    #[tokio::test]
    async fn a_message_that_the_receiver_rejects_holds_no_other_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (outbox, metrics) = outbox(&format!("http://{address}/"));
        for (number, body) in [
            (1, r#"{"bad":1}"#),
            (2, r#"{"bad":2}"#),
            (3, r#"{"good":3}"#),
            (4, r#"{"good":4}"#),
        ] {
            outbox.push(number, Bytes::from_static(body.as_bytes()));
        }
        let accepted = Mutex::default();
        let all = async {
            while metrics.dropped.get() < 2 || metrics.delivered.get() < 2 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = receive(listener, "bad", 400, &accepted) => {}
            () = outbox.run() => {}
            () = all => {}
        }
        assert_eq!(*accepted.lock().expect("no panic"), [r#"{"good":3}"#, r#"{"good":4}"#]);
        assert_eq!(metrics.failed.get(), 2);
        assert!(outbox.state().waiting.is_empty());
    }

    #[tokio::test]
    async fn messages_that_are_all_rejected_stay_in_their_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (outbox, metrics) = outbox(&format!("http://{address}/"));
        for number in 1..=3 {
            outbox.push(number, Bytes::from_static(b"{}"));
        }
        let accepted = Mutex::default();
        let all = async {
            while metrics.failed.get() < 3 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = receive(listener, "{", 404, &accepted) => {}
            () = outbox.run() => {}
            () = all => {}
        }
        let waiting: Vec<u64> = outbox.state().waiting.iter().map(|message| message.number).collect();
        assert_eq!((waiting, metrics.dropped.get()), (vec![1, 2, 3], 0));
    }

    #[test]
    fn messages_that_wait_are_bounded_and_the_newest_stay() {
        let (outbox, metrics) = outbox("http://127.0.0.1:9/");
        for number in 1..=100 {
            outbox.push(number, Bytes::from_static(b"{}"));
        }
        let waiting: Vec<u64> = outbox.state().waiting.iter().map(|message| message.number).collect();
        assert_eq!(waiting, (69..=100).collect::<Vec<u64>>());
        assert_eq!(metrics.dropped.get(), 68);
        outbox.remove(69);
        assert_eq!(outbox.next(&[]).map(|message| message.number), Some(70));
    }
}
