//! The follower: keeps the active rules at the newest state of the database and of the cache. It reads a source on its hints and at an
//! interval, applies at most ten times a second, and never moves backwards.

pub(super) mod expiry;

use super::chain;
use super::database::{Database, DatabaseError, DatabaseSnapshot, now_ms};
use super::feed::head::{Judgement, Refusal, judge};
use super::feed::reader::{CacheReader, FetchError};
use super::layers::{ControlParts, Incoming, NextSet, Source, WholeState, live_set_after, published_set};
use super::model::{DatabaseHead, Digest, LoggedChange};
use super::state::{LiveState, RulesOrigin};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};
use tollgate_limiter::store::redis::ConfigCache;

/// Follows the database and the cache without end.
pub(super) async fn follow(parts: &Arc<ControlParts>) {
    let mut hints = parts.database.as_ref().map(Database::listen);
    let mut messages = parts.cache.as_ref().map(ConfigCache::messages);
    let mut pace = Pace::default();
    let (poll, database_poll) = (parts.options.poll, parts.options.database_poll);
    let mut next_poll = Instant::now() + jittered(poll);
    let mut next_database_poll = Instant::now() + shortened(database_poll);
    loop {
        let trigger = tokio::select! {
            () = parts.wake.notified() => Trigger::Wake,
            () = changed(&mut hints) => Trigger::DatabaseHint,
            () = received(&mut messages) => Trigger::CacheMessage,
            () = sleep_until(next_database_poll) => Trigger::DatabasePoll,
            () = sleep_until(next_poll) => Trigger::CachePoll,
        };
        // Intervals begin anew when they are over, and not before: an outage adds no load.
        match trigger {
            Trigger::DatabasePoll => next_database_poll = Instant::now() + shortened(database_poll),
            Trigger::CachePoll => next_poll = Instant::now() + jittered(poll),
            Trigger::Wake | Trigger::DatabaseHint | Trigger::CacheMessage => {}
        }
        pace.wait().await;
        let before = position(parts);
        match trigger {
            Trigger::DatabaseHint | Trigger::DatabasePoll => follow_database(parts).await,
            Trigger::CacheMessage | Trigger::CachePoll => follow_cache(parts).await,
            Trigger::Wake => match parts.may_read() {
                true => follow_database(parts).await,
                false => follow_cache(parts).await,
            },
        }
        let is_moved = position(parts) != before;
        if is_moved {
            pace.record(Instant::now());
        }
    }
}

/// The reason to read a source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Wake,
    DatabaseHint,
    DatabasePoll,
    CacheMessage,
    CachePoll,
}

/// Waits for a hint of the database; for ever without a database.
async fn changed(hints: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = hints {
        if receiver.changed().await.is_ok() {
            return;
        }
        // The database is dropped with this process only.
        *hints = None;
    }
    std::future::pending::<()>().await;
}

/// Waits for a message of the cache that there is a new revision; for ever if there is no cache.
async fn received(messages: &mut Option<broadcast::Receiver<String>>) {
    while let Some(receiver) = messages {
        match receiver.recv().await {
            Ok(message) if message.starts_with("revision ") => {
                // One read answers all that wait.
                while let Ok(_) | Err(TryRecvError::Lagged(_)) = receiver.try_recv() {}
                return;
            }
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => *messages = None,
        }
    }
    std::future::pending::<()>().await;
}

fn position(parts: &ControlParts) -> (u64, u64) {
    let live = parts.live.load();
    (live.epoch(), live.revision())
}

/// Reads the database and applies everything new. Failures are recorded, and met again by the next call.
pub(super) async fn follow_database(parts: &Arc<ControlParts>) {
    let Some(database) = parts.database.as_ref().filter(|_| parts.may_read()) else {
        return;
    };
    let result = read_database(parts, database).await;
    let is_up = !matches!(
        result,
        Err(Halt::Database(
            DatabaseError::Unavailable(_) | DatabaseError::Corrupt(_)
        ))
    );
    parts.health().is_up = is_up;
    parts.gate.metrics().control.database_up.set(is_up.into());
    record(parts, Source::Database, result);
}

/// Reads the cache and applies everything new. Failures are recorded, and met again by the next call.
pub(super) async fn follow_cache(parts: &Arc<ControlParts>) {
    let Some(reader) = parts.reader() else { return };
    let result = read_cache(parts, &reader).await;
    parts.health().is_cache_up = !matches!(result, Err(Halt::Fetch(FetchError::Cache(_))));
    record(parts, Source::Cache, result);
}

