//! The state that an instance has applied, and its status.

use super::model::{DatabaseHead, Digest, SetFile, SubjectValues};
use crate::rule_source::ManagedFiles;
use serde::Serialize;
use std::sync::Arc;
use tokio::time::Instant;

/// The managed state that the active rules were made of. Rows and attributes are read by [`Control`](super::Control).
#[derive(Clone, Debug)]
pub struct LiveState {
    /// The position of the database; none: no managed state exists.
    pub head: Option<DatabaseHead>,
    /// The digest of the files of the head's version; zero without a version, or if it is not known.
    pub head_set: Digest,
    /// The revision of the last publish; 0: none.
    pub set_revision: u64,
    /// The version in use; 0: none. Another one than that of the head if that cannot be used here.
    pub version: u64,
    /// The files of the version in use.
    pub files: Arc<[SetFile]>,
    /// The digest of these files; zero without a version.
    pub set_digest: Digest,
    /// The digest of all layers, rows, attributes and `derive`.
    pub digest: Digest,
    /// The origin of the managed state.
    pub source: RulesOrigin,
    /// The time at which it was applied.
    pub since: Instant,
}

/// The origin of the active rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RulesOrigin {
    /// Settings and files only.
    #[default]
    File,
    /// The cache in the shared store, as well.
    Cache,
    /// The database, as well.
    Database,
    /// The last state that was saved on disk, as well.
    Disk,
}

/// The layer of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleLayer {
    /// Built in.
    Quickstart,
    /// Settings and files of this instance.
    File,
    /// The live version.
    Managed,
}

/// A row that the active rules cannot use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RejectedRow {
    /// The domain of its rule.
    pub domain: String,
    /// The id of its rule.
    pub rule: String,
    /// Its subject.
    pub subject: SubjectValues,
    /// Its terms.
    pub terms: String,
    /// The reason.
    pub text: String,
}

/// The text of one rule, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// Its layer.
    pub layer: RuleLayer,
    /// The path of its file.
    pub path: String,
    /// The line it starts at.
    pub line: u32,
    /// The rule as a mapping, without `- `; none for rules of descriptors.
    pub yaml: Option<String>,
    /// The revision that last changed it; that of the last publish if no change of it is recorded, 0 in the file layer.
    pub revision: u64,
}

/// The status of the control plane of this instance.
#[derive(Clone, Debug, Serialize)]
pub struct ControlStatus {
    /// The id of this instance, random per start.
    pub instance: String,
    /// The epoch; 0: none.
    pub epoch: u64,
    /// The revision that is applied.
    pub revision: u64,
    /// The version that is applied; 0: none.
    pub version: u64,
    /// The revision of the last publish: the tag of the set.
    pub set_revision: u64,
    /// The chain at the revision.
    pub chain: Digest,
    /// The digest of all layers.
    pub digest: Digest,
    /// The origin of the managed state.
    pub source: RulesOrigin,
    /// The age of the applied state.
    pub age_seconds: u64,
    /// The database.
    pub database: DatabaseStatus,
    /// `both` or `git`.
    pub edits: &'static str,
    /// The number of rules by layer.
    pub rules: RuleCounts,
    /// The number of override rows.
    pub override_rows: usize,
    /// Rows whose rule does not exist.
    pub orphan_rows: usize,
    /// The number of subject attributes.
    pub attributes: usize,
    /// Rows that the active rules cannot use, at most 100.
    pub rejected_rows: Vec<RejectedRow>,
    /// The number of such rows.
    pub rejected_count: usize,
    /// The reason why the newest state is not applied.
    pub error: Option<String>,
    /// True while the database or the cache has another history than the one applied.
    pub forked: bool,
    /// The reason why the database is behind what was applied or seen; none: it is not.
    pub regressed: Option<String>,
    /// The cache; none: no shared store.
    pub cache: Option<CacheStatus>,
}

/// The status of the cache.
#[derive(Clone, Debug, Serialize)]
pub struct CacheStatus {
    /// False while the last call failed.
    pub up: bool,
    /// False without `control.secret`: write access to the store is write access to rules then.
    pub signed: bool,
    /// The epoch of its newest head; 0: none.
    pub epoch: u64,
    /// The revision of its newest head; 0: none.
    pub revision: u64,
}

/// The status of the database.
#[derive(Clone, Debug, Serialize)]
pub struct DatabaseStatus {
    /// `sqlite`, `postgres` or `none`.
    pub kind: &'static str,
    /// False while the last call failed.
    pub up: bool,
    /// Its id; none: nothing written yet.
    pub id: Option<String>,
}

/// Numbers of rules.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RuleCounts {
    /// Of the live version.
    pub managed: usize,
    /// Of settings and files, or built in.
    pub file: usize,
    /// All.
    pub total: usize,
}

impl LiveState {
    /// A state without managed rules.
    pub(super) fn empty() -> Self {
        Self {
            head: None,
            head_set: Digest::default(),
            set_revision: 0,
            version: 0,
            files: Arc::new([]),
            set_digest: Digest::default(),
            digest: Digest::default(),
            source: RulesOrigin::File,
            since: Instant::now(),
        }
    }

    /// The managed layer; none: no version is in use.
    pub(super) fn managed(&self) -> ManagedFiles {
        (self.version > 0).then(|| Arc::clone(&self.files))
    }

    /// The epoch; 0: no managed state exists.
    pub fn epoch(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.epoch)
    }

    /// The revision that is applied; 0: none.
    pub fn revision(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.revision)
    }
}

impl RulesOrigin {
    /// The name in metrics and on `/readyz`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Cache => "cache",
            Self::Database => "database",
            Self::Disk => "disk",
        }
    }
}
