//! The arguments and results of the database's calls.

use crate::control::model::{
    Author, ChangeBody, DatabaseHead, Digest, LoggedChange, OverrideRow, Precondition, SetFile, SubjectAttribute,
    SubjectValues, VersionMeta, VersionState,
};
use crate::control::state::RejectedRow;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Changes that are committed in one transaction or not at all.
///
/// One change has one revision. Several rows and attributes of one request are merged into [`ChangeBody::Batch`], 500 to a
/// revision. A change that changes nothing, such as a row with equal content, gets no revision.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// The author, for the audit log.
    pub author: Author,
    /// The conditions, checked while the head is locked. All must hold.
    pub conditions: Vec<ItemCondition>,
    /// The changes, in order: [`ChangeBody::Row`], [`ChangeBody::Attribute`] or [`ChangeBody::Publish`].
    pub changes: Vec<ChangeBody>,
    /// The rules that a publish changes, for their history.
    pub rules: Vec<RuleChange>,
    /// The check of rows that are written until the head is locked; none for a request that fits any rows.
    pub row_check: Option<RowCheck>,
    /// The action in the audit log; none: `publish`, `rollback`, `row.set`, `row.delete`, `attribute.set`, `attribute.delete`,
    /// `import`.
    pub action: Option<String>,
}

/// The check of rows that were written after those that the changes of a request were made for. It runs while the head is locked, and only
/// if there are such rows.
#[derive(Clone)]
pub struct RowCheck {
    /// The revision of the rows that the changes were made for.
    pub since: u64,
    /// Returns the changes to be committed, given the rows written since.
    pub judge: Arc<RowJudge>,
}

/// Returns the changes to be committed in place of those of the request, or the rows for which it must be refused.
pub type RowJudge = dyn Fn(&[ChangeBody]) -> Result<Vec<ChangeBody>, Vec<RejectedRow>> + Send + Sync;

/// A condition of a commit on one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemCondition {
    /// The item.
    pub item: ItemKey,
    /// Its required state.
    pub precondition: Precondition,
}

/// An item with a revision of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemKey {
    /// The live set: changed by a publish.
    Set,
    /// A rule of the managed layer.
    Rule {
        /// Its domain.
        domain: String,
        /// Its id.
        rule: String,
    },
    /// An override row.
    Row(RowKey),
    /// A subject attribute.
    Attribute(AttributeKey),
}

/// The key of an override row; lists continue after one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowKey {
    /// The domain of its rule.
    pub domain: String,
    /// The id of its rule.
    pub rule: String,
    /// Its subject.
    pub subject: SubjectValues,
}

/// The key of a subject attribute; lists continue after one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttributeKey {
    /// The attribute that names the subject.
    pub source: String,
    /// The subject.
    pub subject: String,
    /// The attribute.
    pub name: String,
}

/// A change of one rule by a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// The domain of the rule.
    pub domain: String,
    /// Its id.
    pub rule: String,
    /// `added`, `changed` or `removed`.
    pub kind: String,
    /// The file it is in.
    pub path: String,
    /// Its first line in the file, from 1; 0: removed.
    pub line: u64,
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The head after it.
    pub head: DatabaseHead,
    /// The last revision of the commit; where nothing changed, the revision that last changed the item.
    pub revision: u64,
    /// The changes as they are in the log; empty if nothing changed.
    pub changes: Vec<LoggedChange>,
}

/// The adoption of a database whose history is another one than that of its instances.
#[derive(Clone, Debug)]
pub struct AdoptRequest {
    /// The author, for the audit log.
    pub author: Author,
    /// The new id, from [`Database::new_id`](super::Database::new_id).
    pub database_id: String,
    /// The id that the database has now, so that of two adoptions one is done; none: any.
    pub replaces: Option<String>,
    /// The highest numbers of the cache, the statuses and the memory of all instances.
    pub seen: SeenNumbers,
}

/// The highest numbers that were seen anywhere; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenNumbers {
    /// The epoch.
    pub epoch: u64,
    /// The revision, of any epoch.
    pub revision: u64,
    /// The version.
    pub version: u64,
}

/// A version to be saved.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// The version it was made from; 0: none.
    pub parent: u64,
    /// The grammar level that is needed to read it.
    pub format: u32,
    /// Its first state.
    pub state: VersionState,
    /// `api`, `push` or `rollback`, with a commit if one was given.
    pub source: String,
    /// Its files. At most 16 MiB of text, each path once.
    pub files: Vec<SetFile>,
}

