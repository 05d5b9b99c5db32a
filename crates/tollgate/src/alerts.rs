//! Alerts: conditions that an operator should know of, found in counts and states, and sent to webhooks.
//!
//! Detectors are pure: counts and conditions go in with the time, readings come out. [`Alerts`] feeds them every few seconds, on the
//! runtime of the control plane. Nothing here is on the path of a decision.

mod anomalies;
mod baseline;
mod conditions;
mod engine;
mod hysteresis;
mod model;
mod notifier;
mod observation;
mod sender_lease;
mod series;
mod table;
mod thresholds;
mod webhook;

pub use anomalies::{AnomalyDetector, CheckCounts, MinuteCounts, RuleMinute};
pub use hysteresis::AlertLevel;
pub use model::{Alert, AlertKey, AlertKind, AlertRule, AlertSeverity, AlertState, Reading, Silence};
pub use notifier::NotifyPace;
pub use webhook::{Delivery, Webhook, WebhookSecret, WebhookUrl};

use self::engine::AlertEngine;
use self::notifier::{AlertMessage, millis};
use self::observation::{Observation, Observer};
use self::sender_lease::SenderLease;
use self::thresholds::TICK_SECONDS;
use self::webhook::{Envelope, Outbox, render};
use crate::config::{AlertSettings, SubjectDisplay};
use crate::control::database::{StoredSilence, now_ms};
use crate::control::model::Author;
use crate::control::{Control, ControlResult};
use crate::server::gate::Gate;
use crate::server::telemetry::AlertMetrics;
use futures_util::future::{join, join_all};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};

/// The alerts of one instance. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Alerts {
    parts: Arc<AlertParts>,
}

/// Everything that alerts are started with.
#[derive(Clone, Debug, Default)]
pub struct AlertOptions {
    /// The settings.
    pub settings: AlertSettings,
    /// Subjects in messages: as viewers see them.
    pub subjects: SubjectDisplay,
    /// The URL of the admin API, for messages; may be empty.
    pub external_url: String,
}

/// An alert with what holds its messages back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedAlert {
    /// The alert.
    pub alert: Alert,
    /// Unix time in milliseconds until which it is silenced; none: it is not.
    pub silenced_until: Option<u64>,
    /// True if an unavailable store explains it.
    pub is_explained: bool,
}

/// The state of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookStatus {
    /// Its name.
    pub name: String,
    /// Unix time in milliseconds of the last delivery; none yet.
    pub last_delivery: Option<u64>,
    /// The error since then.
    pub last_error: Option<String>,
}

#[derive(Debug)]
struct AlertParts {
    gate: Arc<Gate>,
    control: Control,
    options: AlertOptions,
    outboxes: Vec<Arc<Outbox>>,
    state: Mutex<AlertEngine>,
    /// The start of the time by which messages are paced.
    started: Instant,
    /// States of alerts as they change.
    changes: broadcast::Sender<Arc<ListedAlert>>,
}

const TICK_MS: u64 = TICK_SECONDS * 1_000;
/// Changes that a slow listener may be behind.
const CHANGES_MAX: usize = 64;

impl Alerts {
    /// Alerts that have seen nothing.
    pub fn new(gate: Arc<Gate>, control: Control, options: AlertOptions) -> Self {
        let metrics = &gate.metrics().alerts;
        let webhooks = options.settings.webhooks.iter();
        let outboxes: Vec<Arc<Outbox>> = webhooks
            .map(|webhook| Arc::new(Outbox::new(webhook.clone(), Arc::clone(metrics))))
            .collect();
        let state = AlertEngine::new(options.settings.pace, outboxes.len());
        Self {
            parts: Arc::new(AlertParts {
                gate,
                control,
                options,
                outboxes,
                state: Mutex::new(state),
                started: Instant::now(),
                changes: broadcast::Sender::new(CHANGES_MAX),
            }),
        }
    }

    /// Looks at counts and states every few seconds, and delivers messages, without end.
    pub async fn run(&self) {
        let outboxes = self.parts.outboxes.iter().map(|outbox| outbox.run());
        join(self.watch(), join_all(outboxes)).await;
    }

    async fn watch(&self) {
        let mut observer = Observer::default();
        let mut lease = SenderLease::default();
        let mut was_sending = true;
        loop {
            // At full seconds of the clock, so that a minute ends with a tick.
            sleep(Duration::from_millis(TICK_MS - now_ms() % TICK_MS)).await;
            let now = now_ms();
            let may_send = !self.parts.outboxes.is_empty() && self.may_send(&mut lease).await;
            self.reload_silences().await;
            let observation = observer.observe(&self.parts.gate, &self.parts.control, now).await;
            self.parts.take(observation, now);
            let elapsed = millis(self.parts.started.elapsed());
            if may_send && !was_sending {
                self.parts.state().take_over(elapsed, SenderLease::LENGTH * 2);
            }
            was_sending = may_send;
            let due = self.parts.state().due(now, elapsed);
            // The others only keep track of what the one that sends has sent.
            if may_send {
                self.send(due).await;
            }
        }
    }