/// The reason why the newest state of a source is not applied.
enum Halt {
    Database(DatabaseError),
    Fetch(FetchError),
    /// The source has another history than the one applied.
    Forked(String),
    /// The database is behind what is applied.
    Regressed(String),
    /// The database is not the one that is followed.
    OtherDatabase(String),
    Failed(String),
}

impl From<DatabaseError> for Halt {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl From<FetchError> for Halt {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Forked(text) => Self::Forked(text),
            error => Self::Fetch(error),
        }
    }
}

/// Records the result of a read. A reason is logged when it appears.
fn record(parts: &ControlParts, source: Source, result: Result<(), Halt>) {
    let mut health = parts.health();
    let before = health.source_errors.get(source as usize).cloned().flatten();
    let error = match result {
        Ok(()) => {
            health.behind_since = None;
            if health.forked.as_ref().is_some_and(|(forked, _)| *forked == source) {
                health.forked = None;
            }
            if source == Source::Database {
                (health.regressed, health.other_database) = (None, None);
            }
            None
        }
        Err(Halt::Database(error)) => {
            if before.is_none() {
                tracing::warn!(%error, "the control database cannot be read; keeping the rules");
            }
            Some(error.to_string())
        }
        Err(Halt::Fetch(error)) => {
            if before.is_none() {
                tracing::warn!(%error, "the config cache cannot be used; keeping the rules");
            }
            Some(error.to_string())
        }
        Err(Halt::Forked(text)) => {
            if health.forked.is_none() {
                tracing::error!(
                    reason = text,
                    "control_forked: another history of this epoch; keeping the rules until one is adopted"
                );
            }
            health.forked = Some((source, text.clone()));
            Some(text)
        }
        Err(Halt::Regressed(text)) => {
            if health.regressed.is_none() {
                tracing::error!(
                    reason = text,
                    "control_regressed: the database is behind; run `tollgate control adopt`"
                );
            }
            health.regressed = Some(text.clone());
            Some(text)
        }
        Err(Halt::OtherDatabase(text)) => {
            if health.other_database.is_none() {
                tracing::warn!(reason = text, "the database of this instance is not the one in use");
            }
            health.other_database = Some(text.clone());
            Some(text)
        }
        Err(Halt::Failed(text)) => {
            if before.as_ref() != Some(&text) {
                tracing::error!(
                    error = text,
                    "managed rules cannot be applied; keeping the previous rules"
                );
            }
            Some(text)
        }
    };
    if let Some(slot) = health.source_errors.get_mut(source as usize) {
        *slot = error;
    }
    let lag = health.behind_since.map_or(0, |since| since.elapsed().as_secs());
    parts.gate.metrics().control.lag_seconds.set(lag);
}

async fn read_database(parts: &Arc<ControlParts>, database: &Database) -> Result<(), Halt> {
    let newest = database.head().await?;
    let live = parts.live.load_full();
    let Some(head) = newest else {
        // A file that was never written, beside a cache that is followed, is no database.
        let was_written = parts.cache.is_none() || database.kind() == "postgres";
        return match live.head.is_some() && was_written {
            true => Err(Halt::Regressed(
                "the database is empty, and rules of it are in use; restore a backup, or go on from an empty one with \
                 `tollgate control adopt`"
                    .to_owned(),
            )),
            false => Ok(()),
        };
    };
    parts.health().database_id = Some(head.database_id.clone());
    match judge(live.head.as_ref(), &head) {
        Judgement::Equal => {
            let set = pending_database_set(parts, database, (head.live_version, live.head_set)).await?;
            confirm(parts, &live, set, RulesOrigin::Database).await
        }
        Judgement::Extend => {
            note_behind(parts);
            match &live.head {
                Some(applied) => apply_changes(parts, database, &head, applied.clone()).await,
                None => load_snapshot(parts, database, &head).await,
            }
        }
        Judgement::Replace => {
            note_behind(parts);
            load_snapshot(parts, database, &head).await
        }
        Judgement::Forked(text) => Err(Halt::Forked(text)),
        Judgement::Ignore(reason) => {
            let (epoch, revision) = (live.epoch(), live.revision());
            let text = format!(
                "the database is at epoch {} revision {}, and epoch {epoch} revision {revision} is applied",
                head.epoch, head.revision
            );
            let is_same = live
                .head
                .as_ref()
                .is_some_and(|applied| applied.database_id == head.database_id);
            Err(match reason == Refusal::Lower && is_same {
                true => Halt::Regressed(text),
                false => Halt::OtherDatabase(text),
            })
        }
    }
}

