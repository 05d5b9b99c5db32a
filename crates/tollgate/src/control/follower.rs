//! The follower: keeps the active rules at the state of the database. It reads on its own commits, on hints of the database, and at an
//! interval; applies at most ten times a second; and never moves backwards.

use super::chain;
use super::database::{Database, DatabaseError, InstanceReport};
use super::layers::{ControlParts, Incoming};
use super::model::{Change, DatabaseHead, SetFile, VersionMeta};
use super::state::{LiveState, RulesOrigin};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, sleep_until, timeout};

/// The status that an instance reports to the database of a fleet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// The version of the program.
    pub program: String,
    /// The epoch.
    pub epoch: u64,
    /// The revision that is applied.
    pub revision: u64,
    /// The version in use.
    pub version: u64,
    /// The digest of all layers.
    pub digest: String,
    /// Rows that it cannot use.
    pub rejected_rows: usize,
}

/// Follows the database without end.
pub(super) async fn follow(parts: &Arc<ControlParts>) {
    let Some(database) = parts.database.clone() else {
        return std::future::pending().await;
    };
    let mut hints = database.listen();
    let mut pace = Pace::default();
    let mut next_poll = Instant::now() + jittered(parts.options.database_poll);
    loop {
        let is_poll = tokio::select! {
            () = parts.wake.notified() => false,
            changed = hints.changed() => {
                if changed.is_err() {
                    // The database is dropped with this process only; the interval stays.
                    sleep(parts.options.database_poll).await;
                }
                false
            }
            () = sleep_until(next_poll.into()) => true,
        };
        if is_poll {
            next_poll = Instant::now() + jittered(parts.options.database_poll);
        }
        if !parts.may_read() {
            continue;
        }
        pace.wait().await;
        let before = parts.live.load().revision();
        catch_up(parts, &database).await;
        let is_moved = parts.live.load().revision() != before;
        if is_moved {
            pace.record();
        }
        if database.kind() == "postgres" && (is_poll || is_moved) {
            report(parts, &database).await;
        }
    }
}

/// Reads and applies everything new. Failures are recorded, and met again by the next call.
pub(super) async fn catch_up(parts: &Arc<ControlParts>, database: &Database) {
    let result = advance(parts, database).await;
    let metrics = &parts.gate.metrics().control;
    let mut health = parts.health();
    match result {
        Ok(()) => {
            health.is_up = true;
            health.behind_since = None;
        }
        Err(Halt::Database(error)) => {
            if health.is_up || health.error.is_none() {
                tracing::warn!(%error, "the control database cannot be read; keeping the rules");
            }
            health.is_up = !matches!(error, DatabaseError::Unavailable(_) | DatabaseError::Corrupt(_));
            if health.rejected.is_none() {
                health.error = Some(error.to_string());
            }
        }
        Err(Halt::Forked(text)) => {
            if !health.is_forked {
                tracing::error!(
                    reason = text,
                    "control_forked: the database has another history; keeping the rules"
                );
            }
            health.is_up = true;
            health.is_forked = true;
            health.error = Some(text);
        }
        Err(Halt::Failed(text)) => {
            tracing::error!(
                error = text,
                "managed rules cannot be applied; keeping the previous rules"
            );
            health.error = Some(text);
        }
    }
    metrics.database_up.set(health.is_up.into());
    let lag = health.behind_since.map_or(0, |since| since.elapsed().as_secs());
    metrics.lag_seconds.set(lag);
}

/// The reason why the newest state is not applied.
enum Halt {
    Database(DatabaseError),
    /// The database has another history than the one applied.
    Forked(String),
    Failed(String),
}

