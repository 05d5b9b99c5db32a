//! The control service's side of the cache: everything that instances need is there, in the order in which they need it.
//!
//! Sets and snapshots are written before the log, the log before the head, and the head before the message. All of it is made of what this
//! instance has applied, so the cache is renewed while the database is unavailable. A head that is above ours is never overwritten.

use super::claim::ClaimState;
use super::head::{CacheHead, HEAD, Judgement, judge};
use super::log::{LogText, leads_to};
use super::parts::{Manifest, ManifestKind, set_name};
use super::reader::{CacheReader, FetchError};
use super::set::encode_set;
use super::snapshot::{RowSnapshot, SNAPSHOTS, SnapshotList};
use crate::control::database::{Database, now_ms};
use crate::control::fleet;
use crate::control::layers::ControlParts;
use crate::control::model::{DatabaseHead, Digest, LoggedChange, SetFile};
use crate::control::state::LiveState;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_limiter::store::redis::{CACHE_VALUE_MAX, CacheError, CacheWrite, LogId};

/// The memory of the task between its rounds.
#[derive(Debug, Default)]
struct RefillState {
    /// The head that was written last, and when.
    written: Option<(DatabaseHead, Instant)>,
    /// The position up to which snapshot and log were found whole, and when.
    verified: Option<(DatabaseHead, Instant)>,
    /// An entry at the end of the log that is above the head, and since when.
    above: Option<(LogId, Instant)>,
    /// The digest of the parts of the set, and of those of the snapshot, that were found there whole: each is read once.
    whole_set: Option<Digest>,
    whole_rows: Option<Digest>,
}

/// The occasion of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// Something was applied: the log and the head follow at once.
    Applied,
    /// A second has passed: everything is checked, by one of several control services.
    Interval,
}

/// Keeps the cache filled, without end.
pub(in crate::control) async fn refill(parts: &Arc<ControlParts>) {
    let (Some(reader), Some(database)) = (parts.reader(), parts.database.clone()) else {
        return std::future::pending().await;
    };
    let mut applied = parts.applied.subscribe();
    let mut ticker = interval(REFILL_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = RefillState::default();
    loop {
        let occasion = tokio::select! {
            _ = ticker.tick() => Occasion::Interval,
            changed = applied.changed() => match changed {
                Ok(()) => Occasion::Applied,
                Err(_) => return std::future::pending().await,
            },
        };
        let live = parts.live.load_full();
        let Some(head) = live.head.clone().filter(|head| is_ours(parts, head)) else {
            continue;
        };
        // One that has failed tries again without the lease, so that another control service gets it.
        let has_failed = parts.health().refill_failed;
        if occasion == Occasion::Interval && !has_failed && !has_lease(parts, &database).await {
            continue;
        }
        if occasion == Occasion::Interval {
            note_reported(parts, &head).await;
        }
        let set = head_set(&live, &head, &database).await;
        let Some(set) = set else { continue };
        let round = Round {
            parts,
            reader: &reader,
            database: &database,
            live: &live,
            head,
            set,
        };
        match round.run(&mut state, occasion).await {
            Ok(()) => parts.health().refill_failed = false,
            Err(error) if !has_failed => {
                parts.health().refill_failed = true;
                tracing::warn!(
                    error = error.text(),
                    "the config cache cannot be written; instances keep their rules"
                );
            }
            Err(_) => {}
        }
    }
}

/// The digest of a head's version. A state from the disk may not have it; none: neither has the database.
async fn head_set(live: &LiveState, head: &DatabaseHead, database: &Database) -> Option<Digest> {
    if head.live_version == 0 {
        return Some(Digest::default());
    }
    if live.head_set != Digest::default() {
        return Some(live.head_set);
    }
    let version = database.version(head.live_version).await;
    version.ok().flatten().map(|version| version.digest)
}

/// Records the highest position that live instances have of a head's database.
async fn note_reported(parts: &Arc<ControlParts>, head: &DatabaseHead) {
    let view = fleet::view(parts).await;
    let statuses = view.instances.iter().map(|instance| &instance.status);
    let same = statuses.filter(|status| status.database_id == head.database_id);
    let reported = same.map(|status| (status.epoch, status.revision)).max();
    let mut health = parts.health();
    health.reported = health.reported.max(reported.unwrap_or_default());
}

/// Keeps the script of decisions loaded on every server, without end.
pub(in crate::control) async fn preload(parts: &Arc<ControlParts>) {
    let (Some(cache), Some(database)) = (parts.cache.clone(), parts.database.clone()) else {
        return std::future::pending().await;
    };
    let mut ticker = interval(REFILL_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        let is_owner = parts.live.load().head.as_ref().is_some_and(|head| is_ours(parts, head));
        let has_failed = parts.health().refill_failed;
        if is_owner
            && !has_failed
            && has_lease(parts, &database).await
            && let Ok(report) = cache.preload().await
            && !report.reloaded.is_empty()
        {
            tracing::info!(servers = ?report.reloaded, "the script was missing; loaded again");
        }
    }
}

/// True if the database of this instance is the one that a head belongs to, and is not known to be behind or another history.
fn is_ours(parts: &ControlParts, head: &DatabaseHead) -> bool {
    let is_same = parts.health().database_id.as_ref() == Some(&head.database_id);
    is_same && parts.is_database_current()
}

/// True if this control service does the background work. Without an answer each of them does: it is the same work.
async fn has_lease(parts: &ControlParts, database: &Database) -> bool {
    if database.kind() == "sqlite" {
        return true;
    }
    let until = now_ms() + LEASE_MS;
    let lease = database.acquire_lease("cache", &parts.instance, until).await;
    lease.unwrap_or(true)
}

/// One round at one applied state.
struct Round<'r> {
    parts: &'r Arc<ControlParts>,
    reader: &'r CacheReader,
    database: &'r Database,
    live: &'r LiveState,
    head: DatabaseHead,
    /// The digest of the head's version; zero: nothing is published.
    set: Digest,
}