/// One consistent read of everything an instance serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSnapshot {
    /// The head.
    pub head: DatabaseHead,
    /// The live version; none: nothing was published yet.
    pub version: Option<VersionMeta>,
    /// The revision of the last publish; 0: none.
    pub set_revision: u64,
    /// The files of the live version.
    pub files: Vec<SetFile>,
    /// All rows, by key.
    pub rows: Vec<OverrideRow>,
    /// All attributes, by key.
    pub attributes: Vec<SubjectAttribute>,
}

/// A filter of rows. Empty members do not filter.
#[derive(Clone, Debug, Default)]
pub struct RowFilter {
    /// The domains; empty: all.
    pub domains: Vec<String>,
    /// The id of a rule.
    pub rule: Option<String>,
    /// A text in the subject or the note, without regard to case.
    pub text: Option<String>,
    /// Unix time in milliseconds: rows that expire before it.
    pub expires_before: Option<u64>,
}

/// A filter of subject attributes. Empty members do not filter.
#[derive(Clone, Debug, Default)]
pub struct AttributeFilter {
    /// The attribute that names the subject.
    pub source: Option<String>,
    /// The subject.
    pub subject: Option<String>,
    /// A text in the subject or the value, without regard to case.
    pub text: Option<String>,
}

/// A filter of the audit log. Empty members do not filter.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// The name of a principal.
    pub actor: Option<String>,
    /// An action; with a trailing `.`, all that begin so.
    pub action: Option<String>,
    /// The beginning of a target. The target of a row is `domain/rule {"merchant":"m_42"}`.
    pub target: Option<String>,
    /// The revision it led to.
    pub revision: Option<u64>,
    /// Unix time in milliseconds: from then on.
    pub since: Option<u64>,
    /// Unix time in milliseconds: before then.
    pub until: Option<u64>,
}

/// One entry of a rule's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleHistoryEntry {
    /// The revision of the publish.
    pub revision: u64,
    /// `added`, `changed` or `removed`.
    pub kind: String,
    /// The file it was in.
    pub path: String,
    /// Its first line in the file.
    pub line: u64,
    /// Unix time in milliseconds.
    pub at: u64,
    /// The principal that published it.
    pub actor: String,
    /// The reason that was given.
    pub reason: String,
}

/// An event for the audit log without a revision: a login, an export, a forgotten subject.
#[derive(Clone, Debug, Default)]
pub struct AuditRecord {
    /// The author.
    pub author: Author,
    /// The action.
    pub action: String,
    /// The object of the action.
    pub target: String,
    /// The state before, as JSON text; may be empty.
    pub before: String,
    /// The state after, as JSON text; may be empty.
    pub after: String,
}

/// The result of an audit verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// The number of entries that were read.
    pub entries: u64,
    /// The sequence number of the last one; 0: none.
    pub last: u64,
    /// The hash at the end of the chain.
    pub end: Digest,
    /// The first finding; none: the chain is whole.
    pub problem: Option<AuditProblem>,
}

/// A finding of an audit verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditProblem {
    /// The sequence number of the entry; 0: the log as a whole.
    pub seq: u64,
    /// The finding.
    pub text: String,
}

/// A response that was given to a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// The identity of a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The id of the principal.
    pub principal: String,
    /// The SHA-256 of the key.
    pub key_hash: Digest,
    /// The SHA-256 of the request.
    pub request_digest: Digest,
}

/// The report of one instance, for fleets without a shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceReport {
    /// The id of the instance.
    pub id: String,
    /// Its status, as JSON text.
    pub status: String,
    /// Unix time in milliseconds of the report, by the clock of the database.
    pub seen_at: u64,
}

/// The retention of what is not kept for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The age of audit entries in milliseconds.
    pub audit_ms: u64,
    /// The number of versions. The live one and its parent are always kept.
    pub versions: u64,
}

impl fmt::Debug for RowCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowCheck")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl NewVersion {
    /// The bytes of text in its files.
    pub(super) fn text_bytes(&self) -> usize {
        self.files.iter().map(|file| file.text.len()).sum()
    }
}

impl AuditReport {
    /// True if nothing was found.
    pub const fn is_intact(&self) -> bool {
        self.problem.is_none()
    }
}
