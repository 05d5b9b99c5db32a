//! The right to write: of several databases of one fleet, one is written, and only while it has everything that was acknowledged.

use super::claim::{Claim, ClaimState};
use super::reader::CacheReader;
use crate::control::database::{AdoptRequest, Committed, Database, DatabaseError, SeenNumbers};
use crate::control::layers::ControlParts;
use crate::control::model::{Author, DatabaseHead};
use crate::control::{ControlError, ControlResult, fleet};
use crate::data_dir::LockError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate_limiter::store::redis::CacheError;

/// Positions that were acknowledged.
struct Known {
    applied: Option<DatabaseHead>,
    /// The highest head of the cache.
    seen: Option<DatabaseHead>,
    /// The highest epoch and revision of live instances.
    reported: (u64, u64),
}

impl ControlParts {
    /// The database for a write: locked for this process if it is a file, claimed for this fleet, and not behind.
    ///
    /// # Errors
    /// No database, another one is in use, or it lacks acknowledged changes.
    pub(in crate::control) async fn writable(self: &Arc<Self>) -> ControlResult<&Database> {
        let database = self.database.as_ref().ok_or(ControlError::NoDatabase)?;
        self.lock_file(database).await?;
        // Before the database is asked: what is applied or seen later may be younger than its answer.
        let known = self.known();
        match database.head().await? {
            Some(head) => {
                self.check_database(&head, &known)?;
                self.check_claim(&head).await?;
            }
            None => self.claim_new(database).await?,
        }
        Ok(database)
    }

    /// Locks the data directory, if the database is a file in it.
    async fn lock_file(self: &Arc<Self>, database: &Database) -> ControlResult<()> {
        if database.kind() != "sqlite" || self.is_disk_acquired.load(Ordering::Acquire) {
            return Ok(());
        }
        let parts = Arc::clone(self);
        let acquired = tokio::task::spawn_blocking(move || parts.disk().acquire()).await;
        match acquired {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ LockError::InUse(..))) => Err(ControlError::OtherDatabase(error.to_string())),
            Ok(Err(error @ LockError::Io(..))) => Err(ControlError::Unavailable(error.to_string())),
            Err(error) => Err(ControlError::Unavailable(error.to_string())),
        }
    }

    /// The positions that the database must have reached by now.
    fn known(&self) -> Known {
        let applied = self.live.load().head.clone();
        let health = self.health();
        Known {
            applied,
            seen: health.seen.as_ref().map(|seen| seen.head.clone()),
            reported: health.reported,
        }
    }

    /// Compares the database with what was applied here and seen in the cache before it was asked.
    fn check_database(&self, head: &DatabaseHead, known: &Known) -> ControlResult<()> {
        {
            let mut health = self.health();
            health.database_id = Some(head.database_id.clone());
            if let Some((_, text)) = &health.forked {
                return Err(regressed(text));
            }
        }
        for other in [known.applied.as_ref(), known.seen.as_ref()].into_iter().flatten() {
            if other.database_id != head.database_id {
                if other.epoch >= head.epoch {
                    return Err(other_database(other));
                }
                continue;
            }
            let is_other_chain =
                (other.epoch, other.revision) == (head.epoch, head.revision) && other.chain != head.chain;
            if is_other_chain || (other.epoch, other.revision) > (head.epoch, head.revision) {
                return Err(self.note_regressed(head, (other.epoch, other.revision)));
            }
        }
        if known.reported > (head.epoch, head.revision) {
            return Err(self.note_regressed(head, known.reported));
        }
        self.health().regressed = None;
        Ok(())
    }

    fn note_regressed(&self, head: &DatabaseHead, seen: (u64, u64)) -> ControlError {
        let text = format!(
            "it is at epoch {} revision {}, and epoch {} revision {} was applied or seen",
            head.epoch, head.revision, seen.0, seen.1
        );
        if self.health().regressed.replace(text.clone()).is_none() {
            tracing::error!(
                reason = text,
                "control_regressed: the database is behind; run `tollgate control adopt`"
            );
        }
        regressed(&text)
    }

    /// Checks the claim of a database that exists. It is written while the cache is away, too: rows and rollbacks work then.
    async fn check_claim(&self, head: &DatabaseHead) -> ControlResult<()> {
        let Some(reader) = self.reader() else { return Ok(()) };
        if !self.health().is_cache_up {
            return Ok(());
        }
        match reader
            .claim(&self.claim_of(&head.database_id), self.options.cache_ttl)
            .await
        {
            Ok(ClaimState::Held) => {
                self.health().other_database = None;
                Ok(())
            }
            Ok(ClaimState::Other(other)) => Err(claimed_by(&other)),
            Err(error) => {
                tracing::debug!(%error, "the claim of the database cannot be checked; writing");
                Ok(())
            }
        }
    }

    /// Claims the fleet for a database that is about to be created.
    async fn claim_new(self: &Arc<Self>, database: &Database) -> ControlResult<()> {
        if let Some(head) = &self.live.load().head {
            // Even if the claim has lapsed: the one it follows may return.
            return Err(match self.cache.is_none() || database.kind() == "postgres" {
                true => regressed("it is empty, and rules of it are in use"),
                false => other_database(head),
            });
        }
        let Some(reader) = self.reader() else { return Ok(()) };
        let unchecked = |error: CacheError| {
            ControlError::Unavailable(format!(
                "another database may be in use, and the shared store cannot tell: {error}"
            ))
        };
        let read = reader
            .head()
            .await
            .map_err(|error| unchecked(error.into_cache_error()))?;
        if let Some(head) = read.head {
            return Err(other_database(&head.head));
        }
        let fleet = fleet::view(self).await;
        let mut statuses = fleet.instances.iter().map(|instance| &instance.status);
        if let Some(status) = statuses.find(|status| !status.database_id.is_empty()) {
            let id = &status.database_id;
            let text = format!("a live instance follows database {id}; send the change to its control service");
            return Err(ControlError::OtherDatabase(text));
        }
        let new = Database::new_id()?;
        // One id for all writes that arrive before it is created.
        let id = self.health().database_id.get_or_insert(new).clone();
        // Short, until the database exists: then it is renewed for as long as everything else.
        match reader
            .claim(&self.claim_of(&id), NEW_CLAIM_TTL)
            .await
            .map_err(unchecked)?
        {
            ClaimState::Held => {
                database.propose_id(id);
                Ok(())
            }
            ClaimState::Other(other) => Err(claimed_by(&other)),
        }
    }

    /// The claim of a database by this instance.
    pub(in crate::control) fn claim_of(&self, database_id: &str) -> Claim {
        Claim {
            database_id: database_id.to_owned(),
            owner: format!("instance-{}", self.instance),
        }
    }

    /// Makes the database of this instance the one that all follow, in a new epoch above everything that was seen.
    ///
    /// # Errors
    /// No database, or it or the cache does not answer.
    pub(in crate::control) async fn adopt(self: &Arc<Self>, author: Author) -> ControlResult<DatabaseHead> {
        let database = self.database.as_ref().ok_or(ControlError::NoDatabase)?;
        self.lock_file(database).await?;
        let before = database.head().await?;
        let reader = self.reader();
        let cached = match &reader {
            None => None,
            // A head that is not one of this fleet is none; one that cannot be read is a reason to wait.
            Some(reader) => match reader.head().await {
                Ok(read) => read.head.map(|head| head.head),
                Err(super::reader::FetchError::Cache(error)) => {
                    return Err(ControlError::Unavailable(format!(
                        "the shared store cannot be read: {error}"
                    )));
                }
                Err(_) => None,
            },
        };
        let live = self.live.load_full();
        let seen = self.health().seen.as_ref().map(|seen| seen.head.clone());
        let mut numbers = SeenNumbers::default();
        for head in [live.head.as_ref(), seen.as_ref(), cached.as_ref()]
            .into_iter()
            .flatten()
        {
            numbers.epoch = numbers.epoch.max(head.epoch);
            numbers.revision = numbers.revision.max(head.revision);
            numbers.version = numbers.version.max(head.live_version);
        }
        for instance in fleet::view(self).await.instances {
            numbers.epoch = numbers.epoch.max(instance.status.epoch);
            numbers.revision = numbers.revision.max(instance.status.revision);
            numbers.version = numbers.version.max(instance.status.version);
        }
        let id = Database::new_id()?;
        let request = AdoptRequest {
            author,
            database_id: id.clone(),
            replaces: before.map(|head| head.database_id),
            seen: numbers,
        };
        let committed = match &reader {
            None => database.adopt(request).await?,
            Some(reader) => self.adopt_claimed(database, reader, request).await?,
        };
        {
            let mut health = self.health();
            health.database_id = Some(id);
            (health.forked, health.regressed, health.other_database) = (None, None, None);
            (health.seen, health.reported) = (None, (0, 0));
        }
        tracing::info!(
            epoch = committed.head.epoch,
            revision = committed.head.revision,
            "the database was adopted; instances follow it now"
        );
        self.wake.notify_one();
        self.wait_applied(committed.revision, ADOPT_WAIT).await;
        Ok(committed.head)
    }
}

