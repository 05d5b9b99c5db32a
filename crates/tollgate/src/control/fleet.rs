//! The fleet: the status that each instance reports, the view of all of them, and departure.
//!
//! Instances see each other through the shared store, with a code on every value; without one, through a PostgreSQL
//! database. An instance with neither is alone. `control/fleet/prepare.rs` asks all of them to compile a set before it is live,
//! `control/fleet/voter.rs` answers.

mod figures;
mod link;
pub(super) mod prepare;
#[cfg(test)]
mod tests;
mod voter;

pub(super) use self::figures::report_figures;
pub(super) use self::link::statuses;
pub(super) use self::voter::vote;

use self::figures::FleetFigures;
use self::link::{LinkError, write_status};
use super::Control;
use super::database::now_ms;
use super::layers::ControlParts;
use super::model::Digest;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// The status that an instance reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// The version of the program.
    pub program: String,
    /// The newest format of rules and rows that it reads.
    pub formats: u32,
    /// The database it follows; empty: none yet.
    pub database_id: String,
    /// The epoch.
    pub epoch: u64,
    /// The revision that is applied.
    pub revision: u64,
    /// The version in use.
    pub version: u64,
    /// The chain at the revision.
    pub chain: Digest,
    /// The digest of all layers.
    pub digest: Digest,
    /// The kind of its store.
    pub store: String,
    /// The state of the store's circuit breaker.
    pub breaker: String,
    /// Rows that it cannot use.
    pub rejected_rows: usize,
    /// True while it waits for rules.
    pub waiting: bool,
    /// The reason why the newest state is not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True once it has left: it is not waited for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// Unix time in milliseconds, by its own clock.
    pub at: u64,
    /// The set that it asks others to compile, where there is no shared store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) preparing: Option<PrepareRequest>,
    /// Its last vote, where there is no shared store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) vote: Option<Vote>,
    /// The result of its last vote, for people: without the problems, which quote rules that are live nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_vote: Option<LastVote>,
}

/// The result of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastVote {
    /// The digest of the set.
    pub digest: Digest,
    /// True if it can be used.
    pub ok: bool,
    /// Unix time in milliseconds.
    pub at: u64,
}

/// A set that all instances are to compile before it is live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PrepareRequest {
    /// Random: a vote for an earlier request does not count for this one.
    pub(super) id: String,
    /// The instance that asks.
    pub(super) from: String,
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) digest: Digest,
}

/// The answer of an instance to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vote {
    /// The id of the request.
    pub(super) request: String,
    pub(super) epoch: u64,
    pub(super) digest: Digest,
    /// The reasons why the set cannot be used; none: it is compiled.
    #[serde(default)]
    pub(super) problems: Vec<String>,
}

/// An instance as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetInstance {
    /// Its id.
    pub id: String,
    /// Its status.
    #[serde(flatten)]
    pub status: InstanceStatus,
}

/// All live instances, as one of them sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FleetView {
    /// The instances, by id.
    pub instances: Vec<FleetInstance>,
    /// True while they report different digests of their rules.
    pub differ: bool,
    /// Conditions that an operator should know.
    pub warnings: Vec<String>,
    /// The reason why the others cannot be seen; then `instances` has this one only.
    pub error: Option<String>,
}

/// An instance's part in the fleet.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    state: Mutex<FleetState>,
    /// Publishes of this instance are prepared one at a time.
    preparing: tokio::sync::Mutex<()>,
    /// The figures of the others are read one at a time.
    figures: tokio::sync::Mutex<FleetFigures>,
    /// Statuses are written one at a time: none after that of the departure.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct FleetState {
    preparing: Option<PrepareRequest>,
    vote: Option<Vote>,
    last_vote: Option<LastVote>,
    /// The time until which the compiled set of the last vote is kept.
    keep_until: Option<(Digest, Instant)>,
    has_left: bool,
    /// Warnings that were logged.
    warned: Vec<String>,
    /// Instances that do not read the rows that this one writes.
    too_old: Vec<String>,
    /// The report failed, and that was logged.
    is_unreported: bool,
    /// All instances as they were read last, with the time of that.
    last_view: Option<(FleetView, Instant)>,
}