    /// Reads the silences that all control services share. While the database is away, those that are known stay.
    async fn reload_silences(&self) {
        if let Some(stored) = self.parts.control.silences().await {
            let parsed = stored
                .iter()
                .filter_map(|silence| serde_json::from_str(&silence.body).ok());
            self.parts.state().set_silences(parsed.collect());
        }
    }

    async fn may_send(&self, lease: &mut SenderLease) -> bool {
        let held = self
            .parts
            .control
            .hold_lease(SenderLease::NAME, SenderLease::LENGTH)
            .await;
        lease.may_send(held, Instant::now())
    }

    /// Puts messages into the outboxes.
    async fn send(&self, due: Vec<(usize, u64, AlertMessage)>) {
        if due.is_empty() {
            return;
        }
        let envelope = self.envelope().await;
        for (index, number, message) in due {
            if let Some(outbox) = self.parts.outboxes.get(index) {
                outbox.push(number, render(outbox.webhook(), &message, &envelope));
            }
        }
    }

    async fn envelope(&self) -> Envelope {
        let control = &self.parts.control;
        let status = control.status();
        let audit_end = control.audit_end().await;
        Envelope {
            instance: status.instance,
            external_url: self.parts.options.external_url.clone(),
            rules_version: status.version,
            epoch: status.epoch,
            revision: status.revision,
            audit_end: audit_end.map(|(seq, hash)| (seq, hash.to_string())),
            subjects: self.parts.options.subjects,
            is_test: false,
        }
    }

    /// All alerts: active ones, then resolved ones, each the newest first.
    pub fn list(&self) -> Vec<ListedAlert> {
        let now = now_ms();
        let state = self.parts.state();
        state.list(now)
    }

    /// The states of alerts as they change.
    pub fn changes(&self) -> broadcast::Receiver<Arc<ListedAlert>> {
        self.parts.changes.subscribe()
    }

    /// Subjects in messages and events.
    pub fn subjects(&self) -> SubjectDisplay {
        self.parts.options.subjects
    }

    /// The webhooks of the settings.
    pub fn webhooks(&self) -> Vec<WebhookStatus> {
        let status = |outbox: &Arc<Outbox>| {
            let (last_delivery, last_error) = outbox.last();
            WebhookStatus {
                name: outbox.webhook().name.clone(),
                last_delivery,
                last_error,
            }
        };
        self.parts.outboxes.iter().map(status).collect()
    }

    /// Sends a message without alerts to a webhook now. None: there is no such webhook.
    pub async fn test(&self, name: &str) -> Option<Delivery> {
        let mut outboxes = self.parts.outboxes.iter();
        let outbox = outboxes.find(|outbox| outbox.webhook().name == name)?;
        let message = AlertMessage {
            alerts: Vec::new(),
            left_out: 0,
            is_digest: false,
        };
        let envelope = Envelope {
            is_test: true,
            ..self.envelope().await
        };
        Some(outbox.deliver(render(outbox.webhook(), &message, &envelope)).await)
    }

    /// The silences that have not ended.
    pub fn silences(&self) -> Vec<Silence> {
        let now = now_ms();
        self.parts.state().silences(now)
    }

    /// Adds a silence, for all control services.
    ///
    /// # Errors
    /// No database, or it does not answer, or there are too many silences.
    pub async fn add_silence(&self, silence: &Silence, author: &Author) -> ControlResult<()> {
        let stored = StoredSilence {
            id: silence.id.clone(),
            body: serde_json::to_string(silence).unwrap_or_default(),
            until: silence.until,
        };
        let database = self.parts.control.writable_database().await?;
        database.add_silence(stored, author).await?;
        self.reload_silences().await;
        Ok(())
    }

    /// Ends a silence.
    ///
    /// # Errors
    /// No database, or it does not answer, or there is no such silence.
    pub async fn delete_silence(&self, id: &str, author: &Author) -> ControlResult<()> {
        let database = self.parts.control.writable_database().await?;
        database.delete_silence(id, author).await?;
        self.reload_silences().await;
        Ok(())
    }
}

impl AlertParts {
    fn state(&self) -> MutexGuard<'_, AlertEngine> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the states of a tick, and the counts of a minute that has ended.
    fn take(&self, observation: Observation, now: u64) {
        let mut state = self.state();
        state.take(observation, now);
        let metrics = &self.gate.metrics().alerts;
        metrics.firing.set(state.firing() as u64);
        for change in state.changed(now) {
            // Without a listener nobody misses it.
            let _ = self.changes.send(Arc::new(change));
        }
    }
}
