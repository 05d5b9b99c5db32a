//! The writes that [`Control`](crate::control::Control) takes, and their results.

use crate::control::SetProblem;
use crate::control::model::{Digest, Precondition, SetFile, SubjectValues};
use crate::control::plan::ChangePlan;
use serde::Serialize;
use std::time::Duration;

/// A row to be set, or to be deleted where there are no terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowWrite {
    /// The domain of its rule.
    pub domain: String,
    /// The id of its rule.
    pub rule: String,
    /// Its subject.
    pub subject: SubjectValues,
    /// Its terms; none: it is deleted.
    pub terms: Option<String>,
    /// A note for people.
    pub note: String,
    /// Unix time in milliseconds at which it is deleted; 0: never.
    pub expires_at: u64,
}

/// A subject attribute to be set, or to be deleted where there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeWrite {
    /// The attribute that names the subject.
    pub source: String,
    /// The subject.
    pub subject: String,
    /// The attribute.
    pub name: String,
    /// Its value; none: it is deleted.
    pub value: Option<String>,
}

/// Options of a write of one row or attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// The condition under which it is done.
    pub precondition: Precondition,
    /// True if a row may name a rule that does not exist.
    pub allow_orphan: bool,
    /// True if nothing is written.
    pub dry_run: bool,
}

/// The result of a write of rows or attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The epoch.
    pub epoch: u64,
    /// The last revision of the write; of the item as it is, if nothing changed.
    pub revision: u64,
    /// The number of rows or attributes that changed.
    pub changed: usize,
    /// The number of revisions it took.
    pub revisions: usize,
    /// True if a row or attribute did not exist before.
    pub created: bool,
}

/// The set that a publish makes live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishSet {
    /// A version that is stored already.
    Version(u64),
    /// Files, stored as a new version.
    Files(Vec<SetFile>),
}

/// Options of a publish, a rollback, or an edit of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishOptions {
    /// The condition: of the set for a publish and a rollback, of the rule for an edit of one.
    pub precondition: Precondition,
    /// `api`, `push`, `push <commit>`; a rollback says so itself.
    pub source: String,
    /// True if rows that do not fit the new rules are deleted in the same change.
    pub drop_rows: bool,
    /// True if `edits: git` is overridden by an admin.
    pub break_glass: bool,
    /// True if a push goes over changes that were not made by a push.
    pub force: bool,
    /// True if other instances need not have compiled the set.
    pub skip_prepare: bool,
    /// The digest that the files must have, from a plan.
    pub expect_digest: Option<Digest>,
    /// True if nothing is written.
    pub dry_run: bool,
    /// The longest wait until the set is applied.
    pub wait: Duration,
}

/// The result of a publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Published {
    /// The live version.
    pub version: u64,
    /// The revision that made it live.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// False if the set was equal to the live one.
    pub changed: bool,
    /// Instances that compiled it before.
    pub prepared: u32,
    /// The time that took.
    pub prepared_ms: u64,
    /// Instances that have applied it.
    pub applied: u32,
    /// The time from the commit until they had.
    pub applied_ms: u64,
    /// Instances that rejected it.
    pub rejected: u32,
    /// Instances that have not answered in time.
    pub silent: u32,
}

/// The plan of a set, with the live state it was made against.
#[derive(Clone, Debug)]
pub struct PlannedSet {
    /// The digest of the files.
    pub digest: Digest,
    /// The plan.
    pub plan: ChangePlan,
}

/// The result of a check of files.
#[derive(Clone, Debug, Default)]
pub struct CheckedSet {
    /// Errors and warnings.
    pub problems: Vec<SetProblem>,
    /// The number of rules, all layers included; 0 if there are errors.
    pub rules: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            precondition: Precondition::Any,
            allow_orphan: false,
            dry_run: false,
        }
    }
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            precondition: Precondition::Any,
            source: "api".to_owned(),
            drop_rows: false,
            break_glass: false,
            force: false,
            skip_prepare: false,
            expect_digest: None,
            dry_run: false,
            wait: Duration::from_secs(2),
        }
    }
}