impl ControlParts {
    /// Adopts a database under a claim, so that of two clones of one backup one does it. Until the database has committed, the claim
    /// is for a moment only: without the commit nothing may follow it.
    async fn adopt_claimed(
        &self,
        database: &Database,
        reader: &CacheReader,
        request: AdoptRequest,
    ) -> ControlResult<Committed> {
        let claim = self.claim_of(&request.database_id);
        let moved = reader.move_claim(&claim, NEW_CLAIM_TTL).await;
        let before = moved.map_err(|error| ControlError::Unavailable(error.to_string()))?;
        let adopted = database.adopt(request).await;
        let settled = match &adopted {
            // If the cache does not answer, the control service renews it as soon as it does.
            Ok(_) => reader.claim(&claim, self.options.cache_ttl).await.map(drop),
            // It may have been committed all the same. If it was not, the claim lapses.
            Err(DatabaseError::Unavailable(_)) => Ok(()),
            Err(_) => {
                let ttl = self.options.cache_ttl;
                reader.restore_claim(&claim, before.as_deref(), ttl).await
            }
        };
        if let Err(error) = settled {
            tracing::warn!(%error, "the claim of the database cannot be written; it lapses within a minute, or is renewed");
        }
        Ok(adopted?)
    }
}

fn regressed(text: &str) -> ControlError {
    ControlError::Regressed(format!("{text}; nothing is written until `tollgate control adopt`"))
}

fn other_database(head: &DatabaseHead) -> ControlError {
    ControlError::OtherDatabase(format!(
        "this instance follows database {} (epoch {}, revision {}); send the change to its control service",
        head.database_id, head.epoch, head.revision
    ))
}

fn claimed_by(claim: &Claim) -> ControlError {
    ControlError::OtherDatabase(format!(
        "database {} of {} has claimed this fleet; send the change there",
        claim.database_id, claim.owner
    ))
}

/// The TTL of a claim for a database that is not there yet.
const NEW_CLAIM_TTL: Duration = Duration::from_secs(60);
const ADOPT_WAIT: Duration = Duration::from_secs(2);