/// Marks a state of the disk as that of a source, and tries a rejected set again if the file layer has changed.
async fn confirm(
    parts: &Arc<ControlParts>,
    live: &LiveState,
    set: Option<NextSet>,
    origin: RulesOrigin,
) -> Result<(), Halt> {
    if set.is_none() && live.source != RulesOrigin::Disk {
        return Ok(());
    }
    let changes = Vec::new();
    apply(parts, Incoming::Changes { changes, set, origin }).await
}

async fn apply_changes(
    parts: &Arc<ControlParts>,
    database: &Database,
    head: &DatabaseHead,
    mut applied: DatabaseHead,
) -> Result<(), Halt> {
    while applied.revision < head.revision {
        let changes = match database.changes_since(applied.revision, CHANGES_MAX).await {
            Err(DatabaseError::Pruned { .. }) => return load_snapshot(parts, database, head).await,
            changes => changes?,
        };
        let Some(last) = changes.last() else {
            return Err(Halt::Failed(format!("the log ends at revision {}", applied.revision)));
        };
        verify(&applied, &changes)?;
        (applied.revision, applied.chain) = (last.revision, last.chain);
        let published = changes.iter().rev().find_map(|change| published_set(&change.body));
        let live = parts.live.load().head_set;
        let wanted = published.unwrap_or((applied.live_version, live));
        applied.live_version = wanted.0;
        let set = pending_database_set(parts, database, wanted).await?;
        let origin = RulesOrigin::Database;
        apply(parts, Incoming::Changes { changes, set, origin }).await?;
    }
    Ok(())
}

/// True if a set is not in use and was not rejected with the present file layer.
async fn is_pending(parts: &Arc<ControlParts>, (version, digest): (u64, Digest)) -> bool {
    let live = parts.live.load_full();
    if version == 0 || live.version == version && live.set_digest == digest {
        return false;
    }
    let generation = parts.loader.lock().await.generation();
    parts.health().rejected != Some((digest, generation))
}

/// The set of a version in the database, if it is pending.
async fn pending_database_set(
    parts: &Arc<ControlParts>,
    database: &Database,
    wanted: (u64, Digest),
) -> Result<Option<NextSet>, Halt> {
    if !is_pending(parts, wanted).await {
        return Ok(None);
    }
    let version = wanted.0;
    let Some(meta) = database.version(version).await? else {
        return Err(Halt::Failed(format!(
            "version {version} is live, and not in the database"
        )));
    };
    // The digest of a state from the disk may not be known.
    if !is_pending(parts, (version, meta.digest)).await {
        return Ok(None);
    }
    if meta.format > parts.options.format {
        parts.reject_format((version, meta.digest), meta.format).await;
        return Ok(None);
    }
    Ok(Some((version, meta.digest, database.version_files(version).await?)))
}