impl Fleet {
    fn state(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// All live instances.
    pub async fn instances(&self) -> FleetView {
        view(&self.parts).await
    }

    /// All live instances, as they were a moment ago: for those who look often. Each instance reads the statuses of all of them.
    pub(crate) async fn recent_instances(&self) -> FleetView {
        let parts = &self.parts;
        // A control service has just read them for its report.
        let age_max = match parts.database.is_some() {
            true => 5 * REPORT_INTERVAL,
            false => VIEW_INTERVAL,
        };
        let recent = match &parts.fleet.state().last_view {
            Some((view, at)) if at.elapsed() < age_max => Some(view.clone()),
            _ => None,
        };
        match recent {
            Some(mut view) => {
                let own = own(parts);
                if let Some(known) = view.instances.iter_mut().find(|instance| instance.id == own.id) {
                    *known = own;
                }
                view
            }
            None => {
                let view = view(parts).await;
                parts.fleet.state().last_view = Some((view.clone(), Instant::now()));
                view
            }
        }
    }

    /// The instances that were too old a moment ago to read the rows that this one writes: they go on without them.
    pub fn too_old(&self) -> Vec<String> {
        self.parts.fleet.state().too_old.clone()
    }

    /// Tells the others that this instance leaves, so that no publish waits for it.
    pub async fn leave(&self) {
        let fleet = &self.parts.fleet;
        fleet.state().has_left = true;
        // Without an answer its status expires.
        let _ = timeout(LEAVE_TIMEOUT, write_status(&self.parts)).await;
    }
}

/// Reports the status of this instance without end: at an interval, and when another state is applied.
pub(super) async fn report(parts: &Arc<ControlParts>) {
    if link::is_alone(parts) {
        return std::future::pending().await;
    }
    let mut applied = parts.applied.subscribe();
    let mut next_view = Instant::now();
    loop {
        expire_prepared(parts);
        if !parts.fleet.state().has_left {
            log_report(parts, write_status(parts).await.err());
        }
        if parts.database.is_some() && Instant::now() >= next_view {
            next_view = Instant::now() + REPORT_INTERVAL;
            show(parts, view(parts).await);
        }
        sleep(REPORT_GAP).await;
        tokio::select! {
            () = sleep(REPORT_INTERVAL) => {}
            // The sender lives as long as the parts.
            _ = applied.changed() => {}
        }
    }
}

/// Shows the view of a control service: its metric, its warnings.
fn show(parts: &ControlParts, view: FleetView) {
    parts.gate.metrics().control.differ.set(view.differ.into());
    let old = view
        .instances
        .iter()
        .filter(|instance| instance.status.formats < parts.options.format);
    let old: Vec<String> = old.map(|instance| instance.id.clone()).collect();
    let warnings = view.warnings.clone();
    let mut state = parts.fleet.state();
    state.too_old = old;
    state.last_view = Some((view, Instant::now()));
    drop(state);
    warn(parts, warnings);
}

/// Logs the first of several failed reports.
fn log_report(parts: &ControlParts, error: Option<LinkError>) {
    let was_unreported = std::mem::replace(&mut parts.fleet.state().is_unreported, error.is_some());
    if let Some(error) = error.filter(|_| !was_unreported) {
        tracing::warn!(%error, "this instance cannot report to the fleet; publishes do not wait for it");
    }
}

/// Logs new warnings, and shows them on `/readyz`.
fn warn(parts: &ControlParts, warnings: Vec<String>) {
    let mut state = parts.fleet.state();
    for warning in warnings.iter().filter(|warning| !state.warned.contains(warning)) {
        tracing::warn!("{warning}");
    }
    if state.warned != warnings {
        parts.gate.metrics().control.set_fleet_warnings(warnings.clone());
        state.warned = warnings;
    }
}

/// Drops a compiled set that was not published in time.
fn expire_prepared(parts: &ControlParts) {
    let mut state = parts.fleet.state();
    if let Some((digest, _)) = state.keep_until.filter(|(_, until)| *until <= Instant::now()) {
        state.keep_until = None;
        drop(state);
        let mut prepared = parts.prepared();
        if prepared.as_ref().is_some_and(|prepared| prepared.digest == digest) {
            *prepared = None;
        }
    }
}

/// The status of this instance.
pub(super) fn own_status(parts: &Arc<ControlParts>) -> InstanceStatus {
    let live = parts.live.load_full();
    let store = parts.gate.store().status();
    let error = parts.health().first_error();
    let state = parts.fleet.state();
    let head = live.head.as_ref();
    InstanceStatus {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        formats: parts.options.format,
        database_id: head.map(|head| head.database_id.clone()).unwrap_or_default(),
        epoch: live.epoch(),
        revision: live.revision(),
        version: live.version,
        chain: head.map(|head| head.chain).unwrap_or_default(),
        digest: live.digest,
        store: store.kind.name().to_owned(),
        breaker: store.breaker.state.name().to_owned(),
        rejected_rows: parts.tables.counts().2,
        waiting: Control {
            parts: Arc::clone(parts),
        }
        .is_waiting(),
        error: error.map(|error| error.chars().take(ERROR_CHARACTERS_MAX).collect()),
        left: state.has_left,
        at: now_ms(),
        preparing: state.preparing.clone(),
        vote: state.vote.clone(),
        last_vote: state.last_vote,
    }
}

/// This instance.
fn own(parts: &Arc<ControlParts>) -> FleetInstance {
    FleetInstance {
        id: parts.instance.clone(),
        status: own_status(parts),
    }
}

/// All live instances, this one included.
pub(super) async fn view(parts: &Arc<ControlParts>) -> FleetView {
    let own = own(parts);
    let (mut instances, unverified, error) = match statuses(parts).await {
        Ok(found) => (found.instances, found.unverified, None),
        Err(error) => (Vec::new(), 0, Some(error.to_string())),
    };
    instances.retain(|instance| instance.id != own.id && !instance.status.left);
    instances.push(own);
    instances.sort_by(|one, other| one.id.cmp(&other.id));
    let digests: HashSet<Digest> = instances.iter().map(|instance| instance.status.digest).collect();
    FleetView {
        differ: digests.len() > 1,
        warnings: warnings(&instances, unverified),
        instances,
        error,
    }
}

/// Conditions of the fleet that an operator should know.
fn warnings(instances: &[FleetInstance], unverified: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    let embedded = instances.iter().filter(|instance| instance.status.store == "memory");
    let embedded: Vec<&str> = embedded.map(|instance| instance.id.as_str()).collect();
    if embedded.len() > 1 {
        warnings.push(format!(
            "{} instances of one database count in their own memory ({}), so each allows every limit in full; give all of them one \
             store with store.url",
            embedded.len(),
            embedded.join(", ")
        ));
    }
    if unverified > 0 {
        warnings.push(format!(
            "{unverified} instances report with another control.secret and are not waited for; give all of them the same"
        ));
    }
    warnings
}

const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// The interval at which an instance without a database looks at all others.
const VIEW_INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time between two reports.
const REPORT_GAP: Duration = Duration::from_millis(100);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
const ERROR_CHARACTERS_MAX: usize = 300;