impl From<DatabaseError> for Halt {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

async fn advance(parts: &Arc<ControlParts>, database: &Database) -> Result<(), Halt> {
    let newest = database.head().await?;
    let live = parts.live.load_full();
    let (head, applied) = match (newest, &live.head) {
        (None, None) => return Ok(()),
        (None, Some(_)) => return Err(Halt::Forked("the database is empty, and rules of it are in use".into())),
        (Some(head), None) => {
            note_behind(parts);
            return load_snapshot(parts, database, head.revision).await;
        }
        (Some(head), Some(applied)) => (head, applied.clone()),
    };
    match compare(&head, &applied) {
        Position::Equal => confirm(parts, database, &live, &head).await,
        Position::Behind(text) => Err(Halt::Forked(text)),
        Position::NewEpoch => {
            note_behind(parts);
            load_snapshot(parts, database, 0).await
        }
        Position::Ahead => {
            note_behind(parts);
            apply_changes(parts, database, &head, applied).await
        }
    }
}

/// The position of the database's head relative to the applied one.
#[derive(Debug, PartialEq, Eq)]
enum Position {
    Equal,
    Ahead,
    NewEpoch,
    /// The database is behind, or has another history.
    Behind(String),
}

fn compare(head: &DatabaseHead, applied: &DatabaseHead) -> Position {
    if head.epoch > applied.epoch {
        return Position::NewEpoch;
    }
    if head.epoch < applied.epoch {
        return Position::Behind(format!("epoch {} is below the applied {}", head.epoch, applied.epoch));
    }
    if head.database_id != applied.database_id {
        return Position::Behind("it is another database of the same epoch".to_owned());
    }
    if head.revision < applied.revision {
        let (found, expected) = (head.revision, applied.revision);
        return Position::Behind(format!("revision {found} is below the applied {expected}"));
    }
    match (head.revision == applied.revision, head.chain == applied.chain) {
        (false, _) => Position::Ahead,
        (true, true) => Position::Equal,
        (true, false) => Position::Behind(format!("revision {} has another chain", head.revision)),
    }
}

/// Marks the applied state as that of the database, and tries a rejected set again if the file layer has changed.
async fn confirm(
    parts: &Arc<ControlParts>,
    database: &Database,
    live: &LiveState,
    head: &DatabaseHead,
) -> Result<(), Halt> {
    parts.health().is_forked = false;
    let set = pending_set(parts, database, head.live_version).await?;
    if set.is_none() && live.source == RulesOrigin::Database {
        return Ok(());
    }
    let changes = Vec::new();
    parts
        .apply(Incoming::Changes { changes, set })
        .await
        .map_err(Halt::Failed)
}

async fn apply_changes(
    parts: &Arc<ControlParts>,
    database: &Database,
    head: &DatabaseHead,
    mut applied: DatabaseHead,
) -> Result<(), Halt> {
    while applied.revision < head.revision {
        let changes = match database.changes_since(applied.revision, CHANGES_MAX).await {
            Err(DatabaseError::Pruned { .. }) => return load_snapshot(parts, database, head.revision).await,
            changes => changes?,
        };
        let Some(last) = changes.last() else {
            return Err(Halt::Failed(format!("the log ends at revision {}", applied.revision)));
        };
        verify(&applied, &changes)?;
        (applied.revision, applied.chain) = (last.revision, last.chain);
        let published = changes
            .iter()
            .rev()
            .find_map(|change| super::disk::published_version(&change.body));
        if let Some(version) = published {
            applied.live_version = version;
        }
        let set = pending_set(parts, database, applied.live_version).await?;
        parts
            .apply(Incoming::Changes { changes, set })
            .await
            .map_err(Halt::Failed)?;
    }
    parts.health().is_forked = false;
    Ok(())
}

/// The set of a version, if it is not in use and was not rejected with the present file layer.
async fn pending_set(
    parts: &Arc<ControlParts>,
    database: &Database,
    version: u64,
) -> Result<Option<(VersionMeta, Vec<SetFile>)>, Halt> {
    if version == 0 || parts.live.load().version == version {
        return Ok(None);
    }
    let generation = parts.loader.lock().await.generation();
    if parts.health().rejected == Some((version, generation)) {
        return Ok(None);
    }
    let Some(meta) = database.version(version).await? else {
        return Err(Halt::Failed(format!(
            "version {version} is live, and not in the database"
        )));
    };
    let files = database.version_files(version).await?;
    Ok(Some((meta, files)))
}

/// Verifies that changes follow the applied state without a gap.
fn verify(applied: &DatabaseHead, changes: &[Change]) -> Result<(), Halt> {
    let (mut revision, mut chain) = (applied.revision, applied.chain);
    for change in changes {
        let expected = chain::next_chain(&chain, change.revision, &change.body);
        if change.revision != revision + 1 || change.chain != expected {
            return Err(Halt::Forked(format!(
                "revision {} does not extend the applied chain",
                change.revision
            )));
        }
        (revision, chain) = (change.revision, change.chain);
    }
    Ok(())
}

async fn load_snapshot(parts: &Arc<ControlParts>, database: &Database, at_least: u64) -> Result<(), Halt> {
    let snapshot = database.snapshot().await?;
    let Some(snapshot) = snapshot.filter(|snapshot| snapshot.head.revision >= at_least) else {
        return Err(Halt::Failed("the database went back while it was read".to_owned()));
    };
    parts
        .apply(Incoming::Snapshot(Box::new(snapshot)))
        .await
        .map_err(Halt::Failed)?;
    parts.health().is_forked = false;
    Ok(())
}

fn note_behind(parts: &ControlParts) {
    parts.health().behind_since.get_or_insert_with(Instant::now);
}

/// Reports this instance, and compares it with the others.
async fn report(parts: &Arc<ControlParts>, database: &Database) {
    let live = parts.live.load_full();
    let status = InstanceStatus {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: live.epoch(),
        revision: live.revision(),
        version: live.version,
        digest: live.digest.to_string(),
        rejected_rows: parts.tables.counts().2,
    };
    let Ok(text) = serde_json::to_string(&status) else {
        return;
    };
    let report = InstanceReport {
        id: parts.instance.clone(),
        status: text,
        seen_at: unix_ms(),
    };
    // An unavailable database shows at the next read.
    let _ = timeout(REPORT_TIMEOUT, database.report_instance(&report)).await;
    let seen_since = unix_ms().saturating_sub(report_age(parts.options.database_poll));
    if let Ok(reports) = database.instances(seen_since).await {
        let differs = statuses(&reports).any(|other| other.digest != status.digest);
        parts.gate.metrics().control.differ.set(differs.into());
    }
}

/// The readable statuses of reports.
pub(super) fn statuses(reports: &[InstanceReport]) -> impl Iterator<Item = InstanceStatus> {
    reports
        .iter()
        .filter_map(|report| serde_json::from_str(&report.status).ok())
}

/// The age in milliseconds up to which a report counts as that of a live instance.
pub(super) fn report_age(poll: Duration) -> u64 {
    u64::try_from(poll.as_millis()).unwrap_or(u64::MAX).saturating_mul(3)
}

/// Unix time in milliseconds.
pub(super) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// An interval, by at most a fifth shorter or longer, so that a fleet does not read at once.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(fastrand::f64().mul_add(0.4, 0.8))
}

/// At most ten applications within a second.
#[derive(Default)]
struct Pace(VecDeque<Instant>);

impl Pace {
    async fn wait(&self) {
        if self.0.len() >= APPLICATIONS_MAX
            && let Some(oldest) = self.0.front()
        {
            sleep_until((*oldest + APPLICATIONS_PERIOD).into()).await;
        }
    }

    fn record(&mut self) {
        self.0.push_back(Instant::now());
        if self.0.len() > APPLICATIONS_MAX {
            self.0.pop_front();
        }
    }
}

const APPLICATIONS_MAX: usize = 10;
const APPLICATIONS_PERIOD: Duration = Duration::from_secs(1);
const CHANGES_MAX: usize = 5_000;
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