/// The reason why a round ended early.
enum RefillError {
    Cache(CacheError),
    /// Something is there that this instance must not overwrite, or something is missing that it cannot write.
    Halted(String),
}

impl Round<'_> {
    async fn run(&self, state: &mut RefillState, occasion: Occasion) -> Result<(), RefillError> {
        let ttl = self.parts.options.cache_ttl;
        if occasion == Occasion::Interval {
            self.renew_claim(ttl).await?;
        }
        let set_name = set_name(&self.set);
        let mut values = self.reader.cache.read(&[HEAD, &set_name, SNAPSHOTS]).await?.into_iter();
        let (found, set, snapshots) = (
            values.next().flatten(),
            values.next().flatten(),
            values.next().flatten(),
        );
        if snapshots.is_none() {
            state.verified = None;
        }
        // One that no instance of this fleet has written counts as none.
        let found = found.and_then(|value| CacheHead::parse(&value, &self.reader.signer).ok());
        if let Some(found) = &found {
            self.check_not_above(found)?;
        }
        let is_new = found.as_ref().is_none_or(|found| found.head != self.head);
        let is_issued = state
            .written
            .as_ref()
            .is_some_and(|(head, at)| *head == self.head && at.elapsed() < REISSUE_INTERVAL);
        let has_set = set.is_some() || self.head.live_version == 0;
        if !has_set || occasion == Occasion::Interval && !is_issued {
            self.keep_set(state, ttl).await?;
        }
        if is_new || occasion == Occasion::Interval {
            if !self.extend_log(state, ttl).await? {
                state.verified = None;
            }
            self.keep_whole(state, ttl).await?;
        }
        if is_new || !is_issued {
            self.write_head(ttl).await?;
            state.written = Some((self.head.clone(), Instant::now()));
        }
        if is_new {
            let message = format!("revision {}", self.head.revision);
            self.parts.send_hint(&message).await;
        }
        Ok(())
    }

    async fn renew_claim(&self, ttl: Duration) -> Result<(), RefillError> {
        let claim = self.parts.claim_of(&self.head.database_id);
        match self.reader.claim(&claim, ttl).await? {
            ClaimState::Held => Ok(()),
            ClaimState::Other(other) => {
                let text = format!(
                    "database {} of {} has claimed this fleet",
                    other.database_id, other.owner
                );
                self.parts.health().other_database = Some(text.clone());
                Err(RefillError::Halted(text))
            }
        }
    }

    fn check_not_above(&self, found: &CacheHead) -> Result<(), RefillError> {
        match judge(Some(&found.head), &self.head) {
            Judgement::Equal | Judgement::Extend | Judgement::Replace => Ok(()),
            Judgement::Ignore(_) | Judgement::Forked(_) => {
                let text = format!(
                    "the cache has epoch {} revision {}, which is not before epoch {} revision {}",
                    found.head.epoch, found.head.revision, self.head.epoch, self.head.revision
                );
                Err(RefillError::Halted(text))
            }
        }
    }

    /// Writes the live set if it is not there, and renews it if it is.
    async fn keep_set(&self, state: &mut RefillState, ttl: Duration) -> Result<(), RefillError> {
        let set = self.set;
        if self.head.live_version == 0 {
            return Ok(());
        }
        let name = set_name(&set);
        if self.renew(&name, &mut state.whole_set, ttl).await? {
            return Ok(());
        }
        let files = match self.live.set_digest == set && self.live.version > 0 {
            true => self.live.files.to_vec(),
            // The set cannot be used here. Others may.
            false => {
                let files = self.database.version_files(self.head.live_version).await;
                files.map_err(|error| RefillError::Halted(error.to_string()))?
            }
        };
        // Without an answer: an instance that is too old for rules of this program waits for a better one.
        let meta = self.database.version(self.head.live_version).await;
        let format = meta
            .ok()
            .flatten()
            .map_or(self.parts.options.format, |meta| meta.format);
        self.reader.write_set(&files, format, ttl).await?;
        match self.renew(&name, &mut state.whole_set, ttl).await? {
            true => Ok(()),
            false => Err(unreadable(&name)),
        }
    }

    /// Renews a manifest and its parts. False if something is missing, is damaged, or was not written by this fleet.
    async fn renew(&self, name: &str, whole: &mut Option<Digest>, ttl: Duration) -> Result<bool, RefillError> {
        let value = self.reader.cache.read(&[name]).await?.pop().flatten();
        let manifest = value.and_then(|value| Manifest::parse(name, &value, &self.reader.signer).ok());
        let Some(manifest) = manifest else { return Ok(false) };
        if *whole != Some(manifest.digest) {
            let parts = match self.reader.parts(&manifest).await {
                Err(FetchError::Cache(error)) => return Err(error.into()),
                parts => parts.map_err(|error| error.to_string()),
            };
            if let Err(reason) = parts.and_then(|parts| manifest.join(&parts)) {
                tracing::warn!(reason, "a value of the config cache is damaged; writing it anew");
                return Ok(false);
            }
            *whole = Some(manifest.digest);
        }
        let mut names = manifest.part_names();
        names.push(name.to_owned());
        for names in names.chunks(TOUCHED_MAX) {
            let writes: Vec<CacheWrite<'_>> = names.iter().map(|name| CacheWrite::Touch { name, ttl }).collect();
            if self.reader.cache.write(&writes).await?.contains(&false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Appends what the log lacks, in order. False if it has a gap then.
    async fn extend_log(&self, state: &mut RefillState, ttl: Duration) -> Result<bool, RefillError> {
        // A last entry that is not one of ours is no reason to stop: what is missing then is found below, and written as a snapshot.
        let last = self.reader.cache.log_last().await.unwrap_or_default();
        let last = last.map(|entry| entry.id);
        let end = LogId {
            epoch: self.head.epoch,
            revision: self.head.revision,
        };
        if let Some(above) = last.filter(|id| *id > end) {
            return self.drop_foreign_log(state, above).await;
        }
        state.above = None;
        let last = last.filter(|id| id.epoch == self.head.epoch);
        let changes = match last {
            Some(id) if id == end => return Ok(true),
            Some(id) => self.changes_after(id.revision).await,
            None => self.parts.recent().all(),
        };
        let entries: Vec<(LogId, String)> = changes
            .iter()
            .filter(|change| change.revision <= self.head.revision)
            .map(|change| (self.log_id(change), LogText::of_change(change).encode()))
            // One that is too large is a gap, which a snapshot closes.
            .filter(|(_, value)| value.len() <= CACHE_VALUE_MAX)
            .collect();
        for entries in entries.chunks(APPENDED_MAX) {
            let writes: Vec<CacheWrite<'_>> = entries
                .iter()
                .map(|(id, value)| CacheWrite::Append {
                    id: *id,
                    value: value.as_bytes(),
                    length_max: LOG_LENGTH,
                    ttl,
                })
                .collect();
            self.append(&writes).await?;
        }
        let first = last.map_or(u64::MAX, |id| id.revision + 1);
        let expected = (first..=self.head.revision).map(|revision| LogId { revision, ..end });
        Ok(last.is_some() && entries.iter().map(|(id, _)| *id).eq(expected))
    }

    /// Appends to the log. A key of another type in its place would stay for as long as the cache is kept, and is deleted.
    async fn append(&self, writes: &[CacheWrite<'_>]) -> Result<(), RefillError> {
        let appended = self.reader.cache.write(writes).await;
        if let Err(CacheError::Invalid(error)) = &appended {
            tracing::warn!(
                error,
                "the log of the config cache cannot be appended to; writing it anew"
            );
            self.reader.cache.write(&[CacheWrite::Delete { name: "log" }]).await?;
            self.reader.cache.write(writes).await?;
            return Ok(());
        }
        appended.map(drop).map_err(Into::into)
    }

    /// Deletes a log that ends above the head, if it stays so: nothing can be appended to it. Another control service that is ahead moves the
    /// head as well.
    async fn drop_foreign_log(&self, state: &mut RefillState, above: LogId) -> Result<bool, RefillError> {
        match state.above {
            Some((id, since)) if id == above => {
                if since.elapsed() >= FOREIGN_LOG_WAIT {
                    tracing::warn!(entry = %above, "the log of the config cache ends above its head; writing it anew");
                    self.reader.cache.write(&[CacheWrite::Delete { name: "log" }]).await?;
                    state.above = None;
                }
            }
            _ => state.above = Some((above, Instant::now())),
        }
        Ok(false)
    }

    /// The changes after a revision, from memory or else from the database; none if neither has them.
    async fn changes_after(&self, revision: u64) -> Vec<LoggedChange> {
        let recent = self.parts.recent().after(revision);
        if let Some(changes) = recent.filter(|changes| !changes.is_empty()) {
            return changes;
        }
        let mut changes: Vec<LoggedChange> = Vec::new();
        let mut after = revision;
        while after < self.head.revision && changes.len() < LOG_LENGTH {
            match self.database.changes_since(after, CHANGES_PER_READ).await {
                Ok(found) if !found.is_empty() => {
                    after = found.last().map_or(after, |change| change.revision);
                    changes.extend(found);
                }
                _ => break,
            }
        }
        changes
    }

    fn log_id(&self, change: &LoggedChange) -> LogId {
        LogId {
            epoch: self.head.epoch,
            revision: change.revision,
        }
    }

    /// Verifies that the latest snapshot and the log lead to the head, and writes a snapshot at the head if they do not, or if it is old.
    async fn keep_whole(&self, state: &mut RefillState, ttl: Duration) -> Result<(), RefillError> {
        // What was whole and has grown since is checked again after a while, and not with each change.
        let is_verified = state.verified.as_ref().is_some_and(|(head, at)| {
            let is_same_history = head.database_id == self.head.database_id && head.epoch == self.head.epoch;
            is_same_history && head.revision <= self.head.revision && at.elapsed() < VERIFY_INTERVAL
        });
        if is_verified {
            return Ok(());
        }
        if !self.has_recent_snapshot(state, ttl).await?
            && let Some(name) = self.write_snapshot(ttl).await?
        {
            // What cannot be read is written again by the next round.
            if !self.renew(&name, &mut state.whole_rows, ttl).await? {
                return Err(unreadable(&name));
            }
        }
        state.verified = Some((self.head.clone(), Instant::now()));
        Ok(())
    }

    /// True if the latest snapshot is there, and a log that is not long leads from it to the head.
    async fn has_recent_snapshot(&self, state: &mut RefillState, ttl: Duration) -> Result<bool, RefillError> {
        let Some(revision) = self.reader.snapshots(&self.head).await?.into_iter().next() else {
            return Ok(false);
        };
        let Some(manifest) = self.reader.manifest(revision).await? else {
            return Ok(false);
        };
        let ManifestKind::Rows { head: at, .. } = &manifest.kind else {
            return Ok(false);
        };
        if at.database_id != self.head.database_id || at.epoch != self.head.epoch {
            return Ok(false);
        }
        let entries = self.reader.entries(&self.head, at.revision).await?;
        let length: usize = entries.iter().map(|entry| entry.body.len()).sum();
        let is_long = entries.len() >= SNAPSHOT_REVISIONS || length >= SNAPSHOT_LOG_BYTES;
        let head = (self.head.revision, self.head.chain);
        let is_whole = !is_long && leads_to((at.revision, at.chain), &entries, head);
        if !is_whole || !self.renew(&manifest.kind.name(), &mut state.whole_rows, ttl).await? {
            return Ok(false);
        }
        for name in [SNAPSHOTS, "log"] {
            self.reader.cache.write(&[CacheWrite::Touch { name, ttl }]).await?;
        }
        Ok(true)
    }

    /// Writes a snapshot of what is applied now, at the head or above it, and returns its name; none: the database is another one by now.
    async fn write_snapshot(&self, ttl: Duration) -> Result<Option<String>, RefillError> {
        // Rows and position change under this lock only.
        let (live, rows, attributes) = {
            let _loader = self.parts.loader.lock().await;
            let (rows, attributes) = self.parts.tables.all();
            (self.parts.live.load_full(), rows, attributes)
        };
        let head = live.head.clone().filter(|head| is_ours(self.parts, head));
        let Some(head) = head else { return Ok(None) };
        let snapshot = RowSnapshot {
            head: head.clone(),
            set: head_set(&live, &head, self.database).await.unwrap_or_default(),
            set_revision: live.set_revision,
            rows,
            attributes,
        };
        let encoded = tokio::task::spawn_blocking(move || snapshot.encode()).await;
        let (manifest, cut) = encoded.map_err(|error| RefillError::Halted(error.to_string()))?;
        self.reader.write_parts(&manifest, &cut, ttl).await?;
        let value = self.reader.cache.read(&[SNAPSHOTS]).await?.pop().flatten();
        let list = value.and_then(|value| SnapshotList::parse(&value, &self.reader.signer));
        let (list, dropped) = list.unwrap_or_default().with(head.epoch, head.revision);
        self.reader
            .put(SNAPSHOTS, &list.encode(&self.reader.signer), ttl)
            .await?;
        for revision in dropped {
            self.delete_snapshot(revision).await?;
        }
        tracing::debug!(
            revision = head.revision,
            "wrote a snapshot of override rows to the config cache"
        );
        Ok(Some(manifest.kind.name()))
    }

    async fn delete_snapshot(&self, revision: u64) -> Result<(), RefillError> {
        let Some(manifest) = self.reader.manifest(revision).await? else {
            return Ok(());
        };
        let mut names = manifest.part_names();
        names.insert(0, manifest.kind.name());
        for names in names.chunks(TOUCHED_MAX) {
            let writes: Vec<CacheWrite<'_>> = names.iter().map(|name| CacheWrite::Delete { name }).collect();
            self.reader.cache.write(&writes).await?;
        }
        Ok(())
    }

    async fn write_head(&self, ttl: Duration) -> Result<(), RefillError> {
        let head = CacheHead {
            head: self.head.clone(),
            set: self.set,
            issued: now_ms(),
        };
        self.reader.put(HEAD, &head.encode(&self.reader.signer), ttl).await?;
        Ok(())
    }
}

impl CacheReader {
    /// Writes a set of this format: its parts, then its manifest.
    ///
    /// # Errors
    /// The cache does not answer.
    pub async fn write_set(&self, files: &[SetFile], format: u32, ttl: Duration) -> Result<(), CacheError> {
        let (manifest, parts) = encode_set(files, format);
        self.write_parts(&manifest, &parts, ttl).await
    }

    async fn put(&self, name: &str, value: &str, ttl: Duration) -> Result<(), CacheError> {
        let value = value.as_bytes();
        self.cache
            .write(&[CacheWrite::Set { name, value, ttl }])
            .await
            .map(drop)
    }

    pub(super) async fn write_parts(
        &self,
        manifest: &Manifest,
        parts: &[Vec<u8>],
        ttl: Duration,
    ) -> Result<(), CacheError> {
        let named: Vec<(String, &Vec<u8>)> = (0..).map(|index| manifest.part_name(index)).zip(parts).collect();
        for named in named.chunks(PARTS_PER_WRITE) {
            let writes: Vec<CacheWrite<'_>> = named
                .iter()
                .map(|(name, value)| CacheWrite::Set { name, value, ttl })
                .collect();
            self.cache.write(&writes).await?;
        }
        self.put(&manifest.kind.name(), &manifest.encode(&self.signer), ttl)
            .await
    }
}

impl From<CacheError> for RefillError {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

impl From<FetchError> for RefillError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Cache(error) => Self::Cache(error),
            error => Self::Halted(error.to_string()),
        }
    }
}

impl RefillError {
    fn text(&self) -> String {
        match self {
            Self::Cache(error) => error.to_string(),
            Self::Halted(text) => text.clone(),
        }
    }
}

/// The error for a value that was written and is not there as it was written.
fn unreadable(name: &str) -> RefillError {
    RefillError::Halted(format!("{name} was written and cannot be read; trying again"))
}

const REFILL_INTERVAL: Duration = Duration::from_secs(1);
const REISSUE_INTERVAL: Duration = Duration::from_secs(20);
const VERIFY_INTERVAL: Duration = Duration::from_secs(10);
const FOREIGN_LOG_WAIT: Duration = Duration::from_secs(5);
const LEASE_MS: u64 = 5_000;
/// The length of the log, about.
const LOG_LENGTH: usize = 20_000;
/// The revisions between two snapshots, and the bytes of their changes: each check of the cache reads them again.
const SNAPSHOT_REVISIONS: usize = 5_000;
const SNAPSHOT_LOG_BYTES: usize = 4 << 20;
const CHANGES_PER_READ: usize = 5_000;
const APPENDED_MAX: usize = 100;
const TOUCHED_MAX: usize = 200;
const PARTS_PER_WRITE: usize = 4;
