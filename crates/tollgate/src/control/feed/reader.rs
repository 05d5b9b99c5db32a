//! Reads of the cache by a follower: the head, and everything that leads from the applied position to it.

use super::Signer;
use super::head::{CacheHead, HEAD};
use super::log::{LogText, Replay, proves_fork, replay};
use super::parts::{Manifest, ManifestKind, set_name};
use super::set::decode_set;
use super::snapshot::{RowSnapshot, SNAPSHOTS, SnapshotList};
use crate::control::model::{DatabaseHead, Digest, LoggedChange, SetFile};
use std::fmt;
use tollgate_limiter::store::redis::{CacheError, ConfigCache, LogId};

/// The cache, and the signer of its values. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CacheReader {
    pub(super) cache: ConfigCache,
    pub(super) signer: Signer,
}

/// The way to a head.
#[derive(Debug)]
pub struct Fetched {
    /// The state that replaces everything first; none: the changes extend the applied state.
    pub snapshot: Option<RowSnapshot>,
    /// The changes after it, verified.
    pub changes: Vec<LoggedChange>,
    /// The revision of a change of an unknown kind, which ends the changes.
    pub needs_newer: Option<u64>,
}

/// The reason why the way to a head is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The cache does not answer, or rejects the call.
    Cache(CacheError),
    /// It lacks something, or has something else in its place: the control service writes it again.
    Incomplete(String),
    /// The head belongs to another history than the applied one.
    Forked(String),
    /// The set is of a format that this instance does not read.
    NewerFormat(u32),
}

/// The state of the key of the head.
#[derive(Debug)]
pub struct HeadRead {
    /// The head; none: the key is absent.
    pub head: Option<CacheHead>,
    /// True if a database has claimed the fleet.
    pub is_claimed: bool,
}

impl CacheReader {
    /// A reader of this cache, whose values this signer signs.
    pub const fn with_signer(cache: ConfigCache, signer: Signer) -> Self {
        Self { cache, signer }
    }

    /// The cache.
    pub const fn cache(&self) -> &ConfigCache {
        &self.cache
    }

    /// The signer of its values.
    pub const fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Reads the head.
    ///
    /// # Errors
    /// The cache does not answer, or its head is not one of this fleet.
    pub async fn head(&self) -> Result<HeadRead, FetchError> {
        let mut values = self.cache.read(&[HEAD, super::claim::CLAIM]).await?.into_iter();
        let (head, claim) = (values.next().flatten(), values.next().flatten());
        let parsed = head.map(|value| CacheHead::parse(&value, &self.signer)).transpose();
        Ok(HeadRead {
            head: parsed.map_err(FetchError::Incomplete)?,
            is_claimed: claim.is_some(),
        })
    }

    /// Fetches the way from the applied position to a head that was accepted. Without `applied` the head replaces everything.
    ///
    /// # Errors
    /// The cache does not have it, or it proves another history.
    pub async fn fetch(&self, head: &DatabaseHead, applied: Option<&DatabaseHead>) -> Result<Fetched, FetchError> {
        let to = (head.revision, head.chain);
        if let Some(applied) = applied {
            let from = (applied.revision, applied.chain);
            // With the change at the applied position, which shows another history.
            let entries = self.entries(head, applied.revision.saturating_sub(1)).await?;
            match replay(from, &entries, to) {
                Replay::Reached(changes) => return Ok(Fetched::changes(changes, None)),
                Replay::NeedsNewer { known, revision } => return Ok(Fetched::changes(known, Some(revision))),
                Replay::Gap | Replay::OtherChain if proves_fork(from, &entries, to) => {
                    return Err(forked(applied.revision));
                }
                Replay::Gap | Replay::OtherChain => {}
            }
        }
        self.fetch_snapshot(head, applied).await
    }

    /// The latest snapshot that the log leads from to the head.
    async fn fetch_snapshot(&self, head: &DatabaseHead, applied: Option<&DatabaseHead>) -> Result<Fetched, FetchError> {
        let to = (head.revision, head.chain);
        for revision in self.snapshots(head).await? {
            let Some(manifest) = self.manifest(revision).await? else {
                continue;
            };
            let ManifestKind::Rows { head: at, .. } = &manifest.kind else {
                continue;
            };
            if (&at.database_id, at.epoch) != (&head.database_id, head.epoch) || at.revision > head.revision {
                continue;
            }
            let from = (at.revision, at.chain);
            let entries = self.entries(head, at.revision).await?;
            let (changes, needs_newer) = match replay(from, &entries, to) {
                Replay::Reached(changes) => (changes, None),
                Replay::NeedsNewer { known, revision } => (known, Some(revision)),
                Replay::Gap | Replay::OtherChain => continue,
            };
            if let Some(applied) = applied {
                let passed = std::iter::once(from).chain(changes.iter().map(|change| (change.revision, change.chain)));
                let mut passed = passed.filter(|(revision, _)| *revision == applied.revision);
                if passed.any(|(_, chain)| chain != applied.chain) {
                    return Err(forked(applied.revision));
                }
            }
            let parts = self.parts(&manifest).await?;
            let snapshot = RowSnapshot::decode(&manifest, &parts).map_err(FetchError::Incomplete)?;
            return Ok(Fetched {
                snapshot: Some(snapshot),
                changes,
                needs_newer,
            });
        }
        Err(FetchError::Incomplete(format!(
            "the cache does not lead to revision {}; waiting for the control service",
            head.revision
        )))
    }