/// Verifies that changes follow the applied state without a gap.
fn verify(applied: &DatabaseHead, changes: &[LoggedChange]) -> Result<(), Halt> {
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

async fn load_snapshot(parts: &Arc<ControlParts>, database: &Database, head: &DatabaseHead) -> Result<(), Halt> {
    let snapshot = database.snapshot().await?;
    let is_current =
        |snapshot: &DatabaseSnapshot| (snapshot.head.epoch, snapshot.head.revision) >= (head.epoch, head.revision);
    let Some(snapshot) = snapshot.filter(is_current) else {
        return Err(Halt::Failed("the database went back while it was read".to_owned()));
    };
    let format = snapshot.version.as_ref().map_or(0, |meta| meta.format);
    let mut whole = WholeState::from_database(snapshot);
    if format > parts.options.format
        && let Some((version, digest, _)) = whole.set.take()
    {
        parts.reject_format((version, digest), format).await;
    }
    apply(parts, Incoming::Whole(Box::new(whole))).await
}

async fn read_cache(parts: &Arc<ControlParts>, reader: &CacheReader) -> Result<(), Halt> {
    let read = reader.head().await?;
    parts.health().is_cache_empty = read.head.is_none() && !read.is_claimed;
    let Some(cached) = read.head else { return Ok(()) };
    let live = parts.live.load_full();
    let judgement = cached.judge(live.head.as_ref(), now_ms(), parts.options.cache_ttl);
    let is_valid = !matches!(judgement, Judgement::Ignore(Refusal::Future | Refusal::Old));
    if is_valid {
        let mut health = parts.health();
        let is_higher = health
            .seen
            .as_ref()
            .is_none_or(|seen| (seen.head.epoch, seen.head.revision) <= (cached.head.epoch, cached.head.revision));
        if is_higher {
            health.seen = Some(cached.clone());
        }
    }
    let applied = match judgement {
        Judgement::Equal => {
            let wanted = (cached.head.live_version, cached.set);
            if live.head_set == Digest::default() && wanted.0 > 0 {
                parts.learn_head_set(&cached.head, cached.set).await;
            }
            let set = pending_cache_set(parts, reader, wanted).await?;
            return confirm(parts, &live, set, RulesOrigin::Cache).await;
        }
        Judgement::Extend => live.head.as_ref(),
        Judgement::Replace => None,
        Judgement::Forked(text) => return Err(Halt::Forked(text)),
        Judgement::Ignore(Refusal::Future) => {
            return Err(Halt::Failed(
                "the head of the config cache is of the future; set the clocks".to_owned(),
            ));
        }
        Judgement::Ignore(Refusal::Old) => {
            return Err(Halt::Failed(
                "the head of the config cache is too old; is the control service away?".to_owned(),
            ));
        }
        // A replay, or a control service that is about to catch up.
        Judgement::Ignore(Refusal::Lower | Refusal::OtherDatabase) => return Ok(()),
    };
    note_behind(parts);
    let fetched = reader.fetch(&cached.head, applied).await?;
    let mut wanted = live_set_after(&live, &fetched);
    if wanted == (cached.head.live_version, Digest::default()) {
        // The digest of a state from the disk may not be known; the head is signed, and names the same version.
        wanted.1 = cached.set;
    }
    if fetched.needs_newer.is_none() && wanted != (cached.head.live_version, cached.set) && cached.head.live_version > 0
    {
        let text = "the head of the config cache names another set than its log";
        return Err(Halt::Failed(text.to_owned()));
    }
    let set = pending_cache_set(parts, reader, wanted).await?;
    let needs_newer = fetched.needs_newer;
    let incoming = match fetched.snapshot {
        Some(snapshot) => Incoming::Whole(Box::new(WholeState::from_cache(snapshot, fetched.changes, set))),
        None => Incoming::Changes {
            changes: fetched.changes,
            set,
            origin: RulesOrigin::Cache,
        },
    };
    apply(parts, incoming).await?;
    match needs_newer {
        None => Ok(()),
        Some(revision) => Err(Halt::Failed(format!(
            "revision {revision} needs a newer version of tollgate"
        ))),
    }
}

/// The set of a digest in the cache, if it is pending.
async fn pending_cache_set(
    parts: &Arc<ControlParts>,
    reader: &CacheReader,
    wanted: (u64, Digest),
) -> Result<Option<NextSet>, Halt> {
    if !is_pending(parts, wanted).await {
        return Ok(None);
    }
    match reader.set(&wanted.1, parts.options.format).await {
        Ok(files) => Ok(Some((wanted.0, wanted.1, files))),
        Err(FetchError::NewerFormat(format)) => {
            parts.reject_format(wanted, format).await;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

async fn apply(parts: &Arc<ControlParts>, incoming: Incoming) -> Result<(), Halt> {
    parts.apply(incoming).await.map_err(Halt::Failed)
}

fn note_behind(parts: &ControlParts) {
    parts.health().behind_since.get_or_insert_with(Instant::now);
}

/// An interval, by at most a fifth shorter or longer, so that a fleet does not read at once.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(fastrand::f64().mul_add(0.4, 0.8))
}

/// An interval, by at most a fifth shorter: where the database is read at an interval alone, a change waits no longer than the setting.
fn shortened(interval: Duration) -> Duration {
    interval.mul_f64(fastrand::f64().mul_add(0.2, 0.8))
}

/// At most ten applications within a second.
#[derive(Default)]
struct Pace(VecDeque<Instant>);

impl Pace {
    /// The time of the next application; none: at once.
    fn next(&self) -> Option<Instant> {
        let oldest = self.0.front().filter(|_| self.0.len() >= APPLICATIONS_MAX);
        oldest.map(|oldest| *oldest + APPLICATIONS_PERIOD)
    }

    async fn wait(&self) {
        if let Some(next) = self.next() {
            sleep_until(next).await;
        }
    }

    fn record(&mut self, at: Instant) {
        self.0.push_back(at);
        if self.0.len() > APPLICATIONS_MAX {
            self.0.pop_front();
        }
    }
}

const APPLICATIONS_MAX: usize = 10;
const APPLICATIONS_PERIOD: Duration = Duration::from_secs(1);
const CHANGES_MAX: usize = 5_000;

#[cfg(test)]
mod tests;