    /// Fetches the files of a digest, of a format up to the newest that is read.
    ///
    /// # Errors
    /// The cache does not have them, or they have a newer format.
    pub async fn set(&self, set: &Digest, formats: u32) -> Result<Vec<SetFile>, FetchError> {
        let name = set_name(set);
        let value = self.cache.read(&[&name]).await?.pop().flatten();
        let Some(value) = value else {
            let text = format!("the cache lacks {name}; waiting for the control service");
            return Err(FetchError::Incomplete(text));
        };
        let manifest = Manifest::parse(&name, &value, &self.signer).map_err(FetchError::Incomplete)?;
        match manifest.kind {
            ManifestKind::Set { format, .. } if format > formats => return Err(FetchError::NewerFormat(format)),
            _ => {}
        }
        let parts = self.parts(&manifest).await?;
        decode_set(set, &value, &parts, &self.signer).map_err(FetchError::Incomplete)
    }

    /// The revisions of snapshots of a head's epoch that are not above it, the latest first.
    pub(super) async fn snapshots(&self, head: &DatabaseHead) -> Result<Vec<u64>, FetchError> {
        let value = self.cache.read(&[SNAPSHOTS]).await?.pop().flatten();
        let list = value.and_then(|value| SnapshotList::parse(&value, &self.signer));
        let list = list.filter(|list| list.epoch == head.epoch).unwrap_or_default();
        let revisions = list.revisions.into_iter().filter(|revision| *revision <= head.revision);
        Ok(revisions.collect())
    }

    /// The manifest of a snapshot; none if it is not there, or not one of this fleet.
    pub(super) async fn manifest(&self, revision: u64) -> Result<Option<Manifest>, FetchError> {
        let name = format!("{SNAPSHOTS}:{revision}");
        let value = self.cache.read(&[&name]).await?.pop().flatten();
        Ok(value.and_then(|value| Manifest::parse(&name, &value, &self.signer).ok()))
    }

    /// The parts of a manifest, as they are there.
    pub(super) async fn parts(&self, manifest: &Manifest) -> Result<Vec<Vec<u8>>, FetchError> {
        let names = manifest.part_names();
        let mut parts = Vec::new();
        for names in names.chunks(PARTS_PER_READ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for (name, part) in names.iter().zip(self.cache.read(&names).await?) {
                let lacks =
                    || FetchError::Incomplete(format!("the cache lacks {name}; waiting for the control service"));
                parts.push(part.ok_or_else(lacks)?);
            }
        }
        Ok(parts)
    }

    /// The entries of the log after a revision of the head's epoch, up to the head.
    pub(super) async fn entries(&self, head: &DatabaseHead, after: u64) -> Result<Vec<LogText>, FetchError> {
        let mut entries: Vec<LogText> = Vec::new();
        let mut last = LogId {
            epoch: head.epoch,
            revision: after,
        };
        let mut bytes = 0;
        while last.revision < head.revision {
            let found = self.cache.log_after(last, ENTRIES_PER_READ).await?;
            let Some(end) = found.last() else { break };
            last = end.id;
            for entry in found {
                if entry.id.epoch != head.epoch || entry.id.revision > head.revision {
                    return Ok(entries);
                }
                bytes += entry.value.len();
                if entries.len() >= ENTRIES_MAX || bytes > ENTRY_BYTES_MAX {
                    return Err(FetchError::Incomplete("the log of the cache is too long".to_owned()));
                }
                let Some(text) = LogText::parse(entry.id.revision, &entry.value) else {
                    // The chain cannot be continued over it.
                    return Ok(entries);
                };
                entries.push(text);
            }
        }
        Ok(entries)
    }
}

impl Fetched {
    const fn changes(changes: Vec<LoggedChange>, needs_newer: Option<u64>) -> Self {
        Self {
            snapshot: None,
            changes,
            needs_newer,
        }
    }
}

impl From<CacheError> for FetchError {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

impl FetchError {
    /// The error as one of the cache.
    pub fn into_cache_error(self) -> CacheError {
        match self {
            Self::Cache(error) => error,
            Self::Incomplete(text) | Self::Forked(text) => CacheError::Invalid(text),
            Self::NewerFormat(_) => CacheError::Invalid(self.to_string()),
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(error) => error.fmt(f),
            Self::Incomplete(text) | Self::Forked(text) => f.write_str(text),
            Self::NewerFormat(format) => write!(f, "rules of format {format} need a newer version of tollgate"),
        }
    }
}

fn forked(revision: u64) -> FetchError {
    FetchError::Forked(format!("the cache has another chain at revision {revision}"))
}

/// 2 MiB in one reply.
const PARTS_PER_READ: usize = 8;
const ENTRIES_PER_READ: usize = 2_000;
/// More than the log keeps.
const ENTRIES_MAX: usize = 50_000;
const ENTRY_BYTES_MAX: usize = 128 << 20;
